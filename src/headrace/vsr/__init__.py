"""Viewstamped Replication as pure machines, solo and with peers. Start at `replica`."""
