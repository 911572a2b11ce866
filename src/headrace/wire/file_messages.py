"""Requests for the bytes of leased segment files, and their answers.

A reader that does not share a disk with the node takes a lease, and asks for the files that it
names. The node sends them as they are on disk: it decodes nothing.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

FILE_NOT_LEASED: Final = "file_not_leased"  # the code of a Refused: not among the lease's files
FILE_REPLACED: Final = "file_replaced"  # the code of a Refused: the same rows, sealed again


@dataclass(frozen=True, slots=True)
class GetFileDigests:
    """Request the digests of a lease's files. Answered by FileDigests.

    Refused (`lease_unknown`) if the lease has ended.
    """

    kind: ClassVar[int] = 104
    lease_id: bytes


@dataclass(frozen=True, slots=True)
class FileDigests:
    """The xxh3-128 of each whole file, in the order of Leased.

    Rows have one digest on all nodes, but each node has files of its own.
    """

    kind: ClassVar[int] = 105
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class FetchFile:
    """Read a part of a leased file. Answered by FileChunk.

    The answer has up to `size_max` bytes, and at least one. `digest` is that of the whole file,
    as FileDigests returned it: a file that was sealed again meanwhile is refused
    (`file_replaced`).
    """

    kind: ClassVar[int] = 106
    lease_id: bytes
    namespace: int
    created: int
    first: int  # of its rows
    end: int
    digest: bytes
    position: int  # of the first byte
    size_max: int


@dataclass(frozen=True, slots=True)
class FileChunk:
    """Bytes of a file, from `position` on. They are the frame's body."""

    kind: ClassVar[int] = 107
    position: int
    checksum: bytes  # xxh3-128 of the body
