"""Any history of commands equals a model of plain dicts, on every replica alike."""

import msgspec
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.metadata.builders import NARROW, a_machine, run
from tests.metadata.plain import Plain

from headrace.metadata.commands import (
    OPERATION_FIRST,
    AddPartitions,
    AddSchema,
    AlterTopic,
    Command,
    CreateStream,
    CreateTopic,
    DeleteStream,
    DeleteTopic,
    decode,
)
from headrace.metadata.results import MetadataRefusal, Unchanged
from headrace.metadata.state import RetentionLimits
from headrace.model.ids import Op
from headrace.model.revisions import STAMP_BITS

# Few names, so that they meet again; one more of each than there is room for.
streams = st.sampled_from(["default", "default", "a", "b", "c", "d"])
topics = st.sampled_from(["p", "q", "r", "s", "t"])
schemas = st.sampled_from([b"one", b"two"])
retentions = st.builds(
    RetentionLimits, st.none() | st.integers(1, 2), st.none() | st.integers(1, 2)
)
keys = st.sampled_from(["x", "y", "z"])
options = st.dictionaries(keys, st.text(max_size=2)).map(lambda each: tuple(each.items()))
changes = st.dictionaries(keys, st.none() | st.text(max_size=2)).map(
    lambda each: tuple(each.items())
)
# How far a command is from what is there: mostly right.
slips = st.sampled_from([0, 0, 0, 0, -1, 1])


class Histories(RuleBasedStateMachine):
    """Two replicas: one is never stopped, the other restores now and then."""

    level = 1
    unit = 1  # from one revision to the next

    def __init__(self) -> None:
        super().__init__()
        self.machine = a_machine(NARROW, level=self.level)
        self.twin = a_machine(NARROW, level=self.level)
        self.plain = Plain(is_retention_followed=self.level >= 2)
        self.now = 0
        self.target = {}
        self.retention = {}
        self.revision = 0
        self.lives = set()  # every (namespace, created) there ever was

    @rule(name=streams)
    def create_stream(self, name):
        self.run(CreateStream(name))

    @rule(name=streams, with_topics=st.booleans())
    def delete_stream(self, name, with_topics):
        self.run(DeleteStream(name, with_topics))

    @rule(
        stream=streams,
        name=topics,
        schema=schemas,
        partitions=st.integers(1, 9),
        shard=st.integers(1, 3),
        retention=retentions,
        options=options,
    )
    def create_topic(self, stream, name, schema, partitions, shard, retention, options):
        self.run(CreateTopic(stream, name, schema, partitions, shard, retention, options))

    @precondition(lambda self: self.machine.state.topics)
    @rule(data=st.data(), slip=slips)
    def delete_topic(self, data, slip):
        stream, topic = self.some_topic(data)
        self.run(DeleteTopic(stream, topic.name, topic.created + slip * self.unit))

    @precondition(lambda self: self.machine.state.topics)
    @rule(data=st.data(), slip=slips, retention=st.none() | retentions, changes=changes)
    def alter_topic(self, data, slip, retention, changes):
        stream, topic = self.some_topic(data)
        self.run(
            AlterTopic(stream, topic.name, topic.created + slip * self.unit, retention, changes)
        )

    @precondition(lambda self: self.machine.state.topics)
    @rule(data=st.data(), slip=slips, count=st.integers(1, 4))
    def add_partitions(self, data, slip, count):
        stream, topic = self.some_topic(data)
        first = len(topic.partitions) + slip
        self.run(AddPartitions(stream, topic.name, topic.created, first, count))

    @precondition(lambda self: self.machine.state.topics)
    @rule(data=st.data(), slip=slips, schema=schemas)
    def add_schema(self, data, slip, schema):
        stream, topic = self.some_topic(data)
        version = len(topic.schemas) + 1 + slip
        self.run(AddSchema(stream, topic.name, topic.created, version, schema))

    @rule(stream=streams, name=topics, created=st.integers(0, 9))
    def delete_a_topic_that_may_not_be_there(self, stream, name, created):
        self.run(DeleteTopic(stream, name, created * self.unit))

    @rule()
    def restore_the_twin(self):
        self.twin.restore(self.twin.snapshot())

    @rule(operation=st.integers(0, 30), body=st.binary(max_size=12))
    def apply_noise(self, operation, body):
        assume(
            operation < OPERATION_FIRST or isinstance(decode(operation, body), MetadataRefusal)
        )
        for machine in (self.machine, self.twin):
            answer = machine.apply(operation, self.now, body, Op(1), bytes(16))
            assert isinstance(answer, MetadataRefusal | Unchanged)

    def some_topic(self, data):
        topic = data.draw(st.sampled_from(list(self.machine.state.topics_in_order())))
        return self.machine.state.streams[topic.stream_id].name, topic

    def run(self, command: Command) -> None:
        self.now += 1
        before = self.machine.digest()
        result = run(self.machine, command, self.now)
        assert run(self.twin, command, self.now) == result
        expected = self.plain.run(self.as_counted(command))
        assert (result.code if isinstance(result, MetadataRefusal) else "done") == expected
        if isinstance(result, MetadataRefusal):
            assert self.machine.digest() == before
        self.check_revision(self.machine.state.target())

    def as_counted(self, command: Command) -> Command:
        """Return the command as the model knows it: it counts from one to the next."""
        created = getattr(command, "created", None)
        if created is None:
            return command
        return msgspec.structs.replace(command, created=created // self.unit)

    def check_revision(self, target) -> None:
        """The revision rises exactly when the target changes, and no life comes twice.

        From level 2 on also when a retention changes.
        """
        old = {(namespace, each.created) for namespace, each in self.target.items()}
        new = {(namespace, each.created) for namespace, each in target.items()} - old
        assert not new & self.lives
        self.lives |= new
        topics = self.machine.state.topics.values()
        followed = topics if self.level >= 2 else ()
        retention = {topic.created: topic.retention for topic in followed}
        is_changed = (target, retention) != (self.target, self.retention)
        assert is_changed == (self.plain.revision > self.revision)
        self.target, self.retention = target, retention
        self.revision = self.plain.revision

    @invariant()
    def replicas_are_equal(self):
        assert self.machine.digest() == self.twin.digest()
        assert self.machine.state == self.twin.state

    @invariant()
    def the_machine_equals_the_model(self):
        state = self.machine.state
        assert state.revision == self.plain.revision * self.unit
        found = {
            stream.name: {
                "id": stream.id,
                "topics": {
                    topic.name: as_plain(topic, self.unit)
                    for topic in state.topics_of(stream.id)
                },
            }
            for stream in state.streams_in_order()
        }
        assert found == self.plain.streams


def as_plain(topic, unit: int) -> dict:
    assert [each.id for each in topic.partitions] == list(range(len(topic.partitions)))
    assert [each.id for each in topic.schemas] == list(range(1, len(topic.schemas) + 1))
    return {
        "id": topic.id,
        "created": topic.created // unit,
        "shard": topic.shard,
        "retention": (topic.retention.age_ms, topic.retention.size),
        "options": dict(topic.options),
        "schemas": [each.data for each in topic.schemas],
        "partitions": [each.created // unit for each in topic.partitions],
    }


class StampedHistories(Histories):
    """The same from level 2 on: a count and bits of a checksum, raised by retention too."""

    level = 2
    unit = 1 << STAMP_BITS


TestHistories = Histories.TestCase
TestStampedHistories = StampedHistories.TestCase
TestHistories.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestStampedHistories.settings = TestHistories.settings
