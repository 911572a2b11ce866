"""What a query may say."""

import pytest

from headrace.errors import BadConfig, BadRequest
from headrace.spark.offsets import Offsets, from_json
from headrace.spark.options import parse

HERE = {"topic": "orders", "address": "127.0.0.1:7654"}


def test_names_are_taken_in_any_case_and_spark_may_have_its_own():
    found = parse({**HERE, "MAXoffsetsPERtrigger": "10", "checkpointLocation": "/x"})
    assert found.row_count_max == 10
    assert found.topic == "orders"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"address": "a:1"}, "topic: is not said"),
        ({"topic": "orders"}, "address: is not said"),
        ({**HERE, "path": "/x"}, "address: and path are both said"),
        ({**HERE, "maxOffsetPerTrigger": "5"}, "Is it maxOffsetsPerTrigger?"),
        ({**HERE, "startingOffset": "earliest"}, "Is it startingOffsets?"),
        ({**HERE, "maxOffsetsPerTrigger": "0"}, "a whole number from 1 on"),
        ({**HERE, "maxOffsetsPerTrigger": "ten"}, "maxOffsetsPerTrigger: is 'ten'"),
        ({**HERE, "maxBytesPerTrigger": "lots"}, "maxBytesPerTrigger"),
        ({**HERE, "failOnDataLoss": "maybe"}, "Give true or false"),
        ({**HERE, "schemaChange": "ignore"}, "Give stop or pin"),
        ({**HERE, "startingOffsets": "{0: 1}"}, "an offset for each partition"),
        ({**HERE, "startingOffsets": '{"0": -1}'}, "below 0"),
        ({**HERE, "startingOffsets": '{"0": 1.9}'}, "has 1.9 for partition 0"),
        ({**HERE, "endingOffsets": '{"0": true}'}, "has True for partition 0"),
        ({**HERE, "endingOffsets": '{"0": 1, "0": 2}'}, "has partition 0 twice"),
        ({**HERE, "endingOffsets": '{"0": 1, "00": 2}'}, 'is \'{"0": 1, "00": 2}\''),
        ({**HERE, "endingOffsets": "earliest"}, "endingOffsets: is 'earliest'"),
        ({**HERE, "columns": "a,,b"}, "an empty name"),
        (
            {**HERE, "startingOffsets": "latest", "startingTimestamp": "-1h"},
            "startingOffsets: and startingTimestamp",
        ),
    ],
)
def test_what_cannot_be_is_named_with_the_next_step(options, said):
    with pytest.raises(BadConfig) as caught:
        parse(options)
    assert said in str(caught.value)


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
    assert found.starting_offsets == {1: 7}
    assert found.ending_offsets == "latest"
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
