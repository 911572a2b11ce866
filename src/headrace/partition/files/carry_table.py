"""Everything before the first entry of a carry file, as bytes and back. See `carry.py`.

No size that a header gives is believed before its checksum was compared.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from xxhash import xxh3_128_digest

from headrace.errors import ForeignFile, refuse_newer
from headrace.journal.entry import BODY_SIZE_MAX, CHECKSUM_SIZE, HEADER_SIZE, Flaw
from headrace.journal.frame import aligned, padding
from headrace.journal.journal_file import FIRST_POSITION
from headrace.model.ids import Identity, Op

MAGIC: Final = b"HRcarry\0"
FORMAT: Final = 2  # the newest; what has no sources is written as format 1
ENTRY_SIZE_MAX: Final = HEADER_SIZE + BODY_SIZE_MAX

_PLAIN: Final = 1
_SOURCE_SIZE_MAX: Final = 2**32  # as of any journal file
FIELDS = struct.Struct("<16s8sHHI16sQQ16sII40s")
_ROW = struct.Struct("<QQII16s")
_SOURCE = struct.Struct("<QQQ")
_ROWS_AT = FIELDS.size
_ZEROS = bytes(40)
assert FIELDS.size == 128
assert _ROW.size == 40


@dataclass(frozen=True, slots=True)
class CarrySource:
    """A journal file that is kept, because most of it is live."""

    file_id: int
    size: int
    first_op: Op

    @property
    def name(self) -> str:
        return kept_name(self.file_id)


class Item(NamedTuple):
    """What the index says of an entry: known before its body is read."""

    op: Op
    size: int  # of header and body
    checksum: bytes


class LinkedJournal(NamedTuple):
    """An entry that stays where it is: in which of the sources, and where there."""

    item: Item
    source: int  # counted from 1
    position: int

    @property
    def op(self) -> Op:
        return self.item.op


class Row(NamedTuple):
    op: Op
    position: int  # in this file, or in the source
    size: int
    source: int  # counted from 1; 0 is this file
    checksum: bytes

    @property
    def item(self) -> Item:
        return Item(self.op, self.size, self.checksum)


class Fields(NamedTuple):
    """What a header says."""

    group: int
    cluster: bytes
    op: int
    size: int
    index_checksum: bytes
    entry_count: int
    source_count: int

    @property
    def sources_at(self) -> int:
        return _ROWS_AT + self.entry_count * _ROW.size

    @property
    def end(self) -> int:
        """Where the index ends, before its padding."""
        return self.sources_at + self.source_count * _SOURCE.size

    @property
    def table_size(self) -> int:
        return aligned(self.end)


def kept_name(file_id: int) -> str:
    """Return the name of a kept journal file."""
    return f"{file_id:016x}.wal"


def encode(
    identity: Identity,
    op: Op,
    items: Sequence[Item | LinkedJournal],
    sources: Sequence[CarrySource] = (),
) -> tuple[bytes, int]:
    """Return everything before the first entry, and the size of the whole file."""
    end = _ROWS_AT + len(items) * _ROW.size + len(sources) * _SOURCE.size
    position = aligned(end)
    index = bytearray()
    last = 0
    for each in items:
        item = each.item if isinstance(each, LinkedJournal) else each
        assert last < item.op <= op
        assert HEADER_SIZE <= item.size <= ENTRY_SIZE_MAX
        assert len(item.checksum) == CHECKSUM_SIZE
        if isinstance(each, LinkedJournal):
            index += _ROW.pack(item.op, each.position, item.size, each.source, item.checksum)
        else:
            index += _ROW.pack(item.op, position, item.size, 0, item.checksum)
            position += aligned(item.size)
        last = item.op
    for one in sources:
        index += _SOURCE.pack(one.file_id, one.size, one.first_op)
    form = FORMAT if sources else _PLAIN
    fields = FIELDS.pack(
        bytes(CHECKSUM_SIZE),
        MAGIC,
        form,
        form,
        identity.group,
        identity.cluster,
        op,
        position,
        xxh3_128_digest(index),
        len(items),
        len(sources),
        _ZEROS,
    )
    rest = fields[CHECKSUM_SIZE:]
    return b"".join((xxh3_128_digest(rest), rest, index, padding(end))), position


def decode_header(data: bytes, owner: Identity | None, path: str) -> Fields | Flaw:
    """Judge a header; without an `owner`, whosever it is."""
    if len(data) < FIELDS.size:
        return Flaw("carry file is cut short", f"at least {FIELDS.size} bytes", len(data))
    found, magic, _, reader_min, *rest, _ = FIELDS.unpack(data)
    checksum = xxh3_128_digest(data[CHECKSUM_SIZE:])
    if checksum != found:
        return Flaw("checksum of the carry header", checksum.hex(), found.hex())
    if magic != MAGIC:
        return Flaw("magic of the carry file", MAGIC, magic)
    refuse_newer(path, FORMAT, reader_min)
    fields = Fields._make(rest)
    if fields.source_count and reader_min <= _PLAIN:
        return Flaw("sources of the carry file", "none in format 1", fields.source_count)
    if owner is not None and fields.cluster != owner.cluster:
        raise ForeignFile(path, "cluster", owner.cluster.hex(), fields.cluster.hex())
    if owner is not None and fields.group != owner.group:
        raise ForeignFile(path, "group", owner.group, fields.group)
    return fields


def flaw_of(table: bytes, fields: Fields) -> Flaw | None:
    """Judge what is behind the header, up to the first entry."""
    checksum = xxh3_128_digest(memoryview(table)[_ROWS_AT : fields.end])
    if checksum != fields.index_checksum:
        return Flaw("checksum of the carry index", fields.index_checksum.hex(), checksum.hex())
    if table[fields.end :] != padding(fields.end):
        return Flaw("padding of the carry index", "zeros", "other bytes")
    return _rows_flaw(table, fields)


def rows(table: bytes, entry_count: int) -> Iterator[Row]:
    some = memoryview(table)[_ROWS_AT : _ROWS_AT + entry_count * _ROW.size]
    return map(Row._make, _ROW.iter_unpack(some))


def row_at(table: bytes, place: int) -> Row:
    """Return one row, counted from 0."""
    return Row._make(_ROW.unpack_from(table, _ROWS_AT + place * _ROW.size))


def sources(table: bytes, fields: Fields) -> tuple[CarrySource, ...]:
    """Return the kept files that the rows count."""
    some = memoryview(table)[fields.sources_at : fields.end]
    found = _SOURCE.iter_unpack(some)
    return tuple(CarrySource(file_id, size, Op(first_op)) for file_id, size, first_op in found)


def _rows_flaw(table: bytes, fields: Fields) -> Flaw | None:
    """Judge rows whose bytes are whole: ops rise, and entries lie as close as they can."""
    position, last = len(table), 0
    known = sources(table, fields)
    for row in rows(table, fields.entry_count):
        if not last < row.op <= fields.op:
            return Flaw("op in the carry index", f"{last + 1}..{fields.op}", row.op)
        if row.source:
            flaw = _kept_flaw(row, known)
            if flaw is not None:
                return flaw
        elif row.position != position:
            return Flaw(f"position of op {row.op} in the carry index", position, row.position)
        if not HEADER_SIZE <= row.size <= ENTRY_SIZE_MAX:
            return Flaw(f"size of op {row.op}", f"{HEADER_SIZE}..{ENTRY_SIZE_MAX}", row.size)
        position += 0 if row.source else aligned(row.size)
        last = row.op
    if position != fields.size:
        return Flaw("end of the carried entries", fields.size, position)
    return None


def _kept_flaw(row: Row, known: Sequence[CarrySource]) -> Flaw | None:
    if row.source > len(known):
        return Flaw(f"source of op {row.op}", f"at most {len(known)}", row.source)
    last = min(known[row.source - 1].size, _SOURCE_SIZE_MAX) - row.size
    if not FIRST_POSITION <= row.position <= last:
        return Flaw(f"position of op {row.op}", f"{FIRST_POSITION}..{last}", row.position)
    return None
