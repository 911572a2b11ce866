"""The machine of partitions; pure. Start at `partitions_machine`."""
