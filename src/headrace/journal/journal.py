"""A group's log on disk: append in commit groups, read, drain. `mend.py` writes in place.

One thread writes; any thread may read. An entry is in the ring, and so readable, only once it
is durable.

State of the disk after a crash, step by step:

    append   during the write     any part of the group, without evidence: the scan cuts it
             before the sync      the same
             after the sync       the whole group; reported as durable only now
    roll     old file synced → header in a spare → live name → directory synced → end frame
             a crash before the live name leaves a spare; after it, an empty successor: the scan
             finds all entries in the old file and writes the end frame again
    drain    oldest file first, its name removed durably before the next: dense, except for a
             file that cannot be removed: later files are drained all the same. It is below the
             previous checkpoint, where a scan misses nothing, and is drained again then
    renew    a spare created → the others removed, durably → a roll, into the new one: a crash
             leaves more spares, or fewer. A crash forgets the request
"""

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.errors import (
    BodyTooLarge,
    CorruptEntry,
    DiskFull,
    NotNext,
    RingFull,
    Stopped,
    StorageFailed,
    WriteFailed,
)
from headrace.journal.entry import BODY_SIZE_MAX, Entry, Flaw, Header, decode, decode_header
from headrace.journal.frame import (
    PREFIX_SIZE,
    FrameKind,
    Prefix,
    aligned,
    decode_prefix,
    encode_prefix,
    entry_frame_size,
    padding,
)
from headrace.journal.journal_file import JournalFile, size_for
from headrace.journal.ring import Ring, Slot
from headrace.journal.spare import Spares
from headrace.model.ids import Identity, Op
from headrace.storage.seam import Buffer, Directory, is_full

_ZEROS = bytes(1024 * 1024)


@dataclass(slots=True)
class Journal:
    """Invariants: watermark <= marked <= durable; the ring holds ops above the watermark."""

    identity: Identity
    directory: Directory
    spares: Spares
    ring: Ring
    files: list[JournalFile]  # dense, in op order; the last is the one appended to
    durable: Op  # newest entry on our disk
    tip: bytes  # its checksum
    commit: Op = Op(0)  # newest op known committed; stamped into frames as evidence
    marked: Op = Op(0)  # newest op that a frame records as durable
    far: dict[Op, Slot] = field(default_factory=dict)  # below the ring, until the next drain
    undrained: set[str] = field(default_factory=set)  # names that drains could not remove
    # Requested by the applying thread: no file that holds one of these ops, or held one in an
    # earlier life, is appended to or used again.
    erase_through: Op = Op(0)
    renewed_through: Op = Op(0)  # done up to here, by the appending thread
    poisoned: StorageFailed | None = None
    is_closed: bool = False

    @property
    def newest(self) -> JournalFile:
        return self.files[-1]

    @property
    def first(self) -> Op:
        """The oldest op in any file."""
        return self.files[0].header.first_op

    @property
    def fresh_from(self) -> Op:
        """Files that begin here or later never held an op up to `renewed_through`."""
        return self.spares.fresh_from

    @property
    def free_slots(self) -> int:
        return self.ring.count - (self.durable - self.ring.watermark)

    def append(self, entries: Sequence[Entry]) -> Op:
        """Write one commit group, sync it, and return the new durable op.

        All entries are validated before a byte is written. After WriteFailed or DiskFull the
        ops above `durable` are certainly not in the journal; after StorageFailed the journal
        is poisoned.
        """
        self.refuse_if_poisoned()
        self._judge(entries)
        rest = list(entries)
        if rest and self.renewed_through < self.erase_through:
            self._renew(entry_frame_size(len(rest[0].body)))
        while rest:
            count = self._fitting(rest)
            if count == 0:
                self._roll(entry_frame_size(len(rest[0].body)))
                continue
            self._write_group(rest[:count])
            del rest[:count]
        return self.durable

    def mark(self) -> None:
        """Write evidence that `durable` was reached: when idle, and at a clean stop."""
        self.refuse_if_poisoned()
        if self.marked == self.durable:
            return
        self._write_synced(self.newest, [self._bare(self.newest, FrameKind.MARK)], "mark")
        self.marked = self.durable

    def read(self, op: Op) -> Entry | None:
        """Return a durable entry, every byte checked; None if it is drained or not here."""
        self.refuse_if_poisoned()
        slot = self.slot(op)
        found = self._look(slot) if slot is not None else None
        if isinstance(found, Flaw):  # the file may have begun a new life meanwhile: retry
            slot = self.slot(op)
            return None if slot is None else self.read_slot(slot)
        return found

    def slot(self, op: Op) -> Slot | None:
        """Return where a durable entry is; None if it is drained or not here."""
        return self.ring.get(op) or self.far.get(op)

    def read_slot(self, slot: Slot) -> Entry:
        """Return the entry of a slot, every byte checked."""
        found = self._look(slot)
        if isinstance(found, Entry):
            return found
        raise CorruptEntry(
            f"op {slot.op}: {found.what}",
            path=slot.file.path,
            position=slot.position,
            expected=found.expected,
            found=found.found,
        )

    def headers(self, first: Op, last: Op) -> list[Header]:
        """Return the headers of these ops in the ring, without touching the disk."""
        found = [decode_header(slot.sealed) for slot in self.ring.between(first, last)]
        return [header for header in found if isinstance(header, Header)]

    def drain(self, through: Op, kept: Container[int] = frozenset()) -> None:
        """Forget every op at or below `through`; retire the files that hold nothing else.

        Files whose ID is in `kept` have a second name: they lose this one and stay unchanged.
        """
        self.refuse_if_poisoned()
        assert through <= self.durable
        self.ring.raise_watermark(through)
        self.far = {op: slot for op, slot in self.far.items() if op > through}
        while len(self.files) > 1 and self.files[1].header.first_op <= through + 1:
            file = self.files.pop(0)
            with self._poisoning(file.path, "drain"):
                try:
                    self.spares.retire(
                        self.directory, file, is_kept=file.header.file_id in kept
                    )
                except OSError:
                    self.undrained.add(file.name)
        gone = {
            name for name in self.undrained if self.spares.stuck.unlink(self.directory, name)
        }
        if gone:
            self.undrained -= gone
            with self._poisoning(self.directory.path, "drain"):
                self.directory.sync()
        with self._poisoning(self.spares.directory.path, "drain"):
            self.spares.retry()

    def reuse(self, room: Directory, name: str, file_id: int) -> bool:
        """Turn a kept file that is no longer needed into a spare; False: it is unchanged.

        The appending thread calls this, and syncs `room` before the next append.
        """
        self.refuse_if_poisoned()
        if any(file.header.file_id == file_id for file in self.files):
            return False  # not drained yet: only its second name may be removed
        with self._poisoning(self.spares.directory.path, "spare"):
            return self.spares.adopt(room, name, file_id)

    def begin_file(self, first: Op, parent: bytes, frame_size: int, stage: str) -> None:
        """Continue in a new file; the newest one is empty if it has the same name."""
        file = self._enlist(first, parent, frame_size, stage)
        if not self.files or self.newest.header.first_op != first:
            self.files.append(file)
            return
        old, self.files[-1] = self.newest, file
        if old.retire():
            old.storage.close()

    def prepare(self) -> None:
        """Create a spare, so that the next roll neither waits nor finds the disk full."""
        self.refuse_if_poisoned()
        with self._poisoning(self.spares.directory.path, "spare"):
            self.spares.ensure()

    def close(self) -> None:
        """Release the descriptors. Nothing is written: see `Group.stop` for a clean stop."""
        self.is_closed = True
        for file in self.files:
            if file.retire():
                file.storage.close()

    def refuse_if_poisoned(self) -> None:
        if self.poisoned is not None:
            raise self.poisoned
        if self.is_closed:
            raise Stopped(self.directory.path)

    def poison(self, path: str, stage: str, cause: OSError) -> StorageFailed:
        """Stop trusting this journal; return the error that every later call raises."""
        self.poisoned = StorageFailed(
            path,
            stage,
            cause,
            hint="Restart the process: recovery finds out what is really on disk",
        )
        return self.poisoned

    @contextmanager
    def _poisoning(self, path: str, stage: str) -> Iterator[None]:
        """Poison the journal if this fails; `path` is used if the error has no path."""
        try:
            yield
        except OSError as error:
            raise self.poison(path, stage, error) from error
        except StorageFailed as failed:
            raise self.poison(failed.path, failed.stage, failed.cause) from failed

    def open_to_write(self, file: JournalFile) -> None:
        """Open a file for writing that a scan opened for reading.

        StorageFailed: it may not be written, and nothing was.
        """
        if file.is_writable:
            return
        try:
            file.storage = self.directory.open(file.name, writable=True)
        except OSError as error:
            hint = "Make it writable for this user (see `ls -l` and `lsattr`), then start again"
            raise StorageFailed(file.path, "open for writing", error, hint=hint) from error
        file.is_writable = True

    def sync(self, file: JournalFile, stage: str) -> None:
        """Sync once. A failed sync is never retried: the kernel may have dropped the pages."""
        try:
            file.storage.sync()
        except OSError as error:
            raise self.poison(file.path, stage, error) from error

    def _judge(self, entries: Sequence[Entry]) -> None:
        op, parent = self.durable, self.tip
        for entry in entries:
            header = entry.header
            if len(entry.body) > BODY_SIZE_MAX:
                raise BodyTooLarge(len(entry.body), BODY_SIZE_MAX)
            if header.op != op + 1:
                raise NotNext("op", op + 1, header.op)
            if header.parent != parent:
                raise NotNext("parent", parent.hex(), header.parent.hex())
            if header.cluster != self.identity.cluster:
                raise NotNext("cluster", self.identity.cluster.hex(), header.cluster.hex())
            if header.group != self.identity.group:
                raise NotNext("group", self.identity.group, header.group)
            if header.body_size != len(entry.body):
                raise NotNext("body size", header.body_size, len(entry.body))
            if self.ring.collides(header.op):
                raise RingFull(header.op, self.ring.watermark, self.ring.count)
            op, parent = header.op, header.checksum

    def _fitting(self, entries: Sequence[Entry]) -> int:
        size = 0
        for count, entry in enumerate(entries):
            size += aligned(entry_frame_size(len(entry.body)))
            if not self.newest.fits(size):
                return count
        return len(entries)

    def _write_group(self, entries: Sequence[Entry]) -> None:
        file, position = self.newest, self.newest.end
        file_id, before, commit = file.header.file_id, self.durable, self.commit
        pieces: list[Buffer] = []
        slots: list[Slot] = []
        for entry in entries:
            op, size = entry.header.op, entry_frame_size(len(entry.body))
            prefix = Prefix(
                FrameKind.ENTRY, size, file_id, before, commit, op, entry.header.checksum
            )
            start = encode_prefix(prefix, position) + entry.sealed
            pieces += (start, entry.body, padding(size))
            slots.append(Slot(op, file, position, entry.sealed))
            position += aligned(size)
        self._write_synced(file, pieces, "append")
        for slot in slots:
            self.ring.put(slot)
        self.durable, self.tip = entries[-1].op, entries[-1].checksum
        self.marked = max(self.marked, before)

    def _roll(self, frame_size: int) -> None:
        """Continue in a new file. A file without entries is replaced under the same name."""
        old = self.newest
        next_op = Op(self.durable + 1)
        if old.header.first_op == next_op:
            self.begin_file(next_op, self.tip, frame_size, "roll")
            self.marked = Op(min(self.marked, max(self.durable - 1, 0)))
            return
        new = self._enlist(next_op, self.tip, frame_size, "roll")
        try:
            self._write_synced(old, [self._bare(old, FrameKind.END)], "end")
        except (DiskFull, WriteFailed):
            self._retire(new, "undo of a roll")
            raise
        self.marked = self.durable
        self.files.append(new)

    def _renew(self, frame_size: int) -> None:
        """Continue in a file that never held anything; on a full disk, in a later append."""
        through = self.erase_through
        try:
            with self._poisoning(self.spares.directory.path, "spare"):
                self.spares.renew(size_for(frame_size, 0))
            self._roll(frame_size)
        except DiskFull:
            return
        self.spares.fresh_from = self.newest.header.first_op
        self.renewed_through = through

    def _enlist(self, first: Op, parent: bytes, frame_size: int, stage: str) -> JournalFile:
        """Prepare a file that begins with `first`, with room for a frame of this size."""
        needed = size_for(frame_size, 0)
        with self._poisoning(self.directory.path, stage):
            try:
                return self.spares.enlist(self.directory, self.identity, first, parent, needed)
            except OSError as error:
                if is_full(error):
                    raise DiskFull(self.directory.path, stage) from error
                raise

    def _retire(self, file: JournalFile, stage: str, *, is_kept: bool = False) -> None:
        with self._poisoning(file.path, stage):
            self.spares.retire(self.directory, file, is_kept=is_kept)

    def _bare(self, file: JournalFile, kind: FrameKind) -> bytes:
        prefix = Prefix(
            kind,
            PREFIX_SIZE,
            file.header.file_id,
            self.durable,
            self.commit,
            self.durable,
            self.tip,
        )
        return encode_prefix(prefix, file.end)

    def _write_synced(self, file: JournalFile, pieces: Sequence[Buffer], stage: str) -> None:
        """Write at the tracked end and sync; a failed write is undone durably."""
        size = sum(map(len, pieces))
        try:
            file.storage.write(file.end, pieces)
        except OSError as error:
            self.zero(file, file.end, file.end + size, stage)
            if is_full(error):
                raise DiskFull(file.path, stage) from error
            raise WriteFailed(file.path, file.end, error) from error
        self.sync(file, stage)
        file.end += size

    def zero(self, file: JournalFile, start: int, end: int, stage: str) -> None:
        """Overwrite with zeros, durably, so that nothing there can be mistaken for a frame."""
        try:
            for position in range(start, end, len(_ZEROS)):
                piece = memoryview(_ZEROS)[: min(len(_ZEROS), end - position)]
                file.storage.write(position, [piece])
        except OSError as error:
            raise self.poison(file.path, f"undo of {stage}", error) from error
        self.sync(file, f"undo of {stage}")

    def _look(self, slot: Slot) -> Entry | Flaw:
        header = decode_header(slot.sealed)
        assert isinstance(header, Header)
        with slot.file.hold() as held:
            if not held:
                return Flaw("the file was drained meanwhile")
            try:
                data = slot.file.storage.read(slot.position, entry_frame_size(header.body_size))
            except OSError as error:
                return Flaw("unreadable", "bytes", error.strerror)
        prefix = decode_prefix(data, slot.file.header.file_id, slot.position)
        if isinstance(prefix, Flaw):
            return prefix
        entry = decode(memoryview(data)[PREFIX_SIZE:])
        if isinstance(entry, Entry) and entry.sealed != slot.sealed:
            return Flaw("entry", slot.sealed[:16].hex(), entry.sealed[:16].hex())
        return entry
