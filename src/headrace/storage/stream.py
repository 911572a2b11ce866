"""A `Storage` as the binary file object that Arrow's readers and writers take.

Hand them over as `pa.PythonFile(stream, mode="r")` or `mode="w"`. Neither owns its storage:
closing the stream, or dropping it, leaves the storage open and writes nothing.
"""

import errno
import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest, xxh3_128

from headrace.storage.seam import Buffer, Storage

# Large enough that the calls cost nothing beside the bytes, small enough to hold many at once.
READ_SIZE = 4 * 1024 * 1024
# What a part of a file is checked by. Smaller blocks keep narrow reads narrower, and each has
# 8 bytes in memory: an eighth of a thousandth of the file.
BLOCK_SIZE = 64 * 1024
assert READ_SIZE % BLOCK_SIZE == 0

Pace = Callable[[int], None]  # told how many bytes were just read; it waits as it likes


def unpaced(_size: int) -> None:
    """Read on at once."""


# Arrow writes a page and its header apart: gathered, a file is a few writes per row group.
GATHER_SIZE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Sums:
    """What a file's bytes were, as a whole and block by block."""

    digest: bytes  # xxh3-128 of the whole file
    size: int
    block_size: int
    blocks: "array[int]"  # xxh3-64 of each block


@dataclass(slots=True, eq=False)
class ReadStream:
    """Reads a storage from its start, or from where it is told to go on.

    With `sums` it gives no byte that is not what it was then, but an OSError.
    """

    storage: Storage
    sums: Sums | None = None
    byte_count: int = 0  # read so far
    closed: bool = False
    _position: int = 0

    def read(self, size: int = -1) -> Buffer:
        """Return the next `size` bytes, fewer only where the file ends; all that is left."""
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
        """Go on reading elsewhere and return that position."""
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
    """Writes a storage from its start, and hashes and counts what passes.

    `flush` when done: what is gathered is not in the storage before. After a failure every
    further write fails too, for half a file must not grow a tail; `abandon` ends that.
    """

    storage: Storage
    failure: OSError | None = None  # the storage's own, to tell it from its caller's
    closed: bool = False
    _position: int = 0  # where the gathered pieces belong
    _gathered: list[bytes] = field(default_factory=list)
    _gathered_size: int = 0
    _hash: xxh3_128 = field(default_factory=xxh3_128)
    _abandoned: bool = False

    @property
    def byte_count(self) -> int:
        """How many bytes were taken so far, flushed or not."""
        return self._position + self._gathered_size

    def digest(self) -> bytes:
        """Return the xxh3-128 of every byte taken so far, flushed or not."""
        return self._hash.digest()

    def write(self, data: Buffer) -> int:
        """Take all of `data`; what is no `bytes` is copied, for its owner may reuse it."""
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
        """Write what is gathered. Says nothing about a power cut: sync the storage."""
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
        """Swallow everything from now on.

        Arrow's writers write a footer when they are closed, even after a failure and at the
        latest when they are dropped; nothing of it may reach the storage then.
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
    """Return the sums of the whole file as it reads now."""
    digest, size, blocks = xxh3_128(), 0, array("Q")
    for data in _pieces(storage, pace):
        digest.update(data)
        size += len(data)
        blocks.extend(_block_sums(data, BLOCK_SIZE))
    return Sums(digest.digest(), size, BLOCK_SIZE, blocks)


def whole_digest(storage: Storage) -> bytes:
    """Return the xxh3-128 of the whole file as it reads now."""
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
