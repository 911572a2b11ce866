"""Turns a directory into a running group: survey, judge, mend, replay. Start at `recover`."""
