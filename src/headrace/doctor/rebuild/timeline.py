"""Infers the offsets of entries from the segments around them, when no state records them.

Within a partition times rise with offsets, and the rows of one entry share one time. So an
entry whose time is in a segment is in that segment, and one whose time lies between two
segments has its offsets between theirs. Where the entries between two known places fill the gap
exactly, their offsets are known; otherwise they are counted from the place before, and are in
doubt.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from headrace.doctor.look.orphan_segment import TimedRows
from headrace.model.ids import Offset, Op
from headrace.partition.machine.state import Piece


class Given(NamedTuple):
    """The rows of one entry, and when they got their offsets."""

    timestamp: int
    op: Op
    row_count: int
    size: int  # body bytes
    version: int  # of the schema in force, as far as it is known


class OffsetDoubt(NamedTuple):
    """Offsets that may be too low; without an `end`, all from `start` on."""

    start: int
    end: int | None


@dataclass(slots=True)
class Arranged:
    """Entries at their offsets."""

    pieces: list[tuple[int, Piece]] = field(default_factory=list)  # schema version, piece
    end: int = 0  # of all known entries
    doubts: list[OffsetDoubt] = field(default_factory=list)
    placeless_count: int = 0  # rows that do not fit where they belong


@dataclass(slots=True)
class Corrected:
    """Entries at the offsets that segments prove."""

    pieces: list[tuple[int, Piece]] = field(default_factory=list)
    shifts: list[tuple[int, int]] = field(default_factory=list)  # offset before, and by how far
    placeless_count: int = 0

    def clear(self, start: int) -> None:
        """Make room for rows that certainly begin at `start`."""
        while self.pieces and self.pieces[-1][1].end > start:
            self.placeless_count += self.pieces.pop()[1].row_count


@dataclass(frozen=True, slots=True)
class Timeline:
    """The rows of one partition that segments hold, rising by time and by offset."""

    rows: tuple[TimedRows, ...] = ()
    lost: tuple[tuple[int, int], ...] = ()  # ranges of segments that cannot be read

    @classmethod
    def of(cls, found: Iterable[TimedRows], lost: Iterable[tuple[int, int]]) -> "Timeline":
        """Merge the rows of all segments in order; rows in two of them count once."""
        rows: list[TimedRows] = []
        for one in sorted(found, key=lambda each: (each.start, -each.end)):
            last = rows[-1] if rows else TimedRows(-1, 0, 0)
            start = max(one.start, last.end)
            if start >= one.end or one.timestamp < last.timestamp:
                continue
            if (last.timestamp, last.end) == (one.timestamp, start):
                rows[-1] = TimedRows(one.timestamp, last.start, one.end)
            else:
                rows.append(TimedRows(one.timestamp, start, one.end))
        return cls(tuple(rows), tuple(sorted(set(lost))))

    @property
    def first(self) -> int | None:
        """The lowest offset of any segment, readable or not."""
        starts = [one.start for one in self.rows[:1]] + [start for start, _ in self.lost[:1]]
        return min(starts, default=None)

    @property
    def end(self) -> int:
        """The end of the last segment, readable or not."""
        ends = [one.end for one in self.rows[-1:]] + [end for _, end in self.lost]
        return max(ends, default=0)

    def before(self, timestamp: int) -> "Timeline":
        """Return the rows from before `timestamp`, with the lost ranges below them."""
        index = bisect_left(self.rows, timestamp, key=_time)
        rows, rest = self.rows[:index], self.rows[index:]
        above = rest[0].start if rest else None
        lost = tuple(one for one in self.lost if above is None or one[1] <= above)
        return Timeline(rows, lost)

    def reaches(self, timestamp: int) -> bool:
        """Whether the rows from before `timestamp` and from then on are adjacent."""
        index = bisect_left(self.rows, timestamp, key=_time)
        rows = self.rows[max(0, index - 1) : index + 1]
        return len(rows) == 2 and rows[0].end == rows[1].start

    def at(self, timestamp: int) -> TimedRows | None:
        """Return the rows that got their offsets at `timestamp`."""
        index = bisect_left(self.rows, timestamp, key=_time)
        found = self.rows[index : index + 1]
        return found[0] if found and found[0].timestamp == timestamp else None

    def around(self, timestamp: int) -> tuple[int | None, int | None]:
        """Return the end of the rows up to `timestamp`, and the start of those after it."""
        index = bisect_right(self.rows, timestamp, key=_time)
        lower = self.rows[index - 1].end if index else None
        upper = self.rows[index].start if index < len(self.rows) else None
        return lower, upper

    def arrange(self, given: Sequence[Given]) -> Arranged:
        """Assign offsets to the entries whose rows are in no segment."""
        done = Arranged(end=self.end)
        in_order = sorted(given)
        left = [
            one
            for time, group in groupby(in_order, key=attrgetter("timestamp"))
            for one in self._unsealed(time, list(group))
        ]
        for bounds, group in groupby(left, key=lambda one: self.around(one.timestamp)):
            self._fill(done, *bounds, list(group))
        done.pieces.sort(key=lambda each: each[1].first)
        return done

    def correct(self, pieces: Sequence[tuple[int, Piece]]) -> Corrected:
        """Move entries to where segments have their rows, and later ones by as much.

        `pieces` rise by offset. What would then lie where a segment has other rows is dropped.
        """
        done = Corrected()
        shift = 0
        for time, group in groupby(pieces, key=lambda each: each[1].timestamp):
            some = list(group)
            sealed = self.at(time)
            total = sum(piece.row_count for _, piece in some)
            if sealed is not None and sealed.end - sealed.start == total:
                shift = sealed.start - some[0][1].first
                done.shifts.append((some[0][1].first, shift))
                done.clear(sealed.start)
            for version, piece in some:
                first = Offset(piece.first + shift)
                done.pieces.append((version, piece._replace(first=first)))
        return done

    def _unsealed(self, timestamp: int, given: list[Given]) -> list[Given]:
        """Leave out rows that a segment has: all of one time, or the first ones."""
        sealed = self.at(timestamp)
        room = 0 if sealed is None else sealed.end - sealed.start
        for number, one in enumerate(given):
            if room < one.row_count:
                return given[number:]
            room -= one.row_count
        return []

    def _fill(
        self, done: Arranged, lower: int | None, upper: int | None, given: list[Given]
    ) -> None:
        total = sum(one.row_count for one in given)
        start = self._start(lower, upper, total)
        is_exact = upper is not None and start == (lower or 0) and start + total == upper
        if not is_exact:
            done.doubts.append(OffsetDoubt(start, upper))
        for one in given:
            if upper is not None and start + one.row_count > upper:
                done.placeless_count += one.row_count
                continue
            piece = Piece(Offset(start), one.row_count, one.op, one.timestamp, one.size)
            done.pieces.append((one.version, piece))
            start = piece.end
        done.end = max(done.end, start)

    def _start(self, lower: int | None, upper: int | None, total: int) -> int:
        """Begin after lost segments if there is room; otherwise as near as possible."""
        start = lower or 0
        for first, end in self.lost:
            if first >= start and (upper is None or end + total <= upper):
                start = end
        if lower is None and upper is not None:
            start = max(start, upper - total)
        return start


def _time(rows: TimedRows) -> int:
    return rows.timestamp
