"""The topics that a salvage creates, from what metadata and shards still know.

The metadata names them. Where a part of it is lost, a shard still knows a topic's schemas and
rows: that topic goes into the stream `salvaged`, under its number.
"""

from dataclasses import dataclass, field

from headrace.doctor.findings.log_findings import LogSight, metadata_findings, uncounted
from headrace.doctor.findings.names import LOST_STREAM, Names
from headrace.doctor.look.shard_look import ShardSight
from headrace.metadata.state import FOREVER, RetentionLimits
from headrace.metadata.state import TopicMetadata as MetadataTopic
from headrace.model.ids import GroupId
from headrace.model.namespace import Namespace
from headrace.node.doubt.doubt import is_own
from headrace.partition.machine.state import Partition, TopicState


@dataclass(slots=True)
class TopicPlan:
    """One topic to create, and the partitions that have its rows."""

    stream: str
    name: str
    shard: GroupId
    schemas: tuple[bytes, ...]  # by version, from 1
    partition_count: int
    retention: RetentionLimits = FOREVER
    options: tuple[tuple[str, str], ...] = ()
    created_at: int = 0
    sources: dict[int, tuple[ShardSight, Partition]] = field(default_factory=dict)
    is_unnamed: bool = False  # its name, retention and options are lost

    @property
    def full_name(self) -> str:
        return f"{self.stream}/{self.name}"


@dataclass(slots=True)
class Plans:
    """All topics, and what is left out on purpose."""

    topics: list[TopicPlan] = field(default_factory=list)
    streams: list[tuple[str, int]] = field(default_factory=list)  # with their times
    lost: list[str] = field(default_factory=list)  # beside rows
    words: list[str] = field(default_factory=list)  # what a person should know


def plan_topics(log: LogSight) -> Plans:
    """Decide which topics to create."""
    plans = Plans()
    is_complete = log.metadata is not None and not any(uncounted(metadata_findings(log)))
    _add_named(log, plans, is_complete)
    known = {id(one) for each in plans.topics for _, one in each.sources.values()}
    for number, shard in log.shards.items():
        _add_unnamed(log, number, shard, known, plans)
    _tell_metadata(log, plans)
    return plans


def _add_named(log: LogSight, plans: Plans, is_complete: bool) -> None:
    state = log.names.metadata
    if state is None:
        return
    plans.streams = [(one.name, one.created_at) for one in state.streams_in_order()]
    for topic in state.topics_in_order():
        plan = TopicPlan(
            state.streams[topic.stream_id].name,
            topic.name,
            topic.shard,
            tuple(each.data for each in topic.schemas),
            len(topic.partitions),
            topic.retention,
            topic.options,
            topic.created_at,
        )
        shard = log.shards.get(topic.shard)
        if shard is not None:
            _find_partitions(log.names, topic, shard, plan)
        if shard is not None and not is_complete:
            _add_forgotten(log.names, topic, shard, plan)
        plans.topics.append(plan)


def _find_partitions(
    names: Names, topic: MetadataTopic, shard: ShardSight, plan: TopicPlan
) -> None:
    """Find the life that the metadata means, not an earlier one with the same number."""
    if shard.replayed is None or names.metadata is None:
        return
    state = shard.replayed.machine.state
    for each in topic.partitions:
        namespace = names.layout.pack(topic.stream_id, topic.id, each.id)
        target, found = names.metadata.partition_at(namespace), state.partitions.get(namespace)
        if found is not None and is_own(target, topic.shard, state, found):
            plan.sources[each.id] = (shard, found)


def _add_forgotten(
    names: Names, topic: MetadataTopic, shard: ShardSight, plan: TopicPlan
) -> None:
    """Add schemas and partitions of a topic that the metadata has lost but its shard has."""
    if shard.replayed is None:
        return
    state = shard.replayed.machine.state
    first = names.layout.pack(topic.stream_id, topic.id, topic.partitions[0].id)
    known = state.topics.get(state.topic_number(first))
    if known is None or known.created != topic.created:
        return
    pairs = zip(known.schemas, topic.schemas, strict=False)
    if any(ours.schema != theirs.data for ours, theirs in pairs):
        return  # another history, in which another topic had this number
    if known.newest > len(plan.schemas):
        plan.schemas = tuple(each.schema for each in known.schemas)
    for one in state.partitions_of(known):
        number = names.layout.unpack(one.namespace).partition_id
        if number >= len(topic.partitions):
            plan.sources[number] = (shard, one)
            plan.partition_count = max(plan.partition_count, number + 1)


def _add_unnamed(
    log: LogSight,
    number: GroupId,
    shard: ShardSight,
    known: set[int],
    plans: Plans,
) -> None:
    """Add topics that only the shard knows, unless the metadata records their deletion."""
    if shard.replayed is None:
        return
    state = shard.replayed.machine.state
    for topic in state.topics.values():
        partitions = [one for one in state.partitions_of(topic) if id(one) not in known]
        if not partitions:
            continue
        metadata = log.names.metadata
        if metadata is not None and all(
            metadata.has_ended(Namespace(one.namespace), one.created, state.revision)
            for one in partitions
        ):
            name = log.names.name(partitions[0].namespace, topic.created)
            plans.words.append(f"{name} was deleted; its rows are not copied")
            continue
        plan = _unnamed(log.names, number, shard, topic, partitions)
        if plan.full_name in {one.full_name for one in plans.topics}:
            plan.name = f"{plan.name}-shard-{number}"  # two histories both gave this count
        plans.topics.append(plan)
        plans.lost.append(
            f"the name, the retention and the key of a topic: its rows are in {plan.full_name}"
        )


def _unnamed(
    names: Names, number: GroupId, shard: ShardSight, topic: TopicState, found: list[Partition]
) -> TopicPlan:
    ids = {names.layout.unpack(one.namespace).partition_id: one for one in found}
    stream_id, topic_id, _ = names.layout.unpack(found[0].namespace)
    return TopicPlan(
        LOST_STREAM,
        f"topic-{stream_id}-{topic_id}-{topic.created}",
        number,
        tuple(each.schema for each in topic.schemas),
        max(ids) + 1,
        sources={one: (shard, partition) for one, partition in ids.items()},
        is_unnamed=True,
    )


def _tell_metadata(log: LogSight, plans: Plans) -> None:
    metadata = log.metadata
    if metadata is None:
        plans.lost.append("the names of all topics: none of the metadata can be read")
        return
    if metadata.hole is None and metadata.broken_at is None:
        return
    first = metadata.hole.first if metadata.hole is not None else metadata.broken_at
    plans.lost.append(f"topic changes from op {first:,} of the metadata on")
    if metadata.names_behind:
        names = ", ".join(metadata.names_behind)
        plans.words.append(f"topics were created after that, named {names}")
