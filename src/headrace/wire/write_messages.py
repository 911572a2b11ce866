"""Requests that put rows into partitions or take them away, and their answers."""

import hashlib
from dataclasses import dataclass
from typing import ClassVar, Final

from headrace.model.ids import ONCE, WRITER_SIZE, is_once

STAGE_ID_SIZE: Final = 16
VERSION_MAX: Final = 2**63 - 1
SUPERSEDED: Final = "superseded"  # the code of a Refused: a version was published before


def writer_of(app_id: str) -> bytes:
    """Return the writer that an app id stands for."""
    digest = hashlib.sha256(app_id.encode()).digest()
    first = digest[:WRITER_SIZE]
    return digest[WRITER_SIZE:] if is_once(first) else first


def once(random: bytes) -> bytes:
    """Return a writer of one transaction, which nobody repeats under a name."""
    return ONCE + random[: WRITER_SIZE - len(ONCE)]


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Append the batch in the body. Answered by AppendReply once a quorum has it on disk.

    `checksum` is the xxh3-128 of the body, or empty: then the frame's CRC-32 alone is checked.
    """

    kind: ClassVar[int] = 48
    namespace: int
    created: int
    writer: bytes
    version: int
    schema_id: int
    row_count: int
    checksum: bytes


@dataclass(frozen=True, slots=True)
class AppendReply:
    """The rows have these offsets: given now, or by an earlier try."""

    kind: ClassVar[int] = 49
    start: int
    end: int
    repeated: bool


@dataclass(frozen=True, slots=True)
class StageRequest:
    """Put the batch in the body into a stage, as its entry `number`. Answered by StageReply."""

    kind: ClassVar[int] = 50
    namespace: int
    created: int
    writer: bytes
    version: int
    schema_id: int
    row_count: int
    stage_id: bytes
    number: int
    checksum: bytes


@dataclass(frozen=True, slots=True)
class StageReceipt:
    """What a stage holds."""

    stage_id: bytes
    op_count: int
    row_count: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class StageReply:
    """The stage holds this, the batch included."""

    kind: ClassVar[int] = 51
    receipt: StageReceipt
    repeated: bool


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """Give the rows of exactly these stages offsets. Answered by PublishReply."""

    kind: ClassVar[int] = 52
    namespace: int
    created: int
    writer: bytes
    version: int
    stages: tuple[StageReceipt, ...]


@dataclass(frozen=True, slots=True)
class PublishedRange:
    """Rows of one partition, `start` to before `end`."""

    namespace: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PublishReply:
    """The rows of all stages have offsets: given now, or by an earlier try."""

    kind: ClassVar[int] = 53
    ranges: tuple[PublishedRange, ...]
    repeated: bool
    same: bool  # False: the earlier try had other content, which is what counts


@dataclass(frozen=True, slots=True)
class DiscardRequest:
    """Forget stages. Answered by DiscardReply."""

    kind: ClassVar[int] = 54
    namespace: int
    created: int
    writer: bytes
    stage_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class DiscardReply:
    """So many stages were there and are gone."""

    kind: ClassVar[int] = 55
    count: int


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """Drop the rows below `first`. Answered by TrimReply."""

    kind: ClassVar[int] = 56
    namespace: int
    created: int
    first: int
    past_hold: bool


@dataclass(frozen=True, slots=True)
class PurgeRequest:
    """Drop all rows; offsets go on. Answered by TrimReply."""

    kind: ClassVar[int] = 57
    namespace: int
    created: int


@dataclass(frozen=True, slots=True)
class TrimReply:
    """`first` is the first row retained; `holds` are groups, and what they hold on to."""

    kind: ClassVar[int] = 58
    first: int
    holds: tuple[tuple[str, int], ...]
