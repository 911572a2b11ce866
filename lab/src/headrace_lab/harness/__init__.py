"""Each harness once, with a machine as argument. Start at `sweep`."""
