"""Ranges of rows, feeds, consumer groups and leases. Start at `rows`."""
