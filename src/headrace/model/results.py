"""What became of an operation, once for all: machine, wire and client use these very values.

The standard library alone: executors of Spark load it. Values that stand within others are
tuples, which is how files and frames hold them: one array of exactly these fields, in this
order. `kind` is the number of a result's message in docs/protocol.md.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from headrace.model.ids import Offset
from headrace.model.namespace import Namespace


class Receipt(NamedTuple):
    """What a stage holds: the answer to its last Stage, and what Publish asks for."""

    stage_id: bytes
    op_count: int
    row_count: int
    digest: bytes  # its body checksums, folded in order


class PartitionRange(NamedTuple):
    """Rows of one partition, `start` to before `end`."""

    namespace: Namespace
    start: Offset
    end: Offset


class StoredCursor(NamedTuple):
    """Where a consumer group reads on in one partition."""

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
    """Rows in the body, one after the other, each beginning at a multiple of 64.

    `is_entry`: one Arrow message as it was appended, in schema `schema_id`, with none of the
    system's columns, maybe beginning before `start` or ending behind `end`. Otherwise the
    columns that were asked for, in the version that was asked for.
    """

    is_entry: bool
    first: int
    row_count: int
    timestamp: int  # of the entry; 0 where rows bring their own
    schema_id: int
    size: int
    checksum: bytes = b""  # xxh3-128 of these bytes, of an entry the producer's; empty: none


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The rows have these offsets: given now, or by an earlier try."""

    kind: ClassVar[int] = 49
    start: Offset
    end: Offset
    repeated: bool


@dataclass(frozen=True, slots=True)
class StageResult:
    """The stage holds this, the batch included."""

    kind: ClassVar[int] = 51
    receipt: Receipt
    repeated: bool


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The rows of all stages have offsets: given now, or by an earlier try."""

    kind: ClassVar[int] = 53
    ranges: tuple[PartitionRange, ...]  # one for each partition, by their first rows
    repeated: bool
    same: bool  # False: the earlier try had other content, which is what counts


@dataclass(frozen=True, slots=True)
class DiscardResult:
    """So many stages were there and are gone."""

    kind: ClassVar[int] = 55
    count: int


@dataclass(frozen=True, slots=True)
class TrimResult:
    """`first` is the first row retained; `holds` are groups, and what they hold on to."""

    kind: ClassVar[int] = 58
    first: Offset
    holds: tuple[Hold, ...]


@dataclass(frozen=True, slots=True)
class CursorStored:
    """The group reads `next` next."""

    kind: ClassVar[int] = 65
    next: Offset


@dataclass(frozen=True, slots=True)
class CursorDeleted:
    """The group has no cursor in this partition any more."""

    kind: ClassVar[int] = 67
