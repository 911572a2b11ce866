"""Applies `Adopt` to a state: a new state with the shards' orphans, or a refusal."""

from collections.abc import Iterator, Sequence

import msgspec

from headrace.metadata import rules
from headrace.metadata.commands import (
    Adopt,
    AdoptedEnd,
    AdoptedMore,
    AdoptedPartition,
    AdoptedStream,
    AdoptedTopic,
)
from headrace.metadata.results import MetadataCode, MetadataRefusal, refuse
from headrace.metadata.rules import PARTITIONS_MAX, MetadataLimits
from headrace.metadata.state import (
    FOREVER,
    RECORDING_LEVEL,
    MetadataState,
    SchemaVersion,
    Stream,
    TopicMetadata,
    TopicPartition,
    is_recorded,
    record_deletion,
)
from headrace.model.ids import Revision
from headrace.model.namespace import PartitionId, StreamId, TopicId
from headrace.model.revisions import COUNTER_MAX, counter_of, is_stamped, stamp
from headrace.model.units import MILLISECOND, format_duration, format_size


class _Unfit(Exception):
    """Something cannot be adopted: the whole command is refused."""

    def __init__(self, what: str, flaw: str) -> None:
        super().__init__(what)
        self.refused = refuse(MetadataCode.NOT_ADOPTED, what=rules.shown(what), flaw=flaw)


def adopt(
    state: MetadataState,
    command: Adopt,
    timestamp: int,
    checksum: bytes,
    limits: MetadataLimits,
) -> MetadataState | MetadataRefusal:
    """Return the state after the command. Existing content is not changed."""
    counter = max(counter_of(state.revision), counter_of(command.floor)) + 1
    if counter > COUNTER_MAX or command.floor < 0:
        return refuse(
            MetadataCode.NOT_ADOPTED, what="the floor", flaw="no revision is above it"
        )
    work = _Adoption(state, stamp(counter, checksum), timestamp, limits)
    try:
        for end in command.ended:
            work.end(end)
        for stream in command.streams:
            work.stream(stream)
        for topic in command.topics:
            work.topic(topic)
        for more in command.more:
            work.more(more)
        work.check()
    except _Unfit as unfit:
        return unfit.refused
    work.suspend_retention()
    level = max(state.level, RECORDING_LEVEL)
    return MetadataState(
        state.layout, work.revision, work.streams, work.topics, level, work.deleted
    )


class _Adoption:
    """The streams and topics of the new state."""

    def __init__(
        self, state: MetadataState, revision: Revision, timestamp: int, limits: MetadataLimits
    ) -> None:
        self.state, self.revision = state, revision
        self.timestamp, self.limits = timestamp, limits
        # A record of an unstamped revision may be of another history than the shards'.
        sure = {
            namespace: tuple(one for one in lives if one < 0 or is_stamped(one))
            for namespace, lives in state.deleted.items()
        }
        self.deleted = {namespace: lives for namespace, lives in sure.items() if lives}
        self.streams: dict[StreamId, Stream] = dict(state.streams)
        self.topics: dict[tuple[StreamId, TopicId], TopicMetadata] = dict(state.topics)

    def end(self, wanted: AdoptedEnd) -> None:
        """Delete a topic, with records; a different topic with this ID is kept."""
        key = (wanted.stream_id, wanted.topic_id)
        topic = self.topics.get(key)
        if topic is None or topic.created != wanted.created:
            return
        del self.topics[key]
        for one in topic.partitions:
            if not is_stamped(one.created):
                continue  # its shard has closed it; an unstamped revision proves no more
            namespace = self.state.layout.pack(topic.stream_id, topic.id, one.id)
            record_deletion(self.deleted, namespace, one.created)

    def stream(self, wanted: AdoptedStream) -> None:
        known = self.streams.get(wanted.id)
        if known is not None and known.name == wanted.name:
            return
        flaw = rules.name("stream", wanted.name)
        if known is not None or not 0 <= wanted.id <= self.state.layout.stream_id_max:
            raise _Unfit(wanted.name, f"stream id {wanted.id} is taken, or is none")
        if flaw is not None or wanted.name in {one.name for one in self.streams.values()}:
            raise _Unfit(wanted.name, "a stream cannot have this name, or has it already")
        self.streams[wanted.id] = Stream(wanted.id, wanted.name, self.timestamp)

    def topic(self, wanted: AdoptedTopic) -> None:
        key = (wanted.stream_id, wanted.id)
        known = self.topics.get(key)
        if known is not None and known.created == wanted.created:
            return
        flaw = self._topic_flaw(wanted)
        if known is not None or flaw:
            raise _Unfit(wanted.name, flaw or "another topic has its id")
        made = TopicMetadata(
            wanted.stream_id,
            wanted.id,
            wanted.name,
            wanted.created,
            self.timestamp,
            wanted.shard,
            FOREVER,
            (),
            (),
            (),
        )
        schemas = self._schemas(made, wanted.schemas)
        self.topics[key] = msgspec.structs.replace(
            made, schemas=schemas, partitions=self._partitions(made, wanted.partitions)
        )

    def _topic_flaw(self, wanted: AdoptedTopic) -> str:
        in_stream = [one for one in self.topics.values() if one.stream_id == wanted.stream_id]
        if wanted.stream_id not in self.streams:
            return "its stream is not there"
        if not 0 <= wanted.id <= self.state.layout.topic_id_max:
            return "its id is none"
        if rules.name("topic", wanted.name) or wanted.name in {one.name for one in in_stream}:
            return "a topic cannot have this name, or has it already"
        if rules.shard(wanted.shard) is not None or self.limits.topic(len(in_stream)):
            return "its shard is none, or its stream is full"
        if not (wanted.schemas and wanted.partitions and self._is_past(wanted.created)):
            return "it has no schema, no partition or no revision of before"
        return ""

    def more(self, wanted: AdoptedMore) -> None:
        key = (wanted.stream_id, wanted.topic_id)
        topic = self.topics.get(key)
        if topic is None or topic.created != wanted.created:
            raise _Unfit(f"topic {key}", "it is not there, or is another one")
        self.topics[key] = msgspec.structs.replace(
            topic,
            schemas=self._schemas(topic, wanted.schemas),
            partitions=self._partitions(topic, wanted.partitions),
        )

    def _schemas(
        self, topic: TopicMetadata, added: Sequence[bytes]
    ) -> tuple[SchemaVersion, ...]:
        known = topic.schemas
        if added and tuple(one.data for one in known[-len(added) :]) == tuple(added):
            return known  # a repeat
        if any(rules.schema(data) for data in added):
            raise _Unfit(topic.name, "one of its schemas is none")
        if rules.schema_count(len(known) + len(added)) is not None:
            raise _Unfit(topic.name, "it has more schemas than a topic may have")
        return known + tuple(
            SchemaVersion(version, data, self.revision, self.timestamp)
            for version, data in enumerate(added, len(known) + 1)
        )

    def _partitions(
        self, topic: TopicMetadata, added: Sequence[AdoptedPartition]
    ) -> tuple[TopicPartition, ...]:
        found = {one.id: one.created for one in topic.partitions}
        for one in added:
            if one.created < 0:
                self._close(topic, found, one)
                continue
            if not 0 <= one.id <= self.state.layout.partition_id_max:
                raise _Unfit(topic.name, f"it cannot have a partition {one.id}")
            namespace = self.state.layout.pack(topic.stream_id, topic.id, one.id)
            records = self.deleted.get(namespace, ())
            deleted = is_recorded(records, one.created)
            if found.setdefault(one.id, one.created) != one.created:
                raise _Unfit(topic.name, f"its partition {one.id} is another one")
            if deleted or not self._is_past(one.created):
                raise _Unfit(topic.name, f"its partition {one.id} was deleted, or is to come")
        present = len(topic.partitions)
        count = max(present, max(found, default=-1) + 1)
        if count > present:
            everywhere = sum(len(one.partitions) for one in self.topics.values())
            refused = self.limits.partitions(
                count - present, present=present, everywhere=everywhere
            )
            if refused is not None:
                raise _Unfit(topic.name, "there would be too many partitions")
        return tuple(_dense(found, count, self.revision))

    def _close(
        self,
        topic: TopicMetadata,
        found: dict[PartitionId, Revision],
        closed: AdoptedPartition,
    ) -> None:
        """End a life that the shard has closed; a different life of this number is kept."""
        created = Revision(-closed.created)
        if found.get(closed.id) != created:
            return
        del found[closed.id]
        if is_stamped(created):
            namespace = self.state.layout.pack(topic.stream_id, topic.id, closed.id)
            record_deletion(self.deleted, namespace, created)

    def _is_past(self, created: Revision) -> bool:
        return created >= 1 and counter_of(created) < counter_of(self.revision)

    def suspend_retention(self) -> None:
        """Keep all rows: the recorded retention may be out of date."""
        for key, topic in self.topics.items():
            self.topics[key] = msgspec.structs.replace(topic, retention=FOREVER)

    def check(self) -> None:
        if len(self.streams) > self.limits.streams_max:
            raise _Unfit("the streams", "there would be too many")
        if sum(len(one.partitions) for one in self.topics.values()) > PARTITIONS_MAX:
            raise _Unfit("the partitions", "there would be too many")


def suspended(name: str, age_ms: int | None, size: int | None) -> str:
    """Say that a topic keeps all its rows now, and how to set its retention again."""
    limits = [] if age_ms is None else [format_duration(age_ms * MILLISECOND)]
    limits += [] if size is None else [format_size(size)]
    return (
        "all its rows, as its recorded retention may be out of date. "
        f"`headrace topic alter {name} --retention {','.join(limits)}` restores it"
    )


def _dense(
    found: dict[PartitionId, Revision], count: int, revision: Revision
) -> Iterator[TopicPartition]:
    """Yield all partitions up to the highest; missing ones are new and empty."""
    for number in map(PartitionId, range(count)):
        yield TopicPartition(number, found.get(number, revision))
