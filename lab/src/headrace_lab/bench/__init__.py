"""Headrace's rates next to the machine's own limit and to the alternatives that users have.

Start at `registry`.
"""
