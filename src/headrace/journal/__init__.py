"""One replicated log on disk: entries, files, recovery, checkpoints. Start at `group`."""
