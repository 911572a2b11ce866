"""Makes a new log of every row that can be proven. Start at `salvage`."""
