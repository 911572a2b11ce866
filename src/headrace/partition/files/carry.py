"""Committed entries that are in no segment yet: one carry file for each checkpoint.

    file   := header:128  row*  source*  zeros  (entry zeros)*
    header := checksum:16s  magic:8s  format:u16  reader_min:u16  group:u32  cluster:16s
              op:u64  size:u64  index_checksum:16s  entry_count:u32  source_count:u32  zeros:40
    row    := op:u64  position:u64  size:u32  source:u32  checksum:16s
    source := file_id:u64  size:u64  first_op:u64

Little-endian; full story in docs/formats/carry.md. `checksum` is xxh3-128 of the header after
it and, through `index_checksum` and the rows, covers every byte of every entry. An entry has
the layout of `journal/entry.py`. Entries of source 0 are in this file, verbatim, in the order
of ops, padded with zeros to the next multiple of 64. The others are where the journal put them:
in journal files that are mostly live and got a second name beside this one. Carry files and
kept files never change.
"""

import errno
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from xxhash import xxh3_128_digest

from headrace.errors import CorruptEntry, DiskFull, SealFailed, StorageFailed
from headrace.journal.entry import (
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
from headrace.partition.files import carry_table
from headrace.partition.files.carry_table import CarrySource, Item, LinkedJournal, Row
from headrace.storage.atomic import atomic_write, is_barred
from headrace.storage.seam import Buffer, Directory, Storage, is_full, joined
from headrace.storage.stream import Pace, unpaced

# Large enough that a disk streams, small enough that the data is still in the processor's cache
# when it is hashed and written: 8 MiB cost three times as much.
STREAM_SIZE: Final = 1024 * 1024

_LOOK_COST = 32  # of finding one op in the index, in steps of a walk over it
_NAME = re.compile(r"([0-9]{20})\.carry")
_KEPT_NAME = re.compile(r"([0-9a-f]{16})\.wal")

# Some entries as found, header and body together, not checked yet; None for a missing one.
Glance = Callable[[Sequence[Item]], Sequence[Buffer | None]]


def nothing(items: Sequence[Item]) -> Sequence[Buffer | None]:
    """Return no entries: each is read on its own."""
    return [None] * len(items)


@dataclass(frozen=True, slots=True, eq=False)
class CarryFile:
    """One carry file, open for reading, with header and index checked. Threads may share it.

    Close it only without readers: a read through a closed file looks like an unreadable disk.
    """

    op: Op  # of the Seal
    name: str
    size: int
    ops: Sequence[Op]  # rising; do not modify
    sources: tuple[CarrySource, ...]
    _table: bytes  # everything before the first entry, as on disk
    _file: Storage
    _room: Directory | None  # where the sources are; None: sources are ignored

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def owner(self) -> tuple[bytes, int]:
        """The cluster and the group in its header."""
        fields = carry_table.FIELDS.unpack_from(self._table)
        return fields[5], fields[4]

    @property
    def checksum(self) -> bytes:
        """Identifies this file: equal checksums mean equal bytes."""
        return self._table[:CHECKSUM_SIZE]

    def __contains__(self, op: object) -> bool:
        return isinstance(op, int) and self._find(op) is not None

    def holds(self, ops: set[Op]) -> set[Op]:
        """Return those of `ops` that are here."""
        if len(ops) * _LOOK_COST < len(self.ops):
            return {op for op in ops if op in self}
        return ops.intersection(self.ops)

    def item(self, op: Op) -> Item:
        """Return the index entry of `op`, which must be here."""
        return self.row(op).item

    def row(self, op: Op) -> Row:
        """Return the row of `op`, which must be here."""
        row = self._find(op)
        assert row is not None
        return row

    def source_of(self, row: Row) -> CarrySource | None:
        """Return the kept file that an entry is in; None: it is in this file."""
        return self.sources[row.source - 1] if row.source else None

    def path_of(self, row: Row) -> str:
        """Return the path of the file that an entry is in."""
        source = self.source_of(row)
        if source is None:
            return self.path
        room = self.path.rpartition("/")[0] if self._room is None else self._room.path
        return joined(room, source.name)

    def read(self, op: Op) -> Entry | Flaw:
        """Read an entry and check every byte of it. A missing op is a flaw."""
        row = self._find(op)
        if row is None:
            return Flaw("carry file lacks an op", op, f"{len(self.ops)} other ops")
        source = self.source_of(row)
        try:
            if source is None:
                return _judged(self._file.read(row.position, row.size), row)
            with self._kept(source) as file:
                return _judged(file.read(row.position, row.size), row)
        except OSError as error:
            return _unreadable(error, source)

    def check(self, pace: Pace = unpaced) -> Flaw | None:
        """Check every byte on disk, a part at a time; None if all is well. The scrub calls it.

        It checks the open file, whatever its name leads to now, and empties its page cache.
        """
        try:
            # The contents of the cache prove nothing about the disk.
            self._file.drop_cache()
            if self._file.size() != self.size:
                return Flaw("size of the carry file", self.size, self._file.size())
            return self._check_table(pace) or self._check_entries(pace)
        except OSError as error:
            return _unreadable(error)

    def check_kept(self, pace: Pace = unpaced) -> Iterator[tuple[str, Flaw]]:
        """Check the entries in each kept file, and yield the path of each with a flaw."""
        rows: dict[CarrySource, list[Row]] = {}
        for row in carry_table.rows(self._table, len(self.ops)):
            source = self.source_of(row)
            if source is not None:
                rows.setdefault(source, []).append(row)
        for source, some in rows.items():
            flaw = self._check_source(source, some, pace)
            if flaw is not None:
                yield self.path_of(some[0]), flaw

    def close(self) -> None:
        self._file.close()

    def _find(self, op: int) -> Row | None:
        place = bisect_left(self.ops, op)
        if place == len(self.ops) or self.ops[place] != op:
            return None
        return carry_table.row_at(self._table, place)

    @contextmanager
    def _kept(self, source: CarrySource) -> Iterator[Storage]:
        """Open a kept file for one read: there may be many of them."""
        if self._room is None:
            raise FileNotFoundError(errno.ENOENT, "not looked for", source.name)
        file = self._room.open(source.name)
        try:
            yield file
        finally:
            file.close()

    def _check_source(self, source: CarrySource, rows: list[Row], pace: Pace) -> Flaw | None:
        try:
            with self._kept(source) as file:
                file.drop_cache()
                for row in rows:
                    found = _judged(file.read(row.position, row.size), row)
                    if isinstance(found, Flaw):
                        return Flaw(f"op {row.op}: {found.what}", found.expected, found.found)
                    pace(row.size)
        except OSError as error:
            return _unreadable(error, source)
        return None

    def _check_table(self, pace: Pace) -> Flaw | None:
        table = memoryview(self._table)
        for start in range(0, len(table), STREAM_SIZE):
            expected = table[start : start + STREAM_SIZE]
            if self._file.read(start, len(expected)) != expected:
                return Flaw("header or index of the carry file", "as when opened", "changed")
            pace(len(expected))
        return None

    def _check_entries(self, pace: Pace) -> Flaw | None:
        for row in carry_table.rows(self._table, len(self.ops)):
            if row.source:
                continue
            data = memoryview(self._file.read(row.position, aligned(row.size)))
            found = _judged(data[: row.size], row)
            if isinstance(found, Flaw):
                return Flaw(f"op {row.op}: {found.what}", found.expected, found.found)
            if data[row.size :] != padding(row.size):
                return Flaw(f"op {row.op}: padding of the entry", "zeros", "other bytes")
            pace(len(data))
        return None


def carry_name(op: Op) -> str:
    """Return the name of the carry file of the Seal at `op`."""
    return f"{op:020}.carry"


def op_of(name: str) -> Op | None:
    """Return the op in the name of a carry file, None for any other name."""
    found = _NAME.fullmatch(name)
    op = int(found.group(1)) if found else OP_MAX + 1
    return Op(op) if op <= OP_MAX else None


def kept_id(name: str) -> int | None:
    """Return the id in the name of a kept journal file, None for any other name."""
    found = _KEPT_NAME.fullmatch(name)
    return int(found.group(1), 16) if found else None


def write_carry(
    directory: Directory,
    identity: Identity,
    op: Op,
    items: Sequence[Item | LinkedJournal],
    read: Callable[[Op], Entry],
    glance: Glance = nothing,
    sources: Sequence[CarrySource] = (),
    before_rename: Callable[[], None] = lambda: None,
) -> CarryFile:
    """Write the carry file of the Seal at `op`; return it open once it is durable.

    All names in `directory` are durable then, including those of kept files. `items` rise by
    op. `glance` is called once for each copied item, in that order and several at a time;
    `read` only for items that `glance` did not have or that do not match. Nothing has changed
    after DiskFull, after SealFailed (an existing file may not be replaced), after CorruptEntry
    (an entry does not match its item), and after whatever `read` or `before_rename` raises,
    which is called once the new file is durable under another name. The stages of
    StorageFailed are those of `atomic_write`, so that `sync-dir` is never retried, and `open`:
    the file is durable, but could not be opened again.
    """
    name = carry_name(op)
    path = joined(directory.path, name)
    table, size = carry_table.encode(identity, op, items, sources)
    copied = [item for item in items if isinstance(item, Item)]

    def fill(file: Storage) -> None:
        file.write(0, [table])
        position = len(table)
        for some in _parted(copied):
            pieces = _verbatim(some, glance(some), read, path)
            file.write(position, pieces)
            position += sum(map(len, pieces))

    try:
        atomic_write(directory, name, fill, before_rename)
    except StorageFailed as failed:
        # An error of `read`, about its own file, passes unchanged.
        is_ours = failed.path == path and failed.stage in ("write", "sync", "rename")
        if is_ours and is_full(failed.cause):
            raise DiskFull(path, failed.stage) from failed
        if is_ours and is_barred(failed):
            raise SealFailed(path, str(failed.cause)) from failed
        raise
    try:
        file = directory.open(name)
    except OSError as error:
        raise StorageFailed(path, "open", error) from error
    ops = _packed(item.op for item in items)
    return CarryFile(op, name, size, ops, tuple(sources), table, file, directory)


def open_carry(directory: Directory, identity: Identity, op: Op) -> CarryFile | Flaw:
    """Open a carry file and check header and index. Only a foreign or newer one raises."""
    name = carry_name(op)
    try:
        file = directory.open(name)
    except FileNotFoundError:
        return Flaw("file is missing", name, "nothing")
    except OSError as error:
        return Flaw("file cannot be opened", name, error.strerror or str(error))
    found: CarryFile | Flaw | None = None
    try:
        found = load_carry(file, identity, op, directory)
    except OSError as error:
        found = _unreadable(error)
    finally:
        if not isinstance(found, CarryFile):
            file.close()
    return found


def _parted(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Yield as many items at a time as fit into `STREAM_SIZE`, or one larger."""
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
    """Return the bytes of entries, checked again: their source will be dropped."""
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
        f"op {item.op}, read for the carry file, is not the committed entry",
        path=path,
        expected=f"{item.checksum.hex()} of {item.size} bytes",
        found=f"{entry.sealed[:CHECKSUM_SIZE].hex()} of {HEADER_SIZE + len(entry.body)} bytes",
        hint="Its source file or the index is damaged; nothing was written",
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


def load_carry(
    file: Storage, owner: Identity | None, op: Op | None, room: Directory | None = None
) -> CarryFile | Flaw:
    """Read everything before the first entry; no size is trusted before it is checked.

    Without an `owner` or an `op`, any owner or Seal is accepted; without a `room`, kept files
    are ignored. The carry file closes `file`; after a flaw the caller must.
    """
    header = file.read(0, carry_table.FIELDS.size)
    fields = carry_table.decode_header(header, owner, file.path)
    if isinstance(fields, Flaw):
        return fields
    if op is not None and fields.op != op:
        return Flaw("op of the carry file", op, fields.op)
    if fields.size != file.size():
        return Flaw("size of the carry file", fields.size, file.size())
    own_size = 0 if fields.source_count else fields.entry_count * HEADER_SIZE
    if fields.table_size + own_size > fields.size:
        return Flaw("entries of the carry file", f"in {fields.size}", fields.entry_count)
    table = header + file.read(len(header), fields.table_size - len(header))
    flaw = carry_table.flaw_of(table, fields)
    if flaw is not None:
        return flaw
    ops = _packed(row.op for row in carry_table.rows(table, fields.entry_count))
    seal_op = Op(fields.op)
    sources = carry_table.sources(table, fields)
    name = carry_name(seal_op)
    return CarryFile(seal_op, name, fields.size, ops, sources, table, file, room)


def _packed(ops: Iterator[Op]) -> Sequence[Op]:
    """Return 8 bytes for each op, instead of an object."""
    return array("Q", ops)  # type: ignore[return-value]  # an Op is an int to an array


def _judged(data: Buffer, row: Row) -> Entry | Flaw:
    entry = decode(data)
    if isinstance(entry, Entry) and entry.checksum != row.checksum:
        return Flaw("entry, by the carry index", row.checksum.hex(), entry.checksum.hex())
    return entry


def _unreadable(error: OSError, source: CarrySource | None = None) -> Flaw:
    found = error.strerror or str(error)
    if source is None:
        return Flaw("carry file is unreadable", "bytes", found)
    return Flaw(f"kept file {source.name} is unreadable", "bytes", found)
