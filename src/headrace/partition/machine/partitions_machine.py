"""The partitions machine: committed entries in, results out. It reads no clock and no file.

It reads headers only, except for Stage and the small msgpack bodies: a replay needs no body of
an Append. A Seal also leaves a Capture, from which the keeper writes segments and carry files;
whether that succeeds is local and changes nothing here.
"""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from xxhash import xxh3_128_digest

from headrace.journal.entry import SEAL, Entry, Header
from headrace.journal.machine_seam import MachineState
from headrace.model.ids import KEEP_NEXT, Offset, Op, Revision
from headrace.model.namespace import Namespace, is_name
from headrace.model.results import (
    AppendResult,
    CursorDeleted,
    CursorStored,
    Hold,
    StoredCursor,
    TrimResult,
)
from headrace.model.revisions import is_past, is_within
from headrace.partition.machine import image, transactions, writer_rule
from headrace.partition.machine.operations import (
    APPEND,
    STAGE,
    ClosePartition,
    Command,
    DeleteCursor,
    Discard,
    OpenPartition,
    Publish,
    Purge,
    Schema,
    SetSchema,
    StoreCursor,
    Trim,
    decode,
    decode_seal,
    is_command,
)
from headrace.partition.machine.results import (
    Closed,
    Opened,
    Refusal,
    RefusalCode,
    Result,
    SchemaSet,
    Sealed,
    refuse,
)
from headrace.partition.machine.segment_cut import SEGMENT_SIZES, SegmentSizes, cut
from headrace.partition.machine.state import Partition, PartitionsState, Segment, TopicState

TIMESTAMP_MAX: Final = 2**63 - 1  # the maximum of the column `_timestamp`
CURSOR_COUNT_MAX: Final = 1_024  # consumer groups of one partition


@dataclass(frozen=True, slots=True)
class Capture:
    """The state at a Seal: the keeper makes the files of the snapshot at `op` durable."""

    op: Op
    segments: tuple[tuple[Segment, ...], ...]  # of all partitions
    live: tuple[Op, ...]  # entries with rows that are in no segment, ascending
    schemas: dict[int, tuple[Schema, ...]]  # of all topics, by number
    format: int  # of all segments that are written now, also of earlier Seals


@dataclass(slots=True)
class PartitionsMachine:
    """See `journal.machine.Machine`."""

    partition_bits: int
    sizes: SegmentSizes = SEGMENT_SIZES
    state: PartitionsState = field(init=False)
    captures: dict[Op, Capture] = field(default_factory=dict)  # taken away by the keeper
    bodiless: frozenset[int] = frozenset({APPEND})

    def __post_init__(self) -> None:
        self.state = PartitionsState.empty(self.partition_bits)

    def apply(self, entry: Entry) -> Result:
        """Run one committed entry. Any bytes lead to a result, never to an exception."""
        header = entry.header
        if header.operation == APPEND:
            return self._append(header)
        if header.operation == STAGE:
            return self._stage(entry)
        if header.operation == SEAL:
            return self._seal(entry)
        if not is_command(header.operation):
            return refuse(RefusalCode.OPERATION_UNKNOWN, operation=header.operation)
        command = decode(header.operation, entry.body)
        if command is None:
            return refuse(RefusalCode.MALFORMED, operation=header.operation)
        return self._command(header, command)

    def snapshot(self) -> MachineState:
        return MachineState(image.encode(self.state))

    def restore(self, state: MachineState | None) -> None:
        """Become `state`. The keeper takes the places of its segments from the local part."""
        if state is None:
            self.state = PartitionsState.empty(self.partition_bits)
        else:
            self.state = image.decode(state.replicated, self.partition_bits)
        self.captures.clear()

    def digest(self) -> bytes:
        return xxh3_128_digest(image.encode(self.state))

    def _command(self, header: Header, command: Command) -> Result:
        if isinstance(command, OpenPartition | ClosePartition):
            return self._fenced(header, command)
        if isinstance(command, SetSchema | Publish | Discard):
            topic = self._topic(header)
            return (
                topic if isinstance(topic, Refusal) else self._on_topic(topic, header, command)
            )
        partition = self._partition(header)
        if isinstance(partition, Refusal):
            return partition
        act: Callable[[Partition, Any], Result] = _ON_PARTITION[type(command)]
        result = act(partition, command)
        if not isinstance(result, Refusal):
            partition.image = None
        return result

    def _on_topic(
        self, topic: TopicState, header: Header, command: SetSchema | Publish | Discard
    ) -> Result:
        match command:
            case SetSchema():
                if command.version != topic.newest + 1:
                    return refuse(
                        RefusalCode.SCHEMA_NOT_NEXT,
                        version=command.version,
                        newest=topic.newest,
                    )
                self._advance(topic, command.version, command.schema)
                return SchemaSet(command.version)
            case Publish() if header.timestamp > TIMESTAMP_MAX:
                return refuse(RefusalCode.MALFORMED, operation=header.operation)
            case Publish():
                return transactions.publish(self.state, topic, header, command)
            case Discard():
                return transactions.discard(topic, header, command)

    def _fenced(self, header: Header, command: OpenPartition | ClosePartition) -> Result:
        """Refuse a command planned with older metadata than the shard has followed."""
        if not is_within(self.state.revision, command.revision):
            return refuse(
                RefusalCode.STALE, found=command.revision, expected=self.state.revision
            )
        if isinstance(command, OpenPartition):
            result = self._open(header, command)
        else:
            result = self._close(header)
        if not isinstance(result, Refusal):
            self.state.revision = command.revision
        return result

    def _open(self, header: Header, command: OpenPartition) -> Result:
        namespace = Namespace(header.namespace)
        known = self.state.partitions.get(namespace)
        if known is not None and known.created == header.created:
            return Opened(known.end)
        closed = self.state.closed.get(namespace, 0)
        if known is not None or not is_past(header.created, closed):
            found = known.created if known is not None else closed
            return refuse(
                RefusalCode.RECREATED, namespace=namespace, expected=header.created, found=found
            )
        topic = self._enter_topic(namespace, command)
        if isinstance(topic, Refusal):
            return topic
        partition = Partition(
            namespace,
            Revision(header.created),
            topic.created,
            ((topic.newest, Offset(0)),),
        )
        self.state.partitions[namespace] = partition
        insort(topic.members, namespace)
        return Opened(partition.end)

    def _enter_topic(
        self, namespace: Namespace, command: OpenPartition
    ) -> TopicState | Refusal:
        """Find or create the topic of a new partition, and add its new schemas."""
        number = self.state.topic_number(namespace)
        versions = [each.version for each in command.schemas]
        if not versions or versions != list(range(1, len(versions) + 1)):
            return refuse(RefusalCode.MALFORMED, operation=command.operation)
        if command.topic_created < 0:  # no header could name it
            return refuse(RefusalCode.MALFORMED, operation=command.operation)
        topic = self.state.topics.get(number)
        if topic is None:
            topic = TopicState(number, command.topic_created, command.schemas)
            self.state.topics[number] = topic
        if topic.created != command.topic_created:
            return refuse(RefusalCode.TOPIC_UNKNOWN, topic=number)
        for each in command.schemas[len(topic.schemas) :]:
            self._advance(topic, each.version, each.schema)
        return topic

    def _advance(self, topic: TopicState, version: int, schema: bytes) -> None:
        """Put the next schema in force, in each partition of the topic from its end on."""
        topic.schemas = (*topic.schemas, Schema(version, schema))
        topic.image = None
        for partition in self.state.partitions_of(topic):
            partition.advance_schema(version)
            partition.image = None

    def _close(self, header: Header) -> Result:
        partition = self._partition(header)
        if isinstance(partition, Refusal):
            gone = self.state.closed.get(Namespace(header.namespace), 0)
            return Closed() if is_within(header.created, gone) else partition
        topic = self.state.topic_of(partition)
        del self.state.partitions[partition.namespace]
        self.state.closed[partition.namespace] = partition.created
        topic.members.remove(partition.namespace)
        if topic.members:
            transactions.drop_partition(topic, partition.namespace)
        else:
            del self.state.topics[topic.number]
        return Closed()

    def _append(self, header: Header) -> AppendResult | Refusal:
        partition = self._partition(header)
        if isinstance(partition, Refusal):
            return partition
        answer = self._unfit(partition, header) or writer_rule.judge(partition, header)
        if answer is not None:
            return answer
        start = partition.add(header.row_count, header.op, header.timestamp, header.body_size)
        writer_rule.remember(partition, header, start)
        partition.image = None
        return AppendResult(start, partition.end, repeated=False)

    def _stage(self, entry: Entry) -> Result:
        partition = self._partition(entry.header)
        if isinstance(partition, Refusal):
            return partition
        refused = self._unfit(partition, entry.header)
        if refused is not None:
            return refused
        return transactions.stage(self.state.topic_of(partition), partition, entry)

    def _unfit(self, partition: Partition, header: Header) -> Refusal | None:
        """Refuse an empty batch, or rows with an unknown schema."""
        if header.timestamp > TIMESTAMP_MAX:
            return refuse(RefusalCode.MALFORMED, operation=header.operation)
        if header.row_count == 0:
            return refuse(RefusalCode.EMPTY)
        topic = self.state.topic_of(partition)
        if not 1 <= header.schema_id <= topic.newest:
            return refuse(
                RefusalCode.SCHEMA_UNKNOWN, schema_id=header.schema_id, newest=topic.newest
            )
        return None

    def _seal(self, entry: Entry) -> Sealed:
        state, header = self.state, entry.header
        writer_count = stage_count = 0
        seal = decode_seal(entry.body)
        if seal.expire:
            writer_count, stage_count = self._expire(header.timestamp)
        made: list[Segment] = []
        for namespace in sorted(state.partitions):
            partition = state.partitions[namespace]
            if partition.runs:
                made += cut(partition, header.op, header.checksum, self.sizes)
                partition.image = None
        state.sealed_op = header.op
        self.captures[header.op] = Capture(
            header.op,
            tuple(one.segments for one in state.partitions.values() if one.segments),
            tuple(sorted(set(state.live_ops()))),
            {number: topic.schemas for number, topic in state.topics.items()},
            seal.format,
        )
        return Sealed(len(made), writer_count, stage_count)

    def _expire(self, now: int) -> tuple[int, int]:
        writer_count = 0
        for partition in self.state.partitions.values():
            gone = writer_rule.expire(partition, now)
            if gone:
                partition.image = None
            writer_count += gone
        stages = (transactions.expire(topic, now) for topic in self.state.topics.values())
        return writer_count, sum(stages)

    def _partition(self, header: Header) -> Partition | Refusal:
        partition = self.state.partitions.get(Namespace(header.namespace))
        if partition is None:
            return refuse(RefusalCode.PARTITION_UNKNOWN, namespace=header.namespace)
        if partition.created != header.created:
            return refuse(
                RefusalCode.RECREATED,
                namespace=header.namespace,
                expected=header.created,
                found=partition.created,
            )
        return partition

    def _topic(self, header: Header) -> TopicState | Refusal:
        number = self.state.topic_number(header.namespace)
        topic = self.state.topics.get(number)
        if topic is None or topic.created != header.created:
            return refuse(RefusalCode.TOPIC_UNKNOWN, topic=number)
        return topic


def _store_cursor(partition: Partition, command: StoreCursor) -> Result:
    known = partition.cursors.get(command.group)
    if not is_name(command.group):
        return refuse(RefusalCode.BAD_NAME, name=command.group[:200])
    if known is not None and command.generation < known.generation:
        return refuse(RefusalCode.FENCED, found=command.generation, expected=known.generation)
    if command.next == KEEP_NEXT:
        return _take_over(partition, command, known)
    if not 0 <= command.next <= partition.end:
        return refuse(RefusalCode.OUT_OF_RANGE, offset=command.next, first=0, end=partition.end)
    if known is None and len(partition.cursors) >= CURSOR_COUNT_MAX:
        return refuse(RefusalCode.CURSORS_FULL, max=CURSOR_COUNT_MAX)
    partition.cursors[command.group] = StoredCursor(
        command.group, command.next, command.generation, command.hold
    )
    return CursorStored(command.next)


def _take_over(
    partition: Partition, command: StoreCursor, known: StoredCursor | None
) -> Result:
    """Fence earlier generations, at the offset that the last of them has stored."""
    if known is None:
        return refuse(RefusalCode.CURSOR_UNKNOWN, group=command.group)
    hold = known.hold or command.hold
    partition.cursors[command.group] = known._replace(generation=command.generation, hold=hold)
    return CursorStored(known.next)


def _delete_cursor(partition: Partition, command: DeleteCursor) -> Result:
    known = partition.cursors.get(command.group)
    if known is None:
        return refuse(RefusalCode.CURSOR_UNKNOWN, group=command.group[:200])
    if command.generation < known.generation:
        return refuse(RefusalCode.FENCED, found=command.generation, expected=known.generation)
    del partition.cursors[command.group]
    return CursorDeleted()


def _trim(partition: Partition, command: Trim) -> Result:
    """Limit a Trim to the lowest held cursor, unless it has `past_hold`."""
    if not 0 <= command.first <= partition.end:
        return refuse(
            RefusalCode.OUT_OF_RANGE, offset=command.first, first=0, end=partition.end
        )
    holds = sorted(
        (cursor.next, group)
        for group, cursor in partition.cursors.items()
        if cursor.hold and cursor.next < command.first
    )
    first = command.first
    if holds and not command.past_hold:
        first = holds[0][0]
    if first > partition.first:
        partition.trim(first)
    return TrimResult(partition.first, tuple(Hold(group, offset) for offset, group in holds))


def _purge(partition: Partition, _: Purge) -> Result:
    partition.trim(partition.end)
    return TrimResult(partition.first, ())


_ON_PARTITION: Final[dict[type, Callable[[Partition, Any], Result]]] = {
    StoreCursor: _store_cursor,
    DeleteCursor: _delete_cursor,
    Trim: _trim,
    Purge: _purge,
}
