"""Kills and power cuts of a real process that owns a shard. Start at `kill`."""
