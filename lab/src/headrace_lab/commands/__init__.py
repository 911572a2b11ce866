"""The lab's commands, and the generators of the command reference."""
