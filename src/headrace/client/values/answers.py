"""What the client answers with: plain values."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from headrace.errors import BadRequest
from headrace.model.column_types import said
from headrace.model.schema import decode_schema
from headrace.model.units import SIZE_UNITS, Duration, format_duration
from headrace.wire.topic_messages import OrphanInfo


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Rows `start` to before `end` of one partition."""

    partition: int
    start: int
    end: int

    @property
    def row_count(self) -> int:
        return self.end - self.start


def merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return ranges sorted, those that follow one another as one."""
    found: list[Range] = []
    for each in sorted(ranges):
        last = found[-1] if found else None
        if last is not None and (last.partition, last.end) == (each.partition, each.start):
            found[-1] = Range(last.partition, last.start, each.end)
        else:
            found.append(each)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class AdoptedOrphans:
    """What became, or would become, of partitions that the metadata had lost."""

    revision: int  # of the metadata
    adopted: tuple[str, ...]  # in words, one topic each
    left: tuple[str, ...]  # in words: what cannot be adopted, and why


@dataclass(frozen=True, slots=True)
class OrphanedPartition:
    """A partition that a shard has, and that the metadata has lost."""

    group: int
    partition: str  # its namespace, in hex
    created: int
    rows: int
    size: int  # bytes
    first_at: datetime | None  # of its rows
    last_at: datetime | None
    schema: pa.Schema  # the newest of its topic


def orphaned(info: OrphanInfo) -> OrphanedPartition:
    """Describe a partition as a node does."""
    first, last = (
        None if at is None else datetime.fromtimestamp(at / 1_000_000, UTC)
        for at in (info.first_at, info.last_at)
    )
    return OrphanedPartition(
        info.shard,
        f"{info.namespace:x}",
        info.created,
        info.row_count,
        info.size,
        first,
        last,
        decode_schema(info.schema),
    )


def namespace_of(partition: str) -> int:
    """Read a partition's namespace as the status names it."""
    if re.fullmatch("[0-9a-fA-F]{1,16}", partition) is None:
        raise BadRequest(
            f"{said(partition)!r} is not a recoverable partition ID",
            hint="`headrace status` lists them (hex, such as 1000001000000)",
        )
    return int(partition, 16)


@dataclass(frozen=True, slots=True)
class Appended:
    """Rows that are on disk, and where they are."""

    ranges: tuple[Range, ...]  # sorted, none of them empty

    @property
    def row_count(self) -> int:
        return sum(each.row_count for each in self.ranges)

    @property
    def offsets(self) -> dict[int, tuple[Range, ...]]:
        """The ranges of each partition that got rows."""
        numbers = dict.fromkeys(each.partition for each in self.ranges)
        return {
            number: tuple(each for each in self.ranges if each.partition == number)
            for number in numbers
        }


@dataclass(frozen=True, slots=True)
class Published:
    """What became of a transaction. `repeated`: it was published before, and counts once."""

    ranges: tuple[Range, ...]
    repeated: bool
    same: bool | None  # as the earlier try; None: not a repeat, or nothing to compare

    @property
    def row_count(self) -> int:
        return sum(each.row_count for each in self.ranges)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is retained of one partition: rows `first` to before `end`."""

    partition: int
    first: int
    end: int
    size: int  # bytes of their batches
    sealed_end: int  # rows before this are in segments
    versions: tuple[tuple[int, int], ...]  # schema version, first offset it is in force at

    @property
    def row_count(self) -> int:
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a consumer group reads on in one partition."""

    partition: int
    group: str
    next: int
    lag: int  # rows from `next` to the committed end
    hold: bool
    generation: int


@dataclass(frozen=True, slots=True)
class Trimmed:
    """`first` is the first row retained; `holds` are groups, and what they hold on to."""

    partition: int
    first: int
    holds: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Unerased:
    """A file that holds, or may hold, rows of deleted topics, and why it is still there."""

    path: str  # on the node's machine
    why: str


@dataclass(frozen=True, slots=True)
class Retention:
    """How long and how much is kept; None means no limit."""

    age: timedelta | None
    size: int | None  # bytes

    def __str__(self) -> str:
        us = timedelta(microseconds=1)
        age = "" if self.age is None else format_duration(Duration(self.age // us))
        said = [text for text in (age, shown_size(self.size)) if text]
        return " or ".join(said) or "for ever"


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """One line of a log's table of topics."""

    name: str
    partition_count: int
    row_count: int
    size: int
    retention: Retention
    created_at: datetime


def shown_size(size: int | None) -> str:
    """Write a size in three digits or so, for people; nothing for no limit."""
    if size is None:
        return ""
    for name in ("TiB", "GiB", "MiB", "KiB"):
        if size >= SIZE_UNITS[name]:
            return f"{size / SIZE_UNITS[name]:.3g} {name}"
    return f"{size} B"
