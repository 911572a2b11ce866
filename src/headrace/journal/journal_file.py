"""One journal file: its header blocks, its names, and the start of its life.

    file  := block:4096  block:4096  frames
    block := checksum:16s  magic:8s  format:u16  reader_min:u16  group:u32  file_id:u64
             cluster:16s  first_op:u64  parent:16s  size:u64  zeros

`checksum` is xxh3-128 of the 4,080 bytes after it. Both blocks are equal. `size` is the size of
the whole file, and the file has it durably before it gets its name: a shorter file is damaged,
never just unfinished.
"""

import re
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from xxhash import xxh3_128_digest

from headrace.errors import ForeignFile, refuse_newer
from headrace.journal.entry import Flaw
from headrace.journal.frame import PREFIX_SIZE, aligned
from headrace.model.ids import Identity, Op
from headrace.storage.seam import Buffer, Storage

MAGIC: Final = b"HRjournl"
FORMAT: Final = 1
READER: Final = 3  # the newest `reader_min` that this release understands, see docs/formats
BLOCK_SIZE: Final = 4096
BLOCK_COUNT: Final = 2
FIRST_POSITION: Final = BLOCK_SIZE * BLOCK_COUNT
# Room after every entry for one mark and the end frame: neither ever needs a roll.
TAIL_SIZE: Final = 2 * PREFIX_SIZE

_FIELDS = struct.Struct("<16s8sHHIQ16sQ16sQ")
_CHECKSUM_SIZE = 16
_SIZE_MAX = 2**32  # far above any configured size; a larger number is not one of ours
_NAME = re.compile(r"([0-9]{20})\.wal")


@dataclass(frozen=True, slots=True)
class FileHeader:
    """The header of a journal file, in both its blocks."""

    file_id: int  # random, new in each life of the file; in clear in each of its frames
    cluster: bytes
    group: int
    first_op: Op
    parent: bytes  # checksum of first_op - 1
    size: int
    reader_min: int = FORMAT  # what a release must understand of this log


@dataclass(slots=True)
class JournalFile:
    """An open file under a live name, intact up to `end`; a hold delays its next life."""

    storage: Storage
    header: FileHeader
    end: int = FIRST_POSITION
    is_writable: bool = False  # a scan opens it only to read
    holds: int = 0
    retired: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def name(self) -> str:
        return file_name(self.header.first_op)

    @property
    def path(self) -> str:
        return self.storage.path

    def fits(self, frame_size: int) -> bool:
        """Whether a frame of this size, a mark and the end frame fit after `end`."""
        return self.end + aligned(frame_size) + TAIL_SIZE <= self.header.size

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Keep the bytes of this file unchanged, even if it is drained meanwhile.

        Yields False if it is already drained: its bytes may belong to a new life.
        """
        with self._lock:
            if self.retired:
                held = False
            else:
                held = True
                self.holds += 1
        if not held:
            yield False
            return
        try:
            yield True
        finally:
            with self._lock:
                self.holds -= 1
                last = self.retired and self.holds == 0
            if last:
                self.storage.close()

    def retire(self) -> bool:
        """Retire the file. True if it has no holds, so that it may be reused."""
        with self._lock:
            self.retired = True
            return self.holds == 0


def file_name(first_op: Op) -> str:
    """Return the live name of the file that begins with `first_op`."""
    return f"{first_op:020}.wal"


def first_op_of(name: str) -> Op | None:
    """Return the op in a live name, or None for any other name."""
    match = _NAME.fullmatch(name)
    return Op(int(match.group(1))) if match and int(match.group(1)) > 0 else None


def size_for(frame_size: int, file_size: int) -> int:
    """Return the size of a file for at least one frame of this size, in whole blocks."""
    needed = FIRST_POSITION + aligned(frame_size) + TAIL_SIZE
    return -(-max(needed, file_size) // BLOCK_SIZE) * BLOCK_SIZE


def encode_block(header: FileHeader) -> bytes:
    """Return one header block."""
    fields = _FIELDS.pack(
        bytes(_CHECKSUM_SIZE),
        MAGIC,
        FORMAT,
        header.reader_min,
        header.group,
        header.file_id,
        header.cluster,
        header.first_op,
        header.parent,
        header.size,
    )
    rest = fields[_CHECKSUM_SIZE:].ljust(BLOCK_SIZE - _CHECKSUM_SIZE, b"\0")
    return xxh3_128_digest(rest) + rest


def decode_block(data: Buffer, path: str) -> FileHeader | Flaw:
    """Read one header block. Only an intact block of a newer release raises."""
    if len(data) < BLOCK_SIZE:
        return Flaw("header block is cut short", BLOCK_SIZE, len(data))
    checksum = xxh3_128_digest(memoryview(data)[_CHECKSUM_SIZE:BLOCK_SIZE])
    found, magic, _, reader_min, group, file_id, cluster, first_op, parent, size = (
        _FIELDS.unpack_from(data)
    )
    if found != checksum:
        return Flaw("header block checksum", checksum.hex(), found.hex())
    if magic != MAGIC:
        return Flaw("magic", MAGIC, magic)
    refuse_newer(path, READER, reader_min)
    if first_op < 1 or size % BLOCK_SIZE or not size_for(0, 0) <= size <= _SIZE_MAX:
        return Flaw("first op and size", "numbers of a journal file", (first_op, size))
    return FileHeader(file_id, cluster, group, Op(first_op), parent, size, reader_min)


def check_identity(header: FileHeader, identity: Identity, path: str) -> None:
    """Refuse an intact header of another cluster or group."""
    if header.cluster != identity.cluster:
        raise ForeignFile(path, "cluster", identity.cluster.hex(), header.cluster.hex())
    if header.group != identity.group:
        raise ForeignFile(path, "group", identity.group, header.group)


def write_header(storage: Storage, header: FileHeader) -> None:
    """Begin a life: write both blocks. The file must not be under a live name yet."""
    storage.write(0, [encode_block(header)] * BLOCK_COUNT)
