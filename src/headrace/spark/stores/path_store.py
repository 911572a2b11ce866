"""Files below a directory: whole or absent, and durable once a call has returned.

A new file is written under a temporary name, synced, and linked to its own name: unlike a
rename, a link never replaces a file. The sync of the directory then makes the name durable.
No failed sync is retried.
"""

import errno
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from headrace.errors import BadRequest, StorageFailed
from headrace.spark.stores.seam import (
    NotInStore,
    StoredFile,
    Upload,
    joined,
    refuse_bad_name,
    taken,
)

_TEMPORARY: Final = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.headrace")
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_SYNC: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})


class PathStore:
    """The files below a directory, which is made when the first file is written."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self._synced: set[tuple[str, int]] = set()  # directories durable in their parents

    def __repr__(self) -> str:
        return f"PathStore({self.url!r})"

    @property
    def url(self) -> str:
        return str(self._root)

    @property
    def uploads(self) -> "TemporaryFiles":
        return TemporaryFiles(self)

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        with self._temporary(name) as (descriptor, temporary):
            # The file has a descriptor of its own, since libraries may close what they get.
            with open(os.dup(descriptor), "wb") as file:
                yield file
            with self._stage(name, "the sync of the new file"):
                self._sync(descriptor)
            if not self._link(temporary, name):
                raise taken(self.url, name)

    def put_new(self, name: str, data: bytes) -> bool:
        with self._temporary(name) as (descriptor, temporary):
            with self._stage(name, "writing the new file"):
                with open(os.dup(descriptor), "wb") as file:
                    file.write(data)
                self._sync(descriptor)
            return self._link(temporary, name)

    def head(self, name: str) -> StoredFile | None:
        with self._stage(name, "the look"):
            try:
                found = self._path(name).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return StoredFile(name, found.st_size, "") if stat.S_ISREG(found.st_mode) else None

    def read(self, name: str, start: int, length: int) -> bytes:
        _refuse_bad_range(start, length)
        with self._opened(name) as descriptor:
            found = _read(descriptor, start, length)
        if len(found) != length:
            short = OSError(f"expected {length} bytes from {start} on, found {len(found)}")
            raise self._failed(name, "reading", short, "The file is shorter than it was")
        return found

    def tail(self, name: str, length: int) -> bytes:
        _refuse_bad_range(0, length)
        with self._opened(name) as descriptor:
            size = os.fstat(descriptor).st_size
            return _read(descriptor, max(size - length, 0), min(size, length))

    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        for path, size in self._files(prefix):
            if not _TEMPORARY.fullmatch(path.name):
                yield StoredFile(path.relative_to(self._root).as_posix(), size, "")

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with self._stage(name, "removing"), suppress(FileNotFoundError, NotADirectoryError):
                self._path(name).unlink()

    def durable(self, names: Iterable[str]) -> None:
        directories = {}
        for name in names:
            with self._opened(name) as descriptor:
                self._sync(descriptor)
            directories[self._path(name).parent] = name
        for directory, name in directories.items():
            with self._stage(name, "the sync of its directory"):
                self._sync_directory(directory)
                self._sync_above(directory)

    @contextmanager
    def _temporary(self, name: str) -> Iterator[tuple[int, Path]]:
        """Give a new file under a temporary name. Nothing of that name is left behind."""
        path = self._path(name)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.headrace")
        with self._stage(name, "making the new file"):
            self._make(path.parent)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(temporary, flags, 0o666)
        try:
            with self._stage(name, "writing the new file"):
                yield descriptor, temporary
        finally:
            os.close(descriptor)
            with suppress(OSError):  # what is left is garbage that `uploads` lists
                temporary.unlink(missing_ok=True)

    def _link(self, temporary: Path, name: str) -> bool:
        """Give a synced file its name, durably. False: another file has it."""
        path = self._path(name)
        with self._stage(name, "naming the new file"):
            try:
                os.link(temporary, path)
            except FileExistsError:
                # Over NFS the answer to our own link may be lost, and its repeat refused.
                if not path.samefile(temporary):
                    return False
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise _no_links(self.url, error) from None
                raise
        with self._stage(name, "the sync of its directory"):
            self._sync_directory(path.parent)
        return True

    def _make(self, directory: Path) -> None:
        """Make a directory that survives a power cut, with all above it."""
        if not directory.is_dir():
            self._make(directory.parent)
            with suppress(FileExistsError):
                directory.mkdir()
        self._sync_above(directory)

    def _sync_above(self, directory: Path) -> None:
        """Have a directory survive a power cut: once, even if it was not made here.

        Whoever made it may have died before its sync.
        """
        found = directory.stat()
        mark = (str(directory), found.st_ino)
        if mark in self._synced:
            return
        parent = directory.parent
        # A mount point has no entry to sync, and what cannot be read was not made by us.
        if parent.stat().st_dev == found.st_dev and parent != directory:
            with suppress(PermissionError):
                self._sync_directory(parent)
            self._sync_above(parent)
        self._synced.add(mark)

    def _sync_directory(self, directory: Path) -> None:
        """Sync a directory, so that the names in it are durable."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._sync(descriptor)
        finally:
            os.close(descriptor)

    def _sync(self, descriptor: int) -> None:
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno in _NO_SYNC:
                raise _no_sync(self.url, error) from None
            raise

    def _files(self, prefix: str) -> Iterator[tuple[Path, int]]:
        """Give each file below a prefix, with its size."""
        waiting = [self._path(prefix) if prefix else self._root]
        while waiting:
            with self._stage(prefix, "listing"):
                for entry in _entries(waiting.pop()):
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    elif entry.is_file():
                        with suppress(FileNotFoundError):  # it is gone by now
                            yield Path(entry.path), entry.stat().st_size

    def _path(self, name: str) -> Path:
        refuse_bad_name(self.url, name)
        return self._root / name

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        with self._stage(name, "reading"):
            try:
                descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                raise NotInStore(self.url, name) from None
            try:
                yield descriptor
            finally:
                os.close(descriptor)

    @contextmanager
    def _stage(self, name: str, stage: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failed(name, stage, error) from error

    def _failed(self, name: str, stage: str, error: OSError, hint: str = "") -> StorageFailed:
        if error.errno in _NO_SPACE:
            hint = "Free some space or raise the limit, then retry"
        return StorageFailed(joined(self.url, name), stage, error, hint=hint)


class TemporaryFiles:
    """Files that were not finished, or that are being written."""

    def __init__(self, store: PathStore) -> None:
        self._store = store

    def list(self, prefix: str = "") -> Iterator[Upload]:
        root = Path(self._store.url)
        for path, _ in self._store._files(prefix):
            if found := _TEMPORARY.fullmatch(path.name):
                name = path.with_name(found["name"]).relative_to(root).as_posix()
                yield Upload(name, path.name)

    def abort(self, upload: Upload) -> None:
        found = _TEMPORARY.fullmatch(upload.id)
        directory, _, base = upload.name.rpartition("/")
        if found is None or found["name"] != base:
            raise BadRequest(f"{upload.id!r} is not a temporary file of {upload.name!r}")
        self._store.remove([f"{directory}/{upload.id}" if directory else upload.id])


def _no_sync(url: str, error: OSError) -> BadRequest:
    """Return the error of a mount that cannot promise that a file survives a power cut."""
    return BadRequest(
        f"{url}: this file system cannot sync files and directories ({error.strerror}), so "
        "that a file could be gone after a power cut",
        hint="Use a file system that can, such as ext4, xfs or NFS, or an object store",
    )


def _no_links(url: str, error: OSError) -> BadRequest:
    """Return the error of a mount on which a file cannot be named without replacing another."""
    return BadRequest(
        f"{url}: this file system has no hard links ({error.strerror}), so that two writers "
        "could replace each other's files",
        hint="Use a file system that has them, such as ext4, xfs or NFS, or an object store",
    )


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read(descriptor: int, start: int, length: int) -> bytes:
    pieces = []
    while length and (piece := os.pread(descriptor, length, start)):
        pieces.append(piece)
        start += len(piece)
        length -= len(piece)
    return b"".join(pieces)


def _refuse_bad_range(start: int, length: int) -> None:
    if start < 0 or length < 0:
        raise BadRequest(f"{length} bytes from {start} on are not a range of a file")
