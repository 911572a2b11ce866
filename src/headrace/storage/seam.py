"""The two interfaces between Headrace and a disk: an open file and a directory.

`storage/file.py` and `headrace_lab/disk/memory.py` implement them. Both raise `OSError`; the
caller knows the stage and translates once, so that an error can tell what is on disk.
"""

import errno
from collections.abc import Sequence
from typing import Final, Protocol

from headrace.model.proposal import Buffer as Buffer


def check_name(name: str) -> str:
    """Return `name`; ValueError unless it is a single component within its directory."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"not a single path component: {name!r}")
    return name


def joined(directory: str, name: str) -> str:
    """Return the path of `name` in `directory`; the root of a memory disk is '.'."""
    return name if directory == "." else f"{directory.rstrip('/')}/{name}"


# EFBIG is a limit on file sizes, EDQUOT a quota: callers treat all as a full disk.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_full(error: OSError) -> bool:
    """Return whether `error` means a full disk, an exhausted quota or a size limit."""
    return error.errno in _NO_ROOM


class Storage(Protocol):
    """One open file. Positions are bytes from its start; one owner writes, any may read."""

    @property
    def path(self) -> str: ...

    @property
    def name_count(self) -> int:
        """The current number of names (hard links) of the file, in all directories."""

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes, fewer only where the file ends."""

    def write(self, position: int, pieces: Sequence[Buffer]) -> None:
        """Write all `pieces` consecutively at `position`.

        After an error, a part may have been written.
        """

    def append(self, pieces: Sequence[Buffer]) -> int:
        """Write all `pieces` at the end of the file and return the position of the first."""

    def truncate(self, size: int) -> None:
        """Set the file size to `size` bytes.

        Added bytes read as zeros, and their space is allocated, so that writing there needs no
        more. After an error, the file is unchanged.
        """

    def sync(self) -> None:
        """Return once everything written survives a power cut.

        After an error, trust nothing: never retry.
        """

    def size(self) -> int: ...

    def drop_cache(self) -> None:
        """Drop clean pages from the cache, so that the next read comes from the disk."""

    def close(self) -> None: ...


class Directory(Protocol):
    """One directory of plain files. Names are single components; nothing here follows links.

    A change of names is visible at once, but survives a power cut only after `sync` of each
    directory involved.
    """

    @property
    def path(self) -> str: ...

    def create(self, name: str) -> Storage:
        """Create a new empty file; FileExistsError if the name is taken."""

    def open(self, name: str, *, writable: bool = False) -> Storage:
        """Open an existing file for reading; FileNotFoundError if missing. Never creates.

        Use `writable` only to write: a read-only file can still be read.
        """

    def rename(self, name: str, new_name: str, into: "Directory | None" = None) -> None:
        """Rename a file, here or into `into`, replacing a file with that name.

        A directory may only be renamed to a free name; FileExistsError if it is taken.
        """

    def link(self, name: str, new_name: str, into: "Directory") -> None:
        """Add a hard link in `into`; FileExistsError if the name is taken.

        Not every file system supports it: EPERM, EOPNOTSUPP, or EMLINK for too many links.
        """

    def unlink(self, name: str) -> None: ...

    def names(self) -> list[str]:
        """Return the names of the files here, sorted. Directories are not listed."""

    def sync(self) -> None:
        """Return once all names survive a power cut.

        After an error, trust nothing: never retry.
        """

    def child(self, name: str, *, make: bool = False) -> "Directory":
        """Open a subdirectory; FileNotFoundError if it is missing, unless `make` is set.

        A new one survives a power cut only after `sync`.
        """
