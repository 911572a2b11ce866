"""Output about topics, schemas and consumer groups."""
