"""One shard: kills, power cuts, crash sweep, corruption matrix. Start at `script`."""
