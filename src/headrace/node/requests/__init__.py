"""From requests to proposals, and from results to replies. Start at `admission`."""
