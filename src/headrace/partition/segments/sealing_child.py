"""The process that writes segments: jobs arrive on stdin, outcomes leave on stdout.

    message := size:u32  msgpack

It is a fresh process, holds no lock and no descriptor of its parent, touches only the files
that a job names, and ends when its input closes: a crash in C++ cannot take the node down.
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

# For the environment of a child: both allocators read it before Python starts. The parent's
# settings are for a node, which waits for requests and not for jobs.
KEPT: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(32 * 1024 * 1024),  # the most that glibc takes
    "MALLOC_TRIM_THRESHOLD_": str(256 * 1024 * 1024),
    "MIMALLOC_PURGE_DELAY": "600000",  # milliseconds: longer than any job
}
IDLE_SECONDS: Final = 1.0  # after which a child releases what it has kept


def give_back() -> None:
    """Give all freed memory back to the kernel, where the C library can."""
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


SIZE = struct.Struct("<I")
NICENESS = 5  # appends come first
# Jobs of one Seal follow each other closely and read the same files: these stay open until
# there is a pause, a failure, or too many. If a name has another file meanwhile, the entries'
# checksums show it.
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
            files.close()  # the next attempt opens the files again by name
        try:
            send(sink, encode(outcome))
        except BrokenPipeError:  # the parent died before the thread above noticed
            os._exit(0)
    return 0


def _begin(thread: ThreadPoolExecutor, work: Callable[[], None]) -> Callable[[], None]:
    """Start `work` in another thread; return a function that waits and raises its error."""
    try:
        return thread.submit(work).result
    except RuntimeError as error:  # no thread could be started
        raise OSError(errno.EAGAIN, str(error)) from error


def _next_job(source: BinaryIO, files: "_Files") -> bytes | None:
    """Wait for a job; release resources while none comes. None: the input ended."""
    watch = select.poll()
    watch.register(source, select.POLLIN)
    if not watch.poll(PAUSE_SECONDS * 1_000):
        files.close()
        if not watch.poll(IDLE_SECONDS * 1_000):
            give_back()
    return receive(source)


def _end_with_parent() -> None:
    """End, even in the middle of a job, when the other end of the input closes."""
    watch = select.poll()
    watch.register(sys.stdin.fileno(), 0)  # wait only for the end, not for bytes
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
            # A pipe in place of a file would block forever.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            self._open[path] = os.open(path, flags)
        return self._open[path]

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()


if __name__ == "__main__":
    sys.exit(main())
