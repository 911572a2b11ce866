"""Read frames from one journal file, intact or in ruins, without judging them."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from xxhash import xxh3_128_digest

from headrace.journal.entry import CLUSTER_AT, HEADER_SIZE, Flaw, Header, decode_header, peek_op
from headrace.journal.frame import (
    ALIGNMENT,
    FILE_ID_AT,
    PREFIX_SIZE,
    FrameKind,
    Prefix,
    aligned,
    decode_prefix,
    entry_frame_size,
)
from headrace.model.ids import GroupId, Op
from headrace.storage.seam import Storage

# Large enough for many small frames. After a large one only the next prefix is read ahead, so
# that little is read twice.
_WINDOW_SIZE: Final = 64 * 1024
_SEARCH_SIZE: Final = 4 * 1024 * 1024
_SECTOR_SIZE: Final = 512
_FILE_ID = struct.Struct("<Q")


class JournalFrame(NamedTuple):
    """The frame at a position: intact if `flaw` is None. A tuple, like `Header`."""

    prefix: Prefix | Flaw
    header: Header | None = None
    flaw: Flaw | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Something that this life of the file wrote; `op` if its header can be read."""

    position: int
    op: Op | None = None
    prefix: Prefix | None = None


@dataclass(slots=True)
class FileReader:
    """Sequential, checked reads of one file through a small window."""

    storage: Storage
    file_id: int
    limit: int  # the size in its header: bytes beyond do not belong to it
    size: int = field(init=False)
    _start: int = 0
    _window: memoryview = field(default_factory=lambda: memoryview(b""))

    def __post_init__(self) -> None:
        self.size = min(self.storage.size(), self.limit)

    def frame(self, position: int) -> JournalFrame:
        """Read and check the frame at `position`: prefix, header, body."""
        try:
            data = self._view(position, PREFIX_SIZE)
            prefix = decode_prefix(data, self.file_id, position)
            if isinstance(prefix, Flaw):
                return JournalFrame(prefix, flaw=prefix)
            if prefix.kind is not FrameKind.ENTRY:
                return JournalFrame(prefix)
            return self._entry(position, prefix)
        except OSError as error:
            flaw = Flaw("unreadable", "bytes", error.strerror or str(error))
            return JournalFrame(flaw, flaw=flaw)

    def sealed(self, position: int) -> bytes:
        """Return the header bytes of the entry whose frame begins at `position`."""
        return bytes(self._view(position + PREFIX_SIZE, HEADER_SIZE))

    def _entry(self, position: int, prefix: Prefix) -> JournalFrame:
        data = self._view(position, prefix.size)
        header = decode_header(data[PREFIX_SIZE:])
        if isinstance(header, Flaw):
            return JournalFrame(prefix, flaw=header)
        if header.checksum != prefix.tip or header.op != prefix.op:
            return JournalFrame(
                prefix, flaw=Flaw("entry", prefix.tip.hex(), header.checksum.hex())
            )
        if len(data) != prefix.size or entry_frame_size(header.body_size) != prefix.size:
            return JournalFrame(prefix, flaw=Flaw("frame size", prefix.size, len(data)))
        checksum = xxh3_128_digest(data[PREFIX_SIZE + HEADER_SIZE :])
        if checksum != header.body_checksum:
            flaw = Flaw("body checksum", header.body_checksum.hex(), checksum.hex())
            return JournalFrame(prefix, flaw=flaw)
        return JournalFrame(prefix, header)

    def _view(self, position: int, size: int) -> memoryview:
        """Return the bytes there, fewer only where the file ends."""
        start = position - self._start
        if start < 0 or start + size > len(self._window):
            try:
                wanted = max(aligned(size) + PREFIX_SIZE, _WINDOW_SIZE)
                data = self.storage.read(position, wanted)
            except OSError:
                data = self.storage.read(position, size)  # the bad sector may lie beyond
            self._start, self._window, start = position, memoryview(data), 0
        return self._window[start : start + size]


def traces(
    reader: FileReader, start: int, cluster: bytes, group: GroupId, lowest: Op
) -> Iterator[Trace]:
    """Yield the traces of this life of the file from `start` on, in order of position.

    A prefix contains the file's ID, even if it is damaged. An entry header has no file ID, but
    headers of an earlier life have ops below `lowest`, and headers that a client may have
    hidden in a body count only if their ops fit into the rest of the file. An unreadable sector
    counts too, since it may contain anything.
    """
    first = start // ALIGNMENT * ALIGNMENT
    ops = range(lowest, lowest + (reader.size - first) // (PREFIX_SIZE + HEADER_SIZE) + 1)
    for position in range(first, reader.size, _SEARCH_SIZE):
        size = min(_SEARCH_SIZE, reader.size - position)
        # A header may begin in this piece and end in the next.
        data, unreadable = _read_around(reader.storage, position, size + HEADER_SIZE)
        found = [Trace(bad) for bad in unreadable if bad < position + size]
        found += _prefixes(data, position, size, reader.file_id)
        found += _headers(data, position, size, cluster, group, ops)
        yield from sorted(found, key=lambda trace: trace.position)


def _read_around(storage: Storage, position: int, size: int) -> tuple[bytes, list[int]]:
    """Read the bytes, with zeros for unreadable sectors, and the places of those sectors."""
    try:
        return storage.read(position, size), []
    except OSError:
        pieces: list[bytes] = []
        unreadable: list[int] = []
        at, end = position, position + size
        while at < end:
            # Up to the next border: a read across it would lose the good sector with the bad.
            wanted = min(_SECTOR_SIZE - at % _SECTOR_SIZE, end - at)
            try:
                pieces.append(storage.read(at, wanted))
            except OSError:
                pieces.append(bytes(wanted))
                unreadable.append(at)
            at += wanted
        return b"".join(pieces), unreadable


def _prefixes(data: bytes, base: int, size: int, file_id: int) -> Iterator[Trace]:
    for at in _aligned_hits(data, _FILE_ID.pack(file_id), FILE_ID_AT, size):
        prefix = decode_prefix(memoryview(data)[at:], file_id, base + at)
        if isinstance(prefix, Flaw):
            yield Trace(base + at)
        else:
            yield Trace(base + at, prefix.op, prefix)


def _headers(
    data: bytes, base: int, size: int, cluster: bytes, group: GroupId, ops: range
) -> Iterator[Trace]:
    for at in _aligned_hits(data, cluster, CLUSTER_AT, size):
        if len(data) - at < HEADER_SIZE or peek_op(data, at) not in ops:
            continue
        header = decode_header(memoryview(data)[at:])
        if isinstance(header, Header) and header.group == group:
            yield Trace(base + at, header.op)


def _aligned_hits(data: bytes, needle: bytes, offset: int, size: int) -> Iterator[int]:
    """Yield each aligned place below `size` that has `needle` at `offset`."""
    # One byte of each line is quick to search. The highest byte of the needle is the rarest
    # among the usual contents of files, zeros and text.
    rarest = max(needle)
    column = data[offset + needle.index(rarest) :: ALIGNMENT]
    line = column.find(rarest)
    while line != -1 and line * ALIGNMENT < size:
        if data.startswith(needle, line * ALIGNMENT + offset):
            yield line * ALIGNMENT
        line = column.find(rarest, line + 1)
