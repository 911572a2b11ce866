"""Rebuild a machine's state in memory, as far as the log can be read.

Without holes this is what a start does. After a hole the log is still read: the header of a bad
entry may be intact and show how many rows it had; the metadata shows which partition and schema
a lost command created; a jump in a writer's count shows that the lost entry was its own. What
remains unknown is reported: from there on, offsets of the old log are counted as if nothing had
been there. An entry whose apply raises halts a group at every start; here it is skipped like a
lost one, from a state that it never touched.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from headrace.doctor.look.entries import Entries
from headrace.journal.entry import SEAL, Entry, Header, seal
from headrace.journal.snapshot import Snapshot
from headrace.metadata.commands import CreateTopic
from headrace.metadata.commands import decode as decode_metadata
from headrace.metadata.machine import MetadataMachine
from headrace.metadata.state import MetadataState, MetadataTarget
from headrace.model.ids import Identity, Offset, Op, View
from headrace.model.namespace import Namespace
from headrace.model.proposal import EntryProposal
from headrace.partition.machine import operations
from headrace.partition.machine.operations import (
    APPEND,
    ClosePartition,
    OpenPartition,
    Publish,
    Schema,
    SetSchema,
)
from headrace.partition.machine.partitions_machine import PartitionsMachine
from headrace.partition.machine.results import Refusal, Result
from headrace.partition.machine.state import Partition, Piece, Unplaced, Writer, Written

_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True)
class Hole:
    """Ops without any copy. `header` is that of a single op, if it can still be read."""

    first: Op
    last: Op
    header: Header | None = None

    @property
    def unknown_count(self) -> int:
        """How many of them might have been anything."""
        return 0 if self.header is not None else self.last - self.first + 1


@dataclass(slots=True)
class Replayed:
    """A shard's state, as far as the log can be read."""

    machine: PartitionsMachine
    expected: Op  # the next op to apply
    holes: list[Hole] = field(default_factory=list)
    broken_at: Op | None = None  # intact entries from here on follow another log
    unsure: dict[Namespace, Offset] = field(default_factory=dict)  # from there on, at least
    ends: dict[Namespace, Offset] = field(default_factory=dict)  # at the first unknown hole
    unknown_count: int = 0  # lost ops without any evidence so far
    lost_lives: set[Namespace] = field(default_factory=set)  # whose opening or close is lost
    placeless_count: int = 0  # rows after a hole that the machine refused
    raising: dict[Op, str] = field(default_factory=dict)  # ops that the machine cannot run

    @property
    def reached(self) -> Op:
        """The newest op that is known to be either present or lost."""
        return max(Op(self.expected - 1), *(hole.last for hole in self.holes), Op(0))

    def pieces(self) -> dict[Op, tuple[Partition, Piece]]:
        """Return the rows of each entry that are not in a segment file, by op."""
        return {
            piece.op: (partition, piece)
            for partition in self.machine.state.partitions.values()
            for piece in pieces_of(partition)
        }

    def settle(self) -> None:
        """Record for every partition whether lost ops may have had rows of it."""
        if self.unknown_count:
            for namespace, end in self.ends.items():
                partition = self.machine.state.partitions.get(namespace)
                if partition is not None and partition.end > end:
                    known = self.unsure.get(namespace, end)
                    self.unsure[namespace] = min(known, end)


def pieces_of(partition: Partition) -> Iterable[Piece]:
    """Yield the pieces of a partition in runs, or in segments without a file yet."""
    for run in partition.runs:
        yield from run.pieces
    for segment in partition.segments:
        if isinstance(segment.place, Unplaced):
            yield from segment.place.pieces


class ApplyRaised(Exception):
    """The machine raised on `op`, and its state must not be used anymore: start over."""

    def __init__(self, op: Op, error: Exception) -> None:
        super().__init__(op)
        self.op = op
        self.what = repr(error)


def past_raising(replay: Callable[[dict[Op, str]], _Done]) -> _Done:
    """Replay from the beginning until every op that raises is skipped."""
    raising: dict[Op, str] = {}
    while True:
        try:
            return replay(raising)
        except ApplyRaised as raised:
            raising[raised.op] = raised.what


@dataclass(slots=True)
class ShardReplay:
    """Applies the readable part of a shard's log to the state of one snapshot."""

    identity: Identity
    entries: Entries
    metadata: MetadataState | None
    done: Replayed
    ease: Callable[[Entry], Entry] | None = None  # changes an entry before it is applied
    watch: Callable[[Entry, Result], None] | None = None  # called after each applied op

    def run(self, tip: bytes | None, *, stop_at_hole: bool = False) -> Replayed:
        """Apply every op above the state; `tip` is the checksum of its newest, if known."""
        base = Op(self.done.expected - 1)
        lost = {one.op: one for one in self.entries.scan.faulty if one.op > base}
        known = tip
        for op in sorted({*self.entries.ops(base), *lost}):
            header = self.entries.header(op)
            if header is None and op in lost:
                header = self.entries.lost_header(lost[op])
            if op != self.done.expected:
                if stop_at_hole:
                    break
                self._hole(Hole(self.done.expected, Op(op - 1)))
                known = None
            if header is not None and known is not None and header.parent != known:
                self.done.broken_at = op
                break
            if not self._take(op, header) and stop_at_hole:
                break
            known = None if header is None else header.checksum
            self.done.expected = Op(op + 1)
        if self.done.broken_at is None and not stop_at_hole:
            self._end()
        return self.done

    def _end(self) -> None:
        """Durable ops above the last entry are lost: no later row has to shift."""
        self.done.settle()
        if self.entries.scan.proven >= self.done.expected:
            self.done.holes.append(Hole(self.done.expected, self.entries.scan.proven))

    def _take(self, op: Op, header: Header | None) -> bool:
        """Apply one op; False if it is lost."""
        entry = self._entry(op, header)
        if entry is None or op in self.done.raising:
            self._hole(Hole(op, op, header))
            return False
        self._smooth(entry.header)
        if self.ease is not None:
            entry = self.ease(entry)
        try:
            result = self.done.machine.apply(entry)
        except Exception as error:
            raise ApplyRaised(op, error) from error
        if self.watch is not None:
            self.watch(entry, result)
        if isinstance(result, Refusal) and self.done.holes:
            if entry.header.operation == APPEND:
                self.done.placeless_count += entry.header.row_count
            if entry.header.operation == Publish.operation:
                self._doubt_topic(entry.header)
        return True

    def _entry(self, op: Op, header: Header | None) -> Entry | None:
        """Return the entry to apply: for an Append its header suffices."""
        if header is not None and header.operation == APPEND:
            return Entry(header, b"", b"")
        entry = self.entries.read(op)
        if entry is None and header is not None and header.operation == SEAL:
            return Entry(header, b"", b"")  # as an entry that expires no writer
        return entry

    def _hole(self, hole: Hole) -> None:
        self.done.holes.append(hole)
        if hole.header is not None:
            self._lose_known(hole.header)
        if hole.unknown_count:
            for namespace, one in self.done.machine.state.partitions.items():
                self.done.ends.setdefault(namespace, one.end)
        self.done.unknown_count += hole.unknown_count

    def _lose_known(self, header: Header) -> None:
        """Infer from the header of a lost command what it must have changed."""
        is_of_life = header.created > 0
        if is_of_life and header.operation in (
            OpenPartition.operation,
            ClosePartition.operation,
        ):
            self.done.lost_lives.add(Namespace(header.namespace))
        if header.operation == Publish.operation:  # its rows had offsets: later ones shift
            self._doubt_topic(header)
        if header.operation == APPEND:  # one that the machine cannot run
            self.done.placeless_count += header.row_count
            partition = self.done.machine.state.partitions.get(Namespace(header.namespace))
            if partition is not None:
                self.done.unsure.setdefault(partition.namespace, partition.end)

    def _smooth(self, header: Header) -> None:
        """Do what a lost op must have done for this one to have been accepted."""
        if not self.done.holes or header.operation not in (APPEND, operations.STAGE):
            return
        partition = self._partition(header)
        if partition is None:
            return
        self._advance_schema(partition, header)
        if header.operation == APPEND:
            self._bridge_writer(partition, header)

    def _partition(self, header: Header) -> Partition | None:
        namespace = Namespace(header.namespace)
        state = self.done.machine.state
        known = state.partitions.get(namespace)
        if known is not None and known.created == header.created:
            return known
        target = self._target(namespace)
        is_lost = namespace in self.done.lost_lives
        if target is None or target.created != header.created:
            return None
        if not is_lost and not self.done.unknown_count:
            return None
        if known is not None:
            close = ClosePartition(state.revision)
            self._apply(close, header, namespace, known.created)
        opening = OpenPartition(state.revision, target.topic_created, _schemas(target))
        self._apply(opening, header, namespace, target.created)
        if is_lost:
            self.done.lost_lives.discard(namespace)
        else:
            self.done.unknown_count -= 1
        return state.partitions.get(namespace)

    def _advance_schema(self, partition: Partition, header: Header) -> None:
        topic = self.done.machine.state.topic_of(partition)
        target = self._target(partition.namespace)
        while target is not None and topic.newest < header.schema_id <= len(target.schemas):
            following = target.schemas[topic.newest]
            command = SetSchema(following.id, following.data)
            first = Namespace(topic.number << self.done.machine.partition_bits)
            self._apply(command, header, first, topic.created)
            self.done.unknown_count = max(0, self.done.unknown_count - 1)

    def _bridge_writer(self, partition: Partition, header: Header) -> None:
        """A version jump over lost ops is theirs: let the writer continue after them."""
        writer = partition.writers.get(header.writer)
        newest = writer.window[-1].version if writer is not None else 0
        missing = header.version - newest - 1
        if not 0 < missing <= self.done.unknown_count:
            return
        before = Written(header.version - 1, partition.end, 0, b"")
        partition.writers[header.writer] = Writer([before], header.timestamp)
        self.done.unknown_count -= missing
        self.done.unsure.setdefault(partition.namespace, partition.end)

    def _doubt_topic(self, header: Header) -> None:
        """A transaction that cannot be published whole is not published: record where."""
        number = self.done.machine.state.topic_number(header.namespace)
        topic = self.done.machine.state.topics.get(number)
        if topic is not None:
            for partition in self.done.machine.state.partitions_of(topic):
                self.done.unsure.setdefault(partition.namespace, partition.end)

    def _target(self, namespace: Namespace) -> MetadataTarget | None:
        return None if self.metadata is None else self.metadata.partition_at(namespace)

    def _apply(
        self,
        command: operations.Command,
        header: Header,
        namespace: Namespace,
        created: int,
    ) -> None:
        entry = seal(
            self.identity,
            EntryProposal(
                command.operation,
                operations.encode(command),
                namespace=namespace,
                created=created,
            ),
            op=header.op,
            parent=bytes(16),
            view=View(0),
            timestamp=header.timestamp,
        )
        self.done.machine.apply(entry)


def _schemas(target: MetadataTarget) -> tuple[Schema, ...]:
    return tuple(Schema(each.id, each.data) for each in target.schemas)


@dataclass(slots=True)
class MetadataReplayed:
    """Streams and topics, as far as their log can be read without a gap.

    Behind a hole nothing is applied: a lost CreateTopic would give its id to the next one.
    """

    machine: MetadataMachine
    expected: Op
    hole: Hole | None = None
    broken_at: Op | None = None
    names_behind: list[str] = field(default_factory=list)  # of topics created after the hole
    raising: dict[Op, str] = field(default_factory=dict)  # the hole is an op that cannot run


def replay_metadata(
    machine: MetadataMachine, entries: Entries, snapshot: Snapshot | None, tip: bytes
) -> MetadataReplayed:
    """Apply what follows `snapshot`, up to the first op that is missing or raises."""
    return past_raising(
        lambda raising: _replayed_metadata(machine, entries, snapshot, tip, raising)
    )


def _replayed_metadata(
    machine: MetadataMachine,
    entries: Entries,
    snapshot: Snapshot | None,
    tip: bytes,
    raising: dict[Op, str],
) -> MetadataReplayed:
    machine.restore(None if snapshot is None else snapshot.state.replicated)
    following = Op((snapshot.op if snapshot else 0) + 1)
    done = MetadataReplayed(machine, following, raising=raising)
    for op in entries.ops(Op(done.expected - 1)):
        entry = entries.read(op)
        if done.hole is not None or done.broken_at is not None:
            done.names_behind += _created_name(entry)
        elif entry is None or op != done.expected or op in raising:
            last = Op(op - 1) if op != done.expected and entry is not None else op
            done.hole = Hole(done.expected, last)
            done.names_behind += _created_name(entry)
        elif entry.header.parent != tip:
            done.broken_at = op
        else:
            header = entry.header
            try:
                machine.apply(
                    header.operation, header.timestamp, entry.body, op, header.checksum
                )
            except Exception as error:
                raise ApplyRaised(op, error) from error
            tip, done.expected = header.checksum, Op(op + 1)
    is_short = done.hole is None and done.broken_at is None
    if is_short and entries.scan.proven >= done.expected:
        done.hole = Hole(done.expected, entries.scan.proven)
    return done


def _created_name(entry: Entry | None) -> list[str]:
    if entry is None:
        return []
    command = decode_metadata(entry.header.operation, entry.body)
    return [f"{command.stream}/{command.name}"] if isinstance(command, CreateTopic) else []
