"""The directory that a bench writes to, and whether it is on a disk at all."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.errors import Rejected

# File systems that live in memory: a sync returns at once and promises nothing.
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})

_MOUNTS = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")


@contextmanager
def working_directory(data: Path) -> Iterator[Path]:
    """Make a directory inside `data`, and remove it with all it holds at the end.

    Not in /tmp unless asked: on many machines that is memory.
    """
    with TemporaryDirectory(prefix=".bench-", dir=data.resolve()) as directory:
        yield Path(directory)


def check_is_disk(data: Path) -> None:
    """Refuse a place in memory: a floor reached there says nothing."""
    if fsync_is_free(data):
        raise Rejected(
            f"{data.resolve()} is in memory, where a sync costs nothing",
            hint="Choose a directory on a disk with --data",
        )


def fsync_is_free(data: Path) -> bool:
    """Say whether `data` is in memory. A machine that does not tell is taken to have a disk."""
    try:
        mounts = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return False
    return file_system_of(data.resolve(), mounts) in MEMORY_FILE_SYSTEMS


def file_system_of(path: Path, mounts: str) -> str | None:
    """Find the kind of file system that holds the absolute `path` in a mountinfo text."""
    found, depth = None, 0
    for line in mounts.splitlines():
        mount, _, source = line.partition(" - ")
        point = Path(_OCTAL.sub(lambda code: chr(int(code[1], 8)), mount.split()[4]))
        # A later mount on the same point covers the earlier one.
        if path.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = source.split()[0], len(point.parts)
    return found
