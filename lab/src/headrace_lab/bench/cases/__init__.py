"""One bench per module."""
