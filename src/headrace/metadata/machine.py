"""The metadata machine: applies commands in the order of group 0's log, deterministically.

`revision` rises by one with each change that affects shards: a topic created or deleted, a
stream deleted with topics, partitions added, a life forgotten. A new schema version counts,
too: it decides which batches partitions accept, so it must reach the shards' logs, and
reconcilers wake on `revision`. So does a change of retention, from level 2 on: a shard that has
followed it exposes older metadata, whose retention might remove rows that should be kept. So
does that level itself, if there were changes before it. Empty streams and options do not affect
shards, and do not raise it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

import msgspec
from xxhash import xxh3_128_digest

from headrace.metadata import image, rules
from headrace.metadata.adoption import adopt
from headrace.metadata.commands import (
    OPERATION_FIRST,
    AddPartitions,
    AddSchema,
    Adopt,
    AlterTopic,
    Command,
    CreateStream,
    CreateTopic,
    DeleteStream,
    DeleteTopic,
    ForgetLife,
    Level,
    TopicChange,
    decode,
)
from headrace.metadata.results import (
    Adopted,
    Altered,
    Created,
    Deleted,
    Forgotten,
    Levelled,
    MetadataCode,
    MetadataRefusal,
    Result,
    Unchanged,
    refuse,
)
from headrace.metadata.rules import MetadataLimits
from headrace.metadata.state import (
    LEVEL,
    RECORDING_LEVEL,
    Change,
    MetadataState,
    SchemaVersion,
    TopicMetadata,
    TopicPartition,
    record_deletion,
)
from headrace.model.ids import Op, Revision
from headrace.model.namespace import DEFAULT_STREAM, NamespaceLayout, PartitionId
from headrace.model.revisions import is_stamped, is_within


@dataclass(slots=True)
class MetadataMachine:
    """State as a function of the log. The node wraps it as the machine of group 0."""

    layout: NamespaceLayout
    state: MetadataState = field(init=False)
    _checksum: bytes = b""  # of the entry being applied
    limits: MetadataLimits = field(init=False)

    def __post_init__(self) -> None:
        self.state = image.genesis(self.layout)
        self.limits = MetadataLimits.of(self.layout)

    def apply(
        self,
        operation: int,
        timestamp: int,
        body: bytes | bytearray | memoryview,
        op: Op,
        checksum: bytes,
    ) -> Result:
        """Apply one committed entry. Any bytes yield a result.

        `timestamp` is the entry's: the machine has no other clock.
        """
        if operation < OPERATION_FIRST:
            return Unchanged()
        before = (self.state.level, self.state.revision)
        self._checksum = checksum
        result = self._run(decode(operation, body), timestamp)
        is_changed = isinstance(result, Created | Altered | Deleted)
        if is_changed or before != (self.state.level, self.state.revision):
            self.state.remember(Change(op, checksum, self.state.revision))
        return result

    def _run(self, command: Command | MetadataRefusal, timestamp: int) -> Result:
        result: Result
        match command:
            case CreateStream():
                result = self._create_stream(command, timestamp)
            case DeleteStream():
                result = self._delete_stream(command)
            case CreateTopic():
                result = self._create_topic(command, timestamp)
            case AlterTopic() | AddPartitions() | AddSchema() | DeleteTopic():
                result = self._change_topic(command, timestamp)
            case Level():
                result = self._raise_level(command)
            case ForgetLife():
                result = self._forget_life(command)
            case Adopt():
                result = self._adopt(command, timestamp)
            case MetadataRefusal():
                result = command
            case _:
                assert_never(command)
        return result

    def snapshot(self) -> bytes:
        """Return the current state as an image."""
        return image.encode(self.state)

    def restore(self, data: bytes | None) -> None:
        """Load an image; None is the state before op 1. On Corrupt, nothing changes."""
        self.state = (
            image.genesis(self.layout) if data is None else image.decode(data, self.layout)
        )

    def digest(self) -> bytes:
        """Return a 16-byte digest of the state."""
        return xxh3_128_digest(self.snapshot())

    def _create_stream(self, command: CreateStream, timestamp: int) -> Result:
        refused = rules.name("stream", command.name)
        if refused is not None:
            return refused
        if self.state.stream(command.name) is not None:
            return refuse(MetadataCode.STREAM_EXISTS, stream=command.name)
        refused = self.limits.stream(len(self.state.streams))
        if refused is not None:
            return refused
        stream = self.state.add_stream(command.name, timestamp)
        return Created(self.state.revision, stream.id, None)

    def _delete_stream(self, command: DeleteStream) -> Result:
        stream = self.state.stream(command.name)
        if stream is None:
            return _stream_unknown(command.name)
        if stream.name == DEFAULT_STREAM:
            return refuse(MetadataCode.STREAM_PERMANENT, stream=stream.name)
        topic_count = self.state.topic_count(stream.id)
        if topic_count and not command.with_topics:
            return refuse(
                MetadataCode.STREAM_NOT_EMPTY, stream=stream.name, topic_count=topic_count
            )
        self.state.remove_stream(stream)
        revision = self._rise() if topic_count else self.state.revision
        return Deleted(revision, stream.id, None)

    def _create_topic(self, command: CreateTopic, timestamp: int) -> Result:
        stream = self.state.stream(command.stream)
        if stream is None:
            return _stream_unknown(command.stream)
        refused = self.judge_new(command) or self.limits.topic(
            self.state.topic_count(stream.id)
        )
        if refused is not None:
            return refused
        created = self._rise()
        topic = TopicMetadata(
            stream.id,
            self.state.take_topic_id(stream.id),
            command.name,
            created,
            timestamp,
            command.shard,
            command.retention,
            tuple(sorted(command.options)),
            (SchemaVersion(1, command.schema, created, timestamp),),
            _partitions(0, command.partition_count, created),
        )
        self.state.put_topic(topic)
        return Created(created, stream.id, topic.id)

    def judge_new(self, command: CreateTopic) -> MetadataRefusal | None:
        """Return why this topic cannot be created, even if its stream does not exist yet."""
        refused = rules.name("topic", command.name)
        if refused is not None:
            return refused
        present = self.state.topic(command.stream, command.name)
        if present is not None:
            return refuse(
                MetadataCode.TOPIC_EXISTS,
                stream=command.stream,
                topic=command.name,
                created=present.created,
            )
        return (
            rules.schema(command.schema)
            or rules.shard(command.shard)
            or rules.retention(command.retention)
            or rules.options(command.options)
            or rules.option_count(len(command.options))
            or self.limits.partitions(
                command.partition_count, present=0, everywhere=self.state.partition_count
            )
        )

    def judge(self, commands: Sequence[Command]) -> MetadataRefusal | None:
        """Return why one of the commands would be refused, after a Level if that is missing."""
        twin = MetadataMachine(self.layout, _checksum=bytes(image.CHECKSUM_SIZE))
        twin.limits = self.limits
        twin.restore(self.snapshot())
        for command in (Level(LEVEL), *commands):
            result = twin._run(command, 0)
            if isinstance(result, MetadataRefusal):
                return result
        return None

    def _change_topic(self, command: TopicChange, timestamp: int) -> Result:
        topic = self._find(command)
        if isinstance(topic, MetadataRefusal):
            return topic
        result: Result
        match command:
            case AlterTopic():
                result = self._alter(topic, command)
            case AddPartitions():
                result = self._add_partitions(topic, command)
            case AddSchema():
                result = self._add_schema(topic, command, timestamp)
            case DeleteTopic():
                self.state.remove_topic(topic)
                result = Deleted(self._rise(), topic.stream_id, topic.id)
            case _:
                assert_never(command)
        return result

    def _find(self, command: TopicChange) -> TopicMetadata | MetadataRefusal:
        """Return the topic in the requested life, not another one with its name."""
        if self.state.stream(command.stream) is None:
            return _stream_unknown(command.stream)
        topic = self.state.topic(command.stream, command.topic)
        if topic is None:
            return refuse(
                MetadataCode.TOPIC_UNKNOWN,
                stream=command.stream,
                topic=rules.shown(command.topic),
            )
        if topic.created != command.created:
            return refuse(
                MetadataCode.RECREATED,
                stream=command.stream,
                topic=topic.name,
                expected=command.created,
                found=topic.created,
            )
        return topic

    def _alter(self, topic: TopicMetadata, command: AlterTopic) -> Result:
        retention = topic.retention if command.retention is None else command.retention
        merged = dict(topic.options) | dict(command.options)
        options = tuple(
            sorted((key, value) for key, value in merged.items() if value is not None)
        )
        refused = (
            rules.retention(retention)
            or rules.options(command.options)
            or rules.option_count(len(options))
        )
        if refused is not None:
            return refused
        if retention != topic.retention and self.state.level >= RECORDING_LEVEL:
            self._rise()
        return self._altered(
            msgspec.structs.replace(topic, retention=retention, options=options)
        )

    def _add_partitions(self, topic: TopicMetadata, command: AddPartitions) -> Result:
        present = len(topic.partitions)
        if command.first != present:
            return refuse(
                MetadataCode.PARTITIONS_NOT_NEXT,
                stream=command.stream,
                topic=topic.name,
                expected=command.first,
                found=present,
            )
        refused = self.limits.partitions(
            command.count, present=present, everywhere=self.state.partition_count
        )
        if refused is not None:
            return refused
        added = _partitions(present, command.count, self._rise())
        return self._altered(
            msgspec.structs.replace(topic, partitions=topic.partitions + added)
        )

    def _add_schema(self, topic: TopicMetadata, command: AddSchema, timestamp: int) -> Result:
        refused = _judge_version(topic, command) or rules.schema(command.schema)
        refused = refused or rules.schema_count(command.version)
        if refused is not None:
            return refused
        version = SchemaVersion(command.version, command.schema, self._rise(), timestamp)
        return self._altered(msgspec.structs.replace(topic, schemas=(*topic.schemas, version)))

    def _raise_level(self, command: Level) -> Result:
        if not 1 <= command.number <= LEVEL:
            return refuse(MetadataCode.LEVEL_UNKNOWN, max=LEVEL, found=command.number)
        before, self.state.level = self.state.level, max(self.state.level, command.number)
        if before < RECORDING_LEVEL <= self.state.level and self.state.revision > 0:
            self._rise()  # a shard that follows it proves that it is of this history
        return Levelled(self.state.level)

    def _forget_life(self, command: ForgetLife) -> Result:
        namespace, created = command.namespace, command.created
        if self.state.level < RECORDING_LEVEL:
            return self._too_low()
        if not self.state.layout.holds(namespace) or created < 1:
            return refuse(MetadataCode.NAMESPACE_UNKNOWN, namespace=namespace)
        wanted = self.state.partition_at(namespace)
        if wanted is not None and is_within(wanted.created, created):
            return refuse(MetadataCode.LIFE_WANTED, namespace=namespace, created=wanted.created)
        record = created if is_stamped(created) else Revision(-created)
        if record not in self.state.deleted.get(namespace, ()):
            record_deletion(self.state.deleted, namespace, record)
            self._rise()
        return Forgotten(self.state.revision)

    def _adopt(self, command: Adopt, timestamp: int) -> Result:
        adopted = adopt(self.state, command, timestamp, self._checksum, self.limits)
        if isinstance(adopted, MetadataRefusal):
            return adopted
        self.state = adopted
        return Adopted(adopted.revision)

    def _too_low(self) -> MetadataRefusal:
        return refuse(
            MetadataCode.LEVEL_TOO_LOW, expected=RECORDING_LEVEL, found=self.state.level
        )

    def _rise(self) -> Revision:
        return self.state.rise(self._checksum)

    def _altered(self, topic: TopicMetadata) -> Altered:
        self.state.put_topic(topic)
        return Altered(self.state.revision, topic.stream_id, topic.id)


def _judge_version(topic: TopicMetadata, command: AddSchema) -> MetadataRefusal | None:
    """Refuse any version but the next; a repeat of an existing one has its own code."""
    known = len(topic.schemas)
    if command.version == known + 1:
        return None
    is_known = 1 <= command.version <= known
    if is_known and topic.schemas[command.version - 1].data == command.schema:
        return refuse(
            MetadataCode.SCHEMA_REPEATED,
            stream=command.stream,
            topic=topic.name,
            version=command.version,
        )
    return refuse(
        MetadataCode.SCHEMA_NOT_NEXT,
        stream=command.stream,
        topic=topic.name,
        expected=command.version,
        found=known + 1,
    )


def _partitions(first: int, count: int, created: Revision) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(PartitionId(number), created) for number in range(first, first + count)
    )


def _stream_unknown(name: str) -> MetadataRefusal:
    return refuse(MetadataCode.STREAM_UNKNOWN, stream=rules.shown(name))
