"""One bench a module."""
