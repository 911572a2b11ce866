"""The operator's way out of doubt: adopt orphans, or give them up.

The fate of each orphan is decided here, from metadata and all shards as they are on the loop;
apply refuses the whole command if they have changed. Only then is a held group 0 opened, with
the decision in it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, count

from headrace.errors import BadRequest, HeadraceError, NotReady, Rejected
from headrace.metadata import results
from headrace.metadata.adoption import suspended
from headrace.metadata.commands import (
    Adopt,
    AdoptedEnd,
    AdoptedMore,
    AdoptedPartition,
    AdoptedStream,
    AdoptedTopic,
    Command,
    ForgetLife,
)
from headrace.metadata.state import (
    FOREVER,
    RECORDING_LEVEL,
    MetadataState,
    TopicMetadata,
    TopicPartition,
)
from headrace.model.ids import GroupId, Revision
from headrace.model.namespace import (
    Namespace,
    PartitionId,
    StreamId,
    TopicId,
    TopicName,
    check_name,
)
from headrace.model.revisions import is_within, shown
from headrace.node.doubt.doubt import Doubt, Orphan
from headrace.node.doubt.held import HeldMetadata
from headrace.node.requests.catalog import Answer, Catalog
from headrace.node.requests.outcomes import metadata_error
from headrace.partition.machine import state as partitions
from headrace.partition.machine.state import PartitionsState
from headrace.wire import topic_messages as wire
from headrace.wire.messages import OrphanRequest


@dataclass(slots=True)
class AdoptionPlan:
    """The plan of an adoption, as a command and in words."""

    metadata: MetadataState
    names: Mapping[Namespace, str]  # chosen by the operator
    orphaned: Set[Namespace]  # partitions that shards have and metadata does not
    ended: dict[tuple[int, int], AdoptedEnd] = field(default_factory=dict)
    streams: dict[StreamId, AdoptedStream] = field(default_factory=dict)
    topics: dict[tuple[int, int], AdoptedTopic] = field(default_factory=dict)
    more: list[AdoptedMore] = field(default_factory=list)
    # Partitions whose lives their shard has closed but metadata still has.
    closed: dict[tuple[StreamId, TopicId], dict[PartitionId, Revision]] = field(
        default_factory=dict
    )
    adopted: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    named: set[Namespace] = field(default_factory=set)  # whose chosen name was given to a topic

    def command(self, floor: Revision) -> Adopt:
        merged = {(one.stream_id, one.topic_id) for one in self.more}
        closed = [one for one in self.endings() if (one.stream_id, one.topic_id) not in merged]
        return Adopt(
            floor,
            tuple(self.ended.values()),
            tuple(self.streams.values()),
            tuple(self.topics.values()),
            (*closed, *self.more),
        )

    def endings(self, but: Namespace | None = None) -> Iterator[AdoptedMore]:
        """Yield what ends the closed lives, except where an orphan has the number.

        Its number must stay free for it: a new life there could not be replaced. `but` is an
        orphan that is given up.
        """
        taken = self.orphaned - {but}
        for key in self.closed:
            topic = self.metadata.topics[key]
            ended = self._ended(topic, taken)
            if ended:
                yield AdoptedMore(topic.stream_id, topic.id, topic.created, (), ended)

    def _ended(
        self, topic: TopicMetadata, taken: Collection[Namespace | None]
    ) -> tuple[AdoptedPartition, ...]:
        layout, closed = self.metadata.layout, self.closed.get(topic.key, {})
        return tuple(
            AdoptedPartition(number, Revision(-created))
            for number, created in closed.items()
            if layout.pack(topic.stream_id, topic.id, number) not in taken
        )

    def end(self, shard: GroupId, state: PartitionsState) -> None:
        """Take over deletions that a shard has applied but metadata has lost."""
        for topic in self.metadata.topics_in_order():
            closed, total = _closed(self.metadata, state, topic), len(topic.partitions)
            if topic.shard != shard or not closed:
                continue
            if len(closed) == total:
                self.ended[topic.key] = AdoptedEnd(topic.stream_id, topic.id, topic.created)
                self.adopted.append(
                    f"{self._full(topic)} (its deletion, which shard {shard} has applied)"
                )
                continue
            self.closed[topic.key] = {one.id: one.created for one in closed}
            numbers = ", ".join(str(one.id) for one in closed)
            self.adopted.append(
                f"{self._full(topic)} (the deletion of {_noun(len(closed), 'partition')} "
                f"{numbers}, which shard {shard} has applied: offsets begin at 0 there, so "
                "reset the tables and Spark checkpoints that were filled from it)"
            )

    def suspend(self) -> None:
        """List the topics with retention: it may be out of date, so it is suspended."""
        for topic in self.metadata.topics_in_order():
            if topic.retention != FOREVER and topic.key not in self.ended:
                name, kept = self._full(topic), topic.retention
                self.adopted.append(f"{name}: {suspended(name, kept.age_ms, kept.size)}")

    def take(
        self,
        shard: GroupId,
        state: PartitionsState,
        lost: partitions.TopicState,
        own: list[Orphan],
    ) -> None:
        """Decide the fate of the partitions of one topic in a shard."""
        layout = self.metadata.layout
        first = Namespace(lost.number << state.partition_bits)
        stream_id, topic_id, _ = layout.unpack(first)
        known = self.metadata.topic_by_id(stream_id, topic_id)
        if (stream_id, topic_id) in self.ended:
            known = None
        found = tuple(
            AdoptedPartition(layout.unpack(one.key.namespace).partition_id, one.key.created)
            for one in own
        )
        schemas = tuple(each.schema for each in lost.schemas)
        if known is None and (stream_id, topic_id) not in self.topics:
            otherwise = f"recovered-{topic_id}-{shown(lost.created)}"
            name = self._name(stream_id, own, otherwise)
            stream = self._stream(stream_id)
            self.topics[stream_id, topic_id] = AdoptedTopic(
                stream_id, topic_id, name, lost.created, shard, schemas, found
            )
            self.adopted.append(f"{stream}/{name} ({_in_words(shard, own)})")
        elif known is not None and _is_same(known, shard, lost, schemas):
            self._take_more(known, shard, schemas, found, own)
        else:
            there = "another topic" if known is None else f"topic {self._full(known)}"
            self.left.append(
                f"{_in_words(shard, own)}: {there} has its IDs. Copy its rows into a new log "
                "with `headrace doctor --salvage`"
            )

    def _take_more(
        self,
        known: TopicMetadata,
        shard: GroupId,
        schemas: tuple[bytes, ...],
        found: tuple[AdoptedPartition, ...],
        own: list[Orphan],
    ) -> None:
        added = schemas[len(known.schemas) :]
        if not added and not found:
            return
        free = self.closed.get(known.key, {})
        if any(one.id < len(known.partitions) and one.id not in free for one in found):
            self.left.append(
                f"{_in_words(shard, own)}: topic {self._full(known)} has other partitions with "
                "these numbers. Copy its rows into a new log with `headrace doctor --salvage`"
            )
            return
        adopted = {one.key.namespace for one in own}
        partitions = (*self._ended(known, self.orphaned - adopted), *found)
        more = AdoptedMore(known.stream_id, known.id, known.created, added, partitions)
        self.more.append(more)
        what = [_in_words(shard, own)] if own else []
        what += [_count(len(added), "schema")] if added else []
        self.adopted.append(f"{self._full(known)} ({'; '.join(what)})")

    def _name(self, stream_id: StreamId, own: list[Orphan], otherwise: str) -> str:
        named = {one.key.namespace for one in own if one.key.namespace in self.names}
        chosen = {self.names[namespace] for namespace in named}
        if len(chosen) > 1:
            raise BadRequest(
                f"partitions {_listed(named)} belong to one topic, which got two names: "
                f"{', '.join(sorted(chosen))}",
                hint="Name only one of them",
            )
        self.named |= named
        taken = {
            one.name
            for one in self.metadata.topics.values()
            if one.stream_id == stream_id and one.key not in self.ended
        }
        taken |= {one.name for key, one in self.topics.items() if key[0] == stream_id}
        if not chosen:
            return _free(otherwise, taken | set(self.names.values()))
        name = check_name("topic", chosen.pop())
        if name in taken:
            raise BadRequest(
                f"stream {self._stream(stream_id)!r} already has a topic {name!r}",
                hint="Choose another name with --as",
            )
        return name

    def _stream(self, stream_id: StreamId) -> str:
        known = self.metadata.streams.get(stream_id)
        if known is not None:
            return known.name
        if stream_id not in self.streams:
            taken = {one.name for one in self.metadata.streams.values()}
            taken |= {one.name for one in self.streams.values()}
            name = _free(f"recovered-{stream_id}", taken)
            self.streams[stream_id] = AdoptedStream(stream_id, name)
        return self.streams[stream_id].name

    def check_names(self) -> None:
        """Refuse chosen names that no topic gets."""
        unused = self.names.keys() - self.named
        if unused:
            raise BadRequest(
                f"partition {_listed(unused)} cannot be named: it joins a topic that has a "
                "name, or is left unchanged",
                hint="Run `headrace metadata adopt` without --as to see the plan for each",
            )

    def _full(self, topic: TopicMetadata) -> str:
        return str(TopicName(self.metadata.streams[topic.stream_id].name, topic.name))


def plan(
    metadata: MetadataState,
    shards: Mapping[GroupId, PartitionsState],
    doubt: Doubt,
    names: Mapping[Namespace, str],
) -> AdoptionPlan:
    """Decide the fate of everything that shards have but metadata does not know."""
    made = AdoptionPlan(metadata, names, {one.key.namespace for one in doubt.orphans})
    for number, state in sorted(shards.items()):
        made.end(number, state)
    for number, state in sorted(shards.items()):
        for _, topic in sorted(state.topics.items()):
            own = [
                one
                for one in doubt.orphans
                if one.shard == number
                and one.key.namespace >> state.partition_bits == topic.number
            ]
            if own or _has_more_schemas(metadata, number, state, topic):
                made.take(number, state, topic, own)
    made.check_names()
    made.suspend()
    return made


def _free(name: str, taken: set[str]) -> str:
    """Return `name`, or a variant of it that is not taken."""
    others = (f"{name}-{number}" for number in count(2))
    return next(one for one in chain((name,), others) if one not in taken)


def _listed(namespaces: Iterable[Namespace]) -> str:
    return ", ".join(f"{one:x}" for one in sorted(namespaces))


def _closed(
    metadata: MetadataState, state: PartitionsState, topic: TopicMetadata
) -> list[TopicPartition]:
    """Return the partitions of a topic of metadata that a shard has closed."""
    layout, closed = metadata.layout, state.closed
    return [
        one
        for one in topic.partitions
        if is_within(one.created, closed.get(layout.pack(topic.stream_id, topic.id, one.id), 0))
    ]


def _has_more_schemas(
    metadata: MetadataState,
    shard: GroupId,
    state: PartitionsState,
    topic: partitions.TopicState,
) -> bool:
    target = metadata.partition_at(topic.number << state.partition_bits)
    is_same = target is not None and target.shard == shard
    return (
        target is not None
        and is_same
        and target.topic_created == topic.created
        and topic.newest > len(target.schemas)
    )


def _is_same(
    known: TopicMetadata,
    shard: GroupId,
    lost: partitions.TopicState,
    schemas: tuple[bytes, ...],
) -> bool:
    pairs = zip(known.schemas, schemas, strict=False)
    is_alike = all(ours.data == theirs for ours, theirs in pairs)
    return known.created == lost.created and known.shard == shard and is_alike


def _in_words(shard: GroupId, own: list[Orphan]) -> str:
    rows = sum(one.row_count for one in own)
    names = ", ".join(f"{one.key.namespace:x}" for one in own)
    return f"{_noun(len(own), 'partition')} {names}, {_count(rows, 'row')}, shard {shard}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {_noun(number, noun)}"


def _noun(number: int, noun: str) -> str:
    return noun if number == 1 else f"{noun}s"


@dataclass(frozen=True, slots=True)
class WayOut:
    """Answers one request of an operator."""

    path: str
    catalog: Catalog
    doubt: Doubt | None
    shards: Mapping[GroupId, PartitionsState]
    held: HeldMetadata | None  # group 0, if it is held

    def handle(self, request: OrphanRequest, deadline: float, answer: Answer) -> None:
        if isinstance(request, wire.DescribeOrphans):
            answer(self._described(request.namespace), ())
            return
        match request:
            case wire.AdoptOrphans():
                self._adopt(request, deadline, answer)
            case wire.ForgetOrphan():
                self._forget(request, deadline, answer)

    def _described(self, namespace: int) -> wire.Orphans:
        found = () if self.doubt is None else self.doubt.orphans
        return wire.Orphans(
            tuple(
                wire.OrphanInfo(
                    one.shard,
                    one.key.namespace,
                    one.key.created,
                    one.row_count,
                    one.size,
                    one.first_at,
                    one.last_at,
                    one.schema,
                )
                for one in found
                if one.key.namespace == namespace
            )
        )

    def _adopt(self, request: wire.AdoptOrphans, deadline: float, answer: Answer) -> None:
        if self.doubt is None:
            answer(wire.Adoption(self.catalog.state.revision, (), ()), ())
            return
        names = {Namespace(namespace): name for namespace, name in request.names}
        if len(names) < len(request.names):
            raise BadRequest("a partition is named twice", hint="Name each partition once")
        for namespace in names.keys() - {one.key.namespace for one in self.doubt.orphans}:
            raise BadRequest(
                f"{namespace:x} is not a recoverable partition ID, so it cannot be named",
                hint="List the recoverable partitions with `headrace status`",
            )
        made = plan(self.catalog.state, self.shards, self.doubt, names)
        command = made.command(self.doubt.floor)
        refused = self.catalog.machine.judge((command,))
        if refused is not None:  # also in a dry run, which reports what a real run would do
            raise metadata_error(refused, ())
        opened = [] if self.held is None else [self._in_words()]
        said = ((*opened, *made.adopted), tuple(made.left))
        if request.is_dry:
            answer(wire.Adoption(self.catalog.state.revision, *said), ())
            return

        def done(result: object) -> None:
            if isinstance(result, results.Adopted):
                answer(wire.Adoption(result.revision, *said), ())
            else:
                answer(_error(result), ())

        self._commit((command,), deadline, done)

    def _in_words(self) -> str:
        state = self.catalog.state
        return (
            f"group 0: its readable part, {len(state.topics)} topics at revision "
            f"{shown(state.revision)}; its remaining files are set aside"
        )

    def _forget(self, request: wire.ForgetOrphan, deadline: float, answer: Answer) -> None:
        command = ForgetLife(Namespace(request.namespace), Revision(request.created))
        is_known = self.doubt is not None and any(
            (one.key.namespace, one.key.created) == (command.namespace, command.created)
            for one in self.doubt.orphans
        )
        if not is_known:
            raise Rejected(
                f"partition {request.namespace:x} of revision {shown(request.created)} is not "
                "recoverable: nothing was changed",
                hint="List the recoverable partitions with `headrace status`",
            )
        assert self.doubt is not None
        self._refuse_twins(command)

        def done(result: object) -> None:
            if isinstance(result, results.Forgotten):
                answer(wire.Changed(result.revision), ())
            else:
                answer(_error(result), ())

        # A removal needs metadata above all that its shard has followed, including deletions.
        made = plan(self.catalog.state, self.shards, self.doubt, {})
        ended, closed = (
            tuple(made.ended.values()),
            tuple(made.endings(self._sole(command.namespace))),
        )
        commands: tuple[Command, ...] = (command,)
        state = self.catalog.state
        is_behind = not is_within(self.doubt.floor, state.revision)
        if ended or closed or state.level < RECORDING_LEVEL or is_behind:
            commands = (Adopt(self.doubt.floor, ended, (), (), closed), command)
        refused = self.catalog.machine.judge(commands)
        if refused is not None:
            raise metadata_error(refused, ())
        self._commit(commands, deadline, done)

    def _sole(self, namespace: Namespace) -> Namespace | None:
        """Return the namespace if one orphan alone has it."""
        assert self.doubt is not None
        found = [one for one in self.doubt.orphans if one.key.namespace == namespace]
        return namespace if len(found) == 1 else None

    def _refuse_twins(self, command: ForgetLife) -> None:
        """Refuse to give up a life that several shards have: one record would end them all."""
        assert self.doubt is not None
        shards = [
            str(one.shard)
            for one in self.doubt.orphans
            if (one.key.namespace, one.key.created) == (command.namespace, command.created)
        ]
        if len(shards) > 1:
            raise Rejected(
                f"partition {command.namespace:x} of revision {shown(command.created)} is in "
                f"shards {' and '.join(shards)}, with different rows in each: nothing was "
                "changed",
                hint="Copy the rows of both into a new log with `headrace doctor --salvage`",
            )

    def _commit(
        self, commands: Sequence[Command], deadline: float, done: Callable[[object], None]
    ) -> None:
        """Run commands in order; `done` gets the last result, or the first failure.

        They need the rules of this release: under older ones, retention would continue.
        """
        if self.held is not None:
            self.held.open(commands, done)
            return
        level = self.catalog.state.level
        if level < RECORDING_LEVEL and not self.catalog.may_level:
            raise NotReady(
                f"the log is at level {level}, but this needs level {RECORDING_LEVEL}, which "
                "did not fit on the disk",
                hint="Free disk space, then restart the node",
            )
        first, *rest = commands

        def then(result: object) -> None:
            is_refused = isinstance(result, HeadraceError | results.MetadataRefusal)
            if rest and not is_refused:
                self._commit(rest, deadline, done)
            else:
                done(result)

        self.catalog.submit(first, deadline, then)


def _error(result: object) -> HeadraceError:
    if isinstance(result, results.MetadataRefusal):
        return metadata_error(result, ())
    assert isinstance(result, HeadraceError)
    return result
