"""What each command does, and by which name it is refused."""

import pytest
from tests.metadata.builders import (
    NOW,
    SCHEMA,
    a_machine,
    a_topic,
    add_partitions,
    add_schema,
    alter_topic,
    create_topic,
    delete_topic,
    done,
    refusal,
    run,
    the_topic,
)

from headrace.metadata.commands import (
    AddPartitions,
    AddSchema,
    AlterTopic,
    CreateStream,
    DeleteStream,
    DeleteTopic,
)
from headrace.metadata.results import Altered, Created, Deleted, MetadataCode, MetadataRefusal
from headrace.metadata.state import (
    FOREVER,
    RetentionLimits,
    SchemaVersion,
    Stream,
    TopicMetadata,
    TopicPartition,
)
from headrace.model.ids import Revision


def test_the_default_stream_is_there_before_the_first_op():
    machine = a_machine()
    assert machine.state.stream("default") == Stream(0, "default", 0)
    assert machine.state.revision == 0


def test_a_new_topic_has_all_that_its_command_said():
    machine = a_machine()
    command = create_topic(
        partitions=2,
        shard=3,
        retention=RetentionLimits(1_000, 2_000),
        options=(("z", "1"), ("a", "2")),
    )
    assert run(machine, command) == Created(Revision(1), 0, 0)
    assert the_topic(machine) == TopicMetadata(
        stream_id=0,
        id=0,
        name="orders",
        created=1,
        created_at=NOW,
        shard=3,
        retention=RetentionLimits(1_000, 2_000),
        options=(("a", "2"), ("z", "1")),
        schemas=(SchemaVersion(1, SCHEMA, 1, NOW),),
        partitions=(TopicPartition(0, 1), TopicPartition(1, 1)),
    )


def test_time_is_the_entrys_and_nothing_else():
    machine = a_machine()
    done(machine, CreateStream("shop"), timestamp=11)
    done(machine, create_topic(), timestamp=12)
    done(machine, add_schema(the_topic(machine), b"two"), timestamp=13)
    topic = the_topic(machine)
    assert machine.state.stream("shop").created_at == 11
    assert topic.created_at == 12
    assert [version.added_at for version in topic.schemas] == [12, 13]


def test_added_partitions_go_on_from_the_last_and_have_their_own_created():
    machine = a_machine()
    topic = a_topic(machine, partitions=2)
    assert run(machine, add_partitions(topic, 2)) == Altered(Revision(2), 0, 0)
    after = the_topic(machine)
    assert after.partitions == (
        *topic.partitions,
        TopicPartition(2, Revision(2)),
        TopicPartition(3, Revision(2)),
    )
    assert after.created == topic.created


def test_a_new_schema_version_is_kept_beside_the_old_ones_and_raises_the_revision():
    machine = a_machine()
    topic = a_topic(machine)
    assert run(machine, add_schema(topic, b"two")) == Altered(Revision(2), 0, 0)
    added = SchemaVersion(2, b"two", Revision(2), NOW)
    assert the_topic(machine).schemas == (*topic.schemas, added)


def test_a_deleted_and_recreated_topic_has_a_new_created_under_its_old_id():
    machine = a_machine()
    old = a_topic(machine, partitions=2)
    assert run(machine, delete_topic(old)) == Deleted(Revision(2), 0, 0)
    assert machine.state.topic("default", "orders") is None
    new = a_topic(machine, partitions=2)
    assert new.id == old.id
    assert new.created > old.created
    lives = {(each.id, each.created) for each in (*old.partitions, *new.partitions)}
    assert len(lives) == 4


def test_a_stream_deleted_with_its_topics_gives_none_of_their_lives_to_the_next():
    machine = a_machine()
    done(machine, CreateStream("shop"))
    old = a_topic(machine, stream="shop")
    assert run(machine, DeleteStream("shop", with_topics=True)) == Deleted(2, 1, None)
    done(machine, CreateStream("store"))
    new = a_topic(machine, stream="store")
    assert (new.stream_id, new.id) == (old.stream_id, old.id)
    assert new.created > old.created


def test_ids_of_topics_are_reused_lowest_first():
    machine = a_machine()
    topics = [a_topic(machine, name) for name in ("a", "b", "c", "d")]
    for place in (2, 0, 1):
        done(machine, delete_topic(topics[place]))
    assert [a_topic(machine, name).id for name in ("e", "f", "g", "h")] == [0, 1, 2, 4]


def test_ids_of_streams_are_reused_lowest_first():
    machine = a_machine()
    for name in ("a", "b", "c"):
        done(machine, CreateStream(name))
    for name in ("b", "a"):
        done(machine, DeleteStream(name, with_topics=False))
    results = [run(machine, CreateStream(name)) for name in ("d", "e", "f")]
    assert results == [Created(0, number, None) for number in (1, 2, 4)]


def test_topics_of_two_streams_have_ids_and_names_of_their_own():
    machine = a_machine()
    done(machine, CreateStream("shop"))
    here, there = a_topic(machine), a_topic(machine, stream="shop")
    assert here.key == (0, 0)
    assert there.key == (1, 0)
    done(machine, delete_topic(here))
    assert machine.state.topic("shop", "orders") == there


def test_the_revision_rises_by_one_with_each_change_that_shapes_partitions_and_no_other():
    machine = a_machine()

    def shop():
        return the_topic(machine, stream="shop")

    revisions = []
    for step in (
        lambda: CreateStream("shop"),
        lambda: create_topic(stream="shop"),
        lambda: add_partitions(shop(), 3, stream="shop"),
        lambda: add_schema(shop(), b"two", stream="shop"),
        lambda: alter_topic(shop(), stream="shop", retention=RetentionLimits(1, 1)),
        lambda: create_topic("other", stream="shop"),
        lambda: delete_topic(shop(), stream="shop"),
        lambda: DeleteStream("shop", with_topics=True),
        lambda: CreateStream("shop"),
        lambda: DeleteStream("shop", with_topics=True),
    ):
        done(machine, step())
        revisions.append(machine.state.revision)

    assert revisions == [0, 1, 2, 3, 3, 4, 5, 6, 6, 6]


def test_alter_changes_what_it_names_and_keeps_the_rest():
    machine = a_machine()
    topic = a_topic(machine, retention=RetentionLimits(1, 2), options=(("a", "1"), ("b", "2")))
    assert run(machine, alter_topic(topic, retention=FOREVER)) == Altered(Revision(1), 0, 0)
    assert the_topic(machine).retention == FOREVER
    assert the_topic(machine).options == topic.options
    done(machine, alter_topic(topic, options=(("c", "3"), ("a", None), ("b", "4"))))
    assert the_topic(machine).options == (("b", "4"), ("c", "3"))
    assert the_topic(machine).retention == FOREVER


def test_a_repeated_create_is_refused_and_names_the_life_that_is_there():
    machine = a_machine()
    done(machine, CreateStream("shop"))
    assert refusal(machine, CreateStream("shop")) == MetadataCode.STREAM_EXISTS
    topic = a_topic(machine)
    assert refusal(machine, create_topic()) == MetadataCode.TOPIC_EXISTS
    result = run(machine, create_topic())
    assert result.fields == {"stream": "default", "topic": "orders", "created": topic.created}


def test_a_repeated_delete_is_refused():
    machine = a_machine()
    done(machine, CreateStream("shop"))
    done(machine, DeleteStream("shop", with_topics=False))
    assert (
        refusal(machine, DeleteStream("shop", with_topics=False)) == MetadataCode.STREAM_UNKNOWN
    )
    topic = a_topic(machine)
    done(machine, delete_topic(topic))
    assert refusal(machine, delete_topic(topic)) == MetadataCode.TOPIC_UNKNOWN


def test_a_repeated_add_is_refused_by_what_it_expected():
    machine = a_machine()
    topic = a_topic(machine)
    for command, code in (
        (add_partitions(topic, 2), MetadataCode.PARTITIONS_NOT_NEXT),
        (add_schema(topic, b"two"), MetadataCode.SCHEMA_REPEATED),
    ):
        done(machine, command)
        assert refusal(machine, command) == code


def test_of_two_schemas_that_race_for_a_version_the_second_is_refused():
    machine = a_machine()
    topic = a_topic(machine)
    done(machine, add_schema(topic, b"two"))
    assert refusal(machine, add_schema(topic, b"another two")) == MetadataCode.SCHEMA_NOT_NEXT
    result = run(machine, add_schema(topic, b"another two"))
    assert (result.fields["expected"], result.fields["found"]) == (2, 3)


@pytest.mark.parametrize("version", [-1, 0, 3, 2**63])
def test_a_schema_version_is_the_next_or_refused(version):
    machine = a_machine()
    topic = a_topic(machine)
    command = add_schema(topic, SCHEMA, version=version)
    assert refusal(machine, command) == MetadataCode.SCHEMA_NOT_NEXT


@pytest.mark.parametrize(
    "command",
    [
        DeleteTopic("default", "orders", Revision(1)),
        AlterTopic("default", "orders", Revision(1), None, ()),
        AddPartitions("default", "orders", Revision(1), 1, 1),
        AddSchema("default", "orders", Revision(1), 2, b"two"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_command_for_an_earlier_life_never_touches_the_next(command):
    machine = a_machine()
    done(machine, delete_topic(a_topic(machine)))
    assert refusal(machine, command) == MetadataCode.TOPIC_UNKNOWN
    a_topic(machine)
    assert refusal(machine, command) == MetadataCode.RECREATED


def test_a_stream_with_topics_goes_only_if_that_was_said():
    machine = a_machine()
    done(machine, CreateStream("shop"))
    a_topic(machine, stream="shop")
    assert (
        refusal(machine, DeleteStream("shop", with_topics=False))
        == MetadataCode.STREAM_NOT_EMPTY
    )
    done(machine, DeleteStream("shop", with_topics=True))
    assert machine.state.topics == {}


@pytest.mark.parametrize("with_topics", [False, True])
def test_the_default_stream_stays(with_topics):
    machine = a_machine()
    assert (
        refusal(machine, DeleteStream("default", with_topics)) == MetadataCode.STREAM_PERMANENT
    )


BAD_TOPICS = [
    (create_topic(stream="shop"), MetadataCode.STREAM_UNKNOWN),
    (create_topic("no name"), MetadataCode.BAD_NAME),
    (create_topic("x" * 129), MetadataCode.BAD_NAME),
    (create_topic(schema=b""), MetadataCode.BAD_SCHEMA),
    (create_topic(partitions=0), MetadataCode.BAD_PARTITION_COUNT),
    (create_topic(partitions=-1), MetadataCode.BAD_PARTITION_COUNT),
    (create_topic(shard=0), MetadataCode.BAD_SHARD),
    (create_topic(shard=2**32), MetadataCode.BAD_SHARD),
    (create_topic(retention=RetentionLimits(0, None)), MetadataCode.BAD_RETENTION),
    (create_topic(retention=RetentionLimits(None, -1)), MetadataCode.BAD_RETENTION),
    (create_topic(retention=RetentionLimits(2**63, None)), MetadataCode.BAD_RETENTION),
    (create_topic(options=(("", "1"),)), MetadataCode.BAD_OPTION),
    (create_topic(options=(("a", "1"), ("a", "1"))), MetadataCode.BAD_OPTION),
    (create_topic(options=(("a", "é" * 513),)), MetadataCode.BAD_OPTION),
]


@pytest.mark.parametrize(("command", "code"), BAD_TOPICS)
def test_a_topic_without_sense_is_refused_by_name(command, code):
    assert refusal(a_machine(), command) == code


def test_a_change_without_sense_is_refused_by_name():
    machine = a_machine()
    topic = a_topic(machine)
    for command, code in (
        (add_partitions(topic, 0), MetadataCode.BAD_PARTITION_COUNT),
        (add_partitions(topic, -1), MetadataCode.BAD_PARTITION_COUNT),
        (add_partitions(topic, 1, first=0), MetadataCode.PARTITIONS_NOT_NEXT),
        (add_schema(topic, b""), MetadataCode.BAD_SCHEMA),
        (alter_topic(topic, retention=RetentionLimits(0, 0)), MetadataCode.BAD_RETENTION),
        (alter_topic(topic, options=(("a b", None),)), MetadataCode.BAD_OPTION),
        (alter_topic(topic, options=(("a", "1"), ("a", None))), MetadataCode.BAD_OPTION),
        (CreateStream("a/b"), MetadataCode.BAD_NAME),
    ):
        assert refusal(machine, command) == code


def test_a_refusal_never_carries_more_of_a_name_than_a_name_has():
    machine = a_machine()
    endless = "x" * 1_000_000
    for command in (
        CreateStream(endless),
        DeleteStream(endless, with_topics=False),
        create_topic(endless),
        create_topic(stream=endless),
        create_topic(options=((endless, ""),)),
        DeleteTopic("default", endless, Revision(1)),
        DeleteTopic(endless, "orders", Revision(1)),
    ):
        result = run(machine, command)
        assert isinstance(result, MetadataRefusal)
        assert len(result.message) < 300
