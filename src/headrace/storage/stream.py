"""Adapts a `Storage` to the binary file object that Arrow's readers and writers expect.

Wrap it as `pa.PythonFile(stream, mode="r")` or `mode="w"`. A stream does not own its storage:
closing or dropping it leaves the storage open and writes nothing.
"""

import errno
import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest, xxh3_128

from headrace.storage.seam import Buffer, Storage

# Large enough to make the cost per call negligible, small enough to hold many at once.
READ_SIZE = 4 * 1024 * 1024
# The unit of checksums within a file. Smaller blocks keep narrow reads narrow, but each takes
# 8 bytes of memory: 1/8192 of the file.
BLOCK_SIZE = 64 * 1024
assert READ_SIZE % BLOCK_SIZE == 0

Pace = Callable[[int], None]  # called with the bytes just read; may sleep


def unpaced(_size: int) -> None:
    """Do not pause."""


# Arrow writes a page and its header separately: gathering them saves writes.
GATHER_SIZE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Sums:
    """Checksums of a file, as a whole and per block."""

    digest: bytes  # xxh3-128 of the whole file
    size: int
    block_size: int
    blocks: "array[int]"  # xxh3-64 of each block


@dataclass(slots=True, eq=False)
class ReadStream:
    """Reads a storage from its start, or from a `seek` position.

    With `sums`, changed bytes raise an OSError and are never returned.
    """

    storage: Storage
    sums: Sums | None = None
    byte_count: int = 0  # read so far
    closed: bool = False
    _position: int = 0

    def read(self, size: int = -1) -> Buffer:
        """Return the next `size` bytes, by default the rest; fewer only at the end of file."""
        if size < 0:
            size = max(0, self.storage.size() - self._position)
        data: Buffer
        if self.sums is None:
            data = self.storage.read(self._position, size)
        else:
            data = self._checked(self._position, size, self.sums)
        self._position += len(data)
        self.byte_count += len(data)
        return data

    def seek(self, distance: int, whence: int = os.SEEK_SET) -> int:
        """Move the read position, and return it."""
        match whence:
            case os.SEEK_SET:
                position = distance
            case os.SEEK_CUR:
                position = self._position + distance
            case os.SEEK_END:
                position = self.storage.size() + distance
            case _:
                position = -1
        if position < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.storage.path)
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True

    def _checked(self, position: int, size: int, sums: Sums) -> Buffer:
        end = min(position + size, sums.size)
        if position >= end:
            return b""
        first, last = position // sums.block_size, (end - 1) // sums.block_size
        start = first * sums.block_size
        data = self.storage.read(start, min((last + 1) * sums.block_size, sums.size) - start)
        if _block_sums(data, sums.block_size) != sums.blocks[first : last + 1]:
            flaw = f"bytes {start} to {start + len(data)} have changed"
            raise OSError(errno.EIO, flaw, self.storage.path)
        return memoryview(data)[position - start : end - start]


@dataclass(slots=True, eq=False)
class WriteStream:
    """Writes a storage from its start, hashing and counting the bytes.

    Call `flush` at the end to write buffered bytes. After a failure, every further write fails,
    too, so that nothing is added to a partial file, until `abandon`.
    """

    storage: Storage
    failure: OSError | None = None  # from the storage itself, not from its caller
    closed: bool = False
    _position: int = 0  # where the gathered pieces belong
    _gathered: list[bytes] = field(default_factory=list)
    _gathered_size: int = 0
    _hash: xxh3_128 = field(default_factory=xxh3_128)
    _abandoned: bool = False

    @property
    def byte_count(self) -> int:
        """The number of bytes accepted so far, flushed or not."""
        return self._position + self._gathered_size

    def digest(self) -> bytes:
        """Return the xxh3-128 of all bytes accepted so far, flushed or not."""
        return self._hash.digest()

    def write(self, data: Buffer) -> int:
        """Accept all of `data`; copies it unless it is `bytes`, as its owner may reuse it."""
        if self._abandoned:
            return memoryview(data).nbytes
        self._refuse_after_failure()
        piece = data if isinstance(data, bytes) else memoryview(data).tobytes()
        self._hash.update(piece)
        self._gathered.append(piece)
        self._gathered_size += len(piece)
        if self._gathered_size >= GATHER_SIZE:
            self.flush()
        return len(piece)

    def flush(self) -> None:
        """Write buffered bytes. Not durable until the storage is synced."""
        if self._abandoned:
            return
        self._refuse_after_failure()
        if not self._gathered:
            return
        try:
            self.storage.write(self._position, self._gathered)
        except OSError as error:
            self.failure = error
            raise
        self._position += self._gathered_size
        self._gathered, self._gathered_size = [], 0

    def abandon(self) -> None:
        """Discard everything from now on.

        Arrow's writers write a footer when they are closed or dropped, even after a failure; it
        must not reach the storage then.
        """
        self._abandoned = True
        self._gathered, self._gathered_size = [], 0

    def tell(self) -> int:
        return self.byte_count

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def _refuse_after_failure(self) -> None:
        if self.failure is not None:
            raise self.failure


def sums_of(storage: Storage, pace: Pace = unpaced) -> Sums:
    """Compute the checksums of the whole file as it reads now."""
    digest, size, blocks = xxh3_128(), 0, array("Q")
    for data in _pieces(storage, pace):
        digest.update(data)
        size += len(data)
        blocks.extend(_block_sums(data, BLOCK_SIZE))
    return Sums(digest.digest(), size, BLOCK_SIZE, blocks)


def whole_digest(storage: Storage) -> bytes:
    """Compute the xxh3-128 of the whole file as it reads now."""
    digest = xxh3_128()
    for data in _pieces(storage):
        digest.update(data)
    return digest.digest()


def _pieces(storage: Storage, pace: Pace = unpaced) -> Iterator[bytes]:
    position = 0
    while data := storage.read(position, READ_SIZE):
        yield data
        position += len(data)
        pace(len(data))


def _block_sums(data: bytes, block_size: int) -> "array[int]":
    view = memoryview(data)
    starts = range(0, len(data), block_size)
    return array("Q", [xxh3_64_intdigest(view[at : at + block_size]) for at in starts])
