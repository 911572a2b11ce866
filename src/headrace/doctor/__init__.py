"""Examines the files of a log offline and salvages rows; changes nothing.

Start at `examine`.
"""
