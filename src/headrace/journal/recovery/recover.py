"""Turns a directory into a running group: survey, judge, mend, replay. Serves every machine.

The steps have one order, and a recovery after a crash at any of them has the same outcome:

    survey and judge      nothing is written; a refusal leaves everything as it was
    names                 all names found are made durable, like all frames below
    superblock, cut       a torn tail is removed, by intent
    heal, rewrite         scanned frames are made durable before they are trusted
    restore, replay       through the same apply as live traffic
    superblock            clean mark and intent cleared: only now may anything be appended
    checkpoint, drain     work that a crash interrupted is completed
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from headrace.errors import (
    ApplyFailed,
    DiskFull,
    HeadraceError,
    MissingFile,
    SealFailed,
    StorageFailed,
    TooFewSlots,
)
from headrace.journal.checkpoint import Checkpoints, Keeper, NoFiles
from headrace.journal.entry import Entry, Header, decode_header, root
from headrace.journal.frame import PREFIX_SIZE
from headrace.journal.group import SEAL_SLOTS, Group
from headrace.journal.heads import Head
from headrace.journal.journal import Journal
from headrace.journal.journal_file import BLOCK_SIZE, JournalFile, size_for
from headrace.journal.machine_seam import Machine
from headrace.journal.recovery import mend
from headrace.journal.recovery.judge import RecoveryPlan, judge
from headrace.journal.recovery.recovery_report import Note, RecoveryReport, TailCut
from headrace.journal.recovery.survey import Survey, survey
from headrace.journal.ring import Ring, Slot
from headrace.journal.snapshot import SnapshotFiles, snapshot_name
from headrace.journal.spare import Spares
from headrace.journal.superblock import FORMAT, NAMES, Superblock, SuperblockFile
from headrace.model.ids import OP_MAX, STARTS_MAX, Identity, Op
from headrace.storage.atomic import is_leftover
from headrace.storage.seam import Directory, is_full, joined
from headrace.storage.stuck import StuckFiles

# Cluster constants: how far a log may run ahead of its previous checkpoint.
SLOTS_SHARD = 2**17
SLOTS_METADATA = 2**12  # its ops are few, and its snapshots small
SLOTS_MIN = SEAL_SLOTS + 3  # two checkpoints, an entry between them, and room for Seals
FILE_SIZE = 64 * 1024 * 1024  # rolls are rare, and a spare takes little space
FIRST_SIZE = 1024 * 1024  # of a log that may stay small: files grow from here to FILE_SIZE
SPARE_COUNT_MAX = 8  # a Seal's window of 512 MiB fills this many; more would waste space


@dataclass(frozen=True, slots=True)
class RecoveryOptions:
    """Options of a group. `slots` is a cluster constant; the rest is local."""

    slots: int = SLOTS_SHARD
    file_size: int = FILE_SIZE
    first_size: int = FIRST_SIZE  # of the first file, unless `file_size` is less
    spare_count_max: int = SPARE_COUNT_MAX
    create: bool = True  # create the group if the directory is empty
    forgotten: bool = False  # a group created now may have made promises: it must not vote yet
    lost: bool = False  # it replaces a lost group: peers must not take it for a new one
    reader_min: int = FORMAT  # of a group created now: one on disk keeps its own
    head: Head | None = None  # the op it must reach, by `heads`; None: unknown
    keeper: Keeper = field(default_factory=NoFiles)
    new_id: Callable[[], int] = field(default=lambda: secrets.randbits(64))
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class _Rooms:
    """The directories of one group."""

    top: Directory
    journal: Directory
    spares: Spares
    snapshots: SnapshotFiles
    quarantine: Directory


def recover(
    directory: Directory,
    identity: Identity,
    machine: Machine,
    options: RecoveryOptions | None = None,
) -> tuple[Group, RecoveryReport]:
    """Recover the group in `directory`, or create it. The caller holds the lock."""
    options = options or RecoveryOptions()
    if options.slots < SLOTS_MIN:
        raise TooFewSlots(directory.path, options.slots, SLOTS_MIN)
    started = options.clock()
    try:
        rooms = _rooms(directory, identity, options)
        found = survey(rooms.top, rooms.journal, rooms.snapshots, options.head)
        if found.is_empty and options.head is not None and identity.is_solo:
            raise MissingFile(
                f"the group's files are missing, but its head was op {options.head.op}",
                path=directory.path,
                hint="Restore them from a backup; `headrace doctor` shows what is left",
            )
        if found.is_empty and not options.create:
            raise MissingFile(
                "there is no group here", path=directory.path, hint="Check the data directory"
            )
        if found.is_empty:
            group, report = _make(rooms, identity, machine, options)
        else:
            plan = _judged(found, identity, options.slots, directory.path)
            group, report = _Recovery(rooms, identity, machine, options, found, plan).run()
    except OSError as error:
        if is_full(error):
            raise DiskFull(directory.path, "recovery") from error
        path = str(error.filename or directory.path)
        raise StorageFailed(path, "recovery", error) from error
    return group, replace(report, seconds=options.clock() - started)


def _judged(found: Survey, identity: Identity, slots: int, path: str) -> RecoveryPlan:
    try:
        return judge(found, identity, slots, path)
    except HeadraceError:
        for one in found.scan.files:
            one.candidate.storage.close()
        raise


def _rooms(directory: Directory, identity: Identity, options: RecoveryOptions) -> _Rooms:
    """Open the directories of a group; create missing ones if that is allowed."""
    journal = room(directory, "journal", options)
    return _Rooms(
        top=directory,
        journal=journal,
        spares=Spares(
            room(journal, "spare", options),
            size_for(0, options.first_size),
            size_for(0, options.file_size),
            options.spare_count_max,
            options.new_id,
        ),
        snapshots=SnapshotFiles(room(directory, "snapshots", options), identity),
        quarantine=room(directory, "quarantine", options),
    )


def room(
    parent: Directory, name: str, options: RecoveryOptions, what: str = "group"
) -> Directory:
    """Return a directory of a group, created durably if that is allowed."""
    try:
        return parent.child(name)
    except FileNotFoundError as error:
        if not options.create:
            raise MissingFile(
                f"directory {name!r} is missing, so this is not a {what}",
                path=parent.path,
                hint="Check the path of the data directory",
            ) from error
    try:
        made = parent.child(name, make=True)
        parent.sync()
    except OSError as error:
        if is_full(error):
            raise DiskFull(parent.path, "make") from error
        raise StorageFailed(parent.path, "make", error) from error
    return made


def _make(
    rooms: _Rooms, identity: Identity, machine: Machine, options: RecoveryOptions
) -> tuple[Group, RecoveryReport]:
    """Create a new group: its first journal file, then the superblock that relies on it."""
    rooms.spares.tidy(set())
    rooms.spares.reader_min = options.reader_min
    needed = size_for(0, 0)
    first = rooms.spares.enlist(rooms.journal, identity, Op(1), root(identity), needed)
    journal = Journal(
        identity,
        rooms.journal,
        rooms.spares,
        Ring(options.slots),
        [first],
        Op(0),
        root(identity),
    )
    superblock = SuperblockFile(rooms.top, Superblock(identity, reader_min=options.reader_min))
    superblock.write(
        recovering=options.forgotten or options.lost,
        suspect=(Op(1), OP_MAX) if options.lost else None,
        starts=_starts(superblock.current, options),
    )
    rooms.spares.ensure()
    machine.restore(None)
    options.keeper.restore(None)
    checkpoints = Checkpoints(journal, superblock, rooms.snapshots, options.keeper)
    group = Group(machine, journal, superblock, checkpoints, Op(0))
    return group, RecoveryReport(is_new=True, file_count=1)


def _starts(known: Superblock, options: RecoveryOptions) -> tuple[tuple[int, int], ...]:
    """Add this start to the earlier ones: peers check that it descends from one they know."""
    if known.identity.is_solo:
        return ()
    return (*known.starts, (known.sequence + 1, options.new_id() % OP_MAX + 1))[-STARTS_MAX:]


@dataclass(slots=True)
class _Recovery:
    rooms: _Rooms
    identity: Identity
    machine: Machine
    options: RecoveryOptions
    found: Survey
    plan: RecoveryPlan
    notes: list[Note] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    files: list[JournalFile] = field(default_factory=list)  # one for each scanned file
    stuck: StuckFiles = field(default_factory=StuckFiles)  # retried at the next start

    def run(self) -> tuple[Group, RecoveryReport]:
        plan, found = self.plan, self.found
        self._sync_names()
        slots = self._slots()
        journal = self._journal(slots)
        known = found.superblock or Superblock(self.identity)
        headers = [one.candidate.header.reader_min for one in found.scan.files]
        self.rooms.spares.reader_min = max([known.reader_min, *headers])
        pairing = replace(
            known,
            checkpoint=plan.checkpoint,
            previous_op=plan.previous_op,
            recovering=plan.is_recovering,
            reader_min=self.rooms.spares.reader_min,
        )
        superblock = SuperblockFile(self.rooms.top, pairing)
        cut = self._cut(journal, superblock)
        self._note_superblock()
        self._note_covered()
        self._heal(journal)
        rewritten = 0 if found.is_clean else mend.rewrite(journal, found.scan.proven)
        self._set_aside()
        self._open_file(journal)
        checkpoints = Checkpoints(
            journal, superblock, self.rooms.snapshots, self.options.keeper
        )
        group = Group(self.machine, journal, superblock, checkpoints, plan.base)
        self._restore()
        replayed = self._replay(group, slots)
        superblock.write(
            cut_from=None,
            clean_head=None,
            suspect=plan.suspect,
            commit=max(superblock.current.commit, plan.commit),
            recovering=plan.is_recovering,
            starts=_starts(superblock.current, self.options),
        )
        self._finish(group)
        return group, RecoveryReport(
            was_clean=found.is_clean,
            snapshot_op=plan.base,
            fell_back=plan.fell_back,
            file_count=len(found.scan.files),
            head=plan.head,
            replayed=replayed,
            rewritten=rewritten,
            cut=cut,
            suspect=plan.suspect,
            faulty=plan.faulty,
            problem=None if plan.problem is None else plan.problem.args[0],
            superblock_rebuilt=found.superblock is None,
            is_recovering=plan.is_recovering,
            notes=tuple(self.notes),
            quarantined=tuple(self.quarantined),
        )

    def _sync_names(self) -> None:
        """Make the names that were found durable: a process may have died just before."""
        spares, snapshots = self.rooms.spares.directory, self.rooms.snapshots.directory
        for room in (self.rooms.top, self.rooms.journal, spares, snapshots):
            room.sync()

    def _slots(self) -> list[Slot]:
        """Return where each intact entry is."""
        scan = self.found.scan
        files = [
            JournalFile(one.candidate.storage, one.candidate.header, one.end)
            for one in scan.files
        ]
        self.files = files
        if self.plan.problem is not None:
            self._end_at_head()
        slots: dict[Op, Slot] = {}
        for entry in scan.entries:
            if entry.op <= self.plan.head:
                # Where two files hold one op, the one that chains comes first.
                slot = Slot(entry.op, files[entry.file], entry.position, entry.sealed)
                slots.setdefault(entry.op, slot)
        return [slots[op] for op in sorted(slots)]

    def _end_at_head(self) -> None:
        """End each file where its first frame above the head begins, for the cut."""
        scan, head = self.found.scan, self.plan.head
        for file, scanned in zip(self.files, scan.files, strict=True):
            if scanned.has_end:
                file.end -= PREFIX_SIZE
        places = [(self.files[one.file], one.position) for one in scan.entries if one.op > head]
        for one in scan.faulty:
            if one.op > head and one.position is not None:
                named = next(file for file in self.files if file.path == one.path)
                places.append((named, one.position))
        for file, position in places:
            file.end = min(file.end, position)

    def _journal(self, slots: list[Slot]) -> Journal:
        """The journal as scanned. Entries for a replay from far back are not in the ring."""
        scan, plan = self.found.scan, self.plan
        if self.files:
            self.rooms.spares.newest_size = self.files[-1].header.size
        ring = Ring(self.options.slots, plan.watermark)
        far: dict[Op, Slot] = {}
        for slot in slots:
            if slot.op > plan.watermark:
                ring.put(slot)
            elif slot.op > plan.base:
                far[slot.op] = slot
        return Journal(
            identity=self.identity,
            directory=self.rooms.journal,
            spares=self.rooms.spares,
            ring=ring,
            files=list(self.files),
            durable=plan.head,
            tip=plan.tip,
            commit=plan.commit,
            marked=min(scan.marked, plan.head),
            far=far,
        )

    def _cut(self, journal: Journal, superblock: SuperblockFile) -> TailCut | None:
        first = self.plan.cut_from
        if first is None:
            return None
        path = journal.newest.path if journal.files else journal.directory.path
        mend.cut(journal, superblock, first, self.plan.suspect)
        return TailCut(first, max(first, self.plan.cut_last or first), path)

    def _note_superblock(self) -> None:
        for name, flaw in zip(NAMES, self.found.copies.flaws, strict=True):
            if flaw is not None:
                path = f"{self.rooms.top.path}/{name}"
                self.notes.append(Note(path, None, flaw.what, mended=True))

    def _note_covered(self) -> None:
        """Note what is bad or missing at no cost: the snapshot in use covers it."""
        plan, scan = self.plan, self.found.scan
        for one in scan.rubble:
            self.notes.append(Note(one.path, one.position, one.flaw.what, one.is_end))
        for gap in scan.gaps if plan.problem is None else []:
            what = f"ops {gap.first} to {gap.last} are missing; the snapshot covers them"
            self.notes.append(Note(gap.path, None, what, mended=False))
        for broken in scan.breaks if plan.problem is None else []:
            what = f"op {broken.op} does not follow; the snapshot covers it"
            self.notes.append(Note(broken.path, broken.position, what, mended=False))
        if not scan.files:
            return
        first = scan.files[0].candidate
        if first.header.first_op > max(plan.previous_op, 1):
            what = f"the files before it are missing, back to op {plan.previous_op}"
            self.notes.append(Note(first.storage.path, None, what, mended=False))
        known = {one.op for one in self.found.snapshots}
        known |= {one.op for one in self.found.bad_snapshots}
        if plan.previous_op and plan.previous_op not in known:
            path = f"{self.rooms.snapshots.directory.path}/{snapshot_name(plan.previous_op)}"
            what = "the previous snapshot is missing"
            self.notes.append(Note(path, None, what, mended=False))

    def _heal(self, journal: Journal) -> None:
        for file, scanned in zip(list(journal.files), self.found.scan.files, strict=False):
            for block in scanned.candidate.bad_blocks:
                mended = self._may_mend(journal, file)
                if mended:
                    mend.heal_header(journal, file, block)
                self.notes.append(Note(file.path, block * BLOCK_SIZE, "header block", mended))
        for short in self.found.scan.shorts:
            file = self.files[short.file]
            mended = file not in journal.files or self._may_mend(journal, file)
            if mended and file in journal.files:
                mend.heal_size(journal, file, short.found)
            self.notes.append(Note(short.path, short.found, "file size", mended))
        for index, (scanned, following) in enumerate(
            zip(self.found.scan.files, journal.files[1:], strict=False)
        ):
            whole = scanned.last_op == following.header.first_op - 1
            if not scanned.has_end and whole and self._may_mend(journal, journal.files[index]):
                mend.heal_end(journal, index)

    def _may_mend(self, journal: Journal, file: JournalFile) -> bool:
        """Open a file for writing, if possible. Only the newest file must be writable."""
        try:
            journal.open_to_write(file)
        except StorageFailed as failed:
            if file is journal.newest:
                raise
            self._note_once(file.path, f"cannot be opened for writing: {failed.cause.strerror}")
            return False
        return True

    def _note_once(self, path: str, what: str) -> None:
        note = Note(path, None, what, mended=False)
        if note not in self.notes:
            self.notes.append(note)

    def _set_aside(self) -> None:
        """Move damaged files that are not needed to quarantine; never delete them."""
        passed = [
            snapshot_name(one.op) for one in self.found.snapshots if one.op > self.plan.base
        ]
        for name in [*(one.name for one in self.found.bad_snapshots), *passed]:
            self._quarantine(self.rooms.snapshots.directory, name)
        for one in self.found.unreadable:
            self._quarantine(self.rooms.journal, one.name)
        for room in (self.rooms.top, self.rooms.journal, self.rooms.snapshots.directory):
            for name in filter(is_leftover, room.names()):
                self.stuck.unlink(room, name)
        for path, what in self.stuck.findings():
            self._note_once(path, what)
        live = {one.candidate.header.file_id for one in self.found.scan.files}
        self.rooms.spares.tidy(live)

    def _quarantine(self, room: Directory, name: str) -> None:
        if self.stuck.set_aside(room, name, self.rooms.quarantine):
            self.quarantined.append(joined(room.path, name))

    def _open_file(self, journal: Journal) -> None:
        """Begin a new file where the newest one ends in damage that the snapshot covers."""
        if not journal.files or self.plan.needs_file:
            journal.begin_file(Op(self.plan.head + 1), self.plan.tip, 0, "recovery")
        journal.open_to_write(journal.newest)

    def _restore(self) -> None:
        """Load the state. An intact snapshot that the machine rejects is a named error."""
        snapshot = self.plan.snapshot
        try:
            self.machine.restore(snapshot.state if snapshot else None)
        except Exception as error:
            raise ApplyFailed(
                f"the machine cannot restore the snapshot at op {self.plan.base}: {error!r}",
                path=self.rooms.snapshots.directory.path,
                expected="a valid state of this machine",
                found=type(error).__name__,
                hint="Was this directory written by another release?",
            ) from error
        self.options.keeper.restore(snapshot.state if snapshot else None)

    def _replay(self, group: Group, slots: list[Slot]) -> int:
        wanted = [slot for slot in slots if self.plan.base < slot.op <= self.plan.replay_to]
        for slot in wanted:
            if slot.op != group.applied + 1:
                raise self._lost(group.applied, slot.file.path)
            group.apply(self._entry(group.journal, slot))
        if group.applied != self.plan.replay_to:
            raise self._lost(group.applied, group.journal.newest.path)
        return len(wanted)

    def _lost(self, applied: Op, path: str) -> MissingFile:
        """Return the error for a missing op that the plan relies on: apply nothing after it."""
        return MissingFile(
            f"op {applied + 1} is in no file, and later ops depend on it",
            path=path,
            expected=f"every op from {self.plan.base + 1} to {self.plan.replay_to}",
            found=f"no op above {applied} that follows it",
            hint="Keep the directory as it is, and restore the file from a backup",
        )

    def _entry(self, journal: Journal, slot: Slot) -> Entry:
        """The entry of a slot; without its body if the machine does not need it."""
        header = decode_header(slot.sealed)
        assert isinstance(header, Header)
        if header.operation in self.machine.bodiless:
            return Entry(header, slot.sealed, b"")
        return journal.read_slot(slot)

    def _finish(self, group: Group) -> None:
        try:
            while group.checkpoints.run() is not None:
                pass
            group.checkpoints.finish()
            self.rooms.spares.ensure()
        except (DiskFull, SealFailed) as error:
            # Pending checkpoints stay pending, and appends wait for them.
            self.notes.append(Note(error.path, None, str(error), mended=False))
