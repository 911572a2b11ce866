"""The lock of a data directory: one process at a time, whatever became of the one before."""

import errno
import fcntl
import os
from dataclasses import dataclass
from typing import Self
from weakref import WeakSet

from headrace.errors import DirectoryHeld, DiskFull, StorageFailed
from headrace.storage.seam import is_full, joined

LOCK_NAME = "LOCK"
_CONTENT_SIZE_MAX = 4096  # a pid and the path of a socket
_CLOSED = -1
_NO_ROOM = "Free some space, then start again"
_ANOTHER_USER = (
    "It belongs to another user. Use --address to reach its node, or run as that user"
)


@dataclass(slots=True, eq=False, weakref_slot=True)
class DirectoryLock:
    """`LOCK` in a data directory, under flock until `release` or the end of the process.

    The kernel drops the lock with its holder, so a file left by a dead process is taken over.
    The file is never unlinked: one process could then lock the old file and another the new.
    """

    path: str
    _descriptor: int

    @classmethod
    def acquire(cls, directory: str, socket: str = "") -> "DirectoryLock":
        """Take the lock, and leave our pid and `socket` in it for others to find.

        DirectoryHeld if anyone has it, this process included; StorageFailed at stage `lock`.
        """
        lock = cls._acquire(directory, socket, os.O_CREAT)
        assert lock is not None
        return lock

    @classmethod
    def acquire_existing(cls, directory: str, socket: str = "") -> "DirectoryLock | None":
        """Take the lock if its file is there, and make nothing: None if it is not."""
        return cls._acquire(directory, socket, 0)

    @classmethod
    def _acquire(cls, directory: str, socket: str, create: int) -> "DirectoryLock | None":
        path = joined(directory, LOCK_NAME)
        try:
            flags = os.O_RDWR | create | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            if not create and isinstance(error, FileNotFoundError | NotADirectoryError):
                return None
            if is_full(error):
                raise DiskFull(path, "lock", hint=_NO_ROOM) from error
            hint = _ANOTHER_USER if error.errno == errno.EACCES else ""
            raise StorageFailed(path, "lock", error, hint=hint) from error
        try:
            _lock(descriptor, directory, f"pid={os.getpid()}\nsocket={socket}\n".encode())
        except OSError as error:
            os.close(descriptor)
            if is_full(error):
                raise DiskFull(path, "lock", hint=_NO_ROOM) from error
            raise StorageFailed(path, "lock", error) from error
        except DirectoryHeld:
            os.close(descriptor)
            raise
        lock = cls(path, descriptor)
        _held.add(lock)
        return lock

    def release(self) -> None:
        """Let the next one in; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor != _CLOSED:
            try:
                os.ftruncate(descriptor, 0)
            finally:
                # Not only closed: a forked child may hold a copy of the descriptor.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


_held: WeakSet[DirectoryLock] = WeakSet()


def _forget_all() -> None:
    """In a forked child: it holds nothing, and must not keep its parent's lock alive."""
    for lock in list(_held):
        descriptor, lock._descriptor = lock._descriptor, _CLOSED
        if descriptor != _CLOSED:
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget_all)


def _lock(descriptor: int, directory: str, content: bytes) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DirectoryHeld(directory, *_holder(descriptor)) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, content, 0)


def _holder(descriptor: int) -> tuple[int | None, str]:
    """Return the process that holds the lock, and its socket, if it has said so already."""
    content = os.pread(descriptor, _CONTENT_SIZE_MAX, 0)
    said = dict(line.partition(b"=")[::2] for line in content.splitlines())
    pid = said.get(b"pid", b"")
    return int(pid) if pid.isdigit() else None, os.fsdecode(said.get(b"socket", b""))
