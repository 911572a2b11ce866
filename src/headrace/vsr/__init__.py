"""Viewstamped Replication as machines, alone and with peers; pure. Start at `replica`."""
