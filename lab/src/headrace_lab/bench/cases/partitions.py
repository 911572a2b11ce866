"""Sustained appends over 1 to 10,000 partitions, and reading one of them back.

Batches of 64 KiB go to one partition after another, 16 per commit group. The backlog is what
was appended but is not yet in a segment. Before any round, rows are appended until the backlog
no longer grows from one Seal to the next. A round begins and ends at a Seal, with checkpoints
running alongside, so the rows it counts are appended and sealed at the same rate. A backlog
that keeps growing is an error. The reference is the same load over one partition.

After each round, outside the timed part, up to 64 MiB of one partition are read as Arrow
batches.
"""

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shutil import disk_usage

import pyarrow as pa

from headrace.errors import Rejected
from headrace.model.ids import Offset, Revision
from headrace.model.namespace import Namespace
from headrace.model.proposal import EntryProposal
from headrace.node.group.seal_pace import SEAL_SIZE
from headrace.partition.machine.state import Partition, Unplaced
from headrace.partition.reader import Key
from headrace.partition.shard_store import StoreOptions
from headrace_lab.bench.bare import MIB
from headrace_lab.bench.cases.ingest import WRITER, a_shard
from headrace_lab.bench.frame import Case, Round, rate, scaled
from headrace_lab.bench.pump import Pump
from headrace_lab.bench.rows import KIB, ROW_SIZE, SCHEMA, Rows
from headrace_lab.shard.shard import appending, opening

BATCH_SIZE = 64 * KIB
COUNTS = (10, 100, 1_000, 10_000)
SECONDS = 3.0
ROUNDS = 3  # with all counts, about ten minutes
FLOORS = {10: 0.8, 100: 0.8, 1_000: 0.8}  # ten thousand are shown
READ_SIZE = 64 * MIB
# A prime: every partition gets all of them in turn, so that its segments compress as badly as
# those of one partition.
_DISTINCT = 251
_GROUP_COUNT = 16  # batches in one commit group
_COMPARED = 8  # Seals: the backlog is steady if these do not exceed as many before them
_SEALS_MAX = 64  # before it has to be steady: a small run is carried through 16
_SLACK = 1.02
_PENDING = 2  # checkpoints that may wait before appends do
_FREE_COUNT = 48  # windows between Seals that a case may take on disk, for both sides


@dataclass(frozen=True, slots=True)
class Steady:
    """The bench with its options."""

    counts: tuple[int, ...] = COUNTS
    seconds: float = SECONDS  # the least of one round: it ends at the next Seal
    rounds: int = ROUNDS

    def cases(self, directory: Path, scale: float) -> list[Case]:
        """Each number of partitions beside one."""
        rows, seal_size = distinct_rows(), scaled(SEAL_SIZE, scale)
        found = []
        for count in self.counts:
            ours, one = (
                SteadyShard(directory / f"{each}", rows, each, seal_size, self.seconds * scale)
                for each in (count, 1)
            )
            found.append(
                Case(
                    name=f"{count:,} partitions",
                    unit="MiB/s",
                    ours=ours.side,
                    reference="the same batches to one partition",
                    limit=one.side,
                    floor=FLOORS.get(count),
                    figures=partial(_figures, ours, one),
                )
            )
        return found


def cases(directory: Path, scale: float) -> list[Case]:
    """Give the usual numbers of partitions, each beside one."""
    return Steady().cases(directory, scale)


def counts_in(text: str) -> tuple[int, ...]:
    """Read numbers of partitions, such as 1,10,100. One is what the others stand beside."""
    try:
        found = sorted({int(each) for each in text.split(",")} - {1})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise Rejected(f"{text!r} is not a list of numbers of partitions", hint="Try 1,10,100")
    return tuple(found)


@dataclass(slots=True)
class SteadyShard:
    """One shard that is appended to in a steady state, and what was seen of it."""

    path: Path
    rows: Rows
    count: int
    seal_size: int
    seconds: float
    options: StoreOptions = field(default_factory=StoreOptions)
    number: int = 0  # batches appended
    backlogs: list[int] = field(default_factory=list)  # bytes, at each Seal
    start: int = 0  # the backlog when the first round began
    bound: int = 0  # the most while it became steady, and the checkpoints that may wait
    reads: list[float] = field(default_factory=list)  # MiB/s

    @contextmanager
    def side(self) -> Iterator[Round]:
        free, need = disk_usage(self.path.parent).free, _FREE_COUNT * self.seal_size
        if free < need:
            raise Rejected(
                f"a case may take {need // MIB:,} MiB; {self.path.parent} has {free // MIB:,}",
                hint="Choose a larger disk with --data, or a smaller --scale",
            )
        with a_shard(self.path, self.options) as pump:
            pump.pace.seal_size = self.seal_size
            keys = [Key(Namespace(number), Revision(1)) for number in range(self.count)]
            for first in range(0, self.count, _GROUP_COUNT):
                some = keys[first : first + _GROUP_COUNT]
                pump.append([opening(key, [SCHEMA], Revision(1), Revision(1)) for key in some])
            self._become_steady(pump, keys)
            yield lambda: self._round(pump, keys)

    def _become_steady(self, pump: Pump, keys: list[Key]) -> None:
        while not self._is_steady():
            if len(self.backlogs) == _SEALS_MAX:
                raise self._growing(self.backlogs[0], self.backlogs[-1])
            self._to_next_seal(pump, keys)
        pump.settle()
        self.bound = max(self.backlogs[-2 * _COMPARED :]) + _PENDING * self.seal_size
        self.backlogs.clear()

    def _is_steady(self) -> bool:
        """Say whether the last Seals found no more than those before them."""
        last, before = self.backlogs[-_COMPARED:], self.backlogs[-2 * _COMPARED : -_COMPARED]
        return len(before) == _COMPARED and max(last) <= max(before) * _SLACK

    def _round(self, pump: Pump, keys: list[Key]) -> float:
        for _ in range(_PENDING):  # their checkpoints run beside what is counted
            self._to_next_seal(pump, keys)
        first, began = self.number, time.perf_counter()
        self.start = self.start or self.backlogs[-1]
        while time.perf_counter() - began < self.seconds or self.number == first:
            self._to_next_seal(pump, keys)
        done = (self.number - first) * BATCH_SIZE / MIB / (time.perf_counter() - began)
        if self.backlogs[-1] > self.bound:
            raise self._growing(self.start, self.backlogs[-1])
        pump.settle()  # so that the other side has the machine for itself
        self.reads.append(self._read(pump, keys[0]))
        return done

    def _to_next_seal(self, pump: Pump, keys: list[Key]) -> None:
        state = pump.shard.store.machine.state
        sealed_op = state.sealed_op
        while state.sealed_op == sealed_op:
            group = range(self.number, self.number + _GROUP_COUNT)
            pump.append([self._append(keys, number) for number in group])
            self.number = group.stop
        self.backlogs.append(sum(map(unsealed_size, state.partitions.values())))

    def _append(self, keys: list[Key], number: int) -> EntryProposal:
        version = number // len(keys) + 1
        return appending(keys[number % len(keys)], self.rows[number], WRITER, version)

    def _read(self, pump: Pump, key: Key) -> float:
        """Read rows of one partition from its beginning; MiB/s."""
        store = pump.shard.store
        partition = store.machine.state.partitions[key.namespace]
        end = Offset(min(partition.end, partition.first + READ_SIZE // ROW_SIZE))
        read = store.reader.read(key, partition.first, end)
        size = (end - partition.first) * ROW_SIZE / MIB
        return rate(size, lambda: sum(batch.num_rows for batch in read))

    def _growing(self, start: int, end: int) -> Rejected:
        return Rejected(
            f"over {self.count:,} partitions the backlog grows: {start / MIB:,.0f} MiB, "
            f"then {end / MIB:,.0f} MiB",
            hint="This machine seals more slowly than it appends: this is not a steady state",
        )


def unsealed_size(partition: Partition) -> int:
    """Return the body bytes of rows that are in no segment."""
    waiting = sum(run.size for run in partition.runs)
    unplaced = (one for one in partition.segments if isinstance(one.place, Unplaced))
    return waiting + sum(one.size for one in unplaced)


def _figures(ours: SteadyShard, one: SteadyShard) -> Mapping[str, float]:
    """Give what is shown beside the rates: backlogs in MiB, and MiB/s of reading back."""
    found = {}
    for name, load in (("", ours), ("one_", one)):
        found[f"{name}backlog_start"] = load.start / MIB
        found[f"{name}backlog_max"] = max(load.backlogs) / MIB
        found[f"{name}backlog_end"] = load.backlogs[-1] / MIB
        found[f"{name}read"] = statistics.median(load.reads)
    return found


def distinct_rows() -> Rows:
    """Cut larger batches into distinct ones of 64 KiB, each with buffers of its own."""
    step = BATCH_SIZE // ROW_SIZE
    slices = [
        whole.slice(start, step)
        for whole in Rows.of(MIB).batches
        for start in range(0, whole.num_rows, step)
    ]
    return Rows([pa.concat_batches([one]) for one in slices[:_DISTINCT]])
