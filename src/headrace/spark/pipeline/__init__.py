"""Loads a topic into a table, exactly once. Start at `pipeline`."""
