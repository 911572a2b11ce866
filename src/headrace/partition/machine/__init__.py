"""The partitions machine, without I/O. Start at `partitions_machine`."""
