"""Kills a real node under producers, consumers and transactions. Start at `kill`."""
