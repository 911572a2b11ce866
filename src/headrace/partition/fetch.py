"""Rows for a reader: entries byte for byte where possible, otherwise encoded again.

A reader of the tail gets the exact bytes that were appended, checked on their way from the
disk. Rows of segments, and rows with only some columns wanted, are encoded in the requested
version.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from xxhash import xxh3_128_digest

from headrace.errors import BadRequest, Behind, Corrupt, Expired
from headrace.model import batch
from headrace.model.ids import Offset
from headrace.model.results import FetchedPiece
from headrace.partition.machine.operations import STAGE, STAGE_HEADER_SIZE
from headrace.partition.machine.state import Piece
from headrace.partition.reader import Key, Reader
from headrace.storage.seam import Buffer

# Of encoded rows: several fit into an answer, and each is worth its header.
_SLICE_SIZE: Final = 4 * 1024 * 1024


FetchedPart = tuple[FetchedPiece, Buffer]  # contiguous rows: one Arrow message


@dataclass(frozen=True, slots=True)
class FetchedRows:
    """Rows from the requested start to before `next`."""

    next: Offset
    first: Offset  # retained
    end: Offset  # committed
    parts: list[FetchedPart]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The request of a reader."""

    key: Key
    start: Offset
    end: Offset | None  # None: to the end
    size_max: int
    columns: Sequence[str] | None
    version: int


def fetch(reader: Reader, wanted: Wanted) -> FetchedRows:
    """Read rows from `start` on: as many parts as fit into `size_max`, and at least one.

    A bounded range may come in several answers; beyond the committed end it is Behind.
    """
    first, end = reader.bounds(wanted.key)
    if wanted.start < 0 or (wanted.end is not None and wanted.end < wanted.start):
        raise BadRequest(f"offsets {wanted.start} to {wanted.end} are not a valid range")
    if wanted.start < first:
        raise Expired(str(wanted.key), wanted.start, first)
    asked = wanted.start if wanted.end is None else wanted.end
    if asked > end:
        raise Behind(str(wanted.key), asked, end)
    stop = end if wanted.end is None else wanted.end
    answer = _Answer(wanted.size_max)
    offset = wanted.start
    while offset < stop and not answer.is_full:
        for piece, _ in _parts_at(reader, wanted, offset, stop, answer):
            offset = Offset(piece.first + piece.row_count)
    return FetchedRows(Offset(min(offset, stop)), first, end, answer.parts)


@dataclass(slots=True)
class _Answer:
    """Parts, as far as they fit. A part larger than any answer gets one of its own."""

    size_max: int
    parts: list[FetchedPart] = field(default_factory=list)
    size: int = 0
    is_full: bool = False

    def has_room(self, size: int) -> bool:
        """Whether this many more bytes fit; if not, the answer is closed."""
        if self.parts and self.size + size > self.size_max:
            self.is_full = True
        return not self.is_full

    def add(self, part: FetchedPart) -> bool:
        """Add a part if there is room for it."""
        size = part[0].size
        if not self.has_room(size):
            return False
        self.parts.append(part)
        self.size += size
        self.is_full = self.size >= self.size_max
        return True


def _parts_at(
    reader: Reader, wanted: Wanted, offset: Offset, stop: Offset, answer: _Answer
) -> list[FetchedPart]:
    """Add the parts from `offset` on that are in one place, and return them."""
    while True:
        _, place = reader.place(wanted.key, offset)
        try:
            if isinstance(place, Piece) and wanted.columns is None:
                # Before it is read: an entry that does not fit costs nothing.
                part = _entry(reader, place) if answer.has_room(place.size) else None
                return [part] if part is not None and answer.add(part) else []
            end = Offset(min(stop, place.end))
            return _encoded(reader, wanted, offset, end, answer)
        except Corrupt:
            if reader.place(wanted.key, offset)[1] == place:
                raise  # not moved during the read: it is damage


def _entry(reader: Reader, piece: Piece) -> FetchedPart:
    entry = reader.keeper.read(piece.op, reader.journal)
    header, body, checksum = entry.header, memoryview(entry.body), entry.header.body_checksum
    if header.operation == STAGE:  # its checksum covers more than the batch
        body = body[STAGE_HEADER_SIZE:]
        checksum = xxh3_128_digest(body)
    found = FetchedPiece(
        is_entry=True,
        first=piece.first,
        row_count=piece.row_count,
        timestamp=piece.timestamp,
        schema_id=header.schema_id,
        size=len(body),
        checksum=checksum,
    )
    return found, body


def _encoded(
    reader: Reader, wanted: Wanted, offset: Offset, end: Offset, answer: _Answer
) -> list[FetchedPart]:
    """Encode rows of one place, in slices that are small compared to an answer."""
    added: list[FetchedPart] = []
    limit = min(_SLICE_SIZE, wanted.size_max)
    for rows in reader.read(
        wanted.key, offset, end, columns=wanted.columns, version=wanted.version
    ):
        for some in _slices(rows, limit):
            if not answer.has_room(some.nbytes):  # before encoding it in vain
                return added
            body = memoryview(batch.encode_for_reader(some))
            piece = FetchedPiece(
                is_entry=False,
                first=offset,
                row_count=some.num_rows,
                timestamp=0,
                schema_id=wanted.version,
                size=len(body),
                checksum=xxh3_128_digest(body),
            )
            if not answer.add((piece, body)):
                return added
            added.append((piece, body))
            offset = Offset(offset + some.num_rows)
    return added


def _slices(rows: pa.RecordBatch, limit: int) -> Iterator[pa.RecordBatch]:
    """Halve rows until each part has at most `limit` bytes or one row."""
    if rows.num_rows <= 1 or rows.nbytes <= limit:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _slices(rows.slice(0, half), limit)
    yield from _slices(rows.slice(half), limit)
