"""One group that runs: the pump decides, the driver performs. Start at `pump`."""
