"""Creates a new log from every row that can be proven. Start at `salvage`."""
