"""Requests for rows, bounds and cursors, and their answers."""

from dataclasses import dataclass
from typing import ClassVar

from headrace.model.results import FetchedPiece, StoredCursor
from headrace.wire.topic_messages import PartitionInfo


@dataclass(frozen=True, slots=True)
class StoreCursorRequest:
    """Say which offset a consumer group reads next. Answered by CursorStored.

    With KEEP_NEXT as `next` the cursor stays where it is, and the reply says where that is.
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
    """Forget a consumer group's cursor. Answered by CursorDeleted."""

    kind: ClassVar[int] = 66
    namespace: int
    created: int
    group: str
    generation: int


@dataclass(frozen=True, slots=True)
class GetCursors:
    """Ask for the cursors of a partition. Answered by Cursors."""

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
    """Ask where partitions begin and end. Answered by BoundsReply."""

    kind: ClassVar[int] = 72
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True)
class PartitionBounds:
    """What is retained of one partition: rows `first` to before `end`."""

    first: int
    end: int
    size: int  # bytes of their batches
    sealed_end: int  # rows before this are in segments
    versions: tuple[tuple[int, int], ...]  # schema version, first offset it is in force at


@dataclass(frozen=True, slots=True)
class BoundsReply:
    """The bounds of the partitions that were asked for, in their order."""

    kind: ClassVar[int] = 73
    bounds: tuple[PartitionBounds, ...]


@dataclass(frozen=True, slots=True)
class GetOffset:
    """Ask for the first row appended at `timestamp` (microseconds) or later.

    Answered by FoundOffset.
    """

    kind: ClassVar[int] = 74
    namespace: int
    created: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """The offset, or the end if there is no such row yet."""

    kind: ClassVar[int] = 75
    offset: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read rows from `start` on: as many as fit in `size_max`, and at least one entry.

    Before `end`, if that is said, and then beyond the committed end it is Behind. With no end
    and no row there yet, the answer waits up to `wait_ms`, and may then be empty. Answered by
    FetchReply.
    """

    kind: ClassVar[int] = 80
    namespace: int
    created: int
    start: int
    end: int | None
    size_max: int
    wait_ms: int
    columns: tuple[str, ...] | None  # None: all, the system's too
    version: int  # of the schema in which rows are shown


@dataclass(frozen=True, slots=True)
class FetchReply:
    """Rows from the asked start to before `next`."""

    kind: ClassVar[int] = 81
    next: int
    first: int  # retained
    end: int  # committed
    pieces: tuple[FetchedPiece, ...]
