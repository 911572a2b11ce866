"""What operators do by hand: cursors moved, rows sent to one partition, schemas looked at."""

import pytest

import headrace
from headrace.errors import BadName, BadRequest, Refused

ORDERS = {"id": "int64"}


@pytest.fixture
def log(tmp_path):
    with headrace.open(tmp_path / "data") as found:
        yield found


def rows(count):
    return [{"id": number} for number in range(count)]


def test_a_producer_of_one_partition_sends_all_rows_there(log):
    topic = log.create_topic("orders", ORDERS, partitions=3, key="id")
    with log.producer(topic, partition=2) as producer:
        producer.send(rows(10))
        assert producer.flush().ranges == (headrace.Range(2, 0, 10),)


def test_a_producer_of_a_partition_that_is_not_there_is_refused_at_once(log):
    topic = log.create_topic("orders", ORDERS, partitions=3)
    with pytest.raises(BadRequest, match="no partition 3"):
        log.producer(topic, partition=3)


def test_every_version_of_a_schema_can_be_looked_at(log):
    topic = log.create_topic("orders", ORDERS)
    topic.evolve({"id": "int64", "note": "string"})
    assert {version: schema.names for version, schema in topic.schemas.items()} == {
        1: ["id"],
        2: ["id", "note"],
    }


def test_a_stored_cursor_is_where_the_group_goes_on(log):
    topic = log.create_topic("orders", ORDERS)
    topic.append(rows(10))
    topic.store_cursors("billing", {0: 7})
    with topic.consumer("billing") as consumer:
        assert consumer.poll("5s")["id"].to_pylist() == [7, 8, 9]


def test_a_stored_cursor_holds_what_it_held(log):
    topic = log.create_topic("orders", ORDERS)
    topic.append(rows(10))
    with topic.consumer("billing", hold=True):
        pass
    topic.store_cursors("billing", {0: 4})
    (cursor,) = topic.cursors("billing")
    assert (cursor.next, cursor.lag, cursor.hold) == (4, 6, True)


def test_a_consumer_that_runs_cannot_undo_a_stored_cursor(log):
    topic = log.create_topic("orders", ORDERS)
    topic.append(rows(10))
    with topic.consumer("billing") as consumer:
        consumer.poll("5s")
        consumer.commit()
        topic.store_cursors("billing", {0: 2})
        topic.append(rows(1))
        consumer.poll("5s")
        with pytest.raises(Refused, match="has taken over group"):
            consumer.commit()
    assert [each.next for each in topic.cursors("billing")] == [2]


def test_a_cursor_beyond_the_end_is_not_stored(log):
    topic = log.create_topic("orders", ORDERS)
    with pytest.raises(Refused):
        topic.store_cursors("billing", {0: 1})
    with pytest.raises(BadName):
        topic.store_cursors("../billing", {0: 0})
    for place in (-1, -2):
        with pytest.raises(BadRequest, match=f"offset {place} is negative"):
            topic.store_cursors("billing", {0: place})
    assert topic.cursors() == []
