"""Examines one shard: its state in memory, and where each of its rows may still be read.

The state comes from the newest usable snapshot and the log above it. An older snapshot, with
the log above that, still knows the entries of rows that a newer one only knows as segments:
where a segment is lost, its rows may still be in the journal or in a carry file.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from headrace.doctor.look.entries import Entries
from headrace.doctor.look.group_look import GroupSight
from headrace.doctor.look.orphan_segment import LoneState
from headrace.doctor.look.readonly import ReadonlyDirectory
from headrace.doctor.look.replay import Replayed, ShardReplay, past_raising, pieces_of
from headrace.doctor.rebuild.timeline import OffsetDoubt
from headrace.errors import HeadraceError
from headrace.journal.entry import Header, root
from headrace.journal.snapshot import Snapshot
from headrace.metadata.state import MetadataState
from headrace.model.ids import Offset, Op
from headrace.partition.checkpoint_files import give_places
from headrace.partition.files import placement as local_part
from headrace.partition.files.placement import NOTHING, Carried, Local, PlacedHere
from headrace.partition.machine.operations import APPEND, STAGE
from headrace.partition.machine.partitions_machine import PartitionsMachine
from headrace.partition.machine.state import Partition, Piece, Placed, Segment
from headrace.partition.segments.segment import segment_name
from headrace.partition.shard_store import CARRY, QUARANTINE, SEGMENTS


@dataclass(slots=True)
class Rebuilt:
    """What to report about a state that was rebuilt without a snapshot."""

    base: Op  # the journal has what follows
    doubts: dict[int, list[OffsetDoubt]] = field(default_factory=dict)  # by namespace
    below: dict[int, int] = field(default_factory=dict)  # by namespace: rows below are unclear
    undecided: dict[int, int] = field(default_factory=dict)  # staged rows, by topic
    beyond: set[tuple[int, str]] = field(default_factory=set)  # cursors: namespace, group
    untimed_count: int = 0  # rows whose time of publishing is unknown
    placeless_count: int = 0  # readable rows without a place
    unreadable: list[Op] = field(default_factory=list)  # corrupt carried entries
    writer_count: int = 0  # writers that continue in the journal from an unknown version


@dataclass(slots=True)
class ShardSight:
    """Everything known about a shard."""

    group: GroupSight
    entries: Entries
    replayed: Replayed | None  # None: no snapshot can be used, and the log begins later
    snapshot_op: Op = Op(0)
    local: Local = NOTHING  # what the snapshot in use names
    kept: list[Local] = field(default_factory=list)  # what all intact snapshots name
    older: dict[tuple[int, int], list[Piece]] = field(default_factory=dict)  # by life
    bad_states: dict[Op, str] = field(default_factory=dict)  # intact, but no valid state
    drained: Op = Op(0)  # the newest op that a start does not keep in its journal
    # Segments that were read alone, by life and then by offset, where the state was rebuilt.
    lone: dict[tuple[int, int], list[LoneState]] = field(default_factory=dict)
    rebuilt: Rebuilt | None = None

    @property
    def segments(self) -> ReadonlyDirectory:
        return self.group.room.within(SEGMENTS)

    @property
    def carry(self) -> ReadonlyDirectory:
        return self.group.room.within(CARRY)

    @property
    def quarantine(self) -> ReadonlyDirectory:
        return self.group.room.within(QUARANTINE)

    @property
    def partitions(self) -> list[Partition]:
        """The partitions that are open, in order."""
        if self.replayed is None:
            return []
        found = self.replayed.machine.state.partitions
        return [found[namespace] for namespace in sorted(found)]

    def named_segments(self) -> dict[str, PlacedHere]:
        """Return the segments that any intact snapshot names, by their names."""
        return {
            segment_name(one.namespace, one.created, one.first, one.end): one
            for local in reversed(self.kept)
            for one in local.placed
        }

    def named_carries(self) -> dict[Op, Carried]:
        """Return the carry files that any intact snapshot names."""
        return {one.op: one for local in reversed(self.kept) for one in local.carried}

    def is_served(self, op: Op, *, but_for: str = "") -> bool:
        """Whether a node finds the entry, if the one in carry file `but_for` is bad."""
        if op > self.drained and op in self.entries.journal:
            return True
        found = ((name, one) for name, one in self.entries.carries.items() if op in one)
        newest, carry = next(found, ("", None))
        return carry is not None and newest != but_for and self.entries.is_there(carry, op)

    def is_readable(self, op: Op) -> bool:
        """Whether a node finds the entry, now or once its journal is repaired."""
        return op in self.entries.strays or self.is_served(op)

    def older_pieces(self, segment: Segment) -> Iterator[Piece]:
        """Yield the pieces that hold rows of a segment, as an older snapshot knew them."""
        pieces = self.older.get((segment.namespace, segment.created), [])
        index = max(0, bisect_right(pieces, segment.first, key=lambda one: one.first) - 1)
        for piece in pieces[index:]:
            if piece.first >= segment.end:
                return
            if piece.end > segment.first:
                yield piece

    def close(self) -> None:
        self.entries.close()
        self.group.close()


def look_at_shard(group: GroupSight, metadata: MetadataState | None) -> ShardSight:
    """Rebuild what can be known about a shard."""
    carry = group.room.within(CARRY)
    entries = Entries.of(group.scan, carry, group.identity)
    found = ShardSight(group, entries, None)
    usable = _usable(found)
    for base in usable:
        replayed = past_raising(partial(_replayed, found, metadata, base))
        if found.replayed is None:
            found.replayed, found.local = replayed, base.local
            found.snapshot_op = base.op
        else:
            _add_older(found, replayed)
    found.drained = _drained(found)
    return found


def _drained(found: ShardSight) -> Op:
    """A start keeps the journal from the previous checkpoint on."""
    plan, block = found.group.plan, found.group.survey.superblock
    if plan is not None:
        return plan.watermark
    return Op(max(0, block.previous_op - 1)) if block is not None else Op(0)


@dataclass(frozen=True, slots=True)
class _Base:
    """A state to start from: that of a snapshot, or the one before op 1."""

    snapshot: Snapshot | None
    local: Local
    machine: PartitionsMachine

    @property
    def op(self) -> Op:
        return Op(0) if self.snapshot is None else self.snapshot.op

    def begin(self) -> None:
        """Restore the machine to it; after raising, the machine is in an unknown state."""
        self.machine.restore(None if self.snapshot is None else self.snapshot.state)
        give_places(self.machine.state, self.local)


def _replayed(
    found: ShardSight, metadata: MetadataState | None, base: _Base, raising: dict[Op, str]
) -> Replayed:
    identity = found.group.identity
    if raising:
        base.begin()
    tip = root(identity) if base.snapshot is None else base.snapshot.tip
    done = Replayed(base.machine, Op(base.op + 1), raising=raising)
    replay = ShardReplay(identity, found.entries, metadata, done)
    return replay.run(tip, stop_at_hole=found.replayed is not None)


def _usable(found: ShardSight) -> list[_Base]:
    """Return the states to start from, newest first; the one before op 1 only if possible."""
    bits = found.group.identity.namespace_bits[2]
    usable: list[_Base] = []
    for snapshot in found.group.snapshots:
        try:
            local = local_part.decode(snapshot.state.local)
            base = _Base(snapshot, local, PartitionsMachine(bits))
            base.begin()
        except HeadraceError as error:
            found.bad_states[snapshot.op] = str(error)
            continue
        found.kept.append(local)
        usable.append(base)
    files = found.group.scan.files
    if files and files[0].candidate.header.first_op == 1:
        usable.append(_Base(None, NOTHING, PartitionsMachine(bits)))
    return usable


def _add_older(found: ShardSight, replayed: Replayed) -> None:
    for partition in replayed.machine.state.partitions.values():
        known = found.older.setdefault((partition.namespace, partition.created), [])
        ends = {piece.first for piece in known}
        known += [piece for piece in pieces_of(partition) if piece.first not in ends]
        known.sort(key=lambda piece: piece.first)


def is_of(piece: Piece, partition: Partition, header: Header) -> bool:
    """Whether an entry is the one whose rows a piece of this partition has."""
    is_append = header.operation == APPEND and header.timestamp == piece.timestamp
    return (
        (is_append or header.operation == STAGE)
        and (header.op, header.namespace) == (piece.op, partition.namespace)
        and header.created == partition.created
        and (header.row_count, header.body_size) == (piece.row_count, piece.size)
    )


def hidden(partition: Partition, start: int, end: int) -> tuple[Offset, Offset]:
    """Clip a range to what the partition still retains."""
    return Offset(max(start, partition.first)), Offset(min(end, partition.end))


def placed(segment: Segment) -> Placed | None:
    """Return the place of a segment's file, None if it has none."""
    return segment.place if isinstance(segment.place, Placed) else None
