"""From a directory to a running group: survey, judge, mend, replay. Start at `recover`."""
