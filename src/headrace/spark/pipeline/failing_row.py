"""Finds the row on which a transform fails by bisection, since Spark does not name it.

A task ends at the first row that a cast rejects or a user's function fails on, and its error
has no offset. So the range is halved until one row is left, which takes about as long as
reading the batch once more.
"""

from collections.abc import Callable, Mapping

Ranges = Mapping[int, tuple[int, int]]  # by partition: start, end


def failing_row(ranges: Ranges, fails: Callable[[Ranges], bool]) -> tuple[int, int] | None:
    """Return partition and offset of a row that fails on its own, or None."""
    for number, (start, end) in sorted(ranges.items()):
        if start < end and fails({number: (start, end)}):
            return _within(number, start, end, fails)
    return None


def _within(
    number: int, start: int, end: int, fails: Callable[[Ranges], bool]
) -> tuple[int, int] | None:
    while end - start > 1:
        middle = (start + end) // 2
        if fails({number: (start, middle)}):
            end = middle
        else:
            start = middle
    return (number, start) if fails({number: (start, end)}) else None
