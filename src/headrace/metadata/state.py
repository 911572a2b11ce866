"""The state of the metadata machine: streams and topics, as frozen values with indexes.

The values are arrays in the image, field by field in this order: docs/formats/metadata.md.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

import msgspec

from headrace.model.ids import GroupId, Op, Revision
from headrace.model.namespace import (
    Namespace,
    NamespaceLayout,
    PartitionId,
    StreamId,
    TopicId,
)
from headrace.model.revisions import Order, compare, counter_of, is_stamped, stamp

LINEAGE_MAX: Final = 1_024  # entries in the recorded history
# Deleted lives recorded per namespace. A shard that lags behind by more of them has an orphan,
# which is kept, not a life to remove.
DELETED_MAX: Final = 64
# From this level on, deletions are recorded, revisions are stamped and rise with retention, and
# the history of entries is recorded. See `commands.Level`.
RECORDING_LEVEL: Final = 2
# From this level on, Seals of shards write segments of format 2. Metadata is as before.
SEGMENT_LEVEL: Final = 3
LEVEL: Final = 3  # the newest that this release knows


class MetadataValue(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A value encoded as an array of exactly its fields."""


class RetentionLimits(MetadataValue, frozen=True):
    """How long and how much of each partition is kept; None: unlimited."""

    age_ms: int | None
    size: int | None  # bytes of one partition


FOREVER = RetentionLimits(None, None)


class SchemaVersion(MetadataValue, frozen=True):
    """One version of a topic's schema. The bytes are Arrow's, and opaque here."""

    id: int  # dense from 1 within its topic: 0 in an entry means no schema
    data: bytes  # an Arrow schema message, as IPC
    revision: Revision  # at which it was added
    added_at: int  # microseconds


class TopicPartition(MetadataValue, frozen=True):
    """One partition of a topic. (namespace, created) is never reused."""

    id: PartitionId
    created: Revision


class Stream(MetadataValue, frozen=True):
    """A tenant's folder of topics."""

    id: StreamId
    name: str
    created_at: int  # microseconds; 0 for the default stream, which always exists


class TopicMetadata(MetadataValue, frozen=True):
    """A user's log. All its partitions are in one shard; they are added, never removed."""

    stream_id: StreamId
    id: TopicId
    name: str
    created: Revision  # of the topic itself; partitions added later have their own
    created_at: int  # microseconds
    shard: GroupId
    retention: RetentionLimits
    options: tuple[tuple[str, str], ...]  # sorted by name, each name once
    schemas: tuple[SchemaVersion, ...]  # by id, at least one
    partitions: tuple[TopicPartition, ...]  # by id, at least one

    @property
    def key(self) -> tuple[StreamId, TopicId]:
        return self.stream_id, self.id


@dataclass(frozen=True, slots=True)
class MetadataTarget:
    """The committed target of one partition: everything that a reconciler compares."""

    created: Revision
    topic_created: Revision
    shard: GroupId
    schemas: tuple[SchemaVersion, ...]


class Change(MetadataValue, frozen=True):
    """One entry that changed metadata, and the `revision` after it."""

    op: Op
    checksum: bytes
    revision: Revision


@dataclass(slots=True)
class FreeIds:
    """Allocates the lowest free ID. Depends only on the IDs in use."""

    next: int = 0  # no id from here on is in use
    _gaps: list[int] = field(default_factory=list)  # a heap of the free ids below `next`

    @classmethod
    def around(cls, used: Iterable[int]) -> "FreeIds":
        taken = set(used)
        end = max(taken, default=-1) + 1
        # A sorted list is a heap.
        return cls(end, [number for number in range(end) if number not in taken])

    def take(self) -> int:
        if self._gaps:
            return heappop(self._gaps)
        self.next += 1
        return self.next - 1

    def give_back(self, number: int) -> None:
        assert 0 <= number < self.next
        heappush(self._gaps, number)


@dataclass(slots=True)
class _Folder:
    """The content of a stream, by name."""

    topic_ids: dict[str, TopicId] = field(default_factory=dict)
    free: FreeIds = field(default_factory=FreeIds)


@dataclass(slots=True)
class MetadataState:
    """All streams and topics, with indexes. Queries change nothing."""

    layout: NamespaceLayout
    revision: Revision
    streams: dict[StreamId, Stream]
    topics: dict[tuple[StreamId, TopicId], TopicMetadata]
    level: int = 1
    # The deleted lives of each namespace, in that order, from level 2 on. An absent life
    # without such a record was never deleted: metadata has lost it. A life with an unstamped
    # revision that an operator gave up is negative.
    deleted: dict[Namespace, tuple[Revision, ...]] = field(default_factory=dict)
    # The newest entries that changed anything, from level 2 on: they identify its history.
    lineage: tuple[Change, ...] = ()
    partition_count: int = field(default=0, init=False, compare=False)
    _stream_ids: dict[str, StreamId] = field(default_factory=dict, init=False, compare=False)
    _folders: dict[StreamId, _Folder] = field(default_factory=dict, init=False, compare=False)
    _free: FreeIds = field(default_factory=FreeIds, init=False, compare=False)

    def __post_init__(self) -> None:
        """Build the indexes. Names must be unique, and each topic's stream must exist."""
        self._free = FreeIds.around(self.streams)
        for stream in self.streams.values():
            self._stream_ids[stream.name] = stream.id
            self._folders[stream.id] = _Folder()
        for topic in self.topics.values():
            self._folders[topic.stream_id].topic_ids[topic.name] = topic.id
            self.partition_count += len(topic.partitions)
        for folder in self._folders.values():
            folder.free = FreeIds.around(folder.topic_ids.values())

    def stream(self, name: str) -> Stream | None:
        stream_id = self._stream_ids.get(name)
        return None if stream_id is None else self.streams[stream_id]

    def topic(self, stream: str, name: str) -> TopicMetadata | None:
        stream_id = self._stream_ids.get(stream)
        if stream_id is None:
            return None
        topic_id = self._folders[stream_id].topic_ids.get(name)
        return None if topic_id is None else self.topics[stream_id, topic_id]

    def topic_by_id(self, stream_id: StreamId, topic_id: TopicId) -> TopicMetadata | None:
        return self.topics.get((stream_id, topic_id))

    def topics_of(self, stream_id: StreamId) -> list[TopicMetadata]:
        """Return a stream's topics by ID."""
        topic_ids = sorted(self._folders[stream_id].topic_ids.values())
        return [self.topics[stream_id, topic_id] for topic_id in topic_ids]

    def topic_count(self, stream_id: StreamId) -> int:
        return len(self._folders[stream_id].topic_ids)

    def partition_at(self, namespace: int) -> MetadataTarget | None:
        """Return the target at `namespace`, which may be any untrusted number."""
        if not self.layout.holds(namespace):
            return None
        stream_id, topic_id, partition_id = self.layout.unpack(Namespace(namespace))
        topic = self.topics.get((stream_id, topic_id))
        if topic is None or partition_id >= len(topic.partitions):
            return None
        return _target(topic, topic.partitions[partition_id])

    def target(self) -> dict[Namespace, MetadataTarget]:
        """Return the targets of all namespaces, in order.

        The targets and `deleted` are functions of `revision` within one log: they change only
        when it rises.
        """
        return {
            self.layout.pack(topic.stream_id, topic.id, partition.id): _target(topic, partition)
            for topic in self.topics_in_order()
            for partition in topic.partitions
        }

    def streams_in_order(self) -> Iterator[Stream]:
        return (self.streams[stream_id] for stream_id in sorted(self.streams))

    def topics_in_order(self) -> Iterator[TopicMetadata]:
        return (self.topics[key] for key in sorted(self.topics))

    def rise(self, checksum: bytes) -> Revision:
        """Raise the revision for a change of `target` by the entry with this checksum."""
        if self.level < RECORDING_LEVEL:
            self.revision = Revision(self.revision + 1)
        else:
            self.revision = stamp(counter_of(self.revision) + 1, checksum)
        return self.revision

    def remember(self, change: Change) -> None:
        """Add an entry to the recorded history of this state."""
        if self.level >= RECORDING_LEVEL:
            self.lineage = (*self.lineage[1 - LINEAGE_MAX :], change)

    def is_deleted(self, namespace: Namespace, created: Revision) -> bool:
        """Return whether the deletion of this very life is recorded.

        A record of a later life proves nothing: this life may be of a lost history.
        """
        return is_recorded(self.deleted.get(namespace, ()), created)

    def has_ended(self, namespace: Namespace, created: Revision, followed: Revision) -> bool:
        """Return whether a record refers to the life of a shard that has followed `followed`.

        Two histories of one log may both have used the same unstamped revision. A record of one
        applies to a life in a shard that has followed a stamp of this history, or that an
        operator gave up.
        """
        if is_stamped(created) or -created in self.deleted.get(namespace, ()):
            return self.is_deleted(namespace, created)
        is_kin = any(change.revision == followed for change in self.lineage)
        return is_kin and is_stamped(followed) and self.is_deleted(namespace, created)

    def order_of(self, revision: Revision) -> Order:
        """Return the order of any revision relative to this history, as far as recorded."""
        counter = counter_of(revision)
        for change in self.lineage if counter else ():
            if counter_of(change.revision) == counter and change.revision != revision:
                return Order.BRANCHED
        return compare(revision, self.revision)

    def add_stream(self, name: str, created_at: int) -> Stream:
        assert name not in self._stream_ids
        stream = Stream(StreamId(self._free.take()), name, created_at)
        self.streams[stream.id] = stream
        self._stream_ids[name] = stream.id
        self._folders[stream.id] = _Folder()
        return stream

    def remove_stream(self, stream: Stream) -> None:
        """Delete a stream and all its content."""
        for topic in self.topics_of(stream.id):
            self.remove_topic(topic)
        del self.streams[stream.id], self._stream_ids[stream.name], self._folders[stream.id]
        self._free.give_back(stream.id)

    def take_topic_id(self, stream_id: StreamId) -> TopicId:
        """Reserve the ID of a topic for the next `put_topic`."""
        return TopicId(self._folders[stream_id].free.take())

    def put_topic(self, topic: TopicMetadata) -> None:
        """Store a new or changed topic. Its name never changes."""
        before = self.topics.get(topic.key)
        assert before is None or before.name == topic.name
        self.partition_count += len(topic.partitions) - len(before.partitions if before else ())
        self.topics[topic.key] = topic
        self._folders[topic.stream_id].topic_ids[topic.name] = topic.id

    def remove_topic(self, topic: TopicMetadata) -> None:
        """Delete a topic, and record the deletion of each of its partitions."""
        for partition in topic.partitions if self.level >= RECORDING_LEVEL else ():
            namespace = self.layout.pack(topic.stream_id, topic.id, partition.id)
            record_deletion(self.deleted, namespace, partition.created)
        folder = self._folders[topic.stream_id]
        del self.topics[topic.key], folder.topic_ids[topic.name]
        folder.free.give_back(topic.id)
        self.partition_count -= len(topic.partitions)


def is_recorded(records: tuple[Revision, ...], created: Revision) -> bool:
    """Return whether a life is recorded as deleted or given up."""
    return created in records or -created in records


def record_deletion(
    deleted: dict[Namespace, tuple[Revision, ...]], namespace: Namespace, created: Revision
) -> None:
    """Record the deletion of a life; only the newest records are kept."""
    before = deleted.get(namespace, ())
    if created not in before:
        deleted[namespace] = (*before, created)[-DELETED_MAX:]


def _target(topic: TopicMetadata, partition: TopicPartition) -> MetadataTarget:
    return MetadataTarget(partition.created, topic.created, topic.shard, topic.schemas)
