"""Plan of a read: which rows, which columns, how many."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

import headrace
from headrace.cli.terminal.times import Place, iso, place_of
from headrace.client.read.spans import EARLIEST, LATEST
from headrace.client.values.answers import Bounds
from headrace.client.where.grammar import RowCondition, parse_where
from headrace.errors import BadRequest
from headrace.model.projection import Projection
from headrace.model.schema import SYSTEM_FIELDS


@dataclass(frozen=True, slots=True)
class Said:
    """A position as it was typed, and its parsed value."""

    option: str
    text: str
    place: Place

    @classmethod
    def of(cls, option: str, text: str) -> "Said":
        return cls(option, text, place_of(text, option))

    def __str__(self) -> str:
        if isinstance(self.place, datetime) and not self.text[0].isdigit():
            return f"{self.option} {self.text} ({iso(self.place)})"
        return f"{self.option} {self.text}"


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """First offset of a read in each partition, and its exclusive end."""

    starts: dict[int, int]
    ends: dict[int, int]


def span_of(
    topic: headrace.Topic, partitions: Sequence[int], start: str | None, end: str | None
) -> OffsetSpan:
    """Resolve `--from` and `--to` to offsets. No partitions: all."""
    first = Said.of("--from", EARLIEST if start is None else start)
    last = Said.of("--to", LATEST if end is None else end)
    _check_order(first, last)
    bounds = [each for each in topic.bounds() if not partitions or each.partition in partitions]
    starts, ends = _offsets(topic, first, bounds), _offsets(topic, last, bounds)
    return OffsetSpan(starts, {number: max(starts[number], ends[number]) for number in starts})


def _check_order(first: Said, last: Said) -> None:
    if _is_after(first.place, last.place):
        raise BadRequest(f"{first} is after {last}", hint="Give the earlier one to --from")


def _is_after(start: Place, end: Place) -> bool:
    if isinstance(start, int) and isinstance(end, int):
        return start > end
    if isinstance(start, datetime) and isinstance(end, datetime):
        return start > end
    return (start, end) == (LATEST, EARLIEST)


def _offsets(topic: headrace.Topic, said: Said, bounds: Sequence[Bounds]) -> dict[int, int]:
    if said.place == EARLIEST:
        return {each.partition: each.first for each in bounds}
    ends = {each.partition: each.end for each in bounds}
    if said.place == LATEST or not ends:
        return ends
    if isinstance(said.place, int):
        _check_reached(said, said.place, ends)
        return {number: min(said.place, end) for number, end in ends.items()}
    assert isinstance(said.place, datetime)
    found = topic.offsets_at(said.place)
    return {number: min(found[number], end) for number, end in ends.items()}


def _check_reached(said: Said, offset: int, ends: dict[int, int]) -> None:
    longest = max(ends, key=lambda number: ends[number])
    if offset > ends[longest]:
        hint = f"The longest is partition {longest}, which ends at {ends[longest]:,}"
        raise BadRequest(f"{said} is past the end of every partition", hint=hint)


_SYSTEM = frozenset(field.name for field in SYSTEM_FIELDS)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for."""

    partitions: tuple[int, ...] = ()  # none: all
    start: str | None = None
    end: str | None = None
    tail: int | None = None
    limit: int | None = None
    follow: bool = False
    columns: tuple[str, ...] | None = None
    where: str | None = None
    no_system: bool = False

    def __post_init__(self) -> None:
        """Refuse contradictory options."""
        if self.start is not None and self.tail is not None:
            raise BadRequest("--from and --tail cannot be combined", hint="Give one of them")
        if self.end is not None and self.follow:
            raise BadRequest("--to and --follow cannot be combined", hint="Give one of them")
        if self.no_system and _SYSTEM.intersection(self.columns or ()):
            hint = "Omit --no-system, or the column"
            raise BadRequest("--no-system and --columns cannot be combined", hint=hint)


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A wish resolved against an existing topic."""

    topic: headrace.Topic
    wish: Wish
    schema: pa.Schema  # of the printed rows
    where: RowCondition | None
    row_count: int | None  # None: unknown before they are read
    batches: Generator[pa.RecordBatch, None, None]

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the selected rows with the selected columns."""
        left = self.wish.limit
        with closing(self.batches):  # before the log, or the log would wait for them in vain
            while left is None or left > 0:
                batch = next(self.batches, None)
                if batch is None:
                    return
                for kept in [batch] if self.where is None else self.where.kept(batch):
                    shown = self._shown(kept).slice(0, left)
                    yield shown
                    if left is not None:
                        left -= shown.num_rows

    def _shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.wish.columns is not None:
            return batch.select(self.schema.names)
        if self.wish.no_system:
            return batch.select([name for name in batch.schema.names if name not in _SYSTEM])
        return batch


def plan_of(topic: headrace.Topic, wish: Wish) -> ReadPlan:
    """Plan a read. Anything invalid is refused before the first row."""
    whole = pa.schema([*SYSTEM_FIELDS, *topic.schema])
    columns = wish.columns
    schema = Projection.of(topic.schema, columns).schema
    if columns is None and wish.no_system:
        schema = topic.schema
    where = None if wish.where is None else parse_where(wish.where, whole)
    fetched = None if columns is None else _fetched(columns, where)
    row_count, batches = _batches(topic, wish, fetched)
    if where is not None:
        row_count = None
    elif row_count is not None and wish.limit is not None:
        row_count = min(row_count, wish.limit)
    return ReadPlan(topic, wish, schema, where, row_count, batches)


def _fetched(columns: Sequence[str], where: RowCondition | None) -> list[str]:
    """Return the columns to fetch: those that are shown, and those that `--where` uses."""
    looked_at = () if where is None else where.columns
    return list(dict.fromkeys([*columns, *looked_at]))


def _batches(
    topic: headrace.Topic, wish: Wish, columns: list[str] | None
) -> tuple[int | None, Generator[pa.RecordBatch, None, None]]:
    partitions: Any = list(wish.partitions) or None
    if wish.follow:
        start = None if wish.start is None else place_of(wish.start, "--from")
        begin = _last(topic, wish) if wish.tail is not None else start
        where = LATEST if begin is None else begin
        return None, topic.follow(partitions, start=where, columns=columns)
    starts = ends = None
    if wish.start is not None or wish.end is not None:
        span = span_of(topic, wish.partitions, wish.start, wish.end)
        partitions = partitions or list(span.ends)  # without any that are added now
        starts, ends = None if wish.tail is not None else span.starts, span.ends
    rows = topic.read(partitions, start=starts, end=ends, last=wish.tail, columns=columns)
    return rows.row_count, (batch for batch in rows)


def _last(topic: headrace.Topic, wish: Wish) -> dict[int, int]:
    """Return the offset of the first of the last N rows in each partition."""
    assert wish.tail is not None
    return {
        each.partition: max(each.first, each.end - wish.tail)
        for each in topic.bounds()
        if not wish.partitions or each.partition in wish.partitions
    }
