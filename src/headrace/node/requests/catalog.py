"""Group 0 of a running node: queries and changes of streams and topics.

Decisions that depend on the environment are made here, before a command is proposed: the shard
of a new topic, whether its schema can be stored, whether a new version may follow the old one.
The fields `created` and `version` keep these checks valid until apply.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import assert_never

import pyarrow as pa

from headrace.errors import BadSchema, HeadraceError
from headrace.journal.entry import Entry
from headrace.journal.machine_seam import MachineState
from headrace.metadata import commands, results
from headrace.metadata.machine import MetadataMachine
from headrace.metadata.state import LEVEL, MetadataState, RetentionLimits, TopicMetadata
from headrace.model.ids import GroupId, Revision
from headrace.model.namespace import TopicName, check_name, parse_topic
from headrace.model.proposal import EntryProposal
from headrace.model.schema import check_evolution, check_sealable, decode_schema
from headrace.node.group.driver import Driver
from headrace.node.requests.outcomes import defect, metadata_error, topic_unknown
from headrace.wire import topic_messages as wire
from headrace.wire.messages import MetadataRequest, Reply

Answer = Callable[[Reply | HeadraceError, Sequence[bytes]], None]
Changed = Callable[[], None]
KEY_OPTION = "key"  # the column whose value chooses a row's partition


@dataclass(slots=True)
class MetadataGroup:
    """Adapts the metadata machine to a group."""

    machine: MetadataMachine
    bodiless: frozenset[int] = frozenset()

    def apply(self, entry: Entry) -> results.Result:
        header = entry.header
        return self.machine.apply(
            header.operation, header.timestamp, entry.body, header.op, header.checksum
        )

    def snapshot(self) -> MachineState:
        return MachineState(self.machine.snapshot())

    def restore(self, state: MachineState | None) -> None:
        self.machine.restore(None if state is None else state.replicated)

    def digest(self) -> bytes:
        return self.machine.digest()


@dataclass(slots=True)
class Catalog:
    """Answers metadata requests. Everything is in memory; only schema checks take time."""

    driver: Driver | None  # None: group 0 is held, and this is its readable part
    machine: MetadataMachine
    shard_count: int
    checks: Executor  # checks schemas, which may take milliseconds
    on_change: Changed  # called after `revision` has risen
    doubt: Callable[[str], HeadraceError | None]  # why something is not done, or unknown
    _seen: Revision = field(init=False)
    may_level: bool = False  # the log records that no older release may open it
    _is_levelling: bool = False  # a Level is in flight

    def __post_init__(self) -> None:
        self._seen = self.state.revision
        if self.driver is not None:
            self.driver.pump.observe = self._observe

    @property
    def is_normal(self) -> bool:
        """Whether group 0 accepts changes."""
        return self.driver is not None and self.driver.pump.halted is None

    @property
    def state(self) -> MetadataState:
        return self.machine.state

    def begin_level(self) -> None:
        """Propose the level of this release, before any later change."""

        def done(_: object) -> None:
            self._is_levelling = False  # if it failed, the next change retries

        if self.may_level and self.state.level < LEVEL and not self._is_levelling:
            assert self.driver is not None
            self._is_levelling = True
            command = commands.Level(LEVEL)
            request = EntryProposal(command.operation, commands.encode(command))
            self.driver.submit(request, done, float("inf"))

    def handle(self, request: MetadataRequest, deadline: float, answer: Answer) -> None:
        """Handle one request; `answer` is called once."""
        try:
            self._refuse_in_doubt(request)
            self._handle(request, deadline, answer)
        except HeadraceError as error:
            answer(error, ())

    def topic(self, name: str) -> TopicMetadata:
        """Find a topic by name, or raise TopicUnknown with a suggestion."""
        wanted = parse_topic(name)
        found = self.state.topic(wanted.stream, wanted.topic)
        if found is None:
            doubt = self.doubt(f"topic {name!r} not found, and")
            raise doubt or topic_unknown(wanted, self.names())
        return found

    def names(self) -> list[str]:
        """Return the names of all topics, sorted."""
        streams = self.state.streams
        return sorted(
            str(TopicName(streams[topic.stream_id].name, topic.name))
            for topic in self.state.topics.values()
        )

    def info(self, topic: TopicMetadata) -> wire.TopicInfo:
        """Describe the current state of a topic."""
        layout = self.state.layout
        return wire.TopicInfo(
            topic=str(TopicName(self.state.streams[topic.stream_id].name, topic.name)),
            created=topic.created,
            created_at=topic.created_at,
            shard=topic.shard,
            revision=self.state.revision,
            retention_age_ms=topic.retention.age_ms,
            retention_size=topic.retention.size,
            options=topic.options,
            schemas=tuple(wire.SchemaInfo(each.id, each.data) for each in topic.schemas),
            partitions=tuple(
                wire.PartitionInfo(
                    layout.pack(topic.stream_id, topic.id, each.id), each.created
                )
                for each in topic.partitions
            ),
        )

    def _observe(self, entry: Entry, result: object) -> None:
        if self.state.revision != self._seen:
            self._seen = self.state.revision
            self.on_change()

    def _refuse_in_doubt(self, request: MetadataRequest) -> None:
        """Refuse changes in doubt; do not let lost metadata look like an empty log."""
        if isinstance(request, wire.DescribeTopic):
            return  # `topic` raises, if it is unknown
        if isinstance(request, wire.ListTopics) and self.state.topics:
            return
        doubt = self.doubt(_in_doubt(request))
        if doubt is not None:
            raise doubt

    def _handle(self, request: MetadataRequest, deadline: float, answer: Answer) -> None:
        match request:
            case wire.DescribeTopic():
                answer(self.info(self.topic(request.topic)), ())
            case wire.ListTopics():
                streams = sorted(each.name for each in self.state.streams.values())
                answer(wire.Topics(tuple(self.names()), tuple(streams)), ())
            case wire.CreateStreamRequest():
                name = check_name("stream", request.name)
                self._propose(commands.CreateStream(name), deadline, answer)
            case wire.DeleteStreamRequest():
                command = commands.DeleteStream(request.name, request.with_topics)
                self._propose(command, deadline, answer)
            case wire.CreateTopicRequest():
                self._create_topic(request, deadline, answer)
            case wire.AddSchemaRequest():
                self._add_schema(request, deadline, answer)
            case (
                wire.AlterTopicRequest()
                | wire.AddPartitionsRequest()
                | wire.DeleteTopicRequest()
            ):
                self._propose(self._change(request), deadline, answer)
            case _:
                assert_never(request)

    def _change(
        self,
        request: wire.AlterTopicRequest | wire.AddPartitionsRequest | wire.DeleteTopicRequest,
    ) -> commands.Command:
        name = parse_topic(request.topic)
        where = (name.stream, name.topic, Revision(request.created))
        match request:
            case wire.AlterTopicRequest():
                kept = (
                    None if request.retention is None else RetentionLimits(*request.retention)
                )
                return commands.AlterTopic(*where, kept, request.options)
            case wire.AddPartitionsRequest():
                return commands.AddPartitions(*where, request.first, request.count)
            case wire.DeleteTopicRequest():
                return commands.DeleteTopic(*where)

    def _create_topic(
        self, request: wire.CreateTopicRequest, deadline: float, answer: Answer
    ) -> None:
        name = parse_topic(request.topic)
        options = dict(request.options)

        def command() -> commands.CreateTopic:
            return commands.CreateTopic(
                name.stream,
                name.topic,
                request.schema,
                request.partition_count,
                self._quietest_shard(),
                RetentionLimits(request.retention_age_ms, request.retention_size),
                request.options,
            )

        def propose() -> None:
            self._propose(command(), deadline, answer)

        def with_stream(result: object) -> None:
            if isinstance(result, HeadraceError):
                answer(result, ())
            elif isinstance(result, results.MetadataRefusal) and not _is_there(result):
                answer(metadata_error(result, self.names()), ())
            else:
                propose()

        def begin() -> None:
            if self.state.stream(name.stream) is None:
                refused = self.machine.judge_new(command())
                if refused is not None:  # an invalid topic must not leave a new stream
                    answer(metadata_error(refused, self.names()), ())
                    return
                self.submit(commands.CreateStream(name.stream), deadline, with_stream)
            else:
                propose()

        self._checked(lambda: _check_new(request.schema, options), begin, answer)

    def _add_schema(
        self, request: wire.AddSchemaRequest, deadline: float, answer: Answer
    ) -> None:
        topic = self.topic(request.topic)
        name = parse_topic(request.topic)
        older = topic.schemas[min(max(request.version - 1, 1), len(topic.schemas)) - 1].data
        is_known = any(
            each.id == request.version and each.data == request.schema for each in topic.schemas
        )
        command = commands.AddSchema(
            name.stream,
            name.topic,
            Revision(request.created),
            request.version,
            request.schema,
        )

        def check() -> None:
            if not is_known:  # a repeat has its own answer
                _check_next(older, request.schema)

        self._checked(check, lambda: self._propose(command, deadline, answer), answer)

    def _checked(
        self, check: Callable[[], None], then: Callable[[], None], answer: Answer
    ) -> None:
        """Run a check off the loop, then call `then` on it, or answer with the error."""
        assert self.driver is not None
        loop = self.driver.loop

        def run() -> None:
            try:
                check()
            except HeadraceError as error:
                loop.call_soon_threadsafe(answer, error, ())
            except Exception as error:  # noqa: BLE001 - the root of a thread's work
                loop.call_soon_threadsafe(answer, defect("a check", error), ())
            else:
                loop.call_soon_threadsafe(then)

        self.checks.submit(run)

    def _propose(self, command: commands.Command, deadline: float, answer: Answer) -> None:
        def done(result: object) -> None:
            if isinstance(result, HeadraceError):
                answer(result, ())
            elif isinstance(result, results.MetadataRefusal):
                answer(metadata_error(result, self.names()), ())
            else:
                answer(self._reply(command, result), ())

        self.submit(command, deadline, done)

    def submit(
        self, command: commands.Command, deadline: float, done: Callable[[object], None]
    ) -> None:
        """Propose an unvalidated command; `done` gets its result or an error."""
        if not isinstance(command, commands.Adopt):  # which sets this level itself
            self.begin_level()
        assert self.driver is not None
        self.driver.submit(
            EntryProposal(command.operation, commands.encode(command)), done, deadline
        )

    def _reply(self, command: commands.Command, result: object) -> Reply:
        assert isinstance(result, results.Created | results.Altered | results.Deleted)
        topic = (
            None
            if result.topic_id is None or isinstance(result, results.Deleted)
            else self.state.topic_by_id(result.stream_id, result.topic_id)
        )
        return wire.Changed(result.revision) if topic is None else self.info(topic)

    def _quietest_shard(self) -> GroupId:
        """Return the shard with the fewest partitions; the lowest number among equals."""
        counts = Counter({GroupId(number): 0 for number in range(1, self.shard_count + 1)})
        for topic in self.state.topics.values():
            counts[topic.shard] += len(topic.partitions)
        return min(counts, key=lambda shard: (counts[shard], shard))


def _is_there(refused: results.MetadataRefusal) -> bool:
    """Return whether the stream was created concurrently, which is as good."""
    return refused.code is results.MetadataCode.STREAM_EXISTS


def _check_new(data: bytes, options: dict[str, str]) -> None:
    schema = decode_schema(data)
    check_sealable(schema)
    key = options.get(KEY_OPTION)
    if key is None:
        return
    if key not in schema.names:
        raise BadSchema(key, "the key is not a column", hint=f"Choose one of {schema.names}")
    if pa.types.is_nested(schema.field(key).type):
        raise BadSchema(key, "a key must be a scalar, not a list, struct or map")


def _check_next(older: bytes, newer: bytes) -> None:
    schema = decode_schema(newer)
    check_evolution(decode_schema(older), schema)
    check_sealable(schema)


def _in_doubt(request: MetadataRequest) -> str:
    """Return the beginning of the error for a request refused in doubt."""
    match request:
        case wire.ListTopics():
            return "no topics found, and"
        case wire.CreateStreamRequest():
            what = f"create stream {request.name!r}"
        case wire.DeleteStreamRequest():
            what = f"delete stream {request.name!r}"
        case wire.CreateTopicRequest():
            what = f"create topic {request.topic!r}"
        case wire.DeleteTopicRequest():
            what = f"delete topic {request.topic!r}"
        case _:
            what = f"change topic {request.topic!r}"
    return f"cannot {what} while"
