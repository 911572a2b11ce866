"""Requests and replies as bytes; pure. Start at `messages`."""
