"""What the doctor finds, as it is printed with --json: where it is, and what helps."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from headrace.model.ids import OP_MAX


class Severity(StrEnum):
    """How bad it is."""

    NOTE = "note"  # costs nothing; the next start, or nobody, has to do something about it
    DAMAGE = "damage"  # something that was acknowledged, or its last copy, cannot be read


class LostRows(msgspec.Struct, frozen=True):
    """Rows of one partition, from `start` to before `end`."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic} partition {self.partition}, {offsets(self.start, self.end)}"


@dataclass(frozen=True, slots=True)
class Loss:
    """What is lost with some part of a log."""

    words: str
    rows: tuple[LostRows, ...] = ()
    is_counted: bool = True  # False: more than `rows`, or nobody knows what


NOTHING = Loss("nothing")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `last_op` is null if nobody knows how far it reached."""

    severity: Severity
    kind: str  # a word for scripts, such as torn-tail; it keeps its meaning
    file: str  # relative to the data directory
    position: int | None
    first_op: int | None
    last_op: int | None
    where: str
    what: str
    means: str
    lost: str
    lost_rows: tuple[LostRows, ...]
    next: str  # what can be done; empty if nothing has to be
    is_counted: bool  # false: more is lost than `lost_rows`, or nobody knows what

    @property
    def key(self) -> tuple[object, ...]:
        """What is equal when the same thing is found again."""
        return self.kind, self.file, self.position, self.first_op


def ops(first: int, last: int | None = None) -> str:
    """Name a range of ops; one without an end goes as far as anything ever did."""
    if last is None or first == last:
        return f"op {first:,}"
    return f"ops from {first:,}" if last == OP_MAX else f"ops {first:,} to {last:,}"


def offsets(start: int, end: int) -> str:
    """Name the rows from `start` to before `end`."""
    return f"row {start:,}" if end == start + 1 else f"rows {start:,} to {end - 1:,}"


def count(number: int, noun: str, plural: str = "") -> str:
    """Count things in words."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def in_words(rows: tuple[LostRows, ...]) -> str:
    """Name rows that are lost: the first few ranges, and how many there are."""
    shown = "; ".join(map(str, rows[:_SHOWN_MAX]))
    return shown if len(rows) <= _SHOWN_MAX else f"{shown}; and {len(rows) - _SHOWN_MAX} more"


_SHOWN_MAX = 8  # ranges in one sentence; --json has them all


def joined(found: Iterable[LostRows]) -> tuple[LostRows, ...]:
    """Join ranges that follow one another, for people."""
    ranges: list[LostRows] = []
    for one in sorted(found, key=lambda each: (each.topic, each.partition, each.start)):
        last = ranges[-1] if ranges else None
        place = (one.topic, one.partition, one.start)
        if last is not None and (last.topic, last.partition, last.end) == place:
            ranges[-1] = LostRows(last.topic, last.partition, last.start, one.end)
        else:
            ranges.append(one)
    return tuple(ranges)
