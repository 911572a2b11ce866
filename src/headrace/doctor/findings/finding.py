"""A finding of the doctor, as --json prints it: where it is and what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from headrace.model.ids import OP_MAX


class Severity(StrEnum):
    """How bad it is."""

    NOTE = "note"  # costs nothing; the next start fixes it, or nothing has to be done
    DAMAGE = "damage"  # something acknowledged, or its last copy, cannot be read


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
    """What is lost with a part of a log."""

    words: str
    rows: tuple[LostRows, ...] = ()
    is_counted: bool = True  # False: more than `rows`, or unknown


NOTHING = Loss("nothing")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One finding. `last_op` is null if the end is unknown."""

    severity: Severity
    kind: str  # a stable name for scripts, such as torn-tail
    file: str  # relative to the data directory
    position: int | None
    first_op: int | None
    last_op: int | None
    where: str
    what: str
    means: str
    lost: str
    lost_rows: tuple[LostRows, ...]
    next: str  # what to do; empty if nothing has to be done
    is_counted: bool  # false: more is lost than `lost_rows`, or the loss is unknown

    @property
    def key(self) -> tuple[object, ...]:
        """Equal when the same thing is found again."""
        return self.kind, self.file, self.position, self.first_op


def ops(first: int, last: int | None = None) -> str:
    """Name a range of ops; `last` is OP_MAX for an open end."""
    if last is None or first == last:
        return f"op {first:,}"
    return f"ops from {first:,}" if last == OP_MAX else f"ops {first:,} to {last:,}"


def offsets(start: int, end: int) -> str:
    """Name the rows from `start` to before `end`."""
    return f"row {start:,}" if end == start + 1 else f"rows {start:,} to {end - 1:,}"


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, singular or plural."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def in_words(rows: tuple[LostRows, ...]) -> str:
    """Name lost rows: the first few ranges, and how many more there are."""
    shown = "; ".join(map(str, rows[:_SHOWN_MAX]))
    return shown if len(rows) <= _SHOWN_MAX else f"{shown}; and {len(rows) - _SHOWN_MAX} more"


_SHOWN_MAX = 8  # ranges in one sentence; --json has them all


def joined(found: Iterable[LostRows]) -> tuple[LostRows, ...]:
    """Join adjacent ranges, for people."""
    ranges: list[LostRows] = []
    for one in sorted(found, key=lambda each: (each.topic, each.partition, each.start)):
        last = ranges[-1] if ranges else None
        place = (one.topic, one.partition, one.start)
        if last is not None and (last.topic, last.partition, last.end) == place:
            ranges[-1] = LostRows(last.topic, last.partition, last.start, one.end)
        else:
            ranges.append(one)
    return tuple(ranges)
