"""Shared by all commands: exit codes, output, the log's location, times."""
