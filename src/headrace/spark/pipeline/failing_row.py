"""Which row of a batch does a transform fail on? Asked by halves, since Spark does not say.

A task ends at the first row that a cast refuses, or that a function of the user raises at, and
its error has no offset. So smaller and smaller ranges are tried until one row is left, which
takes about as long as reading the batch once more.
"""

from collections.abc import Callable, Mapping

Ranges = Mapping[int, tuple[int, int]]  # by partition: start, end


def failing_row(ranges: Ranges, fails: Callable[[Ranges], bool]) -> tuple[int, int] | None:
    """Return partition and offset of a row that fails by itself. None: no such row is found."""
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
