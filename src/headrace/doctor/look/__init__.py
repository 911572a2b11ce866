"""Groups, shards and segments, read in any condition. Start at `readonly`."""
