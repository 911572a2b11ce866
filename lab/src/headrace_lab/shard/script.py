"""One life of a shard, through every kind of checkpoint and collection, with its history."""

import itertools
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from headrace.errors import StorageFailed, Unavailable
from headrace.journal.entry import Entry
from headrace.journal.recovery.recover import RecoveryOptions
from headrace.model.ids import Revision
from headrace.model.namespace import Namespace
from headrace.model.schema import SEGMENT_FORMAT
from headrace.partition.reader import Key
from headrace.partition.segments.sealer import InProcess
from headrace.partition.shard_store import StoreOptions
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.shard.history import SIZES, ShardHistory
from headrace_lab.shard.oracle import Deed, Row, proposal
from headrace_lab.shard.shard import SoloShard

# Two topics, three partitions; one of them is closed and made again.
_TOPIC = 1 << SOLO.namespace_bits[2]
HOT = Key(Namespace(0), Revision(1))
WARM = Key(Namespace(1), Revision(1))
SLOW = Key(Namespace(_TOPIC), Revision(2))
AGAIN = Key(Namespace(_TOPIC), Revision(4))

WRITER, STAGER, IDLER = (name.encode().ljust(16) for name in ("writer", "stager", "idler"))


def options() -> StoreOptions:
    """Return small options with ids that count up, so that every run is the same."""
    ids = itertools.count(0x1001)

    def new_id() -> int:
        return next(ids) * 0x9E3779B97F4A7C15 % 2**64

    group = RecoveryOptions(
        slots=96, file_size=12 * 1024, spare_count_max=2, new_id=new_id, clock=lambda: 0.0
    )
    return StoreOptions(group, SIZES, InProcess, new_id)


@dataclass(slots=True)
class ShardActor:
    """Drives one shard on one disk and tells the history what it saw."""

    disk: MemoryDisk
    history: ShardHistory = field(default_factory=ShardHistory)
    options: StoreOptions = field(default_factory=options)
    shard: SoloShard | None = None
    cluster: bytes = SOLO.cluster

    def open(self) -> SoloShard:
        identity = replace(SOLO, cluster=self.cluster)
        self.shard = SoloShard.open(self.disk.root, self.options, identity)
        return self.shard

    def submit(self, *deeds: Deed) -> None:
        """Append one commit group; what is refused is asked for once more, as clients do."""
        shard = self.running()
        left = list(deeds)
        for _ in range(2):
            entries = shard.entries([proposal(deed) for deed in left])
            self.history.submit(entries)
            # In another life an equal entry may be submitted anew.
            self.history.refused.difference_update(entry.checksum for entry in entries)
            told = zip(entries, left, strict=True)
            self.history.deeds.update((entry.checksum, deed) for entry, deed in told)
            with suppress(Unavailable):
                shard.store.group.append(entries)
            self._settle(shard, entries)
            over = [entry for entry in entries if entry.op > shard.head]
            self.history.refuse(over)
            if not over:
                return
            left = left[-len(over) :]

    def _settle(self, shard: SoloShard, entries: list[Entry]) -> None:
        group = shard.store.group
        for entry in entries:
            if group.applied < entry.op <= shard.head:
                self.history.acknowledge([entry])
                self.history.answered(entry, group.apply(entry))  # type: ignore[arg-type]

    def seal(self) -> None:
        """Let a Seal capture the state, and leave its checkpoint for later."""
        form = 1 + self.running().head % SEGMENT_FORMAT  # both formats, in one partition
        self.submit(Deed("seal", HOT, version=form))

    def run(self) -> None:
        self._patiently(self.running().store.group.checkpoints.run)

    def checkpoint(self) -> None:
        self.seal()
        self.run()

    def mark(self) -> None:
        self._patiently(self.running().store.group.idle)

    def stop(self) -> None:
        self._patiently(self.running().store.stop)
        self.history.check_store(self.open().store)

    def append(self, key: Key, count: int, schema_id: int = 1) -> Deed:
        """Return the next append of the one writer, as far as it was acknowledged."""
        life = self.history.oracle.lives.get(key)
        known = [version for who, version in life.answers if who == WRITER] if life else []
        version = max(known, default=0) + 1
        rows = _rows(f"{key.namespace:x}.{key.created}", version * 100, count, schema_id)
        return Deed("append", key, WRITER, version, rows, schema_id)

    def repeat(self) -> None:
        """Ask again for what was answered: the oldest and the newest of each partition."""
        for life in list(self.history.oracle.lives.values()):
            marks = list(life.repeats)
            for mark in dict.fromkeys([*marks[:1], *marks[-1:]]):
                self.submit(life.repeats[mark])
        for deed, _ in list(self.history.oracle.published.values()):
            self.submit(deed)

    def go_on(self, count: int) -> None:
        """Append a few rows to each partition."""
        keys = list(self.history.oracle.lives)
        if keys:
            self.submit(*(self.append(key, count) for key in keys))

    def _patiently(self, action: Callable[[], object]) -> None:
        """Repeat once what a disk refused: either it goes on, or it says so again."""
        try:
            action()
        except (Unavailable, StorageFailed):
            action()

    def running(self) -> SoloShard:
        assert self.shard is not None
        return self.shard


def _rows(name: str, first: int, count: int, schema_id: int) -> tuple[Row, ...]:
    made: list[Row] = []
    for number in range(first, first + count):
        text = None if number % 7 == 3 else f"{name} row {number}"
        row: Row = (number, text)
        made.append(row if schema_id == 1 else (*row, number / 4))
    return tuple(made)


def stage(key: Key, writer: bytes, version: int, place: tuple[str, int], count: int) -> Deed:
    """Return rows without offsets, as op `place[1]` of the stage called `place[0]`."""
    name, number = place
    rows = _rows(f"staged {name}", version * 1000 + number * 10, count, 1)
    return Deed("stage", key, writer, version, rows, 1, (name.encode().ljust(16), number))


def play(actor: ShardActor) -> None:
    """Live a life."""
    actor.open()
    _open_and_stage(actor)
    _publish_and_evolve(actor)
    _fall_behind(actor)
    _close_and_recreate(actor)
    _keep_files(actor)


def _open_and_stage(actor: ShardActor) -> None:
    """Carried runs, a first segment, rows that wait in stages."""
    actor.submit(
        Deed("open", HOT, version=1, topic=1, at=2),
        Deed("open", WARM, version=1, topic=1, at=2),
        Deed("open", SLOW, version=1, topic=2, at=2),
    )
    actor.submit(actor.append(HOT, 4), actor.append(SLOW, 2), actor.append(WARM, 3))
    actor.submit(
        stage(HOT, STAGER, 1, ("one", 0), 3),
        stage(WARM, STAGER, 1, ("one", 1), 2),
        stage(HOT, STAGER, 1, ("two", 0), 2),
        stage(WARM, STAGER, 1, ("stray", 0), 2),
        stage(WARM, IDLER, 1, ("idle", 0), 2),
    )
    actor.checkpoint()
    actor.submit(actor.append(HOT, 4))
    actor.submit(actor.append(HOT, 4), Deed("cursor", SLOW, group="readers", offset=1))
    actor.checkpoint()


def _publish_and_evolve(actor: ShardActor) -> None:
    one = (
        stage(HOT, STAGER, 1, ("one", 0), 3),
        stage(WARM, STAGER, 1, ("one", 1), 2),
    )
    two = (stage(HOT, STAGER, 1, ("two", 0), 2),)
    actor.submit(Deed("publish", HOT, STAGER, 1, stages=(two, one), topic=1))
    actor.submit(Deed("evolve", HOT, version=2))
    actor.submit(actor.append(HOT, 3, 2))
    actor.submit(actor.append(HOT, 2), actor.append(WARM, 3, 2))
    actor.mark()
    actor.checkpoint()
    actor.submit(Deed("trim", HOT, offset=6), actor.append(HOT, 6, 2))
    actor.submit(actor.append(HOT, 5, 2), actor.append(WARM, 2, 2))
    actor.checkpoint()


def _fall_behind(actor: ShardActor) -> None:
    """Two Seals before the first of their checkpoints is made, and much happens between."""
    actor.submit(actor.append(HOT, 4, 2), actor.append(WARM, 4, 2))
    actor.seal()
    actor.submit(Deed("trim", HOT, offset=20), Deed("purge", WARM), actor.append(WARM, 3, 2))
    actor.submit(actor.append(HOT, 3, 2))
    actor.seal()
    actor.submit(Deed("trim", SLOW, offset=2), actor.append(HOT, 2, 2))
    actor.run()
    actor.run()


def _close_and_recreate(actor: ShardActor) -> None:
    """A partition ends and begins again under its name; a clean stop; garbage goes."""
    actor.submit(actor.append(SLOW, 3), Deed("close", SLOW, at=3))
    actor.submit(Deed("open", AGAIN, version=1, topic=4, at=4), actor.append(AGAIN, 2))
    actor.checkpoint()
    actor.submit(actor.append(AGAIN, 3), actor.append(WARM, 4, 2))
    idle = (stage(WARM, IDLER, 1, ("idle", 0), 2),)
    actor.submit(Deed("discard", HOT, IDLER, stages=(idle,)))
    actor.stop()
    actor.submit(actor.append(HOT, 3, 2), actor.append(AGAIN, 2))
    actor.checkpoint()
    actor.submit(actor.append(AGAIN, 4))
    actor.checkpoint()
    actor.submit(actor.append(HOT, 2, 2))


def _keep_files(actor: ShardActor) -> None:
    """Staged rows fill whole files of the journal, which are kept until they are published."""
    long = tuple(stage(HOT, STAGER, 2, ("long", number), 3) for number in range(12))
    for number in range(0, len(long), 4):
        actor.submit(*long[number : number + 4])
    actor.checkpoint()
    actor.submit(actor.append(HOT, 4, 2), actor.append(WARM, 3, 2))
    actor.checkpoint()
    for _ in range(3):
        actor.submit(actor.append(HOT, 3, 2), actor.append(AGAIN, 2))
        actor.checkpoint()
    actor.submit(Deed("publish", HOT, STAGER, 2, stages=(long,), topic=1))
    actor.checkpoint()
    actor.submit(actor.append(WARM, 2, 2))
    actor.checkpoint()
    actor.checkpoint()
