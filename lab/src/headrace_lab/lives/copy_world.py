"""Group 0 with the copy of its metadata on a disk in memory, and the operations on it.

`CopyWorld` drives group 0 as a node's journal thread and loop do; `Known` is the knowledge
outside the disk, which decides the required outcome of a start; `harm` is damage at rest.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from headrace.journal.entry import SEAL, Entry
from headrace.journal.group import Group
from headrace.journal.heads import Head
from headrace.journal.recovery.recover import RecoveryOptions
from headrace.metadata import commands
from headrace.metadata.machine import MetadataMachine
from headrace.metadata.state import FOREVER, LEVEL
from headrace.model.ids import GroupId, Identity, Op, Revision
from headrace.model.namespace import NamespaceLayout
from headrace.model.proposal import EntryProposal
from headrace.node.doubt.metadata_copy import NAME, read_copy
from headrace.node.doubt.metadata_start import MetadataStart, replayed
from headrace.node.requests.catalog import MetadataGroup
from headrace_lab.counter.script import options
from headrace_lab.counter.solo import SOLO, following
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.harness.history import Broken

ZERO: Identity = replace(SOLO, group=GroupId(0))
LAYOUT = NamespaceLayout(*ZERO.namespace_bits)
PLACE = "groups/00000/"
SHARD = GroupId(1)
_CHECKPOINT_AFTER = 20  # entries; the ring has 64 slots
NOTHING_YET = Revision(0)


@dataclass(slots=True)
class Known:
    """What is known outside the disk: it decides what a start must come to."""

    log: list[Entry] = field(default_factory=list)  # from op 1, in flight at the end
    acknowledged: Op = Op(0)
    head: Head | None = None  # what the file of heads says
    follows: Revision = NOTHING_YET  # of the shard
    starts: int = 0

    def copy(self) -> "Known":
        return replace(self, log=list(self.log))


@dataclass(slots=True)
class CopyWorld:
    """One node's group 0, as its thread and its loop drive it."""

    disk: MemoryDisk
    known: Known
    start: MetadataStart = field(init=False)
    group: Group = field(init=False)
    machine: MetadataMachine = field(init=False)
    serial: int = 0

    def open(self) -> None:
        """Start, as a node does: what is short of its copy waits for the shards."""
        known = self.known
        known.starts += 1
        self.machine = MetadataMachine(LAYOUT)
        self.start = start = MetadataStart.look(
            self.disk.root, ZERO, self.machine, fresh(known), is_in_use=known.starts > 1
        )
        follows = {SHARD: known.follows}
        self.group, _ = start.recover() if start.is_decided else start.settle(follows)
        start.begin_copy(self.group)
        self.check()

    def check(self) -> None:
        """Hold group 0 and its copy against what is known."""
        journal, known = self.group.journal, self.known
        if journal.durable < known.acknowledged:
            raise Broken(f"op {journal.durable + 1} was acknowledged and is gone")
        if journal.durable > len(known.log):
            raise Broken(f"op {journal.durable} was never asked for")
        known.log = known.log[: journal.durable]
        if known.log and known.log[-1].checksum != journal.tip:
            raise Broken(f"op {journal.durable} is another one now")
        expected = come_to(known.log)
        if expected.digest() != self.machine.digest():
            raise Broken(f"the state at op {journal.durable} is not that of its log")
        known.acknowledged = journal.durable
        self._check_copy(expected)

    def _check_copy(self, expected: MetadataMachine) -> None:
        found = read_copy(self.disk.root, ZERO)
        if found.copy is None or found.flaw:
            raise Broken(f"the copy was begun anew and cannot be read: {found.flaw}")
        if found.copy.newest != Head(self.group.journal.durable, self.group.journal.tip):
            raise Broken(f"the copy was begun anew and ends at op {found.copy.newest.op}")
        if replayed(found.copy, expected).digest() != expected.digest():
            raise Broken("the copy comes to another state than its log")

    def change(self, count: int, rng: Random) -> None:
        """Change metadata; acknowledged once the group has it."""
        self._append([self._request(rng) for _ in range(count)])

    def checkpoint(self, behind: int, rng: Random) -> None:
        """Seal; let some changes come between the snapshot and its pairing."""
        self._append([EntryProposal(SEAL)])
        checkpoints = self.group.checkpoints
        checkpoint = checkpoints.persist()
        for _ in range(behind):
            self.change(1, rng)
        self.group.pair(checkpoint)
        checkpoints.release(checkpoint)
        copy = read_copy(self.disk.root, ZERO).copy
        at = 0 if copy is None else copy.base.op
        if copy is None or copy.base.image != come_to(self.known.log[:at]).snapshot():
            raise Broken(f"the image of the copy is not the state at op {at}")

    def write_heads(self) -> None:
        known = self.known
        if known.acknowledged:
            known.head = Head(known.acknowledged, known.log[known.acknowledged - 1].checksum)
        known.follows = self.machine.state.revision

    @property
    def is_due(self) -> bool:
        return len(self.known.log) - self.group.superblock.current.checkpoint.op > (
            _CHECKPOINT_AFTER
        )

    def _append(self, requests: list[EntryProposal]) -> None:
        """Append one commit group, and apply it."""
        journal = self.group.journal
        entries = following(journal, requests, 1_000 * self.known.starts + journal.durable)
        self.known.log += entries
        self.group.append(entries)
        self.known.acknowledged = entries[-1].op
        for entry in entries:
            self.group.apply(entry)

    def _request(self, rng: Random) -> EntryProposal:
        self.serial += 1
        state = self.machine.state
        topics = list(state.topics.values())
        command: commands.Command
        if state.level < LEVEL and rng.random() < 0.2:
            command = commands.Level(LEVEL)
        elif topics and rng.random() < 0.3:
            topic = rng.choice(topics)
            name = state.streams[topic.stream_id].name
            command = commands.DeleteTopic(name, topic.name, topic.created)
        elif rng.random() < 0.2:
            command = commands.CreateStream(f"s{self.known.starts}-{self.serial}")
        else:
            schema = rng.randbytes(rng.randrange(1, 600))
            name = f"t{self.known.starts}-{self.serial}"
            command = commands.CreateTopic("default", name, schema, 2, SHARD, FOREVER, ())
        return EntryProposal(command.operation, commands.encode(command))


def fresh(known: Known) -> RecoveryOptions:
    """Return options whose file ids no earlier start has used."""
    made = replace(options(), head=known.head, reader_min=LEVEL)
    for _ in range(100 * known.starts):
        made.new_id()
    return made


def come_to(log: list[Entry]) -> MetadataMachine:
    machine = MetadataMachine(LAYOUT)
    group = MetadataGroup(machine)
    for entry in log:
        group.apply(entry)
    return machine


def contents(disk: MemoryDisk, under: str = "") -> dict[str, bytes]:
    """Return the files below `under`, by their path from there."""
    return {
        path.removeprefix(under): disk.content(path)
        for path in disk.files()
        if path.startswith(under)
    }


def put_group(disk: MemoryDisk, files: dict[str, bytes]) -> None:
    """Have exactly these files as group 0."""
    for name in contents(disk, PLACE):
        disk.remove(PLACE + name)
    for name, data in files.items():
        disk.put(PLACE + name, data)


def _end(disk: MemoryDisk, rng: Random) -> None:
    path = _journals(disk)[-1]
    end = len(disk.content(path).rstrip(b"\0"))
    size = min(rng.choice((64, 512, 4096)), max(1, end - 8192))
    disk.overwrite(path, end - size, rng.choice((bytes(size), rng.randbytes(size))))


def _middle(disk: MemoryDisk, rng: Random) -> None:
    path = rng.choice(_journals(disk))
    disk.overwrite(path, rng.randrange(len(disk.content(path))), rng.randbytes(300))


def _headers(disk: MemoryDisk, rng: Random) -> None:
    disk.overwrite(rng.choice(_journals(disk)), 0, bytes(8192))


def _cut(disk: MemoryDisk, rng: Random) -> None:
    path = _journals(disk)[-1]
    disk.cut(path, rng.randrange(len(disk.content(path))))


def _gone(disk: MemoryDisk, rng: Random) -> None:
    put_group(disk, {})


def _state(disk: MemoryDisk, rng: Random) -> None:
    for path in disk.files():
        if path.startswith((f"{PLACE}snapshots/", f"{PLACE}superblock")):
            disk.remove(path)


def _copy_gone(disk: MemoryDisk, rng: Random) -> None:
    disk.remove(NAME)


def _copy_bad(disk: MemoryDisk, rng: Random) -> None:
    disk.overwrite(NAME, rng.randrange(len(disk.content(NAME))), rng.randbytes(200))


def _copy_cut(disk: MemoryDisk, rng: Random) -> None:
    disk.cut(NAME, rng.randrange(len(disk.content(NAME))))


def _journals(disk: MemoryDisk) -> list[str]:
    return [path for path in disk.files() if path.startswith(f"{PLACE}journal/0")]


OLDER = "older"  # an earlier group 0 in the place of this one
HARMS: dict[str, Callable[[MemoryDisk, Random], None]] = {
    "end": _end,
    "middle": _middle,
    "headers": _headers,
    "cut": _cut,
    "gone": _gone,
    "state": _state,
}
COPY_HARMS: dict[str, Callable[[MemoryDisk, Random], None]] = {
    "copy gone": _copy_gone,
    "copy bad": _copy_bad,
    "copy cut": _copy_cut,
}


def harm(disk: MemoryDisk, kind: str, rng: Random, earlier: dict[str, bytes]) -> None:
    """Hurt group 0, or its copy, at rest."""
    if kind == OLDER:
        put_group(disk, earlier)
    else:
        (HARMS | COPY_HARMS)[kind](disk, rng)
