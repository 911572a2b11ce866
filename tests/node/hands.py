"""Drives a pump by hand, on a memory disk: each effect waits until the test performs it."""

from collections import deque
from dataclasses import dataclass, field

from tests.partition.shards import SCHEMA, shard_options, some_rows

from headrace.errors import HeadraceError
from headrace.journal.entry import Entry
from headrace.model.ids import Revision
from headrace.model.namespace import Namespace
from headrace.model.proposal import EntryProposal
from headrace.node.group.pump import Effect, Pair, PersistSnapshot, Pump, PumpLimits
from headrace.node.group.seal_pace import SealPace
from headrace.partition.reader import Key
from headrace.partition.shard_store import Store, open_store
from headrace.vsr.peer_messages import SoloAppend, SoloReply
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.shard.shard import appending, opening

NOW = 1_700_000_000_000_000
KEY = Key(Namespace(0), Revision(1))
WRITER = b"a writer........"


@dataclass(slots=True)
class Hands:
    """A pump, and what it has asked for so far."""

    disk: MemoryDisk
    store: Store
    pump: Pump
    waiting: deque[Entry] = field(default_factory=deque)
    answers: dict[object, object] = field(default_factory=dict)
    persists: int = 0
    pairs: list[Pair] = field(default_factory=list)
    now: int = NOW
    version: int = 0

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SoloAppend(entries):
                    self.waiting.extend(entries)
                case SoloReply(ticket, result):
                    assert ticket not in self.answers, "answered twice"
                    self.answers[ticket] = result
                case PersistSnapshot():
                    self.persists += 1
                case Pair():
                    self.pairs.append(effect)

    def submit(self, proposal: EntryProposal, ticket: object, deadline: float = 1e9) -> None:
        self.now += 1_000
        self.take(self.pump.submit(proposal, self.now, ticket=ticket, deadline=deadline))

    def append(self, ticket: object, count: int = 1, deadline: float = 1e9) -> None:
        self.version += 1
        self.submit(appending(KEY, some_rows(0, count), WRITER, self.version), ticket, deadline)

    def open(self) -> None:
        self.submit(opening(KEY, [SCHEMA], Revision(1), Revision(1)), "open")
        self.write()

    def write(self, count: int | None = None) -> None:
        """Let the journal write what waits, as one commit group."""
        group = [self.waiting.popleft() for _ in range(count or len(self.waiting))]
        try:
            durable = self.store.group.append(group)
        except HeadraceError as error:
            self.waiting.clear()
            durable = self.store.group.journal.durable
            self.take(self.pump.on_failed(durable, error, self.now))
        else:
            self.take(self.pump.on_durable(durable, self.now))

    def persist(self, clock: float = 0.0) -> None:
        """Bring one checkpoint to its end, or let the pump know why not."""
        assert self.persists > 0
        self.persists -= 1
        try:
            checkpoint = self.store.group.checkpoints.persist()
        except HeadraceError as error:
            self.take(self.pump.on_unpersisted(error, clock))
            return
        self.take(self.pump.on_persisted(checkpoint))
        pair = self.pairs.pop()
        self.store.group.checkpoints.pair(pair.checkpoint)
        self.take(self.pump.on_paired(pair.checkpoint, self.now))


def hands(
    disk: MemoryDisk | None = None, *, seal_size: int = 1 << 40, slots: int = 64, **limits
) -> Hands:
    disk = disk or MemoryDisk()
    store = open_store(disk.root, SOLO, shard_options(slots=slots))
    pump = Pump(store.group, SealPace(slots), PumpLimits(**limits))
    made = Hands(disk, store, pump)
    if store.report.is_new:
        made.open()
    pump.pace.seal_size, pump.pace.size = seal_size, 0
    return made
