"""Keys choose partitions: the same in every client, pinned by golden values."""

import zlib
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadSchema
from headrace.model.partition_keys import check_key, partitions_of

COUNT = 1_000
UTC_US = pa.timestamp("us", "UTC")

# The same as on docs/python.md. They never change: rows of a key would go elsewhere.
GOLDEN = [
    (pa.string(), "a", 907),
    (pa.string(), "", 0),
    (pa.string(), None, 0),
    (pa.string(), "Ärger", 715),
    (pa.binary(), b"\xff", 80),
    (pa.bool_(), True, 435),
    (pa.bool_(), False, 757),
    (pa.int8(), -1, 692),
    (pa.int64(), 1, 735),
    (pa.int64(), -(2**63), 545),
    (pa.float64(), 1.5, 321),
    (pa.float64(), -0.0, 233),
    (pa.float64(), float("nan"), 153),
    (pa.date32(), date(2020, 1, 1), 751),
    (UTC_US, datetime(2020, 1, 1, tzinfo=UTC), 215),
    (pa.decimal128(10, 2), Decimal("1.50"), 635),
    (pa.decimal128(10, 2), Decimal("-1.00"), 631),
]


@pytest.mark.parametrize(("kind", "key", "partition"), GOLDEN)
def test_a_key_has_its_golden_partition(kind, key, partition):
    assert partitions_of(pa.array([key], kind), COUNT).to_pylist() == [partition]


@pytest.mark.parametrize(
    ("narrow", "wide", "key"),
    [
        (pa.int8(), pa.int64(), -5),
        (pa.int32(), pa.int64(), 2**31 - 1),
        (pa.float32(), pa.float64(), 0.25),
        (pa.decimal128(5, 2), pa.decimal128(38, 2), Decimal("-1.25")),
    ],
)
def test_a_widened_key_stays_where_it_was(narrow, wide, key):
    before = partitions_of(pa.array([key], narrow), COUNT)
    assert before.equals(partitions_of(pa.array([key], wide), COUNT))


@given(st.lists(st.one_of(st.none(), st.text(max_size=5)), max_size=50), st.integers(1, 9))
def test_each_key_is_hashed_by_itself(keys, count):
    found = partitions_of(pa.array(keys, pa.string()), count).to_pylist()
    assert found == [zlib.crc32((key or "").encode()) % count for key in keys]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50))
def test_numbers_are_eight_bytes_little_endian(keys):
    found = partitions_of(pa.array(keys, pa.int64()), 7).to_pylist()
    assert found == [zlib.crc32(key.to_bytes(8, "little", signed=True)) % 7 for key in keys]


def test_a_slice_and_its_nulls_are_hashed_as_they_are_seen():
    keys = pa.array(["x", None, "a", None, "a"])
    assert partitions_of(keys.slice(1, 3), COUNT).to_pylist() == [0, 907, 0]


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.string()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int8())],
)
def test_a_nested_column_is_no_key(kind):
    with pytest.raises(BadSchema, match="is not a valid key type") as caught:
        check_key(pa.schema([("where", kind)]), "where")
    assert caught.value.column == "where"


def test_a_key_is_a_column():
    with pytest.raises(BadSchema, match="not a column of the schema"):
        check_key(pa.schema([("id", pa.int64())]), "name")
