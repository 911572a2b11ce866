"""Rebuild a shard's state where no snapshot is left and its journal begins later than op 1.

    before the journal   segments have their offsets; entries of carry files are put between and
                         after them, by their times
    in the journal       the machine runs, as at any start
    afterwards           segments that were sealed from journaled entries prove their offsets,
                         or correct them

What only the snapshot knew is lost and reported: cursors, what was trimmed or purged, and which
versions of its writers a partition had accepted.
"""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from headrace.doctor.look.orphan_segment import LoneState, LoneTask
from headrace.doctor.look.replay import Hole, Replayed, ShardReplay, past_raising
from headrace.doctor.look.shard_look import Rebuilt, ShardSight
from headrace.doctor.rebuild.dedup_state import Windows
from headrace.doctor.rebuild.lifetimes import Census, Life, LifetimeOrigin, Recorded, by_life
from headrace.doctor.rebuild.staged_rows import OldStages
from headrace.doctor.rebuild.timeline import Arranged, Given, OffsetDoubt, Timeline
from headrace.journal.entry import Entry
from headrace.metadata.state import MetadataState
from headrace.model.ids import KEEP_NEXT, Offset, Op, Revision
from headrace.model.namespace import Namespace
from headrace.model.schema import decode_schema
from headrace.partition.machine.operations import APPEND, StoreCursor, Trim, decode, encode
from headrace.partition.machine.partitions_machine import PartitionsMachine
from headrace.partition.machine.results import Refusal, RefusalCode, Result
from headrace.partition.machine.state import Partition, Piece, Run, TopicState, Unplaced
from headrace.partition.segments.entry_rows import Schemas


def lone_tasks(shard: ShardSight) -> list[LoneTask]:
    """Return every file that may be a segment of the shard."""
    identity = shard.group.identity
    return [
        LoneTask(room.path, name, identity)
        for room in (shard.segments, shard.quarantine)
        for name in room.names()
        if ".parquet" in name
    ]


def rebuild(
    shard: ShardSight,
    metadata: MetadataState | None,
    is_complete: bool,
    states: Iterable[LoneState],
) -> None:
    """Give a shard the state that its files still prove. `states` are those of its segments."""
    identity = shard.group.identity
    bits = identity.namespace_bits[2]
    recorded = Recorded.of(shard.entries)
    found = by_life(states)
    census = Census(identity.group, bits, metadata, is_complete, shard.entries, recorded, found)
    origins = census.origins()
    schemas = {one.topic: _schemas(one) for one in origins.values()}
    segments = {
        life: [_fitting(one, schemas.get(life.namespace >> bits)) for one in some]
        for life, some in found.items()
    }
    stages = OldStages(shard.entries, recorded, bits)
    stages.find(segments, schemas)
    work = _Work(shard, metadata, recorded, origins, bits, stages)
    work.timelines = {life: _timeline(some) for life, some in segments.items()}
    work.sealed = {
        life: {one.task.info.schema_id for one in some if one.task is not None}
        for life, some in segments.items()
    }
    work.run()
    shard.lone = {(life.namespace, life.created): some for life, some in segments.items()}
    if not is_complete:
        lost = [
            header.row_count
            for header in recorded.before.values()
            if header.operation == APPEND and header.namespace not in origins
        ]
        work.told.placeless_count += sum(lost)


def _schemas(origin: LifetimeOrigin) -> Schemas:
    encoded = {each.version: each.schema for each in origin.schemas}
    return Schemas.decode(encoded, f"topic {origin.topic}")


def _fitting(one: LoneState, schemas: Schemas | None) -> LoneState:
    """Reject a segment whose columns are not those of the version that it names."""
    if one.task is None or schemas is None:
        return one
    version = one.task.info.schema_id
    known = schemas.versions.get(version)
    if known is not None and decode_schema(one.task.schema).equals(known):
        return one
    return LoneState(one.name, f"its columns differ from those of schema version {version}")


def _timeline(segments: list[LoneState]) -> Timeline:
    lost = [(one.first, one.end) for one in segments if not one.times]
    return Timeline.of((rows for one in segments for rows in one.times), lost)


@dataclass(slots=True)
class _RebuildBase:
    """One partition where the journal begins."""

    origin: LifetimeOrigin
    arranged: Arranged
    end: int
    first: int  # the lowest offset with any evidence
    doubt: int | None  # from here on, offsets are counted and not proven by a segment


@dataclass(slots=True)
class _Work:
    """Runs the machine over the remaining entries until a pass brings nothing new."""

    shard: ShardSight
    metadata: MetadataState | None
    recorded: Recorded
    origins: dict[Namespace, LifetimeOrigin]
    bits: int
    stages: OldStages
    timelines: dict[Life, Timeline] = field(default_factory=dict)
    sealed: dict[Life, set[int]] = field(default_factory=dict)  # schema versions of segments
    appended: dict[Life, list[Given]] = field(default_factory=dict)
    bases: dict[Namespace, _RebuildBase] = field(default_factory=dict)
    moved: dict[Namespace, int] = field(default_factory=dict)  # bases, by what segments prove
    is_news: bool = False
    told: Rebuilt = field(init=False)

    def __post_init__(self) -> None:
        self.told = Rebuilt(self.recorded.base, unreadable=self.recorded.unreadable)
        for header in self.recorded.before.values():
            if header.operation == APPEND:
                life = Life(header.namespace, header.created)
                given = Given(
                    header.timestamp,
                    header.op,
                    header.row_count,
                    header.body_size,
                    header.schema_id,
                )
                self.appended.setdefault(life, []).append(given)

    def run(self) -> None:
        """Replay until a pass brings nothing new, and keep the result of the last one."""
        windows = Windows.of(self.recorded.before.values(), self.recorded.after.values())
        replayed = self._pass(windows)
        while self.is_news or self.stages.is_news:  # a base and a stage, each at most once
            replayed = self._pass(windows)
        for partition in replayed.machine.state.partitions.values():
            self._settle(partition)
        lives = {origin.life for origin in self.origins.values()}
        self.told.undecided = self.stages.undecided(lives)
        self.told.untimed_count = self.stages.untimed_count(lives)
        self.shard.replayed = replayed
        self.shard.rebuilt = self.told

    def _pass(self, windows: Windows) -> Replayed:
        self.is_news = self.stages.is_news = False
        self.told.beyond.clear()
        replayed = past_raising(partial(self._replay, windows))
        self._learn(replayed)
        return replayed

    def _replay(self, windows: Windows, raising: dict[Op, str]) -> Replayed:
        machine = PartitionsMachine(self.bits)
        first_times = self.recorded.first_times(self.bits)
        self.told.writer_count = 0
        for namespace, origin in self.origins.items():
            writers, guess_count = windows.of_life(origin.life)
            self.told.writer_count += guess_count
            base = self._base(origin, first_times.of(origin))
            self.bases[namespace] = base
            partition = _opened(machine, base)
            partition.writers = writers
        self.stages.put_into(machine.state)
        following = Op(self.recorded.base + 1)
        replayed = Replayed(machine, following, raising=raising)
        self._tell_hole(replayed)
        header = self.recorded.after.get(following)
        replay = ShardReplay(
            self.shard.group.identity,
            self.shard.entries,
            self.metadata,
            replayed,
            self._eased,
            lambda entry, result: self._hear(machine, entry, result),
        )
        return replay.run(header.parent if header is not None else None)

    def _eased(self, entry: Entry) -> Entry:
        """Keep rows that a Trim may have left: the cursor that held it back may be lost."""
        header = entry.header
        base = self.bases.get(Namespace(header.namespace))
        if header.operation != Trim.operation or base is None:
            return entry
        command = decode(header.operation, entry.body)
        if not isinstance(command, Trim) or base.origin.life.created != header.created:
            return entry
        first = command.first if command.past_hold else Offset(base.first)
        behind = [] if base.doubt is None else [OffsetDoubt(base.doubt, None)]
        for doubt in (*base.arranged.doubts, *behind):
            if doubt.start < first and (doubt.end is None or first < doubt.end):
                first = Offset(doubt.start)
        return Entry(header, encode(Trim(first, command.past_hold)), b"")

    def _hear(self, machine: PartitionsMachine, entry: Entry, result: Result) -> None:
        self.stages.hear(machine.state, entry, result)
        if entry.header.operation == StoreCursor.operation:
            command = decode(entry.header.operation, entry.body)
            if isinstance(command, StoreCursor) and command.next != KEEP_NEXT:
                key = (entry.header.namespace, command.group)
                self.told.beyond.discard(key)
                if isinstance(result, Refusal) and result.code == RefusalCode.OUT_OF_RANGE:
                    self.told.beyond.add(key)

    def _tell_hole(self, replayed: Replayed) -> None:
        """Report the gap between the last checkpoints and a journal that begins after them."""
        block = self.shard.group.survey.superblock
        first = Op((block.previous_op if block is not None else 0) + 1)
        if block is None or first > self.recorded.base:
            return
        known_count = sum(op >= first for op in self.recorded.before)
        unknown_count = self.recorded.base - first + 1 - known_count
        if unknown_count:
            replayed.holes.append(Hole(first, self.recorded.base))
            replayed.unknown_count += unknown_count

    def _base(self, origin: LifetimeOrigin, following: int | None) -> _RebuildBase:
        """Put the rows of a partition in order, up to the time at which the journal begins."""
        whole = self.timelines.get(origin.life, Timeline())
        timeline = whole if following is None else whole.before(following)
        given = [*self.appended.get(origin.life, []), *self.stages.given(origin.life)]
        arranged = timeline.arrange(_with_versions(given))
        is_proven = following is not None and whole.reaches(following)
        end = timeline.end if is_proven else arranged.end
        doubt = None if is_proven else end
        if arranged.doubts and arranged.doubts[-1].end is None:
            doubt = arranged.doubts.pop().start
        end += self.moved.get(Namespace(origin.life.namespace), 0)
        known = [piece.first for _, piece in arranged.pieces[:1]]
        known += [] if whole.first is None else [Offset(whole.first)]
        return _RebuildBase(origin, arranged, end, min(known, default=end), doubt)

    def _learn(self, replayed: Replayed) -> None:
        """Move a base to where segments of journaled rows prove it is."""
        for namespace, base in self.bases.items():
            partition = replayed.machine.state.partitions.get(namespace)
            if partition is None or partition.created != base.origin.life.created:
                continue
            timeline = self.timelines.get(base.origin.life, Timeline())
            shifts = timeline.correct(_pieces(partition)).shifts
            shift = shifts[0][1] if shifts else 0
            floor = max((piece.end for _, piece in base.arranged.pieces), default=0)
            if shift and base.end + shift >= floor and namespace not in self.moved:
                self.moved[namespace] = shift
                self.is_news = True

    def _settle(self, partition: Partition) -> None:
        """Keep the rows of a partition as entries only; segments supply the others."""
        namespace, life = partition.namespace, Life(partition.namespace, partition.created)
        timeline = self.timelines.get(life, Timeline())
        corrected = timeline.correct(_pieces(partition))
        last_shift = corrected.shifts[-1][1] if corrected.shifts else 0
        pieces = corrected.pieces
        base = self.bases.get(namespace)
        if base is not None and base.origin.life == life:
            self.told.placeless_count += base.arranged.placeless_count
            self._doubt(base, partition, corrected.shifts)
            if partition.first == base.first > 0:
                self.told.below[namespace] = partition.first
        self.told.placeless_count += corrected.placeless_count
        partition.runs = _runs(pieces)
        partition.segments = ()
        partition.end = Offset(max(partition.end + last_shift, timeline.end))
        versions = {version for version, _ in pieces} | self.sealed.get(life, set())
        partition.versions = ((min(versions, default=partition.version), Offset(0)),)

    def _doubt(
        self, base: _RebuildBase, partition: Partition, shifts: list[tuple[int, int]]
    ) -> None:
        doubts = self.told.doubts.setdefault(partition.namespace, [])
        doubts += base.arranged.doubts
        is_moved = partition.namespace in self.moved
        if base.doubt is not None and not shifts:
            doubts.append(OffsetDoubt(base.doubt, None))
        elif base.doubt is not None and is_moved and base.doubt < base.end:
            doubts.append(OffsetDoubt(base.doubt, base.end))
        before, known = 0, 0
        for offset, shift in shifts:
            if shift != known:
                doubts.append(OffsetDoubt(before, offset + shift))
            before, known = offset + shift, shift


def _opened(machine: PartitionsMachine, base: _RebuildBase) -> Partition:
    """Put a partition into a state, as it was where the journal begins."""
    origin, state = base.origin, machine.state
    schemas = origin.schemas[: origin.schema_count]
    fresh = TopicState(origin.topic, origin.topic_created, schemas)
    topic = state.topics.setdefault(origin.topic, fresh)
    namespace = Namespace(origin.life.namespace)
    partition = Partition(
        namespace,
        Revision(origin.life.created),
        topic.created,
        ((topic.newest, Offset(0)),),
        first=Offset(base.first),
        end=Offset(base.end),
        runs=_runs(base.arranged.pieces),
    )
    state.partitions[namespace] = partition
    insort(topic.members, namespace)
    return partition


def _with_versions(given: list[Given]) -> list[Given]:
    """Make schema versions rise: no entry has an older one in force than its predecessor."""
    found: list[Given] = []
    version = 0
    for one in sorted(given):
        version = max(version, one.version)
        found.append(one._replace(version=version))
    return found


def _pieces(partition: Partition) -> list[tuple[int, Piece]]:
    found = [(run.version, piece) for run in partition.runs for piece in run.pieces]
    for segment in partition.segments:
        if isinstance(segment.place, Unplaced):
            found += [(segment.version, piece) for piece in segment.place.pieces]
    return sorted(found, key=lambda each: each[1].first)


def _runs(pieces: list[tuple[int, Piece]]) -> list[Run]:
    runs = []
    for version, some in groupby(pieces, key=lambda each: each[0]):
        own = [piece for _, piece in some]
        runs.append(Run(version, own, sum(piece.size for piece in own)))
    return runs
