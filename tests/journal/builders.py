"""What the tests of the journal build: small groups, entries, damage and faults.

Sizes are small on purpose: a file of `FILE_SIZE` holds ten entries of `a_body()`.
"""

import errno
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from headrace.journal.entry import HEADER_SIZE, SEAL, Entry, Header, decode_header, root, seal
from headrace.journal.frame import (
    PREFIX_SIZE,
    FrameKind,
    Prefix,
    aligned,
    encode_prefix,
    entry_frame_size,
)
from headrace.journal.journal_file import BLOCK_SIZE, FIRST_POSITION, FileHeader
from headrace.journal.recovery.recover import RecoveryOptions
from headrace.journal.superblock import read_copies
from headrace.model.ids import Identity, Op, View
from headrace.model.proposal import EntryProposal
from headrace_lab.counter.counter import ADD, add
from headrace_lab.counter.solo import SOLO, Solo
from headrace_lab.disk.faults import Crash, Crashed, Effect, Fail, Fault, Keep
from headrace_lab.disk.memory import MemoryDisk

CLUSTER = replace(SOLO, replica_count=3)
BOTH = {"solo": SOLO, "cluster": CLUSTER}
either = pytest.mark.parametrize("identity", BOTH.values(), ids=BOTH)
FILE_SIZE = 3 * BLOCK_SIZE
FRAMES_PER_FILE = 10  # entries of `a_body()`, with room for a mark and the end frame
SLOTS = 64

_ids = count(1)


@dataclass(slots=True)
class Grown(Solo):
    """A group that remembers what it was given."""

    sealed: list[Entry] = field(default_factory=list)


def some_options(**changes) -> RecoveryOptions:
    defaults = RecoveryOptions(
        slots=SLOTS, file_size=FILE_SIZE, new_id=new_id, clock=lambda: 0.0
    )
    return replace(defaults, **changes)


def new_id() -> int:
    """Ids that differ in every byte, and never come back within one run."""
    return next(_ids) * 0x9E3779B97F4A7C15 % 2**64


def numbered_ids() -> Callable[[], int]:
    """Ids that are the same in each run: for tests that compare bytes."""
    numbers = count(1)
    return lambda: next(numbers) * 0x9E3779B97F4A7C15 % 2**64


def a_body(size: int = 12) -> bytes:
    return add("k", 1).ljust(size, b".")


FRAME_SIZE = aligned(entry_frame_size(len(a_body())))


def an_entry(
    op: int = 1,
    parent: bytes | None = None,
    body: bytes = b"body",
    identity: Identity = SOLO,
    operation: int = ADD,
) -> Entry:
    return seal(
        identity,
        EntryProposal(operation, body),
        op=Op(op),
        parent=root(identity) if parent is None else parent,
        view=View(0),
        timestamp=op,
    )


def a_file_header(**changes) -> FileHeader:
    header = FileHeader(
        file_id=0x0123456789ABCDEF,
        cluster=SOLO.cluster,
        group=SOLO.group,
        first_op=Op(1),
        parent=root(SOLO),
        size=FILE_SIZE,
    )
    return replace(header, **changes)


def a_group(disk: MemoryDisk, identity: Identity = SOLO, **changes) -> Grown:
    """Open or make the group on this disk."""
    return Grown.open(disk.root, some_options(**changes), identity)


def a_disk_with(entry_count: int, identity: Identity = SOLO, **changes):
    """Return a disk and its group, with so many entries in one commit group each."""
    disk = MemoryDisk()
    group = a_group(disk, identity, **changes)
    grow(group, entry_count)
    return disk, group


def grow(group: Grown, entry_count: int, size: int = 12) -> Op:
    """Append commit groups of one entry each; committed and applied, in a cluster as well."""
    for _ in range(entry_count):
        grow_together(group, [a_body(size)])
    return group.head


def prepare(group: Grown, entry_count: int) -> None:
    """Journal entries that do not commit: what a view change may take away again."""
    for _ in range(entry_count):
        group.group.journal.append(group.seal([a_body()]))


def grow_together(group: Grown, bodies, operation: int = ADD) -> Op:
    """Append one commit group."""
    entries = group.seal(bodies, operation)
    group.sealed += entries
    group.group.append(entries)
    catch_up(group)
    return group.head


def catch_up(group: Grown) -> None:
    """Commit and apply everything durable: what a quorum of peers would allow."""
    journal = group.group.journal
    journal.commit = journal.durable
    while group.group.applied < journal.durable:
        entry = journal.read(Op(group.group.applied + 1))
        assert entry is not None
        group.group.apply(entry)


def checkpoint(group: Grown) -> Op | None:
    grow_together(group, [b""], SEAL)
    return group.group.checkpoints.run()


def grow_to_second_checkpoint(group: Grown) -> None:
    """Ops 1..4 and a Seal at 5, 6..9 and a Seal at 10, then 11 and 12."""
    grow(group, 4)
    checkpoint(group)
    grow(group, 4)
    checkpoint(group)
    grow(group, 2)


@dataclass(frozen=True)
class Place:
    """Where a frame is."""

    path: str
    position: int
    size: int

    @property
    def end(self) -> int:
        return self.position + self.size


def frame_of(group: Grown, op: int) -> Place:
    slot = group.group.journal.ring.get(Op(op))
    assert slot is not None
    header = decode_header(slot.sealed)
    assert isinstance(header, Header)
    return Place(slot.file.path, slot.position, aligned(entry_frame_size(header.body_size)))


def rot_body(disk: MemoryDisk, place: Place) -> None:
    disk.flip(place.path, (place.position + PREFIX_SIZE + HEADER_SIZE) * 8)


def rot_prefix(disk: MemoryDisk, place: Place) -> None:
    disk.flip(place.path, (place.position + 40) * 8)


def wipe(disk: MemoryDisk, place: Place) -> None:
    disk.overwrite(place.path, place.position, bytes(place.size))


def snapshot_path(op: int) -> str:
    return f"snapshots/{op:020}.snap"


def journal_path(first_op: int) -> str:
    return f"journal/{first_op:020}.wal"


FILE_1, FILE_11, FILE_21 = journal_path(1), journal_path(11), journal_path(21)


def everything(disk: MemoryDisk) -> list[Keep]:
    return [Keep(change.index) for change in disk.pending()]


def torn_append(disk: MemoryDisk, group: Grown, bodies, done: int) -> MemoryDisk:
    """Die inside the write of a commit group, `done` bytes of which reach the platter."""
    disk.hook = lambda effect: Crash(done) if effect.kind == "write" else None
    with crash():
        group.append(bodies)
    return disk.power_cut(everything(disk))


@contextmanager
def crash():
    """The block must end in a crash."""
    try:
        yield
    except Crashed:
        return
    raise AssertionError("nothing crashed")


def contents(disk: MemoryDisk, *, but: str = "\0") -> dict[str, bytes]:
    return {path: disk.content(path) for path in disk.files() if not path.startswith(but)}


def bodies_of(group: Grown) -> dict[int, bytes]:
    """Return every entry that can be read, by op."""
    journal = group.group.journal
    found = {op: journal.read(Op(op)) for op in range(1, journal.durable + 1)}
    return {op: bytes(entry.body) for op, entry in found.items() if entry is not None}


@dataclass
class Recorder:
    """A hook: writes down each effect, gives one of them a fault, and watches the syncs."""

    number: int = 0  # of the effect that gets the fault, from 1; 0 for none
    fault: Fault = field(default_factory=lambda: Fail(errno.EIO))
    effects: list[Effect] = field(default_factory=list)
    landed: Effect | None = None
    failed_syncs: set[str] = field(default_factory=set)
    retried_syncs: list[str] = field(default_factory=list)

    def __call__(self, effect: Effect) -> Fault | None:
        self.effects.append(effect)
        if effect.kind == "create":  # a new file under an old name
            self.failed_syncs.discard(effect.path)
        if effect.kind in ("sync", "sync-dir") and effect.path in self.failed_syncs:
            self.retried_syncs.append(effect.path)
        if len(self.effects) != self.number:
            return None
        self.landed = effect
        if effect.kind in ("sync", "sync-dir"):
            self.failed_syncs.add(effect.path)
        return self.fault


def effects_of(disk: MemoryDisk, act: Callable[[], object]) -> list[Effect]:
    """Return what `act` does to the disk."""
    recorder = disk.hook = Recorder()
    act()
    disk.hook = None
    return recorder.effects


def forge(
    disk: MemoryDisk, group: Grown, place: Place, entry: Entry, *, durable: int = 0
) -> None:
    """Write a whole frame of `entry`, as if the owner of the file had."""
    file = next(one for one in group.group.journal.files if one.path == place.path)
    size = entry_frame_size(len(entry.body))
    prefix = Prefix(
        FrameKind.ENTRY, size, file.header.file_id, Op(durable), Op(0), entry.op, entry.checksum
    )
    frame = encode_prefix(prefix, place.position) + entry.sealed + bytes(entry.body)
    disk.overwrite(place.path, place.position, frame.ljust(aligned(size), b"\0"))


def refused_start(disk, error, identity=SOLO, **changes):
    """The group must refuse to start, and leave every byte as it was."""
    before = contents(disk)
    with pytest.raises(error) as caught:
        a_group(disk, identity, **changes)
    assert contents(disk) == before
    return caught.value


def position_of(op: int) -> int:
    """Where the frame of `op` begins in a file of entries with `a_body()`."""
    return FIRST_POSITION + (op - 1) % FRAMES_PER_FILE * FRAME_SIZE


def superblock_of(disk, identity=SOLO):
    return read_copies(disk.root, identity).best
