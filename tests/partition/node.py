"""One shard on one memory disk, through crashes and restarts, compared with the plain model."""

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random

import pyarrow as pa
import pytest
from tests.partition.plain import PARTITION_BITS, Life, Plain

from headrace.errors import (
    BadRequest,
    Behind,
    Expired,
    PartitionUnknown,
    Recreated,
    StorageFailed,
    Unavailable,
)
from headrace.journal.recovery.recover import RecoveryOptions
from headrace.model.ids import Revision
from headrace.model.namespace import Namespace
from headrace.model.schema import SYSTEM_FIELDS, canonical
from headrace.partition.machine.partitions_machine import PartitionsMachine
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace.partition.reader import Key, Reader
from headrace.partition.segments.sealer import InProcess, Sealer
from headrace.partition.shard_store import StoreOptions
from headrace.storage.atomic import is_leftover
from headrace_lab.disk.faults import Crash, CrashAfter, Crashed, Fail, LoseSync, choices
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.shard.shard import SoloShard

# Small: a dozen appends roll a file and fill a segment, and a few dozen fill the ring.
SIZES = SegmentSizes(size_min=2_500, size_target=6_000, waited_max=2)
SLOTS = 64
FILE_SIZE = 16 * 1024

NAMESPACES = (0, 1, 1 << PARTITION_BITS)  # two partitions of one topic, one of another
NEVER = 7  # a partition that is never opened
_NEWEST = [
    ("id", pa.int64()),
    ("name", pa.string()),
    ("score", pa.float64()),
    ("tags", pa.list_(pa.string())),
    ("flag", pa.bool_()),
]
VERSIONS = [
    canonical(pa.schema(fields))
    for fields in (
        [("id", pa.int16()), *_NEWEST[1:2]],
        [("id", pa.int16()), *_NEWEST[1:2], ("score", pa.float32())],
        [("id", pa.int32()), *_NEWEST[1:3]],
        _NEWEST[:4],
        _NEWEST,
    )
]


FAULTS = ("crash", "crash", "crash after", "crash after", "full", "lost", "broken")


@dataclass
class Doom:
    """The hook of a disk that meets a fault after some effects."""

    kind: str
    left: int
    landed: bool = False

    @classmethod
    def drawn(cls, rng: Random) -> "Doom":
        return cls(rng.choice(FAULTS), rng.randrange(40))

    def __call__(self, effect):
        self.left -= 1
        if self.left >= 0 or (self.landed and self.kind != "full"):
            return None
        if self.left < -4:  # some space was freed
            return None
        fault = self.fault(effect)
        self.landed = self.landed or fault is not None
        return fault

    def fault(self, effect):
        is_write = effect.kind in ("write", "append")
        takes_space = is_write or effect.kind in ("create", "rename")
        part = effect.size // 2 if is_write else 0
        match self.kind:
            case "crash":
                return Crash(part)
            case "crash after":
                return CrashAfter()
            case "full":
                return Fail(errno.ENOSPC, part) if takes_space else None
            case "lost":
                return LoseSync() if effect.kind == "sync" else None
        return Fail(errno.EIO, part)


@dataclass
class Node:
    """One shard on one disk, through all its lives."""

    sealer: Callable[[], Sealer] = InProcess
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    ids: count = field(default_factory=lambda: count(1))
    shard: SoloShard | None = None
    dooms: list[Doom] = field(default_factory=list)  # of this process

    @property
    def reader(self) -> Reader:
        return self.shard.store.reader

    @property
    def machine(self) -> PartitionsMachine:
        return self.shard.store.machine

    @property
    def checkpoints(self):
        return self.shard.store.group.checkpoints

    @property
    def is_harmed(self) -> bool:
        return any(doom.landed for doom in self.dooms)

    def doom(self, doom: Doom) -> None:
        self.disk.hook = doom
        self.dooms.append(doom)

    def open(self) -> None:
        """Recover. There were crashes and failing calls only, so no damage may be reported."""
        small = RecoveryOptions(SLOTS, FILE_SIZE, 2, new_id=self.new_id, clock=lambda: 0.0)
        options = StoreOptions(small, SIZES, self.sealer, self.new_id)
        self.shard = SoloShard.open(self.disk.root, options)
        report = self.shard.store.report
        found = (report.faulty, report.fell_back, report.quarantined)
        assert found == ((), False, ()), report.lines()
        self.check_findings()

    def new_id(self) -> int:
        return next(self.ids) * 0x9E3779B97F4A7C15 % 2**64

    def restart(self, rng: Random) -> None:
        """Die and recover, often dying once more inside."""
        self.die(rng)
        if rng.random() < 0.4:
            self.doom(Doom.drawn(rng))
        try:
            self.open()
        except (Crashed, Unavailable, StorageFailed):
            assert self.is_harmed
            self.die(rng)
            self.open()
        self.disk.hook = None

    def die(self, rng: Random) -> None:
        """Let the process end, and mostly the power too: any of what was not synced is lost."""
        if rng.random() < 0.3:
            self.disk = self.disk.kill()
        else:
            kept = rng.choice(list(choices(self.disk.pending(), rng, 3)))
            self.disk = self.disk.power_cut(kept)
        self.dooms = []

    def checkpoint(self) -> None:
        """Bring all pending checkpoints to their end, on a disk that works again."""
        self.disk.hook = None
        while self.checkpoints.pending:
            self.checkpoints.run()
        files = self.shard.store.keeper.files
        names = [*files.segments.names(), *files.carries.names()]
        assert not [name for name in names if is_leftover(name)]

    def check(self, plain: Plain, rng: Random) -> None:
        """Compare everything that can be read, and every error there is."""
        assert sorted(self.machine.state.partitions) == sorted(plain.lives)
        self.check_findings()
        for life in plain.lives.values():
            newest = plain.topic_of(life.key).newest
            self.check_rows(life, newest, rng)
            self.check_times(life, rng)
            self.check_edges(life)
            self.check_cursors(life)
        for namespace in {*NAMESPACES, NEVER} - set(plain.lives):
            with pytest.raises(PartitionUnknown):
                self.reader.bounds(a_key((namespace, 1)))

    def check_findings(self) -> None:
        assert self.shard.store.keeper.files.findings == []
        if self.sealer is InProcess:
            assert self.shard.store.findings == []

    def check_rows(self, life: Life, newest: int, rng: Random) -> None:
        key, first, end = a_key(life.key), life.first, life.end
        found = table(self.reader.read(key, first, end), newest)
        assert found == life.shown(first, end, width_of(newest))
        start = rng.randint(first, end)
        stop = rng.randint(start, end)
        version = rng.randint(1, newest)
        if start < stop and version < life.rows[stop - 1].version:
            with pytest.raises(BadRequest):
                self.reader.read(key, start, stop, version=version)
        else:
            found = table(self.reader.read(key, start, stop, version=version), version)
            assert found == life.shown(start, stop, width_of(version))
        names = schema_of(newest).names
        columns = rng.sample(names, rng.randint(1, len(names)))
        places = [names.index(name) for name in columns]
        rows = life.shown(max(first, end - 7), end, width_of(newest))
        few = self.reader.read(key, max(first, end - 7), end, columns=columns)
        found = table(few, newest, columns)
        assert found == [tuple(row[place] for place in places) for row in rows]

    def check_times(self, life: Life, rng: Random) -> None:
        times = sorted({row.timestamp for row in life.rows})
        for timestamp in [0, *rng.sample(times, min(8, len(times)))]:
            wanted = timestamp + rng.choice((-1, 0, 1))
            found = self.reader.offset_at(a_key(life.key), wanted)
            assert found == life.offset_at(wanted)

    def check_edges(self, life: Life) -> None:
        namespace, created = life.key
        key, reader = a_key(life.key), self.reader
        assert reader.bounds(key) == (life.first, life.end)
        if life.first > 0:
            with pytest.raises(Expired):
                reader.read(key, life.first - 1, life.end)
        with pytest.raises(Behind):
            reader.read(key, life.end, life.end + 1)
        for other in (created - 1, created + 1):
            with pytest.raises(Recreated):
                reader.read(a_key((namespace, other)), life.first, life.end)

    def check_cursors(self, life: Life) -> None:
        found = self.reader.partition(a_key(life.key)).cursors
        assert {one.group: one.next for one in found.values()} == {
            group: following for group, (following, _, _) in life.cursors.items()
        }


def a_key(key: tuple[int, int]) -> Key:
    return Key(Namespace(key[0]), Revision(key[1]))


def width_of(version: int) -> int:
    return len(VERSIONS[version - 1])


def schema_of(version: int) -> pa.Schema:
    return pa.schema([*SYSTEM_FIELDS, *VERSIONS[version - 1]])


def table(batches, version: int, columns: list[str] | None = None) -> list[tuple]:
    """Return what was read as tuples, with times as microseconds; its schema is checked."""
    schema = schema_of(version)
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    found: list[tuple] = []
    for batch in batches:
        assert batch.schema.equals(schema)
        assert batch.num_rows
        values = [
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
            for column in batch.columns
        ]
        found += zip(*(column.to_pylist() for column in values), strict=True)
    return found
