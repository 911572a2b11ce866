"""One group with a tiny machine: kills, power cuts, crash sweep, corruption matrix.

Start at `script`.
"""
