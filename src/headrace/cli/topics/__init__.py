"""What is printed of topics, schemas and consumer groups."""
