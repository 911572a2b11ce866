"""Every limit holds at its number, and refuses by name one above it."""

import pytest
from tests.metadata.builders import (
    NARROW,
    WIDE,
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

from headrace.metadata import rules
from headrace.metadata.commands import CreateStream, DeleteStream
from headrace.metadata.results import MetadataCode
from headrace.metadata.rules import MetadataLimits
from headrace.metadata.state import RetentionLimits
from headrace.model.namespace import NamespaceLayout


def test_limits_are_the_lower_of_what_has_ids_and_what_is_named():
    assert MetadataLimits.of(NARROW) == MetadataLimits(4, 4, 8, rules.PARTITIONS_MAX)
    assert MetadataLimits.of(WIDE) == MetadataLimits(
        rules.STREAMS_MAX,
        rules.TOPICS_PER_STREAM_MAX,
        rules.PARTITIONS_PER_TOPIC_MAX,
        rules.PARTITIONS_MAX,
    )


def test_streams_end_where_their_ids_end():
    machine = a_machine(NARROW)
    for name in ("a", "b", "c"):
        done(machine, CreateStream(name))
    assert refusal(machine, CreateStream("d")) == MetadataCode.LIMIT_REACHED
    done(machine, DeleteStream("b", with_topics=False))
    assert run(machine, CreateStream("d")).stream_id == 2


def test_topics_end_where_their_ids_end_in_each_stream():
    machine = a_machine(NARROW)
    done(machine, CreateStream("shop"))
    for name in ("a", "b", "c", "d"):
        a_topic(machine, name)
    assert refusal(machine, create_topic("e")) == MetadataCode.LIMIT_REACHED
    a_topic(machine, "e", stream="shop")
    done(machine, delete_topic(the_topic(machine, "c")))
    assert a_topic(machine, "e").id == 2


def test_partitions_end_where_their_ids_end_in_each_topic():
    machine = a_machine(NARROW)
    assert refusal(machine, create_topic(partitions=9)) == MetadataCode.LIMIT_REACHED
    topic = a_topic(machine, partitions=7)
    assert refusal(machine, add_partitions(topic, 2)) == MetadataCode.LIMIT_REACHED
    done(machine, add_partitions(topic, 1))
    assert refusal(machine, add_partitions(the_topic(machine), 1)) == MetadataCode.LIMIT_REACHED
    a_topic(machine, "full", partitions=8)


def test_partitions_of_one_topic_are_limited_also_where_ids_are_many():
    machine = a_machine(WIDE)
    limit = rules.PARTITIONS_PER_TOPIC_MAX
    for count in (limit + 1, 2**24, 2**64 - 1):
        assert refusal(machine, create_topic(partitions=count)) == MetadataCode.LIMIT_REACHED
    a_topic(machine, partitions=limit)


def test_all_partitions_together_are_limited_and_deleted_ones_do_not_count():
    machine = a_machine(NARROW)
    machine.limits = MetadataLimits(4, 4, 8, partitions_max=10)
    topic = a_topic(machine, partitions=6)
    other = a_topic(machine, "other", partitions=3)
    assert refusal(machine, add_partitions(topic, 2)) == MetadataCode.LIMIT_REACHED
    assert refusal(machine, create_topic("third", partitions=2)) == MetadataCode.LIMIT_REACHED
    done(machine, add_partitions(topic, 1))
    machine.restore(machine.snapshot())
    assert refusal(machine, create_topic("third")) == MetadataCode.LIMIT_REACHED
    done(machine, delete_topic(other))
    a_topic(machine, "third", partitions=3)
    assert refusal(machine, create_topic("fourth")) == MetadataCode.LIMIT_REACHED


def test_the_result_says_which_limit_it_was():
    machine = a_machine(NamespaceLayout(1, 1, 1))
    result = run(machine, create_topic(partitions=3))
    assert result.fields == {"max": 2, "what": "partitions in a topic"}
    assert result.message == "there can be at most 2 partitions in a topic"


def test_a_schema_may_be_as_large_as_the_limit_and_no_larger():
    machine = a_machine()
    size = rules.SCHEMA_SIZE_MAX
    assert refusal(machine, create_topic(schema=bytes(size + 1))) == MetadataCode.BAD_SCHEMA
    topic = a_topic(machine, schema=bytes(size))
    assert refusal(machine, add_schema(topic, bytes(size + 1))) == MetadataCode.BAD_SCHEMA
    done(machine, add_schema(topic, bytes(size)))


def test_schema_versions_end_at_their_limit():
    machine = a_machine()
    a_topic(machine)
    for version in range(2, rules.SCHEMAS_PER_TOPIC_MAX + 1):
        done(machine, add_schema(the_topic(machine), b"%d" % version))
    assert (
        refusal(machine, add_schema(the_topic(machine), b"more")) == MetadataCode.LIMIT_REACHED
    )


def test_options_end_at_their_limit_after_a_change_is_merged():
    machine = a_machine()
    limit = rules.OPTIONS_PER_TOPIC_MAX
    options = tuple((f"o{number}", "") for number in range(limit + 1))
    assert refusal(machine, create_topic(options=options)) == MetadataCode.LIMIT_REACHED
    topic = a_topic(machine, options=options[:limit])
    over = alter_topic(topic, options=options[limit:])
    assert refusal(machine, over) == MetadataCode.LIMIT_REACHED
    done(machine, alter_topic(topic, options=(*options[limit:], ("o0", None))))
    assert len(the_topic(machine).options) == limit


@pytest.mark.parametrize("value", [1, rules.RETENTION_MAX])
def test_retention_at_its_ends_is_kept(value):
    topic = a_topic(a_machine(), retention=RetentionLimits(value, value))
    assert topic.retention == RetentionLimits(value, value)


@pytest.mark.parametrize("shard", [1, rules.SHARD_MAX])
def test_a_shard_at_the_ends_is_kept(shard):
    assert a_topic(a_machine(), shard=shard).shard == shard


def test_an_option_may_be_as_long_as_the_limit():
    value = "x" * rules.OPTION_SIZE_MAX
    assert a_topic(a_machine(), options=(("a", value),)).options == (("a", value),)
    assert (
        refusal(a_machine(), create_topic(options=(("a", value + "x"),)))
        == MetadataCode.BAD_OPTION
    )
