"""Channels to a node, remote or embedded, and retries. Start at `channel`."""
