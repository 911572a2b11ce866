"""Carry files, linked journals, and the files of a shard. Start at `file_set`."""
