"""The harnesses, each parameterised by a machine. Start at `sweep`."""
