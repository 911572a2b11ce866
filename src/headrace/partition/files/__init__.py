"""Carry files, linked journals, and which files a shard has. Start at `file_set`."""
