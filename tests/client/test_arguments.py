"""What users give by mistake: each is told in words, at once, and the log goes on."""

import math
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import headrace
from headrace.client.values.parse import duration, size, whole
from headrace.client.write.convert import batches_of
from headrace.errors import BadRequest, BadSchema, HeadraceError

ROWS = [{"i": 1}, {"i": 2}]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    with headrace.open(tmp_path_factory.mktemp("log"), timeout="5s") as log:
        log.create_topic("a", {"i": "int64"}, partitions=2).append(ROWS, partition=0)
        yield log


WRONG = {
    "a name that is a number": lambda log, _: log.topic(5),
    "no name": lambda log, _: log.create_topic(None, {"i": "int64"}),
    "a stream that is a number": lambda log, _: log.create_stream(5),
    "half a partition": lambda log, _: log.create_topic("b", {"i": "int64"}, partitions=1.5),
    "a true partition": lambda log, _: log.create_topic("b", {"i": "int64"}, partitions=True),
    "a key that is a number": lambda log, _: log.create_topic("b", {"i": "int64"}, key=5),
    "a retention for ever": lambda log, _: log.create_topic(
        "b", {"i": "int64"}, retention=1e300
    ),
    "a retention of nan": lambda _, topic: topic.alter(retention=math.nan),
    "half a byte": lambda _, topic: topic.alter(retention_size=1.5),
    "too many bytes": lambda _, topic: topic.alter(retention_size=2**70),
    "half a partition more": lambda _, topic: topic.add_partitions(1.5),
    "a partition in quotes": lambda _, topic: topic.append(ROWS, partition="0"),
    "a partition that is true": lambda _, topic: topic.append(ROWS, partition=True),
    "a start between two rows": lambda _, topic: topic.read(start=1.5),
    "a start that is an array": lambda _, topic: topic.read(start=np.array([1, 2])),
    "half a row": lambda _, topic: topic.read(last=0.5),
    "columns that are one word": lambda _, topic: topic.read(columns="i"),
    "columns that are numbers": lambda _, topic: topic.read(columns=[1]),
    "partitions in quotes": lambda _, topic: topic.read(partition="0"),
    "a partition of floats": lambda _, topic: topic.read(partition=0.5),
    "a group that is a number": lambda _, topic: topic.consumer(5),
    "cursors of a number": lambda _, topic: topic.cursors(5),
    "a seek to nowhere": lambda _, topic: topic.consumer("g").seek(0.5),
    "no time": lambda _, topic: topic.offsets_at(5),
    "no linger": lambda log, _: log.producer("a", linger=None),
    "half a row in a batch": lambda log, _: log.producer("a", batch_rows=0.5),
    "a ledger that is a number": lambda log, _: log.producer("a", ledger=5),
    "a producer of a number": lambda log, _: log.producer(5),
    "half a version": lambda log, _: log.transaction("a", "job", 1.5),
    "a version in quotes": lambda log, _: log.transaction("a", "job", "1"),
    "an app of half a character": lambda log, _: log.transaction("a", "\ud800", 1),
    "a version of nothing": lambda log, _: log.transaction("a", "job", 0),
    "cursors in a list": lambda _, topic: topic.store_cursors("g", [1]),
    "no cursors at all": lambda _, topic: topic.store_cursors("g", None),
    "a ledger with a zero byte": lambda log, _: log.producer("a", ledger="a\0b"),
    "a ledger of half a character": lambda log, _: log.producer("a", ledger="a\ud800"),
    "so many topics in quotes": lambda log, _: log.summary("x"),
    "no path": lambda _, __: headrace.open(None),
    "an empty path": lambda _, __: headrace.open(""),
    "a path with a zero byte": lambda _, __: headrace.open("a\0b"),
    "a path of half a character": lambda _, __: headrace.open("a\ud800"),
    "no address": lambda _, __: headrace.connect(None),
    "a timeout of nothing": lambda _, __: headrace.connect("unix:/nowhere", timeout="0s"),
    "a timeout for ever": lambda _, __: headrace.connect("unix:/nowhere", timeout=math.inf),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_is_told(log, wrong):
    with pytest.raises(BadRequest):
        WRONG[wrong](log, log.topic("a"))
    assert log.topics() == ["default/a"]


def test_a_column_of_half_a_character_is_told(log):
    with pytest.raises(BadSchema, match="ud800"):
        log.create_topic("b", {"a\ud800": "int64"})


def test_numbers_of_numpy_are_numbers(tmp_path):
    with headrace.open(tmp_path) as log:
        topic = log.create_topic("a", {"i": "int64"}, partitions=np.int64(2))
        assert topic.append(ROWS, partition=np.int64(1)).ranges == (headrace.Range(1, 0, 2),)
        found = topic.read(np.int32(1), start=np.int64(1), end=np.uint8(2))
        assert found.to_table()["i"].to_pylist() == [2]
        assert topic.read([np.int64(1)], last=np.int64(1)).row_count == 1
        assert topic.consumer("g").seek({0: 0, 1: np.int64(2)}) == {0: 0, 1: 2}
        with log.transaction(topic, "job", np.int64(7)) as transaction:
            transaction.append(ROWS, partition=np.int64(0))
        assert transaction.result.ranges == (headrace.Range(0, 0, 2),)


def test_a_request_that_no_wire_takes_is_refused_before_the_node_sees_it(tmp_path):
    with headrace.open(tmp_path, timeout="5s") as log:
        topic = log.create_topic("a", {"i": "int64"})
        with pytest.raises(HeadraceError, match="past_hold"):
            topic.trim(0, past_hold="yes")


@pytest.mark.parametrize(
    "value", [None, math.nan, math.inf, 1e300, True, b"1s", [], -1, 10**400]
)
def test_no_duration(value):
    with pytest.raises(BadRequest, match="linger"):
        duration(value, "linger")


@pytest.mark.parametrize("value", [None, 1.5, True, b"1", 2**63, -1, 10**4_000])
def test_no_size(value):
    with pytest.raises(BadRequest, match="size"):
        size(value, "size")


def test_numbers_are_taken_as_they_are():
    assert duration(np.float32(0.5), "linger").us == 500_000
    assert duration(np.int64(2), "linger").us == 2_000_000
    assert size(np.int64(5), "size") == 5
    assert type(whole(np.int64(5), "offset")) is int


WORDS = pa.schema([("s", pa.string())])


@pytest.mark.parametrize("kind", [pl.Enum(["a", "b"]), pl.Categorical])
def test_words_of_polars_are_strings(kind):
    frame = pl.DataFrame({"s": pl.Series(["b", None, "a"], dtype=kind)})
    found = [row["s"] for batch in batches_of(frame, WORDS) for row in batch.to_pylist()]
    assert found == ["b", None, "a"]


def test_an_index_is_a_column_if_the_schema_has_it():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    index = pd.MultiIndex.from_tuples([("a", at), ("b", at)], names=["s", "other"])
    frame = pd.DataFrame({"i": [1, 2]}, index=index)
    (batch,) = batches_of(frame, pa.schema([("i", pa.int64()), ("s", pa.string())]))
    assert batch.to_pylist() == [{"i": 1, "s": "a"}, {"i": 2, "s": "b"}]
    (batch,) = batches_of(frame, pa.schema([("i", pa.int64())]))
    assert batch.to_pylist() == [{"i": 1}, {"i": 2}]
