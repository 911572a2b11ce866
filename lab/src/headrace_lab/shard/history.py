"""The requests to one shard, its answers, and what a reader must therefore find in it."""

from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa

from headrace.errors import Behind, Expired, HeadraceError, PartitionUnknown, Recreated
from headrace.journal.entry import Entry
from headrace.journal.machine_seam import Machine
from headrace.journal.snapshot import Snapshot
from headrace.model.ids import Offset
from headrace.model.results import AppendResult, PublishResult, TrimResult
from headrace.partition.files import placement
from headrace.partition.files.carry import CarryFile, op_of, open_carry
from headrace.partition.machine.partitions_machine import PartitionsMachine
from headrace.partition.machine.results import Refusal, Result
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace.partition.reader import Key
from headrace.partition.shard_store import Store
from headrace.storage.atomic import is_leftover
from headrace_lab.counter.solo import SOLO
from headrace_lab.harness.history import Broken, History
from headrace_lab.shard.oracle import COLUMNS, Answer, Deed, Life, Oracle

# Small: three appends make a segment, a longer run makes two, a slow one waits two Seals.
SIZES = SegmentSizes(size_min=700, size_target=1_000, waited_max=2)
_PARTITION_BITS = SOLO.namespace_bits[2]


@dataclass(slots=True)
class ShardHistory(History):
    """A history that also knows what each entry was meant to do."""

    deeds: dict[bytes, Deed] = field(default_factory=dict)  # by the entry's checksum
    oracle: Oracle = field(default_factory=Oracle)  # after what was acknowledged

    def copy(self) -> Self:
        return type(self)(
            dict(self.submitted),
            list(self.acknowledged),
            set(self.refused),
            dict(self.deeds),
            self.replayed(),
        )

    def model(self) -> Machine:
        return PartitionsMachine(_PARTITION_BITS, SIZES)

    def replayed(self) -> Oracle:
        """Return the oracle after all that was acknowledged."""
        oracle = Oracle()
        for checksum in self.acknowledged:
            entry = self.submitted[checksum]
            oracle.note(self.deeds[checksum], entry.header.timestamp)
        return oracle

    def answered(self, entry: Entry, result: Result) -> None:
        """Compare what an acknowledged entry was answered."""
        wanted = self.oracle.note(self.deeds[entry.checksum], entry.header.timestamp)
        found = _answer(result)
        is_refused = isinstance(result, Refusal)
        if is_refused != (wanted is None) or (found is not None and found != wanted):
            raise Broken(f"op {entry.op} was answered {result}, expected {wanted}")

    def check_store(self, store: Store) -> None:
        """Compare a recovered shard: its log, its state, every row, and the files it names."""
        self.check(store)
        self.oracle = self.replayed()
        check_rows(store, self.oracle)
        check_named(store)


def check_rows(store: Store, oracle: Oracle) -> None:
    """Every acknowledged row is readable, once, with its offset; and no other is."""
    open_keys = {
        (one.namespace, one.created) for one in store.machine.state.partitions.values()
    }
    if open_keys != {(key.namespace, key.created) for key in oracle.lives}:
        raise Broken(f"open are {open_keys}, expected {list(oracle.lives)}")
    for key, life in oracle.lives.items():
        _check_life(store, key, life)
    for key in oracle.closed:
        try:
            store.reader.bounds(key)
        except (PartitionUnknown, Recreated):
            continue
        raise Broken(f"partition {key} is closed, and can be read")


def _check_life(store: Store, key: Key, life: Life) -> None:
    bounds = store.reader.bounds(key)
    if bounds != (life.first, life.end):
        raise Broken(f"{key} has offsets {bounds}, expected {(life.first, life.end)}")
    compare(key, life, life.first, life.end, rows_of(store, key, life.first, life.end))
    cursors = {name: int(one.next) for name, one in store.reader.partition(key).cursors.items()}
    if cursors != life.cursors:
        raise Broken(f"{key} has cursors {cursors}, expected {life.cursors}")
    _check_outside(store, key, life)


def _check_outside(store: Store, key: Key, life: Life) -> None:
    """What is not there is an error with a name, never an empty answer."""
    if life.first > 0:
        _expect(store, key, (life.first - 1, life.end), Expired)
    _expect(store, key, (life.first, life.end + 1), Behind)


def _expect(store: Store, key: Key, asked: tuple[int, int], error: type[HeadraceError]) -> None:
    try:
        store.reader.read(key, Offset(asked[0]), Offset(asked[1]))
    except error:
        return
    raise Broken(f"{key}: reading {asked} is no {error.__name__}")


def rows_of(store: Store, key: Key, start: int, end: int) -> list[dict[str, Any]]:
    """Read rows as a user does."""
    found: list[dict[str, Any]] = []
    for batch in store.reader.read(key, Offset(start), Offset(end)):
        at = batch.schema.get_field_index("_timestamp")
        number = batch.column(at).cast(pa.int64())
        found += batch.set_column(at, "_timestamp", number).to_pylist()
    return found


def compare(key: Key, life: Life, start: int, end: int, found: list[dict[str, Any]]) -> None:
    """Raise if rows are not those that were acknowledged for these offsets."""
    number = key.namespace & ((1 << _PARTITION_BITS) - 1)
    if len(found) != end - start:
        raise Broken(f"{key}: {len(found)} rows for offsets {start} to {end}")
    for offset, row in enumerate(found, start=start):
        timestamp, values = life.rows[offset]
        names = [name for name in row if not name.startswith("_")]
        wanted = {
            "_partition": number,
            "_offset": offset,
            "_timestamp": timestamp,
            **dict.fromkeys(names),
            **dict(zip(COLUMNS, values, strict=False)),
        }
        if row != wanted:
            raise Broken(f"{key}: offset {offset} reads {row}, expected {wanted}")


def names_kept(store: Store) -> frozenset[str]:
    """Return the files that the kept snapshots name."""
    current = store.group.superblock.current
    names: set[str] = set()
    for op in (current.checkpoint.op, current.previous_op):
        found = store.group.checkpoints.snapshots.load(op) if op else None
        if isinstance(found, Snapshot):
            names |= placement.decode(found.state.local).names
    files = store.keeper.files
    for op in filter(None, map(op_of, list(names))):
        carry = open_carry(files.carries, files.identity, op)
        if isinstance(carry, CarryFile):
            names.update(source.name for source in carry.sources)
            carry.close()
    return frozenset(names)


def check_named(store: Store) -> None:
    """Every file that a kept snapshot names is there, or that a carry file keeps."""
    files = store.keeper.files
    gone = names_kept(store) - {*files.segments.names(), *files.carries.names()}
    if gone:
        raise Broken(f"a kept snapshot names {sorted(gone)}, which is gone")


def check_tidy(store: Store) -> None:
    """Nothing else is there: call it two checkpoints after a start."""
    files = store.keeper.files
    there = {*files.segments.names(), *files.carries.names()}
    extra = there - names_kept(store)
    if extra:
        raise Broken(f"no kept snapshot names {sorted(extra)}, which is still there")
    left = [name for name in there if is_leftover(name)]
    if left:
        raise Broken(f"left behind: {left}")


def _answer(result: Result) -> Answer:
    """Put a result as the oracle does; None if only its kind counts."""
    match result:
        case AppendResult():
            return ("appended", int(result.start), int(result.end), result.repeated)
        case PublishResult():
            ranges = ((one.namespace, one.start, one.end) for one in result.ranges)
            return ("published", *ranges)
        case TrimResult():
            return ("trimmed", int(result.first))
        case _:
            return None
