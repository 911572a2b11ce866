"""The machine of streams, topics and schemas; pure. Start at `machine`."""
