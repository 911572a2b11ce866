"""What can be wrong with a log, and the words for it. Start at `finding`."""
