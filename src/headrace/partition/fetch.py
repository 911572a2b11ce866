"""Rows as they leave for a reader: entries byte for byte where that will do, else encoded anew.

A reader of the tail gets the very bytes that were appended, checked on their way from the disk.
Rows of segments, and rows of which only some columns are wanted, are encoded in the version
that was asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import BadRequest, Behind, Corrupt, Expired
from headrace.model import batch
from headrace.model.ids import Offset
from headrace.partition.operations import STAGE, STAGE_HEADER_SIZE
from headrace.partition.read import Key, Reader
from headrace.partition.state import Piece
from headrace.storage.seam import Buffer


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that follow one another, encoded as one Arrow message."""

    is_entry: bool  # as appended: in schema `schema_id`, without the system's columns
    first: Offset
    row_count: int
    timestamp: int  # of an entry; 0 otherwise
    schema_id: int
    body: Buffer
    checksum: bytes = b""  # xxh3-128 of the body as it was appended; empty: not known


@dataclass(frozen=True, slots=True)
class Fetched:
    """Rows from the start that was asked for to before `next`."""

    next: Offset
    first: Offset  # retained
    end: Offset  # committed
    parts: list[Part]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader asks for."""

    key: Key
    start: Offset
    end: Offset | None  # None: as far as there is something
    size_max: int
    columns: Sequence[str] | None
    version: int


def fetch(reader: Reader, wanted: Wanted) -> Fetched:
    """Read rows from `start` on, until `size_max` bytes are there, and at least one part.

    A bounded range may come in several answers; beyond the committed end it is Behind.
    """
    first, end = reader.bounds(wanted.key)
    if wanted.start < 0 or (wanted.end is not None and wanted.end < wanted.start):
        raise BadRequest(f"offsets {wanted.start} to {wanted.end} are no range")
    if wanted.start < first:
        raise Expired(str(wanted.key), wanted.start, first)
    asked = wanted.start if wanted.end is None else wanted.end
    if asked > end:
        raise Behind(str(wanted.key), asked, end)
    stop = end if wanted.end is None else wanted.end
    parts: list[Part] = []
    offset, size = wanted.start, 0
    while offset < stop and size < wanted.size_max:
        found = _parts_at(reader, wanted, offset, stop, wanted.size_max - size)
        parts += found
        size += sum(len(part.body) for part in found)
        offset = Offset(found[-1].first + found[-1].row_count)
    return Fetched(Offset(min(offset, stop)), first, end, parts)


def _parts_at(
    reader: Reader, wanted: Wanted, offset: Offset, stop: Offset, size_max: int
) -> list[Part]:
    """Return at least one part that holds `offset`, and not much more than `size_max`."""
    while True:
        _, place = reader.place(wanted.key, offset)
        try:
            if isinstance(place, Piece) and wanted.columns is None:
                return [_entry(reader, place)]
            end = Offset(min(stop, place.end))
            return _encoded(reader, wanted, offset, end, size_max)
        except Corrupt:
            if reader.place(wanted.key, offset)[1] == place:
                raise  # not moved while we read: it is damage


def _entry(reader: Reader, piece: Piece) -> Part:
    entry = reader.keeper.read(piece.op, reader.journal)
    header, body, checksum = entry.header, memoryview(entry.body), entry.header.body_checksum
    if header.operation == STAGE:  # its checksum covers more than the batch
        body, checksum = body[STAGE_HEADER_SIZE:], b""
    return Part(
        True, piece.first, piece.row_count, piece.timestamp, header.schema_id, body, checksum
    )


def _encoded(
    reader: Reader, wanted: Wanted, offset: Offset, end: Offset, size_max: int
) -> list[Part]:
    parts: list[Part] = []
    size = 0
    for rows in reader.read(
        wanted.key, offset, end, columns=wanted.columns, version=wanted.version
    ):
        body = memoryview(batch.encode(rows))
        parts.append(Part(False, offset, rows.num_rows, 0, wanted.version, body))
        offset = Offset(offset + rows.num_rows)
        size += len(body)
        if size >= size_max:
            break
    return parts
