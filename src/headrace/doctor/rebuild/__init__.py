"""Rebuilds a shard without a snapshot. Start at `rebuild`."""
