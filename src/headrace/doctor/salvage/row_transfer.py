"""Writes the rows of a damaged log into a new one, and compares each after writing."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.doctor.examine import Tell
from headrace.doctor.findings.finding import Finding, count, ops
from headrace.doctor.findings.log_findings import LogSight, log_findings, uncounted
from headrace.doctor.look.replay import Hole
from headrace.doctor.look.row_sources import Missing, RowSource, Salvaged
from headrace.doctor.look.segments import SegmentState, SegmentTask
from headrace.doctor.look.shard_look import ShardSight
from headrace.doctor.rebuild.rebuild_findings import rebuilt_losses, rebuilt_words
from headrace.doctor.rebuild.timeline import OffsetDoubt
from headrace.doctor.salvage.new_log import NewLog
from headrace.doctor.salvage.salvage_report import Account, CursorMoved, PartitionAccount, Tally
from headrace.doctor.salvage.topic_plans import Plans, TopicPlan
from headrace.errors import (
    CorruptFile,
)
from headrace.metadata.commands import AddSchema, CreateStream, CreateTopic
from headrace.metadata.state import TopicMetadata
from headrace.model.ids import GroupId, Offset, Revision
from headrace.model.namespace import DEFAULT_STREAM, Namespace
from headrace.model.proposal import EntryProposal
from headrace.model.row_digest import RowDigest
from headrace.model.schema import upgrade
from headrace.node.identity import GROUPS, group_name
from headrace.partition.machine.operations import (
    APPEND,
    OpenPartition,
    Schema,
    SetSchema,
    StoreCursor,
)
from headrace.partition.machine.state import Partition
from headrace.partition.reader import Key
from headrace.partition.segments.entry_rows import EntryPlace, Schemas, placed
from headrace.partition.segments.segment import segment_schema

States = dict[GroupId, dict[str, tuple[SegmentTask, SegmentState]]]


@dataclass(slots=True)
class _Target:
    """One partition of the new log."""

    source: RowSource | None
    namespace: Namespace
    created: Revision
    number: int
    tally: Tally
    digest: RowDigest
    writer: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    version: int = 0
    pending: Salvaged | Missing | None = None  # read from the source, for a later schema


@dataclass(slots=True)
class RowTransfer:
    """Writes the provable rows of one log into another, topic by topic."""

    log: LogSight
    states: States
    plans: Plans
    new: NewLog
    source: str  # the directories, as they were named
    target: str
    tell: Tell
    done_count: int = 0
    total_count: int = 0

    def run(self) -> Account:
        self.total_count = sum(
            one.end - one.first
            for plan in self.plans.topics
            for _, one in plan.sources.values()
        )
        self._make_streams()
        accounts: list[PartitionAccount] = []
        for plan in self.plans.topics:
            accounts += self._topic(plan)
        assert self.log.who.cluster is not None
        gone = [one for each in accounts for one in each.missing]
        return Account(
            path=self.source,
            new_path=self.target,
            cluster=self.log.who.cluster.identity.cluster.hex(),
            new_cluster=self.new.cluster.identity.cluster.hex(),
            rows=sum(one.rows for one in accounts),
            missing_rows=sum(one.end - one.start for one in gone),
            partitions=accounts,
            lost=[*self.plans.lost, *_lost(self.log)],
            notes=[*self.plans.words, *_words(self.log)],
        )

    def _make_streams(self) -> None:
        known = dict(self.plans.streams)
        for plan in self.plans.topics:
            known.setdefault(plan.stream, 0)
        for name, created_at in known.items():
            if name != DEFAULT_STREAM:
                self.new.command(CreateStream(name), created_at)

    def _make_topic(self, plan: TopicPlan) -> TopicMetadata:
        command = CreateTopic(
            plan.stream,
            plan.name,
            plan.schemas[0],
            plan.partition_count,
            plan.shard,
            plan.retention,
            plan.options,
        )
        self.new.command(command, plan.created_at)
        topic = self.new.state.topic(plan.stream, plan.name)
        assert topic is not None
        for version, schema in enumerate(plan.schemas[1:], start=2):
            more = AddSchema(plan.stream, plan.name, topic.created, version, schema)
            self.new.command(more, plan.created_at)
        made = self.new.state.topic(plan.stream, plan.name)
        assert made is not None
        return made

    def _topic(self, plan: TopicPlan) -> list[PartitionAccount]:
        topic = self._make_topic(plan)
        encoded = dict(enumerate(plan.schemas, start=1))
        schemas = Schemas.decode(encoded, plan.full_name)
        targets = self._targets(plan, topic, schemas)
        first = _first_version(plan)
        self._open(plan, topic, targets, first)
        steps = {one.number: _steps(one) for one in targets}
        for version in range(first, len(plan.schemas) + 1):
            if version > first:
                self._set_schema(plan, topic, version)
            for target in targets:
                self._take(plan, target, steps[target.number], version, schemas)
        self.new.shards[plan.shard].flush()
        accounts = [self._finish(plan, target) for target in targets]
        self.new.shards[plan.shard].flush()
        self._read_back(plan, targets)
        return accounts

    def _targets(
        self, plan: TopicPlan, topic: TopicMetadata, schemas: Schemas
    ) -> list[_Target]:
        shape = segment_schema(schemas.user(len(plan.schemas)))
        found = []
        for each in topic.partitions:
            namespace = self.new.state.layout.pack(topic.stream_id, topic.id, each.id)
            source = None
            doubts: list[OffsetDoubt] = []
            if each.id in plan.sources:
                shard, partition = plan.sources[each.id]
                states = self.states[shard.group.identity.group]
                source = RowSource(shard, partition, schemas, states)
                doubts = _doubts(shard, partition)
            found.append(
                _Target(
                    source, namespace, each.created, each.id, Tally(doubts), RowDigest(shape)
                )
            )
        return found

    def _open(
        self, plan: TopicPlan, topic: TopicMetadata, targets: list[_Target], version: int
    ) -> None:
        schemas = tuple(
            Schema(number, data) for number, data in enumerate(plan.schemas[:version], start=1)
        )
        for target in targets:
            opening = OpenPartition(self.new.state.revision, topic.created, schemas)
            self.new.shard_command(plan.shard, opening, target.namespace, target.created)

    def _set_schema(self, plan: TopicPlan, topic: TopicMetadata, version: int) -> None:
        """Put the next schema in force for the whole topic, as in the old log."""
        first = self.new.state.layout.pack(topic.stream_id, topic.id, topic.partitions[0].id)
        command = SetSchema(version, plan.schemas[version - 1])
        self.new.shard_command(plan.shard, command, first, topic.created)

    def _take(
        self,
        plan: TopicPlan,
        target: _Target,
        steps: Iterator[Salvaged | Missing],
        version: int,
        schemas: Schemas,
    ) -> None:
        """Write the rows of one partition up to the last one with schema `version`."""
        while True:
            step = target.pending or next(steps, None)
            target.pending = None
            if step is None:
                return
            if isinstance(step, Missing):
                target.tally.lose(step.start, step.end, step.why)
            elif step.version > version:
                target.pending = step
                return
            else:
                self._append(plan, target, step, schemas)
            self.done_count += step.end - step.start
            self.tell("writing rows", self.done_count, self.total_count)

    def _append(
        self, plan: TopicPlan, target: _Target, step: Salvaged, schemas: Schemas
    ) -> None:
        start = Offset(target.tally.next)
        target.version += 1
        proposal = EntryProposal(
            APPEND,
            step.body,
            writer=target.writer,
            version=target.version,
            namespace=target.namespace,
            created=target.created,
            schema_id=step.schema_id,
            row_count=step.rows.num_rows,
        )
        self.new.shards[plan.shard].put(proposal, step.timestamp, start)
        target.tally.add(step.start, step.end, step.home)
        newest = upgrade(step.rows, schemas.user(len(plan.schemas)))
        target.digest.update(placed(newest, EntryPlace(target.number, start, step.timestamp)))

    def _finish(self, plan: TopicPlan, target: _Target) -> PartitionAccount:
        """Copy the cursors, and complete the account of a partition."""
        tally, moved = target.tally, []
        partition = target.source.partition if target.source is not None else None
        for group, cursor in sorted(partition.cursors.items()) if partition else ():
            following = Offset(tally.moved(cursor.next))
            command = StoreCursor(group, following, cursor.generation, cursor.hold)
            self.new.shard_command(plan.shard, command, target.namespace, target.created)
            moved.append(CursorMoved(group, cursor.next, following))
        return PartitionAccount(
            topic=plan.full_name,
            partition=target.number,
            rows=tally.next,
            old_first=partition.first if partition else 0,
            old_end=partition.end if partition else 0,
            ranges=tally.ranges,
            missing=tally.missing,
            cursors=moved,
            unsure_from=tally.unsure_from,
            homes=dict(tally.homes),
            rebuilt=target.source is not None and target.source.shard.rebuilt is not None,
        )

    def _read_back(self, plan: TopicPlan, targets: list[_Target]) -> None:
        """Read every row of a topic from the new log, and compare."""
        reader = self.new.stores[plan.shard].reader
        for target in targets:
            key = Key(target.namespace, target.created)
            digest = RowDigest(target_schema(plan))
            for rows in reader.read(key, Offset(0), Offset(target.tally.next)):
                digest.update(rows)
            if digest.digest() != target.digest.digest():
                raise CorruptFile(
                    "the rows read back differ from the rows written",
                    path=f"{plan.full_name} partition {target.number}",
                    hint="Do not use the new log; check the disk it is on",
                )


def target_schema(plan: TopicPlan) -> pa.Schema:
    """Return the columns used to compare a topic's rows."""
    newest = len(plan.schemas)
    decoded = Schemas.decode({newest: plan.schemas[-1]}, plan.full_name)
    return segment_schema(decoded.user(newest))


def _steps(target: _Target) -> Iterator[Salvaged | Missing]:
    return iter(()) if target.source is None else target.source.steps()


def _first_version(plan: TopicPlan) -> int:
    """Return the oldest schema version in force at any retained row."""
    found = [one.versions[0][0] for _, one in plan.sources.values() if one.first < one.end]
    return min(found, default=len(plan.schemas))


def _doubts(shard: ShardSight, partition: Partition) -> list[OffsetDoubt]:
    """Return the offsets that may have been higher, by the replay and by the rebuild."""
    assert shard.replayed is not None
    found = [] if shard.rebuilt is None else shard.rebuilt.doubts.get(partition.namespace, [])
    unsure = shard.replayed.unsure.get(partition.namespace)
    return found if unsure is None else [*found, OffsetDoubt(unsure, None)]


def _lost(log: LogSight) -> Iterator[str]:
    """Name the losses that cannot be counted in rows: from findings, then from the replay."""
    findings = log_findings(log, {})
    yield from uncounted(findings)
    for number, shard in log.shards.items():
        where = f"{GROUPS}/{group_name(number)}"
        own = [one for one in findings if one.file == where or one.file.startswith(f"{where}/")]
        yield from rebuilt_losses(where, shard, log.names)
        if shard.replayed is None:
            continue
        for hole in shard.replayed.holes:
            if not any(_is_told(hole, one) for one in own):
                said = ops(hole.first, hole.last)
                yield f"{where}, {said}: contents unknown"
        if shard.replayed.placeless_count:
            rows = count(shard.replayed.placeless_count, "row")
            yield f"{where}: {rows} of an unknown partition or writer"


def _words(log: LogSight) -> Iterator[str]:
    for number, shard in log.shards.items():
        yield from rebuilt_words(f"{GROUPS}/{group_name(number)}", shard, log.names)


def _is_told(hole: Hole, one: Finding) -> bool:
    if one.is_counted:
        return False
    if one.kind == "group-gone":
        return True
    if one.first_op is None:
        return False
    is_within = one.last_op is None or hole.last <= one.last_op
    return one.first_op <= hole.first and is_within
