"""Requests that keep the files of segments where they are, and their answers.

A reader that opens segments itself, as Spark's own scan does, must know that none of them is
unlinked meanwhile. A lease says so, until it ends: by ReleaseLease, by its time, or with the
process of the node. Its id is 16 random bytes that the client chose: whoever repeats a request
after a lost connection repeats it, and takes nothing twice.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from headrace.wire.topic_messages import PartitionInfo

LEASE_ID_SIZE: Final = 16
LEASE_UNKNOWN: Final = "lease_unknown"  # the code of a Refused: it ended, or never was


@dataclass(frozen=True, slots=True)
class LeaseFiles:
    """Have the segments of partitions of one topic kept for a while. Answered by Leased.

    All partitions are looked at in the same moment. A lease of that id is replaced.
    """

    kind: ClassVar[int] = 88
    lease_id: bytes
    duration_ms: int
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One segment: the rows `first` to before `end`, of one schema version."""

    name: str  # in the directory of its partition
    first: int
    end: int
    version: int
    size: int  # bytes of the file
    row_digest: bytes  # that the file has in its footer, too


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """What is retained of one partition, and the files that hold the beginning of it.

    The files follow one another without a gap. The first may begin before `first`, with rows
    that are retained no more; the last ends at `sealed_end`. Rows from there on are fetched.
    """

    first: int
    sealed_end: int
    end: int  # committed
    directory: str  # where the files are, as the node's machine calls it
    files: tuple[FileInfo, ...]


@dataclass(frozen=True, slots=True)
class Leased:
    """The partitions that were asked for, in their order. Files stay for `duration_ms`."""

    kind: ClassVar[int] = 89
    duration_ms: int  # from when the node made this answer
    partitions: tuple[PartitionFiles, ...]


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Have a lease last this long from now on. Answered by LeaseRenewed.

    Refused (`lease_unknown`) if it has ended: its files may be gone.
    """

    kind: ClassVar[int] = 90
    lease_id: bytes
    duration_ms: int


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """Its files stay for `duration_ms`, from when the node made this answer."""

    kind: ClassVar[int] = 91
    duration_ms: int


@dataclass(frozen=True, slots=True)
class ReleaseLease:
    """End a lease; one that has ended already is no error. Answered by LeaseReleased."""

    kind: ClassVar[int] = 92
    lease_id: bytes


@dataclass(frozen=True, slots=True)
class LeaseReleased:
    """It holds nothing any more."""

    kind: ClassVar[int] = 93
