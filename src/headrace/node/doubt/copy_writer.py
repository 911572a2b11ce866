"""The writer of the copy of metadata: what group 0's journal thread calls.

What is on disk after a crash, step by step; group 0's journal has every entry before the copy:

    make room   inside the write     the copy as it was, and zeros, or other bytes, behind it
    append      inside the write     the copy as it was, and any part of the entries: they are
                before the sync      not acknowledged, and group 0 has them
                after the sync       the entries; only now they are acknowledged
    renew       before the rename    the old copy, to which nothing was appended meanwhile
                after it             the new one: the same entries, an image for the older ones

While metadata is in doubt the file is left as it is: Seals are kept aside, and the first change
of metadata begins it anew, with them.

An append that fails after group 0's journal has the entries leaves no way back: nobody knows
what the copy holds, so nothing is acknowledged any more until a start has begun it anew. No
sync is tried again: what is begun anew is another file.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.errors import DiskFull, HeadraceError, ReadFailed, StorageFailed, WriteFailed
from headrace.journal.checkpoint import Captured
from headrace.journal.entry import HEADER_SIZE, SEAL, Entry
from headrace.journal.frame import aligned
from headrace.journal.journal import Journal
from headrace.model.ids import Op
from headrace.node.doubt.metadata_copy import (
    HISTORY_MAX,
    NAME,
    Base,
    Copy,
    encode,
    encode_entries,
)
from headrace.node.events import event
from headrace.storage.atomic import atomic_replace, refuse_if_poisoned
from headrace.storage.seam import Directory, Storage, is_full, joined

ROOM: Final = 64 * 1024  # written as zeros in advance: a sync then has no size to make durable

_MOVED: Final = "Move it elsewhere, and try again: the change makes the file"
_REPLACED: Final = (
    "It is the copy of the metadata, and the change was not made. Look at its permissions and "
    "attributes (ls -l, lsattr), then repeat it"
)
_OPENED: Final = (
    "It is the copy of the metadata, opened for writing. Look at its permissions and "
    "attributes (ls -l, lsattr), then repeat"
)


@dataclass(slots=True)
class CopyFile:
    """The file, written by one thread at a time."""

    directory: Directory
    cluster: bytes
    known: dict[Op, bytes]  # checksums of entries, in op order: the newest are its history
    waits: bool = False  # for a change of metadata: it is in doubt, and the file stays as it is
    failure: str = ""  # of the last try to begin it anew; empty once one succeeds
    poisoned: StorageFailed | None = None
    _wanted: Copy | None = None  # it is begun anew with this before anything is appended
    _storage: Storage | None = None
    _end: int = 0
    _size: int = 0

    @property
    def path(self) -> str:
        return joined(self.directory.path, NAME)

    def begin(self, base: Base, entries: Sequence[Entry] = ()) -> None:
        """Begin the file anew; return once it is durable under its name.

        DiskFull, WriteFailed: the old one stands, and this is tried again before the next
        append. StorageFailed: poisoned.
        """
        refuse_if_poisoned(self.poisoned)
        self._know(entries)
        if base.op > 0:
            self.known.setdefault(base.op, base.tip)
        past = [one for one in sorted(self.known.items()) if one[0] < base.op][-HISTORY_MAX:]
        self._wanted = Copy(self.cluster, base, dict(past), tuple(entries))
        if not self.waits:
            self._write_wanted()

    def start(self, base: Base) -> None:
        """Begin it anew at a start, or say why not: then no change is taken until that is done.

        What was asked before goes on being answered.
        """
        try:
            self.begin(base)
        except HeadraceError as error:
            self._say(error)

    def renew(self, captured: Captured, journal: Journal) -> None:
        """Begin it anew at a checkpoint of group 0, with the image that its apply captured.

        A failure leaves the old copy, which has everything, too: it is said, and the next
        checkpoint tries again. Poisoned, the next append raises.
        """
        before = self._wanted
        try:
            entry = journal.read(captured.op)
            entries: list[Entry] = []
            for op in range(captured.op + 1, journal.durable + 1):
                found = journal.read(Op(op))
                assert found is not None, "the journal is kept back to the previous checkpoint"
                entries.append(found)
            base = Base(captured.op, captured.tip, captured.state.replicated, entry)
            self.begin(base, entries)
        except HeadraceError as error:
            self._wanted = before
            self._say(error)

    def make_room(self, entries: Sequence[Entry]) -> None:
        """Have room for entries, before group 0's journal has any of them.

        Unavailable: neither has them, and the next try works as if there had been none.
        """
        refuse_if_poisoned(self.poisoned)
        self.waits = self.waits and _are_seals(entries)
        if self.waits:
            return
        if self._wanted is not None:
            self._write_wanted()
        storage = self._opened()
        missing = self._end + _size_of(entries) - self._size
        if missing <= 0:
            return
        grown = aligned(missing) + ROOM
        try:
            storage.write(self._size, [bytes(grown)])
        except OSError as error:
            if is_full(error):
                raise DiskFull(self.path, "room") from error
            raise WriteFailed(self.path, self._size, error) from error
        self._sync(storage, "sync of room")
        self._size += grown

    def append(self, entries: Sequence[Entry]) -> None:
        """Return once the entries are durable here, too. StorageFailed: poisoned."""
        if not entries:
            return
        refuse_if_poisoned(self.poisoned)
        if self.waits and self._wanted is not None:
            self._know(entries)
            kept = (*self._wanted.entries, *entries)
            self._wanted = replace(self._wanted, entries=kept)
            return
        storage = self._storage
        assert storage is not None, "room was made for them before"
        try:
            storage.write(self._end, encode_entries(entries))
        except OSError as error:
            raise self._poison("append", error) from error
        self._sync(storage, "sync")
        self._end += _size_of(entries)
        self._know(entries)

    def close(self) -> None:
        storage, self._storage = self._storage, None
        if storage is not None:
            storage.close()

    def describe(self) -> dict[str, object]:
        """Return what the status shows of writing it."""
        failure = self.failure if self.poisoned is None else str(self.poisoned)
        return {"failure": failure or None}

    def _write_wanted(self) -> None:
        wanted = self._wanted
        assert wanted is not None
        pieces = encode(wanted)
        end = sum(map(len, pieces))
        try:
            atomic_replace(self.directory, NAME, [*pieces, bytes(ROOM)])
        except StorageFailed as failed:
            if failed.stage == "sync-dir":  # it shows, and a power cut may bring the old back
                self.poisoned = failed
                raise
            if is_full(failed.cause):
                raise DiskFull(failed.path, failed.stage) from failed
            is_taken = isinstance(failed.cause, IsADirectoryError)
            hint = _MOVED if is_taken else _REPLACED
            raise WriteFailed(failed.path, 0, failed.cause, hint=hint) from failed
        self.close()
        self._wanted, self.failure = None, ""
        self._end, self._size = end, end + ROOM
        kept = [op for op in wanted.history if op >= min(wanted.past, default=0)]
        self.known = {op: self.known[op] for op in kept}

    def _know(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.known[entry.op] = entry.checksum

    def _opened(self) -> Storage:
        if self._storage is None:
            try:
                self._storage = self.directory.open(NAME, writable=True)
            except OSError as error:
                raise ReadFailed(self.path, error, hint=_OPENED) from error
        return self._storage

    def _sync(self, storage: Storage, stage: str) -> None:
        try:
            storage.sync()
        except OSError as error:
            raise self._poison(stage, error) from error

    def _poison(self, stage: str, cause: OSError) -> StorageFailed:
        hint = "Restart the process: the copy is begun anew from group 0"
        self.poisoned = StorageFailed(self.path, stage, cause, hint=hint)
        return self.poisoned

    def _say(self, error: HeadraceError) -> None:
        if str(error) != self.failure:
            event("node.copy.failed", level=logging.WARNING, error=str(error))
        self.failure = str(error)


def _are_seals(entries: Sequence[Entry]) -> bool:
    return all(entry.header.operation == SEAL for entry in entries)


def _size_of(entries: Sequence[Entry]) -> int:
    return sum(aligned(HEADER_SIZE + len(entry.body)) for entry in entries)
