"""A directory that reports every effect before it happens, and can be made to do it wrong.

It wraps the real one at the storage seam, only in the process of a fault test: production code
has no switch for it.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from random import Random

from headrace.journal.journal_file import first_op_of
from headrace.storage.seam import Buffer, Directory, Storage

PAGE_SIZE = 4096
FAILED_SYNC = "failed-sync"  # told behind it, and only of the journal


@dataclass(slots=True)
class Tap:
    """What a tapped directory does beside its work."""

    tell: Callable[[str, str], None]  # kind of effect, name of the file
    skips_journal_sync: bool = False  # the planted bug: acknowledges what is only in the cache
    hides_failed_sync: bool = False  # another: acknowledges what the disk has refused
    # Writes random pages to the disk ahead of a sync, as a kernel short of memory does: without
    # it a commit group nearly always lands as a whole or not at all.
    writeback: Random | None = None

    def effect(self, kind: str, path: str) -> None:
        self.tell(kind, PurePath(path).name)


@dataclass(slots=True)
class TappedStorage:
    """One open file. See `seam.Storage`."""

    inner: Storage
    tap: Tap
    dirty: list[tuple[int, int]] = field(default_factory=list)  # start and end, since the sync

    @property
    def path(self) -> str:
        return self.inner.path

    @property
    def name_count(self) -> int:
        return self.inner.name_count

    @property
    def is_journal(self) -> bool:
        """Entries are appended to it: it has a live name, not that of a spare."""
        return first_op_of(PurePath(self.path).name) is not None

    def read(self, position: int, size: int) -> bytes:
        return self.inner.read(position, size)

    def write(self, position: int, pieces: Sequence[Buffer]) -> None:
        self.tap.effect("write", self.path)
        # Small folios, else a file is written back as a whole. Not over dirty pages: the kernel
        # would write those back at once, which hides a missing sync.
        if self.tap.writeback and self.is_journal and not self.dirty:
            self.inner.drop_cache()
        self.dirty.append((position, position + sum(len(piece) for piece in pieces)))
        self.inner.write(position, pieces)

    def append(self, pieces: Sequence[Buffer]) -> int:
        self.tap.effect("write", self.path)
        return self.inner.append(pieces)

    def truncate(self, size: int) -> None:
        self.tap.effect("truncate", self.path)
        self.inner.truncate(size)

    def sync(self) -> None:
        self.tap.effect("sync", self.path)
        if self.tap.skips_journal_sync and self.is_journal:
            return
        try:
            if self.tap.writeback and self.is_journal:
                self._write_back(self.tap.writeback)
            self.inner.sync()
        except OSError:
            if self.is_journal:
                self.tap.effect(FAILED_SYNC, self.path)
            if not self.tap.hides_failed_sync:
                raise
        self.dirty.clear()

    def size(self) -> int:
        return self.inner.size()

    def drop_cache(self) -> None:
        self.inner.drop_cache()

    def close(self) -> None:
        self.inner.close()

    def _write_back(self, chance: Random) -> None:
        """Make a few pages of what is not synced yet durable, and nothing else."""
        if not self.dirty or chance.random() < 0.25:
            return
        with suppress(FileNotFoundError):  # the file has another name by now: nothing to tear
            descriptor = os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                for _ in range(chance.randint(1, 3)):
                    page = _some_page(self.dirty, chance)
                    data = self.inner.read(page, PAGE_SIZE)
                    os.pwritev(descriptor, [data], page, os.RWF_DSYNC)
            finally:
                os.close(descriptor)


def _some_page(dirty: list[tuple[int, int]], chance: Random) -> int:
    """Choose a page of a write, often its first: that one shows a frame, others only a body."""
    start, end = chance.choice(dirty)
    position = start if chance.random() < 0.4 else chance.randrange(start, end)
    return position // PAGE_SIZE * PAGE_SIZE


@dataclass(slots=True)
class TappedDirectory:
    """One directory. See `seam.Directory`."""

    inner: Directory
    tap: Tap

    @property
    def path(self) -> str:
        return self.inner.path

    def create(self, name: str) -> Storage:
        self.tap.effect("create", name)
        return TappedStorage(self.inner.create(name), self.tap)

    def open(self, name: str, *, writable: bool = False) -> Storage:
        return TappedStorage(self.inner.open(name, writable=writable), self.tap)

    def rename(self, name: str, new_name: str, into: Directory | None = None) -> None:
        self.tap.effect("rename", new_name)
        target = into.inner if isinstance(into, TappedDirectory) else into
        self.inner.rename(name, new_name, target)

    def link(self, name: str, new_name: str, into: Directory) -> None:
        self.tap.effect("link", new_name)
        target = into.inner if isinstance(into, TappedDirectory) else into
        self.inner.link(name, new_name, target)

    def unlink(self, name: str) -> None:
        self.tap.effect("unlink", name)
        self.inner.unlink(name)

    def names(self) -> list[str]:
        return self.inner.names()

    def sync(self) -> None:
        self.tap.effect("sync-dir", self.path)
        self.inner.sync()

    def child(self, name: str, *, make: bool = False) -> Directory:
        return TappedDirectory(self.inner.child(name, make=make), self.tap)
