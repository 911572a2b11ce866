"""Verifying metadata at a start: heads, the copy, healing, doubt and the ways out.

Start at `metadata_start`.
"""
