"""Lives of a node with heads, with a copy of metadata, and in doubt. Start at `copy_life`."""
