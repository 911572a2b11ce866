"""Whether metadata is what it was: heads, its copy, healing, doubt and the ways out.

Start at `metadata_start`.
"""
