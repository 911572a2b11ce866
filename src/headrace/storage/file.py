"""A real disk through raw descriptors: what production runs, beside the lab's memory disk.

Every name is opened relative to its directory's descriptor and no link is followed, so that
nobody can lead the process out of its data directory. Python itself repeats calls that a signal
interrupts.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Self, TypeVar

from headrace.storage.freeing import FREEING, NONE, hold_if_large
from headrace.storage.seam import Buffer, Directory, check_name, is_full, joined

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
# What one pwritev takes. Larger ones took five times as much kernel time for a MiB, measured on
# a virtual machine (ext4, Linux 6.18); its larger runs of pages are the supposed cause.
WRITE_SIZE_MAX = 1024 * 1024
PIECES_MAX = min(1024, os.sysconf("SC_IOV_MAX"))
assert PIECES_MAX > 0

_WRITE_FILE = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
# Nobody writes to a pipe that stands in place of a file: it would be waited for.
_READ_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CLOSED = -1
_Found = TypeVar("_Found")
_SYNC_FILE_RANGE_WRITE = 2  # of linux/fs.h


@dataclass(slots=True)
class _At:
    """Names the path in every OSError: calls on a descriptor do not know it."""

    path: str
    new_path: str | None = None

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if isinstance(error, OSError):
            error.filename = self.path
            if self.new_path is not None:  # a None would be printed as a second path
                error.filename2 = self.new_path


class _OpenFile:
    """An open descriptor with its path, closed at the latest when nobody refers to it."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    @property
    def _live(self) -> int:
        if self._descriptor == _CLOSED:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor != _CLOSED:
            with _At(self._path):
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class FileStorage(_OpenFile):
    """One open file. See `seam.Storage`."""

    __slots__ = ()

    @property
    def name_count(self) -> int:
        with _At(self._path):
            return os.fstat(self._live).st_nlink

    def read(self, position: int, size: int) -> bytes:
        assert position >= 0
        assert size >= 0
        with _At(self._path):
            # A size read from damaged bytes must not make us reserve that much memory.
            size = min(size, max(0, os.fstat(self._live).st_size - position))
            return _read_all(self._live, position, size)

    def write(self, position: int, pieces: Sequence[Buffer]) -> None:
        assert position >= 0
        with _At(self._path):
            _write_all(self._live, position, pieces)

    def append(self, pieces: Sequence[Buffer]) -> int:
        position = self.size()
        self.write(position, pieces)
        return position

    def truncate(self, size: int) -> None:
        assert size >= 0
        with _At(self._path):
            before = os.fstat(self._live).st_size
            if size <= before:
                os.ftruncate(self._live, size)
            else:
                _reserve(self._live, before, size)

    def sync(self) -> None:
        with _At(self._path):
            os.fdatasync(self._live)

    def size(self) -> int:
        with _At(self._path):
            return os.fstat(self._live).st_size

    def drop_cache(self) -> None:
        with _At(self._path):
            os.posix_fadvise(self._live, 0, 0, os.POSIX_FADV_DONTNEED)


class FileDirectory(_OpenFile):
    """One directory. See `seam.Directory`. What was opened through it outlives it."""

    __slots__ = ()

    @classmethod
    def open_root(cls, path: str, create: bool) -> "FileDirectory":
        """Open the directory at `path`, no link; `create` makes it, durably, if absent."""
        made = create and _make(path, path, above=None)
        root = _open_directory(path, path, above=None, made=made)
        if made:
            with _open_directory("..", path, above=root._live, made=False) as parent:
                parent.sync()
        return root

    def create(self, name: str) -> FileStorage:
        path = self._place(name)
        with _At(path):
            flags = _WRITE_FILE | os.O_CREAT | os.O_EXCL
            descriptor = os.open(name, flags, FILE_MODE, dir_fd=self._live)
            file = FileStorage(descriptor, path)
            os.fchmod(descriptor, FILE_MODE)  # a umask may have taken bits away
            return file

    def open(self, name: str, *, writable: bool = False) -> FileStorage:
        path = self._place(name)
        with _At(path):
            flags = _WRITE_FILE if writable else _READ_FILE
            file = FileStorage(os.open(name, flags, dir_fd=self._live), path)
            if stat.S_ISDIR(os.fstat(file._live).st_mode):  # to read, even that can be opened
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            return file

    def rename(self, name: str, new_name: str, into: Directory | None = None) -> None:
        target = self if into is None else into
        if not isinstance(target, FileDirectory):
            raise TypeError("a file can only be renamed within its disk")
        with _At(self._place(name), target._place(new_name)):
            if self._is_directory(name):
                target._refuse_taken(new_name)
            os.rename(name, new_name, src_dir_fd=self._live, dst_dir_fd=target._live)

    def link(self, name: str, new_name: str, into: Directory) -> None:
        if not isinstance(into, FileDirectory):
            raise TypeError("a file can only be linked within its disk")
        with _At(self._place(name), into._place(new_name)):
            self._refuse_directory(name)
            os.link(
                name,
                new_name,
                src_dir_fd=self._live,
                dst_dir_fd=into._live,
                follow_symlinks=False,
            )

    def unlink(self, name: str) -> None:
        with _At(self._place(name)):
            held = hold_if_large(name, self._live)
            try:
                os.unlink(name, dir_fd=self._live)
            finally:
                if held != NONE:
                    FREEING.close(held)

    def names(self) -> list[str]:
        # Through a descriptor of its own: two listings of one would share their place in it.
        # A link is listed, so that opening it fails by name; unlisted it would seem missing.
        with (
            _open_directory(".", self._path, above=self._live, made=False) as listing,
            _At(self._path),
            os.scandir(listing._live) as entries,
        ):
            return sorted(e.name for e in entries if not e.is_dir(follow_symlinks=False))

    def sync(self) -> None:
        with _At(self._path):
            os.fsync(self._live)

    def child(self, name: str, *, make: bool = False) -> "FileDirectory":
        path = self._place(name)
        made = make and _make(name, path, above=self._live)
        return _open_directory(name, path, above=self._live, made=made)

    def _place(self, name: str) -> str:
        return joined(self._path, check_name(name))

    def _refuse_directory(self, name: str) -> None:
        if self._is_directory(name):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))

    def _refuse_taken(self, name: str) -> None:
        """Of directories the kernel replaces an empty one: here none is."""
        try:
            os.stat(name, dir_fd=self._live, follow_symlinks=False)
        except FileNotFoundError:
            return
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    def _is_directory(self, name: str) -> bool:
        found = os.stat(name, dir_fd=self._live, follow_symlinks=False)
        return stat.S_ISDIR(found.st_mode)


def _make(name: str, path: str, *, above: int | None) -> bool:
    with _At(path):
        try:
            os.mkdir(name, DIRECTORY_MODE, dir_fd=above)
        except FileExistsError:
            return False
        return True


def _open_directory(name: str, path: str, *, above: int | None, made: bool) -> FileDirectory:
    with _At(path):
        directory = FileDirectory(os.open(name, _OPEN_DIRECTORY, dir_fd=above), path)
        if made:
            os.fchmod(directory._live, DIRECTORY_MODE)  # a umask may have taken bits away
        return directory


def _reserve(descriptor: int, start: int, end: int) -> None:
    try:
        _with_room(lambda: os.posix_fallocate(descriptor, start, end - start))
    except OSError:
        # A disk that fills up half way keeps the half: it is the very space that is missing.
        with suppress(OSError):
            os.ftruncate(descriptor, start)
        raise


def _with_room(act: Callable[[], _Found]) -> _Found:
    """Act; on a full disk once more, when the space of files without a name is back."""
    try:
        return act()
    except OSError as error:
        if not is_full(error) or not FREEING.settle():
            raise
    return act()


def _read_all(descriptor: int, position: int, size: int) -> bytes:
    data = os.pread(descriptor, size, position) if size else b""
    if len(data) == size:
        return data
    parts = [data]
    left = size - len(data)
    while left and parts[-1]:
        parts.append(os.pread(descriptor, left, position + size - left))
        left -= len(parts[-1])
    return b"".join(parts)


def _write_all(descriptor: int, position: int, pieces: Sequence[Buffer]) -> None:
    left = [piece for piece in pieces if len(piece)]
    start = 0
    while start < len(left):
        taken = _next_pieces(left, start)
        written = _with_room(partial(os.pwritev, descriptor, taken, position))
        if written == 0:
            raise OSError(errno.EIO, "a write took no bytes")
        start = _skip(left, start, written)
        if start < len(left):  # while the next bytes are copied
            _begin_write_back(descriptor, position, written)
        position += written


def _begin_write_back(descriptor: int, position: int, size: int) -> None:
    """Have the kernel begin to write these bytes out, where it can, without waiting for them.

    Promises nothing: the sync that follows waits for all of them, and tells of every failure.
    """
    if _sync_file_range is not None:
        _sync_file_range(descriptor, position, size, _SYNC_FILE_RANGE_WRITE)


def _found_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    found = getattr(ctypes.CDLL(None), "sync_file_range", None)  # Linux alone has it
    if found is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return found


_sync_file_range = _found_sync_file_range()


def _next_pieces(pieces: list[Buffer], start: int) -> list[Buffer]:
    """Return what the next call takes, and a last piece cut to size."""
    taken: list[Buffer] = []
    room = WRITE_SIZE_MAX
    for piece in islice(pieces, start, start + PIECES_MAX):
        view = memoryview(piece).cast("B")
        taken.append(view[:room])
        room -= view.nbytes
        if room <= 0:
            break
    return taken


def _skip(pieces: list[Buffer], start: int, written: int) -> int:
    """Return the first piece not yet written, shortened in place if a part of it was."""
    while written:
        view = memoryview(pieces[start])
        if written < view.nbytes:
            pieces[start] = view.cast("B")[written:]
            return start
        written -= view.nbytes
        start += 1
    return start
