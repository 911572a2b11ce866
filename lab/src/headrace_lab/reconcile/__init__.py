"""Histories of reconcilers next to metadata that changes, also backwards.

Start at `histories`.
"""
