"""Attacks a real server at its port. Start at `attack`."""
