"""From rows to acknowledged batches. Start at `producer`."""
