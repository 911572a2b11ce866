"""Histories of reconcilers beside metadata that changes, also backwards.

Start at `histories`.
"""
