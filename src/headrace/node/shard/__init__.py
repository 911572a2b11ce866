"""One shard as a machine: routing, reconciling, retention. Start at `shard`."""
