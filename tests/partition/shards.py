"""Builders of open shards: small sizes, rows that say where they belong, damage by hand.

A run is large enough for a segment after about a dozen appends of ten rows, or after three
Seals.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count

import pyarrow as pa
import pytest

from headrace.errors import SealFailed
from headrace.journal.entry import SEAL
from headrace.journal.recovery.recover import RecoveryOptions
from headrace.model.ids import Offset, Op, Revision
from headrace.model.namespace import Namespace
from headrace.model.proposal import EntryProposal
from headrace.model.results import AppendResult
from headrace.partition.machine.results import Result
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace.partition.machine.state import Placed
from headrace.partition.reader import Key
from headrace.partition.segments.seal_job import DISK, UNSEALABLE, SealRefused
from headrace.partition.segments.sealer import InProcess
from headrace.partition.shard_store import StoreOptions
from headrace.storage.file import FileDirectory
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.shard.shard import SoloShard, appending, opening

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
NEWER = pa.schema([("id", pa.int64()), ("name", pa.string()), ("note", pa.string())])
NARROW = pa.schema([("id", pa.int32())])
WIDE = pa.schema([("id", pa.int64()), ("note", pa.string())])

KEY = Key(Namespace(0), Revision(1))
OTHER = Key(Namespace(1), Revision(2))  # of the same topic
TOPIC_CREATED = Revision(1)
WRITER = b"writer-of-tests!"

SIZES = SegmentSizes(size_min=4_000, size_target=16_000, waited_max=3)
_FILE_SIZE = 64 * 1024
SECONDS_MAX = 60.0  # until a test gives up on something that comes soon
_ids = count(1)


def new_id() -> int:
    """Ids that differ in every byte, and never come back within one run."""
    return next(_ids) * 0x9E3779B97F4A7C15 % 2**64


def shard_options(**changes) -> StoreOptions:
    """Return small sizes. `slots`, `file_size` and the like are the group's."""
    names = ("slots", "file_size", "spare_count_max")
    of_group = {name: changes.pop(name) for name in names if name in changes}
    group = RecoveryOptions(
        slots=of_group.get("slots", 256),
        file_size=of_group.get("file_size", _FILE_SIZE),
        spare_count_max=of_group.get("spare_count_max", 2),
        new_id=new_id,
        clock=lambda: 0.0,
    )
    return replace(StoreOptions(group, SIZES, InProcess, new_id), **changes)


@dataclass(slots=True)
class Shard(SoloShard):
    """A shard that knows what comes next: row `n` of a partition has `n` as its id."""

    def open_partition(self, key: Key = KEY, schemas=(SCHEMA,)) -> Result:
        return self.one(opening(key, schemas, TOPIC_CREATED, key.created))

    def append(
        self,
        row_count: int = 10,
        *,
        key: Key = KEY,
        writer: bytes = WRITER,
        schema: pa.Schema = SCHEMA,
        schema_id: int = 1,
    ) -> Result:
        result = self.one(self.an_append(row_count, key, writer, schema, schema_id))
        assert isinstance(result, AppendResult)
        return result

    def an_append(self, row_count, key=KEY, writer=WRITER, schema=SCHEMA, schema_id=1):
        """Propose the rows that come next."""
        partition = self.store.machine.state.partitions[key.namespace]
        known = partition.writers.get(writer)
        version = known.window[-1].version + 1 if known else 1
        rows = some_rows(partition.end, row_count, schema)
        return appending(key, rows, writer, version, schema_id)

    def append_many(self, times: int, row_count: int = 10, **changes) -> None:
        for _ in range(times):
            self.append(row_count, **changes)

    @property
    def partition(self):
        return self.store.machine.state.partitions[KEY.namespace]

    @property
    def segments(self):
        return self.partition.segments

    @property
    def unsealed(self):
        return [one for one in self.segments if not isinstance(one.place, Placed)]

    def rows(self, start=None, end=None, *, key: Key = KEY, **options) -> pa.Table:
        """Read some rows, or all that are retained, as one table."""
        first, last = self.store.reader.bounds(key)
        start = first if start is None else start
        end = last if end is None else end
        return table_of(self.store.reader.read(key, Offset(start), Offset(end), **options))

    def ids(self, start=None, end=None, *, key: Key = KEY) -> list[int]:
        found = self.rows(start, end, key=key)
        return found["id"].to_pylist() if found.num_rows else []

    def seal(self) -> Op:
        """Append a Seal, and leave its checkpoint pending."""
        self.submit([EntryProposal(SEAL)])
        return self.head

    def run(self) -> Op | None:
        """Bring the oldest pending checkpoint to its end."""
        return self.store.group.checkpoints.run()

    @property
    def pending(self) -> list[Op]:
        return [one.op for one in self.store.group.checkpoints.pending]

    def segment_names(self) -> list[str]:
        return [self.store.keeper.info(one).name for one in self.segments]


def table_of(batches) -> pa.Table:
    batches = list(batches)
    return pa.Table.from_batches(batches) if batches else pa.table({})


def some_rows(first: int, row_count: int, schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    numbers = range(first, first + row_count)
    values = {
        "id": list(numbers),
        "name": [f"name {n}" for n in numbers],
        "note": [f"note {n}" for n in numbers],
    }
    return pa.record_batch([pa.array(values[f.name], f.type) for f in schema], schema=schema)


def a_shard(disk: MemoryDisk | FileDirectory | None = None, *, identity=SOLO, **changes):
    """Open the shard on this disk. A new one has one partition, `KEY`, without rows."""
    disk = disk or MemoryDisk()
    root = disk.root if isinstance(disk, MemoryDisk) else disk
    shard = Shard.open(root, shard_options(**changes), identity)
    if shard.store.report.is_new:
        shard.open_partition()
    return shard


def a_disk(fill: Callable[[Shard], object], **changes) -> MemoryDisk:
    """Return the disk of a shard after `fill`, as the death of its process leaves it."""
    disk = MemoryDisk()
    fill(a_shard(disk, **changes))
    return disk.kill()


def files_in(disk: MemoryDisk, room: str) -> list[str]:
    return [path for path in disk.files() if path.startswith(f"{room}/")]


def carry_path(op: int) -> str:
    return f"carry/{op:020}.carry"


def sealed(shard: Shard, times: int = 14) -> str:
    """Append enough for one segment, seal it, and return its path."""
    shard.append_many(times)
    shard.checkpoint()
    assert not shard.partition.runs
    return f"segments/{shard.segment_names()[-1]}"


def layered(shard: Shard) -> None:
    """Leave rows in segments, in carry files and in the journal: 140, 30 and 20."""
    sealed(shard)
    for _ in range(2):
        shard.append_many(1)
        shard.checkpoint()
    shard.append_many(1)
    shard.checkpoint()
    shard.append_many(2)


@dataclass
class Stubborn:
    """A sealer that cannot make segments of the rows from `offsets` on, while it is told so."""

    offsets: set[int]
    is_on: bool = True
    asked: int = 0

    is_apart = False

    def seal(self, jobs, directory, read):
        outcomes = []
        for job in jobs:
            if self.is_on and job.info.first in self.offsets:
                self.asked += 1
                outcomes.append(SealRefused(UNSEALABLE, "these rows are too beautiful"))
            else:
                outcomes += InProcess().seal([job], directory, read)
        return outcomes

    def close(self):
        return


class ApartAndStubborn(Stubborn):
    """One that lets its caller carry meanwhile, as child processes do."""

    is_apart = True


@contextmanager
def on_files(path):
    with FileDirectory.open_root(str(path), create=True) as root:
        yield root


class Place:
    """A shard with two segments to be written, as jobs for a sealer."""

    def __init__(self, root):
        shard = a_shard(root, sealer=Refusing)
        shard.open_partition(OTHER)
        shard.append_many(14)
        shard.append_many(14, key=OTHER)
        with pytest.raises(SealFailed):
            shard.checkpoint()
        self.shard = shard
        self.jobs = shard.store.keeper.sealer.jobs
        self.segments = shard.store.keeper.files.segments

    def seal(self, sealer, *jobs):
        return sealer.seal(jobs or self.jobs, self.segments, self._read)

    def _read(self, part):
        return self.shard.store.keeper.read(part.op, self.shard.store.group.journal)

    def leftovers(self):
        return [name for name in self.segments.names() if name.endswith(".tmp")]


HANGING = """
import time
from headrace.partition.segments import sealing_child
sealing_child._Files.read = lambda *_: time.sleep(600)
sealing_child.main()
"""


def a_hanging_child():
    """Start a child that waits for ever when it reads its first entry."""
    return subprocess.Popen(
        [sys.executable, "-c", HANGING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


class Refusing:
    """Keeps the jobs and does none."""

    def __init__(self):
        self.jobs = []

    is_apart = False

    def seal(self, jobs, directory, read):
        self.jobs = list(jobs)
        return [SealRefused(DISK, "not now") for _ in jobs]

    def close(self):
        return


def await_that(is_true):
    deadline = time.monotonic() + SECONDS_MAX
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.005)
