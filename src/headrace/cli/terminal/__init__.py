"""What verbs share: exit codes, output, which log is meant, times."""
