"""Parsing of arguments, and the values that users get."""
