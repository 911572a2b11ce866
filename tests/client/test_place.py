"""Rows as readers see them, from what was appended."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from headrace.errors import BadBatch, BadRequest
from headrace.model.batch import encode
from headrace.model.projection import Projection, RowPlace, cut, read_entry

OLD = pa.schema([("id", pa.int32())])
NEW = pa.schema([("id", pa.int64()), ("note", pa.string())])
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
PLACE = RowPlace(partition_id=3, first=100, timestamp=int(NOON.timestamp() * 1_000_000))


def an_entry():
    return memoryview(encode(pa.record_batch({"id": pa.array([1, 2], pa.int32())})))


def test_the_systems_columns_stand_first():
    found = read_entry(an_entry(), OLD, 2, PLACE, Projection.of(OLD, None))
    assert found.to_pylist() == [
        {"_partition": 3, "_offset": 100, "_timestamp": NOON, "id": 1},
        {"_partition": 3, "_offset": 101, "_timestamp": NOON, "id": 2},
    ]
    assert not any(field.nullable for field in list(found.schema)[:3])


def test_old_rows_are_shown_in_a_newer_version():
    found = read_entry(an_entry(), OLD, 2, PLACE, Projection.of(NEW, ["note", "id", "_offset"]))
    assert found.schema.names == ["note", "id", "_offset"]
    assert found.schema.field("id").type == pa.int64()
    assert found["note"].to_pylist() == [None, None]


def test_rows_are_cut_to_what_was_asked_for():
    rows = pa.record_batch({"id": [0, 1, 2, 3]})
    assert cut(rows, 10, 11, 13)["id"].to_pylist() == [1, 2]
    assert cut(rows, 10, 0, None) is rows
    assert cut(rows, 10, 12, None)["id"].to_pylist() == [2, 3]
    assert cut(rows, 10, 20, 30).num_rows == 0


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ([], "no columns"),
        (["id", "id"], "twice"),
        (["_ofset"], "_offset"),
        (["x" * 999], "there is"),
    ],
)
def test_columns_that_cannot_be_given_are_told(columns, words):
    with pytest.raises(BadRequest, match=words):
        Projection.of(OLD, columns)


def test_bytes_that_are_no_rows_are_told():
    with pytest.raises(BadBatch):
        read_entry(memoryview(b"no rows"), OLD, 2, PLACE, Projection.of(OLD, None))
