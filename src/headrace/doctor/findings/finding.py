"""What the doctor finds, as values: where it is, what it is, what it means, what helps."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from headrace.model.ids import OP_MAX


class Severity(StrEnum):
    """How bad it is."""

    OK = "ok"  # as it should be
    NOTE = "note"  # costs nothing; the next start, or nobody, has to do something about it
    DAMAGE = "damage"  # something that was acknowledged, or its last copy, cannot be read


@dataclass(frozen=True, slots=True)
class LostRows:
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


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found. `file` is relative to the data directory."""

    severity: Severity
    kind: str  # a word for scripts, such as torn-tail; it keeps its meaning
    file: str
    what: str
    meaning: str
    lost: str = "nothing"
    next: str = ""  # what can be done; empty if nothing has to be
    position: int | None = None
    first_op: int | None = None
    last_op: int | None = None
    rows: tuple[LostRows, ...] = ()  # that cannot be read, where that is known
    is_counted: bool = True  # False: more is lost than `rows`, or nobody knows what

    @property
    def where(self) -> str:
        """The file, and the place in it."""
        place = self.file if self.position is None else f"{self.file} at byte {self.position:,}"
        return (
            place if self.first_op is None else f"{place}, {ops(self.first_op, self.last_op)}"
        )

    @property
    def key(self) -> tuple[object, ...]:
        """What is equal when the same thing is found again."""
        return self.kind, self.file, self.position, self.first_op


def damage(
    kind: str,
    file: str,
    what: str,
    meaning: str,
    loss: Loss,
    helps: str,
    *,
    severity: Severity = Severity.DAMAGE,
    position: int | None = None,
    first_op: int | None = None,
    last_op: int | None = None,
) -> Finding:
    """Make a finding of something that costs what `loss` says."""
    return Finding(
        severity,
        kind,
        file,
        what,
        meaning,
        loss.words,
        helps,
        position,
        first_op,
        last_op,
        loss.rows,
        loss.is_counted,
    )


PUT_BACK = "Put the file back from a copy"
SALVAGE = "bring every readable row into a new log with --salvage NEW_DIR"
PUT_BACK_OR_SALVAGE = f"{PUT_BACK}, or {SALVAGE}"
ADOPT_OR_PUT_BACK = (
    "Run `headrace metadata adopt` to preview the recovery, or restore groups/00000 from a "
    "backup"
)


def apply_failed(where: str, op: int, what: str, loss: Loss) -> Finding:
    """Make a finding of a whole entry on which the machine raises."""
    return damage(
        "apply-failed",
        f"{where}/journal",
        f"op {op:,} is whole, and the machine cannot run it: {what}",
        "by a defect of this release, and a start of this group refuses",
        loss,
        f"Report this, and start a release that runs it, or {SALVAGE}",
        first_op=op,
        last_op=op,
    )


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
