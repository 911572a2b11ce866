"""The pure machine of streams, topics and schemas. Start at `machine`."""
