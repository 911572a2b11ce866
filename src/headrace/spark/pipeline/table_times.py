"""The time to the table: how long rows take from their append to the commit.

The log has an append time for each row. Of each partition in a round two are read, of its first
row and of its last: the rows in between are taken to be spread evenly over the time between.
Both times are by the log's clock, which `LogClock` tells from the driver's.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Final

import headrace
from headrace.errors import HeadraceError

ROUNDS_MAX: Final = 100  # that the figures are of
MEDIAN: Final = 0.5
HIGH: Final = 0.99
_STEPS: Final = 30  # of a search by halves: far below a millisecond
_COLUMNS: Final = ("_partition", "_timestamp")


@dataclass(frozen=True, slots=True)
class RowTimes:
    """The rows of one partition in one round: seconds from their append to the commit."""

    row_count: int
    newest: float
    oldest: float

    def count_within(self, seconds: float) -> float:
        """Return how many rows took at most so long."""
        if seconds >= self.oldest:
            return self.row_count
        if seconds < self.newest:
            return 0.0
        return self.row_count * (seconds - self.newest) / (self.oldest - self.newest)


@dataclass(slots=True)
class TableTimes:
    """The times to the table in the last rounds of a driver."""

    rounds: deque[Sequence[RowTimes]] = field(default_factory=lambda: deque(maxlen=ROUNDS_MAX))

    def add(self, times: Sequence[RowTimes]) -> None:
        if times:
            self.rounds.append(times)

    def quantile(self, share: float) -> float | None:
        """Return the seconds within which a share of the rows came; None without any."""
        times = list(chain.from_iterable(list(self.rounds)))
        if not times:
            return None
        wanted = share * sum(one.row_count for one in times)
        low, high = 0.0, max(one.oldest for one in times)
        for _ in range(_STEPS):
            middle = (low + high) / 2
            if sum(one.count_within(middle) for one in times) < wanted:
                low = middle
            else:
                high = middle
        return high


@dataclass(slots=True)
class LogClock:
    """The difference between the log's clock and this machine's, as far as it shows."""

    ahead: float = 0.0  # seconds by which the log's is ahead

    def learn(self, before: float, at: float, after: float) -> None:
        """Take in that the log's clock showed `at` between two times of this machine's.

        Clocks that may agree do agree: the error is at most the time between the two.
        """
        self.ahead = min(at - before, 0.0) + max(at - after, 0.0)

    def now(self) -> float:
        """Return the time by the log's clock."""
        return time.time() + self.ahead


def read_times(
    topic: "headrace.Topic",
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    committed_at: float,  # by the log's clock
) -> tuple[RowTimes, ...]:
    """Return the times of a round; none if the log does not give them.

    They are figures for people: no round fails for them.
    """
    filled = [number for number, start in starts.items() if start < ends[number]]
    try:
        oldest = _appended(topic, {number: starts[number] for number in filled})
        newest = _appended(topic, {number: ends[number] - 1 for number in filled})
    except HeadraceError:
        return ()
    return tuple(
        RowTimes(
            row_count=ends[number] - starts[number],
            newest=max(0.0, committed_at - max(newest[number], oldest[number])),
            oldest=max(0.0, committed_at - min(newest[number], oldest[number])),
        )
        for number in filled
        if number in oldest and number in newest
    )


def _appended(topic: "headrace.Topic", places: Mapping[int, int]) -> dict[int, float]:
    """Return the append time of one row in each partition, in seconds since 1970."""
    if not places:
        return {}
    ends = {number: place + 1 for number, place in places.items()}
    rows = topic.read(list(places), start=places, end=ends, columns=_COLUMNS).to_table()
    return dict(_pairs(rows.to_pylist()))


def _pairs(rows: Iterable[Mapping[str, object]]) -> Iterable[tuple[int, float]]:
    for row in rows:
        number, moment = row["_partition"], row["_timestamp"]
        assert isinstance(number, int)
        assert isinstance(moment, datetime)
        yield number, moment.timestamp()
