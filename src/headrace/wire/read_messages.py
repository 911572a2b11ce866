"""Requests for rows, bounds and cursors, and their answers."""

from dataclasses import dataclass
from typing import ClassVar

from headrace.model.results import FetchedPiece, StoredCursor
from headrace.wire.topic_messages import PartitionInfo


@dataclass(frozen=True, slots=True)
class StoreCursorRequest:
    """Store the next offset of a consumer group. Answered by CursorStored.

    With KEEP_NEXT as `next`, the cursor is not moved, and the reply returns its position.
    """

    kind: ClassVar[int] = 64
    namespace: int
    created: int
    group: str
    next: int
    generation: int
    hold: bool


@dataclass(frozen=True, slots=True)
class DeleteCursorRequest:
    """Delete a consumer group's cursor. Answered by CursorDeleted."""

    kind: ClassVar[int] = 66
    namespace: int
    created: int
    group: str
    generation: int


@dataclass(frozen=True, slots=True)
class GetCursors:
    """Request the cursors of a partition. Answered by Cursors."""

    kind: ClassVar[int] = 68
    namespace: int
    created: int


@dataclass(frozen=True, slots=True)
class Cursors:
    """The cursors of a partition, by group."""

    kind: ClassVar[int] = 69
    cursors: tuple[StoredCursor, ...]


@dataclass(frozen=True, slots=True)
class GetBounds:
    """Request the bounds of partitions. Answered by BoundsReply."""

    kind: ClassVar[int] = 72
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True)
class PartitionBounds:
    """What is retained of one partition: rows from `first` to before `end`."""

    first: int
    end: int
    size: int  # bytes of their batches
    sealed_end: int  # rows before this are in segments
    versions: tuple[tuple[int, int], ...]  # schema version, first offset that it applies to


@dataclass(frozen=True, slots=True)
class BoundsReply:
    """The bounds of the requested partitions, in order."""

    kind: ClassVar[int] = 73
    bounds: tuple[PartitionBounds, ...]


@dataclass(frozen=True, slots=True)
class GetOffset:
    """Request the first row appended at `timestamp` (microseconds) or later.

    Answered by FoundOffset.
    """

    kind: ClassVar[int] = 74
    namespace: int
    created: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """The offset, or the end if there is no matching row yet."""

    kind: ClassVar[int] = 75
    offset: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read rows from `start` on: as many as fit in `size_max`, but at least one entry.

    With `end`, only rows before it; Behind if that is beyond the committed end. Without `end`
    and without rows, the answer waits up to `wait_ms`, and may then be empty. Answered by
    FetchReply.
    """

    kind: ClassVar[int] = 80
    namespace: int
    created: int
    start: int
    end: int | None
    size_max: int
    wait_ms: int
    columns: tuple[str, ...] | None  # None: all, including system columns
    version: int  # of the schema in which rows are returned


@dataclass(frozen=True, slots=True)
class FetchReply:
    """Rows from the requested start to before `next`."""

    kind: ClassVar[int] = 81
    next: int
    first: int  # retained
    end: int  # committed
    pieces: tuple[FetchedPiece, ...]
