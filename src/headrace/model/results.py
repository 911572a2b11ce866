"""Results of operations, shared by machine, wire and client.

Uses the standard library only, as Spark executors load it. Nested values are tuples, as files
and frames store them: one array of exactly these fields, in this order. `kind` is the number
of a result's message in docs/protocol.md.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from headrace.model.ids import Offset
from headrace.model.namespace import Namespace


class Receipt(NamedTuple):
    """The content of a stage: the answer to its last Stage, and the argument of Publish."""

    stage_id: bytes
    op_count: int
    row_count: int
    digest: bytes  # its body checksums, folded in order


class PartitionRange(NamedTuple):
    """Rows of one partition, from `start` to `end` (exclusive)."""

    namespace: Namespace
    start: Offset
    end: Offset


class StoredCursor(NamedTuple):
    """The next offset of a consumer group in one partition."""

    group: str
    next: Offset
    generation: int
    hold: bool


class Hold(NamedTuple):
    """A consumer group that holds rows, and the first of them."""

    group: str
    next: Offset


@dataclass(frozen=True, slots=True)
class FetchedPiece:
    """A piece of the body; each piece starts at a multiple of 64.

    `is_entry`: one Arrow message as it was appended, in schema `schema_id`, without system
    columns; it may start before `start` or end after `end`. Otherwise the requested columns in
    the requested version.
    """

    is_entry: bool
    first: int
    row_count: int
    timestamp: int  # of the entry; 0 if the rows have their own
    schema_id: int
    size: int
    checksum: bytes = b""  # xxh3-128 of these bytes; for an entry, the producer's; empty: none


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The rows have these offsets, assigned now or by an earlier attempt."""

    kind: ClassVar[int] = 49
    start: Offset
    end: Offset
    repeated: bool


@dataclass(frozen=True, slots=True)
class StageResult:
    """The stage's content, including this batch."""

    kind: ClassVar[int] = 51
    receipt: Receipt
    repeated: bool


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The rows of all stages have offsets, assigned now or by an earlier attempt."""

    kind: ClassVar[int] = 53
    ranges: tuple[PartitionRange, ...]  # one for each partition, by their first rows
    repeated: bool
    same: bool  # False: the earlier attempt had different content, which stands


@dataclass(frozen=True, slots=True)
class DiscardResult:
    """The number of stages that were discarded."""

    kind: ClassVar[int] = 55
    count: int


@dataclass(frozen=True, slots=True)
class TrimResult:
    """`first` is the first row retained; `holds` are groups and what they hold."""

    kind: ClassVar[int] = 58
    first: Offset
    holds: tuple[Hold, ...]


@dataclass(frozen=True, slots=True)
class CursorStored:
    """The group continues at `next`."""

    kind: ClassVar[int] = 65
    next: Offset


@dataclass(frozen=True, slots=True)
class CursorDeleted:
    """The group no longer has a cursor in this partition."""

    kind: ClassVar[int] = 67
