"""What a query may say."""

from datetime import UTC, datetime, timedelta

import pytest

from headrace.errors import BadConfig, BadRequest
from headrace.spark.query_offsets import Offsets, from_json
from headrace.spark.source_options import Use, parse

HERE = {"topic": "orders", "address": "127.0.0.1:7654"}


def test_names_are_taken_in_any_case_and_spark_may_have_its_own():
    found = parse({**HERE, "MAXoffsetsPERtrigger": "10", "checkpointLocation": "/x"})
    assert found.row_count_max == 10
    assert found.topic == "orders"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"address": "a:1"}, "topic: is required"),
        ({"topic": "orders"}, "address: is required unless path is set"),
        ({**HERE, "path": "/x"}, "address: cannot be combined with path"),
        ({**HERE, "maxOffsetPerTrigger": "5"}, "Did you mean maxOffsetsPerTrigger?"),
        ({**HERE, "startingOffset": "earliest"}, "Did you mean startingOffsets?"),
        ({**HERE, "maxOffsetsPerTrigger": "0"}, "Give an integer >= 1"),
        ({**HERE, "maxOffsetsPerTrigger": "ten"}, "maxOffsetsPerTrigger: is 'ten'"),
        ({**HERE, "maxBytesPerTrigger": "lots"}, "maxBytesPerTrigger"),
        ({**HERE, "failOnDataLoss": "maybe"}, "Give true or false"),
        ({**HERE, "schemaChange": "ignore"}, "Give stop or pin"),
        ({**HERE, "startingOffsets": "{0: 1}"}, "an offset for each partition"),
        ({**HERE, "startingOffsets": '{"0": -1}'}, "has a negative offset"),
        ({**HERE, "startingOffsets": '{"0": 1.9}'}, "has 1.9 for partition 0"),
        ({**HERE, "endingOffsets": '{"0": true}'}, "has True for partition 0"),
        ({**HERE, "endingOffsets": '{"0": 1, "0": 2}'}, "lists partition 0 twice"),
        (
            {**HERE, "endingOffsets": '{"0": 1, "00": 2}'},
            '\'{"0": 1, "00": 2}\' is not a JSON object by partition',
        ),
        ({**HERE, "endingOffsets": "earliest"}, "endingOffsets: cannot be 'earliest'"),
        ({**HERE, "columns": "a,,b"}, "an empty name"),
        (
            {**HERE, "startingOffsets": "latest", "startingTimestamp": "-1h"},
            "startingOffsets: cannot be combined with startingTimestamp",
        ),
        (
            {**HERE, "endingTimestamp": "-1h", "endingOffsetsByTimestamp": "{}"},
            "endingTimestamp: cannot be combined with endingOffsetsByTimestamp",
        ),
        ({**HERE, "endingTimestamp": "2000-01-01"}, "is not a time with its time zone"),
        ({**HERE, "startingTimestamp": "9" * 30}, "or milliseconds since 1970"),
        ({**HERE, "startingOffsetsByTimestamp": '{"0": "soon"}'}, "'soon' is not a time"),
        ({**HERE, "startingOffsetsByTimestamp": '{"a": 1}'}, "a time for each partition"),
        (
            {**HERE, "startingOffsetsByTimestampStrategy": "error"},
            "requires startingTimestamp",
        ),
        ({**HERE, "maxTriggerDelay": "1m"}, "requires minOffsetsPerTrigger"),
        ({**HERE, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is 9, above max"),
    ],
)
def test_what_cannot_be_is_named_with_the_next_step(options, said):
    with pytest.raises(BadConfig) as caught:
        parse(options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "use", "said"),
    [
        ("subscribe", Use.READ, 'A query reads one topic: .option("topic"'),
        ("assign", Use.READ, "All its partitions are read"),
        ("subscribePattern", Use.READ, "To read several, union their frames"),
        ("kafka.bootstrap.servers", Use.ANY, '.option("address", "host:port")'),
        ("kafka.group.id", Use.READ, "groupId"),
        ("groupIdPrefix", Use.READ, "groupId"),
        ("kafka.max.poll.records", Use.READ, "There is no Kafka client to configure"),
        ("includeHeaders", Use.ANY, "Rows have no headers: store them in columns"),
        ("fetchOffset.numRetries", Use.READ, "timeout"),
        (
            "somethingElse",
            Use.SINK,
            "Valid options: topic, address, path, tokenFile, timeout, key",
        ),
        ("startingOffsets", Use.PUT, "applies to spark.read and spark.readStream, not to"),
        ("maxOffsetsPerTrigger", Use.BATCH, "to spark.readStream, not to spark.read"),
        ("endingTimestamp", Use.STREAM, "a stream has no end"),
        ("topicCreated", Use.STREAM, "applies to spark.read, not to spark.readStream"),
        ("txnAppId", Use.SINK, "applies to write, not to writeStream"),
        ("key", Use.READ, "applies to write and writeStream, not to spark.read"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(name, use, said):
    for spelt in (name, name.lower()):
        with pytest.raises(BadConfig) as caught:
            parse({**HERE, spelt: "1"}, use)
        assert said in str(caught.value)


@pytest.mark.parametrize("use", [Use.BATCH, Use.STREAM, Use.WRITE, Use.SINK])
def test_what_spark_adds_by_itself_is_taken(use):
    own = {"checkpointlocation": "/x", "queryname": "q", "provider": "headrace", "owner": "me"}
    parse(
        {**HERE, **own, "option.topic": "orders", "asyncProgressTrackingEnabled": "true"}, use
    )


def test_times_are_those_of_users_and_of_kafka():
    found = parse(
        {
            **HERE,
            "startingOffsetsByTimestamp": '{"0": 1700000000000, "1": "2026-01-01T00:00Z"}',
            "startingOffsetsByTimestampStrategy": "error",
            "endingTimestamp": "1700000000001",
        },
        Use.BATCH,
    )
    first = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert found.start.times == {0: first, 1: datetime(2026, 1, 1, tzinfo=UTC)}
    assert found.start.is_strict
    assert found.end.times == first + timedelta(milliseconds=1)
    assert not found.end.is_strict


def test_values_are_read_as_they_are_meant():
    found = parse(
        {
            **HERE,
            "startingOffsets": '{"1": 7}',
            "endingOffsets": "Latest",
            "maxBytesPerTrigger": "2MiB",
            "columns": "id, name",
            "failOnDataLoss": "FALSE",
        }
    )
    assert found.start.offsets == {1: 7}
    assert found.end.offsets == "latest"
    assert found.size_max == 2 * 1024 * 1024
    assert found.columns == ("id", "name")
    assert not found.fail_on_data_loss


def test_offsets_come_back_as_they_were_and_their_text_has_one_order():
    one = Offsets("shop/orders", 7, "5f", {10: 5, 2: 3})
    assert list(one.to_json()["partitions"]) == ["2", "10"]
    assert from_json(one.to_json()) == one
    other = Offsets("shop/orders", 7, "5f", {2: 3, 10: 5})
    assert str(other.to_json()) == str(one.to_json())


@pytest.mark.parametrize(
    "found",
    [
        None,
        {},
        {"v": 2, "topic": "t", "created": 1, "cluster": "5f", "partitions": {}},
        {"v": 1, "topic": "t", "created": 1, "cluster": "5f", "partitions": {"a": 1}},
        {"v": 1, "topic": 5, "created": 1, "cluster": "5f", "partitions": {}},
        {"0": 5},
    ],
)
def test_an_offset_of_another_source_is_refused_by_name(found):
    with pytest.raises(BadRequest, match="checkpointLocation"):
        from_json(found)
