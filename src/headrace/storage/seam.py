"""The two seams between Headrace and a disk: one open file, one directory.

`storage/file.py` and `headrace_lab/disk/memory.py` are the twins behind them. Both raise
`OSError`; the caller knows at which stage it was and translates once, so that an error can say
what is on disk.
"""

import errno
from collections.abc import Sequence
from typing import Final, Protocol

from headrace.model.proposal import Buffer as Buffer


def check_name(name: str) -> str:
    """Return `name`; ValueError unless it is one component that stays in its directory."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"not a single path component: {name!r}")
    return name


def joined(directory: str, name: str) -> str:
    """Return the path of `name` in `directory`; the root of a memory disk is '.'."""
    return name if directory == "." else f"{directory.rstrip('/')}/{name}"


# EFBIG comes from a limit on file sizes, EDQUOT from a quota: to a caller all are a full disk.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_full(error: OSError) -> bool:
    """Tell whether `error` says that the disk, the quota or the limit is used up."""
    return error.errno in _NO_ROOM


class Storage(Protocol):
    """One open file. Positions are bytes from its start; one owner writes, any may read."""

    @property
    def path(self) -> str: ...

    @property
    def name_count(self) -> int:
        """How many names the file has now, in whatever directories."""

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes, fewer only where the file ends."""

    def write(self, position: int, pieces: Sequence[Buffer]) -> None:
        """Write all `pieces` one after the other at `position`.

        After an error a part may be there.
        """

    def append(self, pieces: Sequence[Buffer]) -> int:
        """Write all `pieces` at the end of the file and return the position of the first."""

    def truncate(self, size: int) -> None:
        """Make the file `size` bytes long.

        What is added reads as zeros and has its space on the disk already, so that a write
        there needs no more. After an error the file is as it was.
        """

    def sync(self) -> None:
        """Return once everything written survives a power cut.

        After an error, trust nothing: never retry.
        """

    def size(self) -> int: ...

    def drop_cache(self) -> None:
        """Forget clean pages, so that the next read sees what the disk has."""

    def close(self) -> None: ...


class Directory(Protocol):
    """One directory of plain files. Names are single components; nothing here follows links.

    A change of names is seen at once and survives a power cut only after `sync` of each
    directory it touched.
    """

    @property
    def path(self) -> str: ...

    def create(self, name: str) -> Storage:
        """Make a new empty file; FileExistsError if the name is taken."""

    def open(self, name: str, *, writable: bool = False) -> Storage:
        """Open an existing file to read; FileNotFoundError if none. Never creates.

        Only what is to be written is opened `writable`: a file may be one that nobody may
        change, and is no worse to read for that.
        """

    def rename(self, name: str, new_name: str, into: "Directory | None" = None) -> None:
        """Give a file a new name here or in `into`, replacing a file that had that name.

        A directory may be renamed to a name that nothing has; FileExistsError if it is taken.
        """

    def link(self, name: str, new_name: str, into: "Directory") -> None:
        """Give a file a second name in `into`; FileExistsError if that name is taken.

        Not every file system can: EPERM, EOPNOTSUPP, or EMLINK for one that has too many.
        """

    def unlink(self, name: str) -> None: ...

    def names(self) -> list[str]:
        """Return the names of the files here, sorted. Directories are not listed."""

    def sync(self) -> None:
        """Return once all names survive a power cut.

        After an error, trust nothing: never retry.
        """

    def child(self, name: str, *, make: bool = False) -> "Directory":
        """Open a directory; FileNotFoundError if there is none, unless it is to be made.

        A new one survives a power cut only after `sync`.
        """
