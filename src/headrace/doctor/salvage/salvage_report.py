"""The report of a salvage: which old rows became which new ones, and which are missing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.doctor.rebuild.timeline import OffsetDoubt


class MovedRange(msgspec.Struct, frozen=True):
    """Old rows and their new offsets. If not exact, the old offsets are lower bounds."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int
    exact: bool  # false: a lost entry before them had an unknown number of rows


class Gone(msgspec.Struct, frozen=True):
    """Old rows that could not be copied."""

    start: int
    end: int
    why: str


class CursorMoved(msgspec.Struct, frozen=True):
    """A consumer group's next offset, before and after."""

    group: str
    old_next: int
    new_next: int


class PartitionAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of the new log."""

    topic: str
    partition: int
    rows: int
    old_first: int  # the first offset that was still retained
    old_end: int  # as far as known
    ranges: list[MovedRange]
    missing: list[Gone]
    cursors: list[CursorMoved]
    unsure_from: int | None  # from this old offset on, offsets are lower bounds
    homes: dict[str, int]  # row counts by source: segments, carry, journal
    rebuilt: bool  # without a snapshot


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What a salvage copied. `salvage.json` in the new log has the same content."""

    path: str
    new_path: str
    cluster: str
    new_cluster: str
    rows: int
    missing_rows: int
    partitions: list[PartitionAccount]
    lost: list[str]  # losses that cannot be named as rows
    notes: list[str]  # what a person should know

    @property
    def is_whole(self) -> bool:
        """Everything was copied, under its original names."""
        return not self.missing_rows and not self.lost


@dataclass(slots=True)
class Tally:
    """Counts one partition while its rows are written."""

    doubts: Sequence[OffsetDoubt] = ()
    next: int = 0  # the next new offset
    ranges: list[MovedRange] = field(default_factory=list)
    missing: list[Gone] = field(default_factory=list)
    homes: Counter[str] = field(default_factory=Counter)

    @property
    def unsure_from(self) -> int | None:
        """The first old offset that may have been higher."""
        unsure = [one.old_start for one in self.ranges if not one.exact]
        return min(unsure, default=None)

    def add(self, start: int, end: int, home: str) -> None:
        """Count old rows that became the next new ones."""
        assert not self.ranges or start >= self.ranges[-1].old_end
        is_exact = not any(
            one.start <= start and (one.end is None or start < one.end) for one in self.doubts
        )
        self.homes[home] += end - start
        first, self.next = self.next, self.next + end - start
        last = self.ranges[-1] if self.ranges else None
        if last is not None and (last.old_end, last.exact) == (start, is_exact):
            self.ranges[-1] = MovedRange(
                last.old_start, end, last.new_start, self.next, is_exact
            )
        else:
            self.ranges.append(MovedRange(start, end, first, self.next, is_exact))

    def lose(self, start: int, end: int, why: str) -> None:
        """Count old rows that are in no readable file."""
        last = self.missing[-1] if self.missing else None
        if last is not None and (last.end, last.why) == (start, why):
            self.missing[-1] = Gone(last.start, end, why)
        else:
            self.missing.append(Gone(start, end, why))

    def moved(self, old_next: int) -> int:
        """Return a cursor's new position: the first new row that was not read before."""
        read = (
            min(one.old_end, old_next) - one.old_start
            for one in self.ranges
            if one.old_start < old_next
        )
        return sum(read)
