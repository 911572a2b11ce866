"""Requests that add rows to partitions or remove them, and their answers."""

import hashlib
from dataclasses import dataclass
from typing import ClassVar, Final

from headrace.model.ids import ONCE, WRITER_SIZE, is_once
from headrace.model.results import Receipt

STAGE_ID_SIZE: Final = 16
VERSION_MAX: Final = 2**63 - 1
SUPERSEDED: Final = "superseded"  # the code of a Refused: a later version was published


def writer_of(app_id: str) -> bytes:
    """Return the writer for an app ID."""
    digest = hashlib.sha256(app_id.encode()).digest()
    first = digest[:WRITER_SIZE]
    return digest[WRITER_SIZE:] if is_once(first) else first


def once(random: bytes) -> bytes:
    """Return a writer for one anonymous transaction."""
    return ONCE + random[: WRITER_SIZE - len(ONCE)]


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Append the batch in the body. Answered by AppendResult once a quorum has it on disk.

    `checksum` is the xxh3-128 of the body, or empty: then only the frame's CRC-32 is checked.
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
    """Add the batch in the body to a stage as entry `number`. Answered by StageResult."""

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
    """Publish the rows of exactly these stages. Answered by PublishResult."""

    kind: ClassVar[int] = 52
    namespace: int
    created: int
    writer: bytes
    version: int
    stages: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True)
class DiscardRequest:
    """Discard stages. Answered by DiscardResult."""

    kind: ClassVar[int] = 54
    namespace: int
    created: int
    writer: bytes
    stage_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """Remove the rows below `first`. Answered by TrimResult."""

    kind: ClassVar[int] = 56
    namespace: int
    created: int
    first: int
    past_hold: bool


@dataclass(frozen=True, slots=True)
class PurgeRequest:
    """Remove all rows; offsets continue. Answered by TrimResult."""

    kind: ClassVar[int] = 57
    namespace: int
    created: int
