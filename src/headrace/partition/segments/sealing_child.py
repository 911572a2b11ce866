"""The process that writes segments: jobs come in on standard input, outcomes leave on output.

    message := size:u32  msgpack

It is started anew, holds no lock and no descriptor of its parent, touches nothing but the files
that a job names, and ends when its input closes: a fault in C++ cannot take the node down.
"""

import ctypes
import errno
import os
import select
import struct
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import BinaryIO, Final

import msgspec
import pyarrow as pa

from headrace.errors import CorruptEntry, StorageFailed
from headrace.journal.entry import Entry, Flaw, decode
from headrace.partition.files.file_set import is_damage
from headrace.partition.no_pandas import hide_pandas
from headrace.partition.segments.seal_job import (
    DISK,
    JOB_DECODER,
    SealPart,
    SealRefused,
    encode,
    seal_file,
)
from headrace.storage.file import FileDirectory

# For the environment of a child: both allocators look there before Python begins. What its
# parent has is for a node, which waits for requests and not for jobs.
KEPT: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),  # the most that glibc takes
    "MALLOC_TRIM_THRESHOLD_": str(256 * 1024 * 1024),
    "MIMALLOC_PURGE_DELAY": "600000",  # milliseconds: longer than any job
}
IDLE_SECONDS: Final = 1.0  # after which a child gives back what it has kept


def give_back() -> None:
    """Give all freed memory back to the kernel, where the C library can."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


SIZE = struct.Struct("<I")
NICENESS = 5  # those who append come first
# Jobs of one Seal come one right after the other and read the same files: those stay open until
# there is a pause, a failure, or too many. A name that has another file meanwhile is noticed by
# the entries' checksums.
PAUSE_SECONDS = 0.05
OPEN_COUNT_MAX = 256  # a quarter of the descriptors that a process usually may have


def main() -> int:
    """Serve jobs until the input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    os.nice(NICENESS)
    hide_pandas()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    files = _Files()
    syncing = ThreadPoolExecutor(1)
    while (message := _next_job(source, files)) is not None:
        try:
            job = JOB_DECODER.decode(message)
            with FileDirectory.open_root(job.directory, create=False) as directory:
                outcome = seal_file(job, directory, files.read, partial(_begin, syncing))
        except (OSError, msgspec.DecodeError) as error:
            outcome = SealRefused(DISK, str(error))
        if isinstance(outcome, SealRefused):
            files.close()  # the next try looks at what the names say then
        try:
            send(sink, encode(outcome))
        except BrokenPipeError:  # the parent died before the thread above noticed
            os._exit(0)
    return 0


def _begin(thread: ThreadPoolExecutor, work: Callable[[], None]) -> Callable[[], None]:
    """Begin `work` in another thread; return what waits for it and raises what it raised."""
    try:
        return thread.submit(work).result
    except RuntimeError as error:  # no thread could be started
        raise OSError(errno.EAGAIN, str(error)) from error


def _next_job(source: BinaryIO, files: "_Files") -> bytes | None:
    """Wait for a job; hold less the longer none comes. None: the input ended."""
    watch = select.poll()
    watch.register(source, select.POLLIN)
    if not watch.poll(PAUSE_SECONDS * 1_000):
        files.close()
        if not watch.poll(IDLE_SECONDS * 1_000):
            give_back()
    return receive(source)


def _end_with_parent() -> None:
    """End in the middle of a job, too, when the other end of the input closes."""
    watch = select.poll()
    watch.register(sys.stdin.fileno(), 0)  # no bytes are waited for, only the end
    watch.poll()
    os._exit(0)


def send(sink: BinaryIO, message: bytes) -> None:
    """Write one message."""
    sink.write(SIZE.pack(len(message)) + message)
    sink.flush()


def receive(source: BinaryIO) -> bytes | None:
    """Read one message; None at the end of the input."""
    size = source.read(SIZE.size)
    if len(size) < SIZE.size:
        return None
    wanted = SIZE.unpack(size)[0]
    message = source.read(wanted)
    return message if len(message) == wanted else None


class _Files:
    """The files that jobs read, each opened once."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}

    def read(self, part: SealPart) -> Entry:
        """Return one entry, every byte checked."""
        try:
            found = decode(os.pread(self._descriptor(part.path), part.size, part.position))
        except OSError as error:
            if not is_damage(error):
                raise StorageFailed(part.path, "read", error) from error
            found = Flaw("unreadable", "bytes", error.strerror)
        if isinstance(found, Entry) and found.checksum == part.checksum:
            return found
        flaw = "another entry" if isinstance(found, Entry) else found.what
        raise CorruptEntry(f"op {part.op}: {flaw}", path=part.path, position=part.position)

    def _descriptor(self, path: str) -> int:
        if path not in self._open:
            if len(self._open) >= OPEN_COUNT_MAX:
                self.close()
            # Nobody writes to a pipe that stands in place of a file: it would be waited for.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            self._open[path] = os.open(path, flags)
        return self._open[path]

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()


if __name__ == "__main__":
    sys.exit(main())
