"""The `headrace` command: one module a verb, loaded when it is typed. Start at `main`."""
