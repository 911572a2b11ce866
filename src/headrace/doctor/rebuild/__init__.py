"""Rebuilds a shard that has no snapshot. Start at `rebuild`."""
