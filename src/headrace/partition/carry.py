"""Committed entries that are in no segment yet, verbatim, as a file for each checkpoint.

    file   := header:128  row*  zeros  (entry zeros)*
    header := checksum:16s  magic:8s  format:u16  reader_min:u16  group:u32  cluster:16s
              op:u64  size:u64  index_checksum:16s  entry_count:u32  zeros:44
    row    := op:u64  position:u64  size:u32  zeros:u32  checksum:16s

Little-endian; full story in docs/formats/carry.md. `checksum` is xxh3-128 of the header after
it and, through `index_checksum` and the rows, names every byte of the file. An entry is what
`journal/entry.py` draws; rows and entries are in the order of ops, and zeros fill up to the
next multiple of 64. A file is written once and never changed.
"""

import re
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from xxhash import xxh3_128_digest

from headrace.errors import (
    CorruptEntry,
    DiskFull,
    ForeignFile,
    StorageFailed,
    UnsupportedFormat,
)
from headrace.journal.entry import (
    BODY_SIZE_MAX,
    CHECKSUM_SIZE,
    HEADER_SIZE,
    Entry,
    Flaw,
    Header,
    decode,
    decode_header,
)
from headrace.journal.frame import aligned, padding
from headrace.model.ids import OP_MAX, Identity, Op
from headrace.storage.atomic import atomic_write
from headrace.storage.full import is_full
from headrace.storage.names import joined
from headrace.storage.seam import Buffer, Directory, Storage

MAGIC: Final = b"HRcarry\0"
FORMAT: Final = 1
ENTRY_SIZE_MAX: Final = HEADER_SIZE + BODY_SIZE_MAX
# Large enough that a disk streams, small enough that what was read is still in the processor's
# cache when it is hashed and written: 8 MiB cost three times as much.
STREAM_SIZE: Final = 1024 * 1024

_FIELDS = struct.Struct("<16s8sHHI16sQQ16sI44s")
_ROW = struct.Struct("<QQII16s")
_ROWS_AT = _FIELDS.size
_ZEROS = bytes(44)
_LOOK_COST = 32  # of finding one op in the index, in steps of a walk over it
_NAME = re.compile(r"([0-9]{20})\.carry")
assert _FIELDS.size == 128
assert _ROW.size == 40


@dataclass(frozen=True, slots=True)
class Item:
    """What the index says of an entry: known before its body is read."""

    op: Op
    size: int  # of header and body
    checksum: bytes


# Some entries as they are found somewhere, header and body in one, not judged yet; None for one
# that is not there.
Glance = Callable[[Sequence[Item]], Sequence[Buffer | None]]


def nothing(items: Sequence[Item]) -> Sequence[Buffer | None]:
    """Glance at nothing: every entry is read on its own."""
    return [None] * len(items)


class _Row(NamedTuple):
    op: Op
    position: int
    size: int
    zeros: int
    checksum: bytes


class _Fields(NamedTuple):
    group: int
    cluster: bytes
    op: int
    size: int
    index_checksum: bytes
    entry_count: int


@dataclass(frozen=True, slots=True, eq=False)
class CarryFile:
    """One carry file, open to read; its header and index were checked. Threads may share it.

    Close it only when nobody reads: a read through a closed file looks like an unreadable disk.
    """

    op: Op  # of the Seal
    name: str
    size: int
    ops: Sequence[Op]  # rising; not to be changed
    _table: bytes  # everything before the first entry, as on disk
    _file: Storage

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def owner(self) -> tuple[bytes, int]:
        """The cluster and the group that it says it belongs to."""
        fields = _FIELDS.unpack_from(self._table)
        return fields[5], fields[4]

    @property
    def checksum(self) -> bytes:
        """Name this very file: equal checksums are equal bytes."""
        return self._table[:CHECKSUM_SIZE]

    def __contains__(self, op: object) -> bool:
        return isinstance(op, int) and self._find(op) is not None

    def holds(self, ops: set[Op]) -> set[Op]:
        """Return those of `ops` that are here."""
        if len(ops) * _LOOK_COST < len(self.ops):
            return {op for op in ops if op in self}
        return ops.intersection(self.ops)

    def item(self, op: Op) -> Item:
        """Return what the index says of `op`, which must be here."""
        return self.placed(op)[0]

    def place(self, op: Op) -> tuple[int, int]:
        """Return position and size of the entry of `op`, which must be here."""
        item, position = self.placed(op)
        return position, item.size

    def placed(self, op: Op) -> tuple[Item, int]:
        """Return item and position of `op`, which must be here."""
        row = self._find(op)
        assert row is not None
        return Item(op, row.size, row.checksum), row.position

    def read(self, op: Op) -> Entry | Flaw:
        """Read an entry and check every byte of it. An op that is not here is a flaw."""
        row = self._find(op)
        if row is None:
            return Flaw("carry file lacks an op", op, f"{len(self.ops)} others")
        try:
            return _judged(self._file.read(row.position, row.size), row)
        except OSError as error:
            return _unreadable(error)

    def check(self) -> Flaw | None:
        """Check every byte on disk, a part at a time; None if all is well. The scrub calls it.

        It looks at the open file, whatever its name leads to now, and empties its page cache.
        """
        try:
            # What the cache holds says nothing about the platter.
            self._file.drop_cache()
            if self._file.size() != self.size:
                return Flaw("size of the carry file", self.size, self._file.size())
            return self._check_table() or self._check_entries()
        except OSError as error:
            return _unreadable(error)

    def close(self) -> None:
        self._file.close()

    def _find(self, op: int) -> _Row | None:
        place = bisect_left(self.ops, op)
        if place == len(self.ops) or self.ops[place] != op:
            return None
        return _Row._make(_ROW.unpack_from(self._table, _ROWS_AT + place * _ROW.size))

    def _check_table(self) -> Flaw | None:
        table = memoryview(self._table)
        for start in range(0, len(table), STREAM_SIZE):
            expected = table[start : start + STREAM_SIZE]
            if self._file.read(start, len(expected)) != expected:
                return Flaw("header or index of the carry file", "as when opened", "others")
        return None

    def _check_entries(self) -> Flaw | None:
        for row in _rows(self._table, len(self.ops)):
            data = memoryview(self._file.read(row.position, aligned(row.size)))
            found = _judged(data[: row.size], row)
            if isinstance(found, Flaw):
                return Flaw(f"op {row.op}: {found.what}", found.expected, found.found)
            if data[row.size :] != padding(row.size):
                return Flaw(f"op {row.op}: padding of the entry", "zeros", "other bytes")
        return None


def carry_name(op: Op) -> str:
    """Return the name of the carry file of the Seal at `op`."""
    return f"{op:020}.carry"


def op_of(name: str) -> Op | None:
    """Return the op in the name of a carry file, None for any other name."""
    found = _NAME.fullmatch(name)
    op = int(found.group(1)) if found else OP_MAX + 1
    return Op(op) if op <= OP_MAX else None


def write_carry(
    directory: Directory,
    identity: Identity,
    op: Op,
    items: Sequence[Item],
    read: Callable[[Op], Entry],
    glance: Glance = nothing,
) -> CarryFile:
    """Write the carry file of the Seal at `op`; return it open once it is durable.

    `items` rise by op. `glance` is asked for each once, in that order and some at a time;
    `read`, for those alone that it did not have or that are not their item's. DiskFull,
    CorruptEntry for an entry that is not its item's, and whatever `read` raises: as if never
    begun. The stages of StorageFailed are those of `atomic_write`, so that `sync-dir` is never
    retried, and `open`: the file is durable, and could not be opened again.
    """
    name = carry_name(op)
    path = joined(directory.path, name)
    table, size = _encode(identity, op, items)

    def fill(file: Storage) -> None:
        file.write(0, [table])
        position = len(table)
        for some in _parted(items):
            pieces = _verbatim(some, glance(some), read, path)
            file.write(position, pieces)
            position += sum(map(len, pieces))

    try:
        atomic_write(directory, name, fill)
    except StorageFailed as failed:
        # One that `read` raised, about a file of its own, stays as it is.
        is_ours = failed.path == path and failed.stage in ("write", "sync", "rename")
        if is_ours and is_full(failed.cause):
            raise DiskFull(path, failed.stage) from failed
        raise
    try:
        file = directory.open(name)
    except OSError as error:
        raise StorageFailed(path, "open", error) from error
    return CarryFile(op, name, size, _packed(item.op for item in items), table, file)


def open_carry(directory: Directory, identity: Identity, op: Op) -> CarryFile | Flaw:
    """Open a carry file and check header and index. Only a foreign or newer one raises."""
    name = carry_name(op)
    try:
        file = directory.open(name)
    except FileNotFoundError:
        return Flaw("carry file is missing", name, "nothing")
    except OSError as error:
        return Flaw("carry file cannot be opened", name, error.strerror or str(error))
    found: CarryFile | Flaw | None = None
    try:
        found = load_carry(file, identity, op)
    except OSError as error:
        found = _unreadable(error)
    finally:
        if not isinstance(found, CarryFile):
            file.close()
    return found


def _encode(identity: Identity, op: Op, items: Sequence[Item]) -> tuple[bytes, int]:
    """Return everything before the first entry, and the size of the whole file."""
    position = _first_position(len(items))
    index = bytearray()
    last = 0
    for item in items:
        assert last < item.op <= op
        assert HEADER_SIZE <= item.size <= ENTRY_SIZE_MAX
        assert len(item.checksum) == CHECKSUM_SIZE
        index += _ROW.pack(item.op, position, item.size, 0, item.checksum)
        position += aligned(item.size)
        last = item.op
    fields = _FIELDS.pack(
        bytes(CHECKSUM_SIZE),
        MAGIC,
        FORMAT,
        FORMAT,
        identity.group,
        identity.cluster,
        op,
        position,
        xxh3_128_digest(index),
        len(items),
        _ZEROS,
    )
    rest = fields[CHECKSUM_SIZE:]
    table = b"".join((xxh3_128_digest(rest), rest, index, padding(_ROWS_AT + len(index))))
    return table, position


def _parted(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Give as many items at a time as `STREAM_SIZE` takes, or one larger."""
    first = size = 0
    for place, item in enumerate(items):
        # Before the next body is read: two of the largest never meet in memory.
        if size and size + aligned(item.size) > STREAM_SIZE:
            yield items[first:place]
            first, size = place, 0
        size += aligned(item.size)
    if size:
        yield items[first:]


def _verbatim(
    items: Sequence[Item],
    found: Sequence[Buffer | None],
    read: Callable[[Op], Entry],
    path: str,
) -> list[Buffer]:
    """Return the bytes of entries, checked anew: the copy they are from will be dropped."""
    pieces: list[Buffer] = []
    for item, data in zip(items, found, strict=True):
        if data is not None and _is_of(data[:HEADER_SIZE], data[HEADER_SIZE:], item):
            pieces += (data, padding(item.size))
        else:
            entry = read(item.op)
            _expect(entry, item, path)
            pieces += (entry.sealed, entry.body, padding(item.size))
    return pieces


def _expect(entry: Entry, item: Item, path: str) -> None:
    if _is_of(entry.sealed, entry.body, item):
        return
    raise CorruptEntry(
        f"op {item.op}, read to be carried, is not the entry that was committed",
        path=path,
        expected=f"{item.checksum.hex()} of {item.size} bytes",
        found=f"{entry.sealed[:CHECKSUM_SIZE].hex()} of {HEADER_SIZE + len(entry.body)} bytes",
        hint="The file it was read from is damaged, or the index; nothing was written",
    )


def _is_of(sealed: Buffer, body: Buffer, item: Item) -> bool:
    header = decode_header(sealed)
    return (
        isinstance(header, Header)
        and (header.op, header.checksum) == (item.op, item.checksum)
        and len(sealed) == HEADER_SIZE
        and HEADER_SIZE + len(body) == item.size
        and xxh3_128_digest(body) == header.body_checksum
    )


def load_carry(file: Storage, owner: Identity | None, op: Op | None) -> CarryFile | Flaw:
    """Read everything before the first entry; no size is believed before it is checked.

    Without an `owner` or an `op`, whosever it is and whatever its Seal. The carry file closes
    `file`; with a flaw it is still the caller's.
    """
    header = file.read(0, _FIELDS.size)
    fields = _decode_header(header, owner, file.path)
    if isinstance(fields, Flaw):
        return fields
    if op is not None and fields.op != op:
        return Flaw("op of the carry file", op, fields.op)
    if fields.size != file.size():
        return Flaw("size of the carry file", fields.size, file.size())
    first = _first_position(fields.entry_count)
    if first + fields.entry_count * HEADER_SIZE > fields.size:
        return Flaw("entries of the carry file", f"in {fields.size}", fields.entry_count)
    table = header + file.read(_ROWS_AT, first - _ROWS_AT)
    flaw = _table_flaw(table, fields) or _rows_flaw(table, fields)
    if flaw is not None:
        return flaw
    ops = _packed(row.op for row in _rows(table, fields.entry_count))
    seal_op = Op(fields.op)
    return CarryFile(seal_op, carry_name(seal_op), fields.size, ops, table, file)


def _decode_header(data: bytes, owner: Identity | None, path: str) -> _Fields | Flaw:
    if len(data) < _FIELDS.size:
        return Flaw("carry file is cut short", f"at least {_FIELDS.size} bytes", len(data))
    found, magic, _, reader_min, *rest, _ = _FIELDS.unpack(data)
    checksum = xxh3_128_digest(data[CHECKSUM_SIZE:])
    if checksum != found:
        return Flaw("checksum of the carry header", checksum.hex(), found.hex())
    if magic != MAGIC:
        return Flaw("magic of the carry file", MAGIC, magic)
    if reader_min > FORMAT:
        raise UnsupportedFormat(
            "needs a newer release", path=path, expected=f"format {FORMAT}", found=reader_min
        )
    fields = _Fields._make(rest)
    if owner is not None and fields.cluster != owner.cluster:
        raise ForeignFile(path, "cluster", owner.cluster.hex(), fields.cluster.hex())
    if owner is not None and fields.group != owner.group:
        raise ForeignFile(path, "group", owner.group, fields.group)
    return fields


def _table_flaw(table: bytes, fields: _Fields) -> Flaw | None:
    end = _ROWS_AT + fields.entry_count * _ROW.size
    checksum = xxh3_128_digest(memoryview(table)[_ROWS_AT:end])
    if checksum != fields.index_checksum:
        return Flaw("checksum of the carry index", fields.index_checksum.hex(), checksum.hex())
    if table[end:] != padding(end):
        return Flaw("padding of the carry index", "zeros", "other bytes")
    return None


def _rows_flaw(table: bytes, fields: _Fields) -> Flaw | None:
    """Judge rows whose bytes are whole: ops rise, and entries lie as close as they can."""
    position, last = len(table), 0
    for row in _rows(table, fields.entry_count):
        if not last < row.op <= fields.op:
            return Flaw("op in the carry index", f"{last + 1}..{fields.op}", row.op)
        if row.position != position:
            return Flaw(f"position of op {row.op} in the carry index", position, row.position)
        if not HEADER_SIZE <= row.size <= ENTRY_SIZE_MAX:
            return Flaw(f"size of op {row.op}", f"{HEADER_SIZE}..{ENTRY_SIZE_MAX}", row.size)
        position, last = position + aligned(row.size), row.op
    if position != fields.size:
        return Flaw("end of the carried entries", fields.size, position)
    return None


def _first_position(entry_count: int) -> int:
    return aligned(_ROWS_AT + entry_count * _ROW.size)


def _rows(table: bytes, entry_count: int) -> Iterator[_Row]:
    rows = memoryview(table)[_ROWS_AT : _ROWS_AT + entry_count * _ROW.size]
    return map(_Row._make, _ROW.iter_unpack(rows))


def _packed(ops: Iterator[Op]) -> Sequence[Op]:
    """Return 8 bytes for each op, instead of an object."""
    return array("Q", ops)  # type: ignore[return-value]  # an Op is an int to an array


def _judged(data: Buffer, row: _Row) -> Entry | Flaw:
    entry = decode(data)
    if isinstance(entry, Entry) and entry.checksum != row.checksum:
        return Flaw("entry, by the carry index", row.checksum.hex(), entry.checksum.hex())
    return entry


def _unreadable(error: OSError) -> Flaw:
    return Flaw("carry file is unreadable", "bytes", error.strerror or str(error))
