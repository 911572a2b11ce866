"""Compares a table with its log, row by row. Start at `prove`."""
