"""What reconcilers and routers ask: every committed partition, once, under its namespace."""

import pytest
from tests.metadata.builders import (
    NARROW,
    WIDE,
    a_machine,
    a_topic,
    add_partitions,
    add_schema,
    delete_topic,
    done,
    the_topic,
)

from headrace.metadata.commands import CreateStream
from headrace.metadata.state import MetadataTarget


def test_a_machine_without_topics_wants_nothing():
    assert a_machine().state.target() == {}


def test_the_target_names_each_partition_with_its_life_shard_and_schemas():
    machine = a_machine()
    done(machine, CreateStream("shop"))
    a_topic(machine, "a", shard=2)
    topic = a_topic(machine, "b", stream="shop", shard=3)
    done(machine, add_partitions(topic, 1, stream="shop"))
    done(machine, add_schema(topic, b"two", stream="shop"))
    one = the_topic(machine, "a")
    two = the_topic(machine, "b", "shop")
    assert [schema.id for schema in two.schemas] == [1, 2]
    assert machine.state.target() == {
        WIDE.pack(0, 0, 0): MetadataTarget(1, 1, 2, one.schemas),
        WIDE.pack(1, 0, 0): MetadataTarget(2, 2, 3, two.schemas),
        WIDE.pack(1, 0, 1): MetadataTarget(3, 2, 3, two.schemas),
    }


def test_the_target_is_in_the_order_of_namespaces():
    machine = a_machine(NARROW)
    done(machine, CreateStream("shop"))
    for name in ("a", "b", "c"):
        a_topic(machine, name, stream="shop", partitions=2)
    done(machine, delete_topic(the_topic(machine, "a", "shop"), stream="shop"))
    for name in ("z", "y"):
        a_topic(machine, name)
    a_topic(machine, "x", stream="shop")
    assert list(machine.state.target()) == sorted(machine.state.target())
    assert len(machine.state.target()) == machine.state.partition_count == 7


@pytest.mark.parametrize("layout", [NARROW, WIDE])
def test_a_namespace_is_looked_up_as_the_target_has_it(layout):
    machine = a_machine(layout)
    done(machine, CreateStream("shop"))
    a_topic(machine, partitions=3)
    a_topic(machine, stream="shop", partitions=8)
    target = machine.state.target()
    for namespace in (*range(-1, 130), *target, 2**64 - 1, 2**64):
        assert machine.state.partition_at(namespace) == target.get(namespace)


def test_a_topic_is_found_by_name_and_by_id():
    machine = a_machine()
    done(machine, CreateStream("shop"))
    topic = a_topic(machine, stream="shop")
    state = machine.state
    assert state.topic("shop", "orders") == state.topic_by_id(1, 0) == topic
    assert state.topics_of(1) == [topic]
    assert state.topics_of(0) == []
    assert state.topic("default", "orders") is None
    assert state.topic("gone", "orders") is None
    assert state.topic_by_id(0, 0) is None
    assert state.stream("gone") is None
