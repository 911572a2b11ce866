"""Fills the page cache before each round, as on a machine that has run for a while.

A virtual machine may return free memory to its host and pays for each page that it takes back:
otherwise a side that needs more new pages would pay for that.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import Rejected
from headrace_lab.bench.bare import MIB, write_whole

_MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
_WORK_SIZE = 16 * 1024 * MIB  # what the longest rounds write themselves, at most


@contextmanager
def full_cache(directory: Path, size: int = _MEMORY) -> Iterator[Callable[[], None]]:
    """Give what fills the page cache: a file as large as the memory, read anew each time."""
    free = shutil.disk_usage(directory).free
    if free < size + _WORK_SIZE:
        raise Rejected(
            f"a full page cache takes a file of {size // MIB:,} MiB, and the rounds up to "
            f"{_WORK_SIZE // MIB:,} MiB; {directory} has {free // MIB:,} MiB",
            hint="Choose a larger disk with --data, or leave --full-cache out",
        )
    path = directory / "filler"
    block = bytes(MIB)
    with open(path, "xb", buffering=0) as file:
        for _ in range(size // MIB):
            write_whole(file.fileno(), block)
        os.fsync(file.fileno())
    try:
        yield lambda: _read(path)
    finally:
        path.unlink()


def _read(path: Path) -> None:
    """Have the file in the cache as what was read once, and is the first to go.

    Pages that are read a second time count as used: the kernel keeps those, and drops what a
    round wrote a moment ago, so that it reads its own journal from the disk.
    """
    buffer = bytearray(MIB)
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_NOREUSE)
        while file.readinto(buffer):
            pass
