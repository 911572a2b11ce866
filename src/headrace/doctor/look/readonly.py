"""A read-only data directory: every file is opened for reading only.

The scanning code takes a `storage.seam.Directory`. This one has read-only descriptors, so the
kernel rejects every write, whatever a bug might try.
"""

import errno
import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headrace.errors import StorageFailed
from headrace.journal.heads import NAME as HEADS_NAME
from headrace.node.doubt.metadata_copy import NAME as COPY_NAME
from headrace.node.identity import GROUPS
from headrace.node.identity import NAME as CLUSTER_NAME
from headrace.storage.file import FileStorage
from headrace.storage.lock import LOCK_NAME
from headrace.storage.seam import Directory, check_name, joined

_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_ROOM: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK_SIZE_MAX: Final = 4096  # a pid and the path of a socket


@dataclass(slots=True)
class ReadonlyDirectory:
    """One directory, read-only. See `seam.Directory`; any change raises EROFS.

    Names in `hidden` do not exist for the caller: a scan continues without a foreign file.
    """

    path: str
    hidden: set[str] = field(default_factory=set)
    barred: dict[str, str] = field(default_factory=dict)  # inaccessible paths, and why

    @classmethod
    def of(cls, path: str) -> "ReadonlyDirectory":
        """Open the directory at `path`, which may be a link."""
        real = os.path.realpath(path)
        try:
            os.close(os.open(real, _ROOM))
        except OSError as error:
            hint = "" if isinstance(error, PermissionError) else "Check the path"
            raise StorageFailed(path, "open", error, hint=hint) from error
        return cls(real)

    def open(self, name: str, *, writable: bool = False) -> FileStorage:
        """Open a file for reading; a write to it fails in the kernel."""
        if writable:
            raise self._refusal(name)
        if name in self.hidden:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._place(name))
        path = self._place(name)
        try:
            return FileStorage(os.open(path, _FILE), path)
        except PermissionError as error:
            self.barred[path] = error.strerror or str(error)
            # The examination continues without it, as without a file that the disk cannot read.
            raise OSError(errno.EIO, error.strerror, path) from error

    def names(self) -> list[str]:
        """Return the names of the files here, sorted. A missing directory has none."""
        return [name for name, is_room in self._entries() if not is_room]

    def rooms(self) -> list[str]:
        """Return the names of the directories here, sorted."""
        return [name for name, is_room in self._entries() if is_room]

    def child(self, name: str, *, make: bool = False) -> "ReadonlyDirectory":
        if make:
            raise self._refusal(name)
        path = self._place(name)
        os.close(os.open(path, _ROOM))
        return ReadonlyDirectory(path, barred=self.barred)

    def within(self, name: str) -> "ReadonlyDirectory":
        """Return a directory that may be missing: it then has no names."""
        return ReadonlyDirectory(self._place(name), barred=self.barred)

    def size_of(self, name: str) -> int:
        """Return the size of a file, 0 if it is missing or inaccessible."""
        try:
            return Path(self._place(name)).lstat().st_size
        except OSError:
            return 0

    def create(self, name: str) -> FileStorage:
        raise self._refusal(name)

    def rename(self, name: str, new_name: str, into: Directory | None = None) -> None:
        raise self._refusal(name)

    def link(self, name: str, new_name: str, into: Directory) -> None:
        raise self._refusal(name)

    def unlink(self, name: str) -> None:
        raise self._refusal(name)

    def sync(self) -> None:
        raise self._refusal(".")

    def _entries(self) -> list[tuple[str, bool]]:
        try:
            with os.scandir(self.path) as entries:
                found = [(one.name, one.is_dir(follow_symlinks=False)) for one in entries]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.barred[self.path] = error.strerror or str(error)
            return []
        return sorted(one for one in found if one[0] not in self.hidden)

    def _place(self, name: str) -> str:
        return joined(self.path, check_name(name))

    def _refusal(self, name: str) -> OSError:
        return OSError(errno.EROFS, os.strerror(errno.EROFS), joined(self.path, name))


def refuse_if_barred(root: ReadonlyDirectory) -> None:
    """Raise StorageFailed if this user may not read all of a log: the rest would look lost.

    Of other files in the directory, such as `lost+found`, nothing is asked.
    """

    def refuse(error: OSError) -> None:
        if isinstance(error, PermissionError):
            raise StorageFailed(str(error.filename), "open", error) from error

    own = [joined(root.path, name) for name in (LOCK_NAME, CLUSTER_NAME, HEADS_NAME, COPY_NAME)]
    for above, _, names in os.walk(joined(root.path, GROUPS), onerror=refuse):
        own += [joined(above, name) for name in names]
    for path in own:
        try:
            os.close(os.open(path, _FILE))
        except OSError as error:
            refuse(error)


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of the directory's lock."""

    is_held: bool
    pid: int | None  # of the holder, or of the process that died with the lock
    has_file: bool


def holder(root: ReadonlyDirectory) -> Holder:
    """Find out whether a process holds the directory, without taking the lock from it.

    A clean stop empties the file. Only if something is in it, its lock is asked for, shared,
    and given back at once.
    """
    try:
        descriptor = os.open(joined(root.path, LOCK_NAME), _FILE)
    except PermissionError as error:
        root.barred[joined(root.path, LOCK_NAME)] = error.strerror or str(error)
        return Holder(is_held=False, pid=None, has_file=True)
    except OSError:
        return Holder(is_held=False, pid=None, has_file=False)
    try:
        content = os.read(descriptor, _LOCK_SIZE_MAX)
        if not content:
            return Holder(is_held=False, pid=None, has_file=True)
        return Holder(_is_locked(descriptor), _pid(content), has_file=True)
    except OSError:  # no file: a start fails, and no process holds it
        return Holder(is_held=False, pid=None, has_file=False)
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _pid(content: bytes) -> int | None:
    for line in content.splitlines():
        key, _, value = line.partition(b"=")
        if key == b"pid" and value.isdigit():
            return int(value)
    return None


def kept_still(root: ReadonlyDirectory) -> int | None:
    """Keep nodes from starting in `root` until the descriptor returned is closed.

    The lock is shared and changes no byte. None if there is no file to lock.
    """
    try:
        descriptor = os.open(joined(root.path, LOCK_NAME), _FILE)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor
