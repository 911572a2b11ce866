"""Examines the files of a log that is down, and salvages rows; changes nothing.

Start at `examine`.
"""
