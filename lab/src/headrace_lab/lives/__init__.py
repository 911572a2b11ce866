"""Lives of a node with heads and with a copy of metadata. Start at `copy_life`."""
