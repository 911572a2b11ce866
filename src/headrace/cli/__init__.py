"""The `headrace` command: one module per command, loaded on demand. Start at `main`."""
