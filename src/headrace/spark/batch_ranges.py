"""Plans the next batch and splits it into tasks. Pure arithmetic.

A batch never crosses a schema version: it ends where the next version begins. Limits are shared
among the partitions in proportion to their backlog.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

_NO_LIMIT: Final = 2**63


@dataclass(frozen=True, slots=True)
class Backlog:
    """The rows of one partition from `start` on."""

    start: int
    end: int
    row_size: float  # bytes per row, approximate
    versions: tuple[tuple[int, int], ...]  # schema version, first offset it is in force at

    def up_to(self, end: int) -> "Backlog":
        """Return the part before `end`."""
        end = max(self.start, min(self.end, end))
        return Backlog(self.start, end, self.row_size, self.versions)

    @property
    def row_count(self) -> int:
        return max(0, self.end - self.start)

    @property
    def version(self) -> int:
        """The schema version in force at the start."""
        found = [version for version, first in self.versions if first <= self.start]
        return max(found, default=0)

    @property
    def version_end(self) -> int:
        """Where the version in force at the start ends, at most the end of the backlog."""
        later = [first for _, first in self.versions if first > self.start]
        return min([*later, self.end])


def next_version(backlogs: Mapping[int, Backlog]) -> int | None:
    """Return the schema version of the next batch; None if there is nothing to read."""
    return min((each.version for each in backlogs.values() if each.row_count), default=None)


def next_ends(
    backlogs: Mapping[int, Backlog], row_count_max: int | None, size_max: int | None
) -> dict[int, int]:
    """Return where the next batch ends in each partition. It has at least one row."""
    version = next_version(backlogs)
    readable = {
        number: each.version_end - each.start
        for number, each in backlogs.items()
        if each.row_count and each.version == version
    }
    taken = _shared(readable, _limit(backlogs, readable, row_count_max, size_max))
    return {number: each.start + taken.get(number, 0) for number, each in backlogs.items()}


def _limit(
    backlogs: Mapping[int, Backlog],
    readable: Mapping[int, int],
    row_count_max: int | None,
    size_max: int | None,
) -> int:
    """Return how many rows fit both limits."""
    limit = _NO_LIMIT if row_count_max is None else row_count_max
    total = sum(readable.values())
    if size_max is not None and total:
        size = sum(backlogs[number].row_size * count for number, count in readable.items())
        limit = min(limit, int(size_max * total / max(size, 1)))
    return max(limit, 1)


def _shared(counts: Mapping[int, int], limit: int) -> dict[int, int]:
    """Share `limit` out by backlog; the first partitions with room take the remainder."""
    total = sum(counts.values())
    if total <= limit:
        return dict(counts)
    taken = {number: count * limit // total for number, count in counts.items()}
    left = limit - sum(taken.values())
    for number, count in counts.items():
        more = min(left, count - taken[number])
        taken[number] += more
        left -= more
    return taken


def split(
    ranges: Mapping[int, tuple[int, int]], count_min: int, row_count_max: int | None = None
) -> list[tuple[int, int, int]]:
    """Split ranges into tasks: number, start, end.

    Non-empty ranges give at least `count_min` tasks, each of at most `row_count_max` rows.
    """
    filled = {number: found for number, found in ranges.items() if found[0] < found[1]}
    total = sum(end - start for start, end in filled.values())
    tasks: list[tuple[int, int, int]] = []
    for number, (start, end) in sorted(filled.items()):
        row_count = end - start
        pieces = max(1, -(-row_count * count_min // total)) if len(filled) < count_min else 1
        if row_count_max is not None:
            pieces = max(pieces, -(-row_count // row_count_max))
        pieces = min(pieces, row_count)
        cuts = [start + row_count * place // pieces for place in range(pieces + 1)]
        tasks += [(number, first, last) for first, last in pairwise(cuts)]
    return tasks
