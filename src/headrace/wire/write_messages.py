"""Requests that put rows into partitions or take them away, and their answers."""

import hashlib
from dataclasses import dataclass
from typing import ClassVar, Final

from headrace.model.ids import ONCE, WRITER_SIZE, is_once
from headrace.model.results import Receipt

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
    """Append the batch in the body. Answered by AppendResult once a quorum has it on disk.

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
class StageRequest:
    """Put the batch in the body into a stage as entry `number`. Answered by StageResult."""

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
class PublishRequest:
    """Give the rows of exactly these stages offsets. Answered by PublishResult."""

    kind: ClassVar[int] = 52
    namespace: int
    created: int
    writer: bytes
    version: int
    stages: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class DiscardRequest:
    """Forget stages. Answered by DiscardResult."""

    kind: ClassVar[int] = 54
    namespace: int
    created: int
    writer: bytes
    stage_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """Drop the rows below `first`. Answered by TrimResult."""

    kind: ClassVar[int] = 56
    namespace: int
    created: int
    first: int
    past_hold: bool


@dataclass(frozen=True, slots=True)
class PurgeRequest:
    """Drop all rows; offsets go on. Answered by TrimResult."""

    kind: ClassVar[int] = 57
    namespace: int
    created: int
