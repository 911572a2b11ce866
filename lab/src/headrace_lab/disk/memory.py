"""A disk in memory: the twin of `storage/file.py` for tests, with faults.

It keeps apart what reads see, what a power cut leaves and what is pending between them. `clone`
and `power_cut` share content, so that a test can afford a new disk for every case. Threads may
share a disk as they may share a real one; with a hook, only one at a time.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Self

from headrace.storage.seam import Buffer, Directory, check_name, joined
from headrace_lab.disk.faults import (
    Crash,
    CrashAfter,
    Crashed,
    Effect,
    EffectKind,
    Fail,
    Fault,
    Keep,
    LoseSync,
    Pending,
)
from headrace_lab.disk.inode import (
    Change,
    Content,
    Copies,
    File,
    Folder,
    Naming,
    Node,
    Resize,
    Write,
    copied,
    described,
    files,
    land,
    name_count,
    overwritten,
    paths,
    settle,
    survivor,
)

Hook = Callable[[Effect], Fault | None]
ReadFault = Callable[[str, int, int], int | None]  # path, position, size -> errno


@dataclass(slots=True, eq=False)
class MemoryDisk:
    """One disk. Faults come from `hook` and `read_fault`; no other disk inherits them."""

    hook: Hook | None = None  # asked before each effect
    read_fault: ReadFault | None = None  # asked before each read: an unreadable sector
    effect_count: int = 0  # effects begun so far
    crashed: bool = False  # every further call through a handle raises Crashed
    _top: Folder = field(default_factory=Folder)
    _orders: Iterator[int] = field(default_factory=count)

    @property
    def root(self) -> "MemoryDirectory":
        return MemoryDirectory(self, self._top, ".")

    # The lives of a disk.

    def clone(self) -> "MemoryDisk":
        """Return an equal disk, pending changes included, that lives and has no hooks."""
        return self._reborn(copied(self._top, {}))

    def kill(self) -> "MemoryDisk":
        """Return the disk after the process died and the kernel lived on.

        All that was cached is still read, and still pending. Handles of this disk are dead.
        """
        self.crashed = True
        return self.clone()

    def pending(self) -> list[Pending]:
        """Return every change that no sync has made durable, oldest first."""
        return [
            described(index, path, change)
            for index, (path, _, change) in enumerate(self._changes())
        ]

    def power_cut(self, kept: Sequence[Keep] = ()) -> "MemoryDisk":
        """Return the disk after a power cut: what was durable and, in this order, `kept`.

        This disk is left as it is, so that one history serves every choice. A file that no
        durable name leads to is gone.
        """
        changes = self._changes() if kept else []
        copies: Copies = {}
        top = survivor(self._top, copies)
        for keep in kept:
            _, node, change = changes[keep.index]
            land(survivor(node, copies), change, keep.ranges, copies)
        for node in copies.values():
            settle(node)
        return self._reborn(top)

    def _reborn(self, top: Node) -> "MemoryDisk":
        assert isinstance(top, Folder)
        return MemoryDisk(_top=top, _orders=count(next(self._orders)))

    def _changes(self) -> list[tuple[str, Node, Change]]:
        found = [
            (path, node, change)
            for node, path in paths(self._top).items()
            for change in node.pending
        ]
        found.sort(key=lambda item: item[2].order)
        return found

    # Damage at rest: in the cache and on the platter alike.

    def files(self) -> list[str]:
        """Return the paths of all files that reads see, sorted."""
        return sorted(files(self._top, "."))

    def content(self, path: str) -> bytes:
        return bytes(self._file(path).cached)

    def put(self, path: str, data: bytes) -> None:
        """Give `path` this durable content; the file and its parents are made if absent."""
        *parents, name = path.split("/")
        folder = self._top
        for parent in parents:
            child = folder.cached.get(parent) or Folder()
            assert isinstance(child, Folder)
            folder.cached[parent] = folder.durable[parent] = child
            folder = child
        file = folder.cached.get(name) or File()
        assert isinstance(file, File)
        folder.forget(name)
        folder.cached[check_name(name)] = folder.durable[name] = file
        file.cached = file.durable = bytes(data)
        file.pending.clear()
        file.stale = False

    def flip(self, path: str, bit: int) -> None:
        """Turn one bit over, counted from the lowest of the first byte."""
        position, shift = divmod(bit, 8)
        assert position < len(self._file(path).cached)

        def flipped(content: Content) -> Content:
            if position >= len(content):
                return content
            return overwritten(content, position, bytes([content[position] ^ (1 << shift)]))

        self._damage(path, flipped)

    def overwrite(self, path: str, position: int, data: bytes) -> None:
        self._damage(path, lambda content: overwritten(content, position, data))

    def cut(self, path: str, size: int) -> None:
        self._damage(path, lambda content: content[:size])

    def set_immutable(self, path: str, *, to: bool = True) -> None:
        """Let nobody write, link, move, replace or remove this file from now on, or again."""
        self._file(path).is_immutable = to

    def remove(self, path: str) -> None:
        self._file(path)
        folder, name = self._parent(path)
        folder.forget(name)

    def _damage(self, path: str, change: Callable[[Content], Content]) -> None:
        file = self._file(path)
        if file.pending or file.stale:
            file.cached, file.durable = change(file.cached), change(file.durable)
            file.stale = True
        else:
            file.cached = file.durable = bytes(change(bytes(file.durable)))

    def _file(self, path: str) -> File:
        folder, name = self._parent(path)
        node = folder.cached.get(name)
        if not isinstance(node, File):
            raise _error(errno.ENOENT, path)
        return node

    def _parent(self, path: str) -> tuple[Folder, str]:
        *parents, name = path.split("/")
        folder = self._top
        for parent in parents:
            child = folder.cached.get(parent)
            if not isinstance(child, Folder):
                raise _error(errno.ENOENT, path)
            folder = child
        return folder, name

    # For the handles: each effect is begun, happens as far as its fault lets it, and is ended.

    def _check(self) -> None:
        if self.crashed:
            raise Crashed

    def _begin(self, kind: EffectKind, path: str, size: int = 0) -> Fault | None:
        self._check()
        self.effect_count += 1
        if self.hook is None:
            return None
        fault = self.hook(Effect(self.effect_count, kind, path, size))
        if isinstance(fault, LoseSync) and kind not in ("sync", "sync-dir"):
            raise ValueError(f"{kind} of {path} is not a sync that could be lost")
        return fault

    def _end(self, fault: Fault | None, path: str) -> None:
        if isinstance(fault, Crash | CrashAfter):
            self.crashed = True
            raise Crashed
        if fault is not None:
            raise _error(fault.errno, path)

    def _order(self) -> int:
        return next(self._orders)


@dataclass(slots=True, eq=False)
class MemoryStorage:
    """One open file of a memory disk. See `seam.Storage`."""

    _disk: MemoryDisk
    _file: File
    _path: str
    is_writable: bool = True
    _closed: bool = False

    @property
    def path(self) -> str:
        return self._path

    @property
    def name_count(self) -> int:
        self._check()
        return name_count(self._disk._top, self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, position: int, size: int) -> bytes:
        assert position >= 0
        assert size >= 0
        self._check()
        if self._disk.read_fault is not None:
            number = self._disk.read_fault(self._path, position, size)
            if number is not None:
                raise _error(number, self._path)
        return bytes(self._file.cached[position : position + size])

    def write(self, position: int, pieces: Sequence[Buffer]) -> None:
        assert position >= 0
        self._write("write", position, pieces)

    def append(self, pieces: Sequence[Buffer]) -> int:
        position = len(self._file.cached)
        self._write("append", position, pieces)
        return position

    def truncate(self, size: int) -> None:
        assert size >= 0
        self._check_writable()
        fault = self._disk._begin("truncate", self._path, size)
        if _happens(fault):
            self._file.change(Resize(self._disk._order(), size))
        self._disk._end(fault, self._path)

    def sync(self) -> None:
        self._check()
        fault = self._disk._begin("sync", self._path)
        _sync(self._file, fault)
        self._disk._end(fault, self._path)

    def size(self) -> int:
        self._check()
        return len(self._file.cached)

    def drop_cache(self) -> None:
        self._check()
        self._file.drop_cache()

    def close(self) -> None:
        """Close the handle; even after a crash, so that a `finally` is quiet."""
        self._closed = True

    def _write(self, kind: EffectKind, position: int, pieces: Sequence[Buffer]) -> None:
        self._check_writable()
        data = b"".join(pieces)
        fault = self._disk._begin(kind, self._path, len(data))
        if isinstance(fault, Fail | Crash):
            data = data[: fault.done]
        if data:
            self._file.change(Write(self._disk._order(), position, data))
        self._disk._end(fault, self._path)

    def _check(self) -> None:
        self._disk._check()
        if self._closed:
            raise _error(errno.EBADF, self._path)

    def _check_writable(self) -> None:
        self._check()
        if not self.is_writable:
            raise _error(errno.EBADF, self._path)
        _refuse_immutable(self._file, self._path)


@dataclass(slots=True, eq=False)
class MemoryDirectory:
    """One directory of a memory disk. See `seam.Directory`."""

    _disk: MemoryDisk
    _folder: Folder
    _path: str

    @property
    def path(self) -> str:
        return self._path

    def create(self, name: str) -> MemoryStorage:
        path = self._place(name)
        if name in self._folder.cached:
            raise _error(errno.EEXIST, path)
        file = File()
        self._add("create", name, file)
        return MemoryStorage(self._disk, file, path)

    def open(self, name: str, *, writable: bool = False) -> MemoryStorage:
        path = self._place(name)
        file = self._find(name)
        if writable:
            _refuse_immutable(file, path)
        return MemoryStorage(self._disk, file, path, is_writable=writable)

    def rename(self, name: str, new_name: str, into: Directory | None = None) -> None:
        target = self if into is None else into
        if not isinstance(target, MemoryDirectory) or target._disk is not self._disk:
            raise TypeError("a file can only be renamed within its disk")
        self._place(name)
        path = target._place(new_name)
        node = self._folder.cached.get(name)
        replaced = target._folder.cached.get(new_name)
        if isinstance(node, Folder):
            if replaced is not None:
                raise _error(errno.EEXIST, path)
        else:
            node = self._find(name)
            _refuse_immutable(node, joined(self._path, name))
        if isinstance(replaced, Folder):
            raise _error(errno.EISDIR, path)
        _refuse_immutable(replaced, path)
        fault = self._disk._begin("rename", path)
        if _happens(fault) and replaced is not node:
            target._folder.change(Naming(self._disk._order(), new_name, node))
            self._folder.change(Naming(self._disk._order(), name, None))
        self._disk._end(fault, path)

    def link(self, name: str, new_name: str, into: Directory) -> None:
        if not isinstance(into, MemoryDirectory) or into._disk is not self._disk:
            raise TypeError("a file can only be linked within its disk")
        self._place(name)
        path = into._place(new_name)
        file = self._find(name)
        if new_name in into._folder.cached:
            raise _error(errno.EEXIST, path)
        _refuse_immutable(file, joined(self._path, name))
        into._add("link", new_name, file)

    def unlink(self, name: str) -> None:
        path = self._place(name)
        _refuse_immutable(self._find(name), path)
        fault = self._disk._begin("unlink", path)
        if _happens(fault):
            self._folder.change(Naming(self._disk._order(), name, None))
        self._disk._end(fault, path)

    def names(self) -> list[str]:
        self._disk._check()
        return sorted(n for n, node in self._folder.cached.items() if isinstance(node, File))

    def sync(self) -> None:
        fault = self._disk._begin("sync-dir", self._path)
        _sync(self._folder, fault)
        self._disk._end(fault, self._path)

    def child(self, name: str, *, make: bool = False) -> "MemoryDirectory":
        path = self._place(name)
        if make and name not in self._folder.cached:
            self._add("make-child", name, Folder())
        node = self._folder.cached.get(name)
        if node is None:
            raise _error(errno.ENOENT, path)
        if isinstance(node, File):
            raise _error(errno.ENOTDIR, path)
        return MemoryDirectory(self._disk, node, path)

    def _place(self, name: str) -> str:
        self._disk._check()
        return joined(self._path, check_name(name))

    def _find(self, name: str) -> File:
        node = self._folder.cached.get(name)
        if node is None:
            raise _error(errno.ENOENT, joined(self._path, name))
        if isinstance(node, Folder):
            raise _error(errno.EISDIR, joined(self._path, name))
        return node

    def _add(self, kind: EffectKind, name: str, node: Node) -> None:
        path = joined(self._path, name)
        fault = self._disk._begin(kind, path)
        if _happens(fault):
            self._folder.change(Naming(self._disk._order(), name, node))
        self._disk._end(fault, path)


def _refuse_immutable(file: File | None, path: str) -> None:
    if file is not None and file.is_immutable:
        raise _error(errno.EPERM, path)


def _happens(fault: Fault | None) -> bool:
    return fault is None or isinstance(fault, CrashAfter)


def _sync(node: Node, fault: Fault | None) -> None:
    if _happens(fault):
        node.sync()
    elif isinstance(fault, LoseSync):
        node.lose()


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
