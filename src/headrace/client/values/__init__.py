"""What users say, and what they get."""
