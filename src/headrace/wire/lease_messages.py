"""Requests that keep segment files in place, and their answers.

A reader that opens segments itself, as Spark's own scan does, must be sure that none of them is
deleted meanwhile. A lease guarantees that until it ends: by ReleaseLease, by timeout, or with
the node's process. Its ID is 16 random bytes chosen by the client: repeating a request after a
lost connection does not take a second lease.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from headrace.wire.topic_messages import PartitionInfo

LEASE_ID_SIZE: Final = 16
LEASE_UNKNOWN: Final = "lease_unknown"  # the code of a Refused: it ended, or never existed


@dataclass(frozen=True, slots=True)
class LeaseFiles:
    """Keep the segments of partitions of one topic for a while. Answered by Leased.

    All partitions are read at the same moment. A lease with the same ID is replaced.
    """

    kind: ClassVar[int] = 88
    lease_id: bytes
    duration_ms: int
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One segment: the rows from `first` to before `end`, of one schema version."""

    name: str  # in the directory of its partition
    first: int
    end: int
    version: int
    size: int  # bytes of the file
    row_digest: bytes  # also in the file's footer


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """What is retained of one partition, and the files that hold its beginning.

    The files are contiguous. The first may begin before `first`, with rows that are no longer
    retained; the last ends at `sealed_end`. Rows from there on are fetched.
    """

    first: int
    sealed_end: int
    end: int  # committed
    directory: str  # of the files, on the node's machine
    files: tuple[FileInfo, ...]


@dataclass(frozen=True, slots=True)
class Leased:
    """The requested partitions, in order. Files are kept for `duration_ms`."""

    kind: ClassVar[int] = 89
    duration_ms: int  # counted from the node's answer
    partitions: tuple[PartitionFiles, ...]


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Extend a lease: it lasts this long from now. Answered by LeaseRenewed.

    Refused (`lease_unknown`) if it has ended: its files may be deleted.
    """

    kind: ClassVar[int] = 90
    lease_id: bytes
    duration_ms: int


@dataclass(frozen=True, slots=True)
class LeaseRenewed:
    """Its files are kept for `duration_ms`, counted from the node's answer."""

    kind: ClassVar[int] = 91
    duration_ms: int


@dataclass(frozen=True, slots=True)
class ReleaseLease:
    """End a lease; not an error if it has already ended. Answered by LeaseReleased."""

    kind: ClassVar[int] = 92
    lease_id: bytes


@dataclass(frozen=True, slots=True)
class LeaseReleased:
    """The lease no longer keeps any files."""

    kind: ClassVar[int] = 93
