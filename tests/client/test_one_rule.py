"""One rule for every kind of input: the same value is taken, or refused, however it comes."""

from datetime import UTC, date, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from headrace.client.write.convert import batches_of
from headrace.errors import BadBatch
from headrace.model.column_types import TIMESTAMP, list_of
from headrace.model.schema import canonical

SUMMER = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
NAIVE = datetime(2026, 7, 1, 12)  # noqa: DTZ001


def an_array(values):
    """Of the type that pyarrow finds, or of the one that it needs to be told."""
    return pa.array(values, pa.uint64()) if values == [2**63] else pa.array(values)


WAYS = {
    "rows": lambda values: [{"v": each} for each in values],
    "columns": lambda values: {"v": values},
    "pandas": lambda values: pd.DataFrame({"v": values}),
    "pandas of objects": lambda values: pd.DataFrame({"v": pd.Series(values, dtype=object)}),
    "polars": lambda values: pl.DataFrame({"v": values}),
    "pyarrow": lambda values: pa.table({"v": an_array(values)}),
    "pyarrow stream": lambda values: pa.table({"v": an_array(values)}).to_reader(),
}

TAKEN = [
    (pa.int64(), [1, None], [1, None]),
    (pa.int64(), [1.0, None], [1, None]),
    (pa.int8(), [-128, 127], [-128, 127]),
    (pa.float64(), [1, 2], [1.0, 2.0]),
    (pa.float64(), [0.1], [0.1]),
    (pa.float32(), [0.1], [float(np.float32(0.1))]),
    (pa.float32(), [7], [7.0]),
    (pa.bool_(), [True, None], [True, None]),
    (pa.string(), ["ä", None], ["ä", None]),
    (pa.binary(), [b"\xff"], [b"\xff"]),
    (pa.date32(), [date(2026, 7, 1)], [date(2026, 7, 1)]),
    (TIMESTAMP, [SUMMER], [SUMMER.astimezone(UTC)]),
    (TIMESTAMP, [datetime(2026, 7, 1, tzinfo=UTC)], [datetime(2026, 7, 1, tzinfo=UTC)]),
    (pa.decimal128(6, 2), [Decimal("1.50")], [Decimal("1.50")]),
    (pa.decimal128(6, 2), [7], [Decimal("7.00")]),
    (list_of(pa.int64(), nullable=True), [[1.0], []], [[1], []]),
    (list_of(TIMESTAMP, nullable=True), [[SUMMER]], [[SUMMER.astimezone(UTC)]]),
    (pa.struct([("a", pa.int64())]), [{"a": 1.0}], [{"a": 1}]),
    (pa.string(), [None, None], [None, None]),
]

REFUSED = [
    (pa.int64(), 1.5),
    (pa.int64(), True),
    (pa.int64(), "1"),
    (pa.int64(), Decimal(1)),
    (pa.int64(), 2**63),
    (pa.int8(), 300),
    (pa.int8(), 300.0),
    (pa.float64(), 2**53 + 1),
    (pa.float64(), True),
    (pa.float64(), "1.5"),
    (pa.float32(), 1e300),
    (pa.bool_(), 1),
    (pa.string(), 1),
    (pa.string(), b"a"),
    (pa.binary(), "a"),
    (pa.date32(), SUMMER),
    (TIMESTAMP, NAIVE),
    (TIMESTAMP, date(2026, 7, 1)),
    (TIMESTAMP, 5),
    (TIMESTAMP, "2026-07-01T12:00:00Z"),
    (pa.decimal128(6, 2), 1.5),
    (pa.decimal128(6, 2), Decimal("1.234")),
    (pa.decimal128(6, 2), Decimal("12345.00")),
    (list_of(pa.int64(), nullable=True), [1.5]),
    (pa.struct([("a", pa.int64())]), {"a": 1.5}),
    (pa.struct([("a", pa.int64())]), {"a": 1, "b": 2}),
]


def appended(data, schema):
    return [row for batch in batches_of(data, schema) for row in batch.to_pylist()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "values", "expected"), TAKEN, ids=str)
def test_a_value_that_stays_the_same_is_taken(way, kind, values, expected):
    found = appended(WAYS[way](values), pa.schema([("v", kind)]))
    assert found == [{"v": each} for each in expected]
    assert [type(row["v"]) for row in found] == [type(each) for each in expected]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "value"), REFUSED, ids=str)
def test_a_value_that_would_change_is_refused(way, kind, value):
    with pytest.raises(BadBatch) as caught:
        appended(WAYS[way]([value]), pa.schema([("v", kind)]))
    assert caught.value.column.startswith("v")
    assert caught.value.hint


@pytest.mark.parametrize("way", WAYS)
def test_a_column_that_may_be_null_may_be_left_out_and_no_other(way):
    schema = pa.schema([("v", pa.int64()), ("note", pa.string())])
    assert appended(WAYS[way]([7]), schema) == [{"v": 7, "note": None}]
    needed = pa.schema([("v", pa.int64()), pa.field("must", pa.string(), nullable=False)])
    with pytest.raises(BadBatch) as caught:
        appended(WAYS[way]([7]), needed)
    assert caught.value.column == "must"
    with pytest.raises(BadBatch, match="no such column") as caught:
        appended(WAYS[way]([7]), pa.schema([("w", pa.int64())]))
    assert caught.value.column == "v"


def test_nanoseconds_are_not_lost_without_a_word():
    odd = pd.Timestamp("2026-07-01 12:00:00.000000001", tz="UTC")
    schema = pa.schema([("v", TIMESTAMP)])
    for data in ([{"v": odd}], {"v": [odd]}, pd.DataFrame({"v": [odd]})):
        with pytest.raises(BadBatch, match="does not fit"):
            appended(data, schema)


def test_nan_is_a_null_of_pandas_and_a_number_elsewhere():
    schema = pa.schema([("v", pa.float64())])
    for way, make in WAYS.items():
        (row,) = appended(make([float("nan")]), schema)
        assert (row["v"] is None) == way.startswith("pandas")


def test_scalars_and_arrays_of_numpy_are_values():
    schema = pa.schema([("v", pa.int64()), ("list", list_of(pa.int32(), nullable=True))])
    row = {"v": np.float64(2), "list": np.array([1, 2])}
    assert appended([row], schema) == [{"v": 2, "list": [1, 2]}]
    columns = {"v": np.array([2.0]), "list": [np.array([1.0, 2.0])]}
    assert appended(columns, schema) == [{"v": 2, "list": [1, 2]}]
    with pytest.raises(BadBatch, match=r"list\[\]"):
        appended([row | {"list": np.array([1.5])}], schema)


def test_maps_are_dicts_or_pairs():
    schema = pa.schema([("v", pa.map_(pa.string(), pa.int64()))])
    kept = canonical(schema)
    for value in ({"a": 1.0}, [("a", 1)]):
        assert appended([{"v": value}, {"v": None}], kept) == [{"v": [("a", 1)]}, {"v": None}]
    for bad in ({"a": 1.5}, {1: 1}, ["ab"], 5):
        with pytest.raises(BadBatch):
            appended([{"v": bad}], kept)


STRUCT = pa.struct([("a", pa.int64()), pa.field("must", pa.int64(), nullable=False)])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value]], ids=["", "list"])
def test_a_field_of_a_struct_that_may_be_null_may_be_left_out_and_no_other(way, wrap):
    kind = STRUCT if wrap(1) == 1 else list_of(STRUCT, nullable=True)
    schema = pa.schema([("v", kind)])
    assert appended(WAYS[way]([wrap({"must": 1})]), schema) == [
        {"v": wrap({"a": None, "must": 1})}
    ]
    with pytest.raises(BadBatch) as caught:
        appended(WAYS[way]([wrap({"a": 1})]), schema)
    assert caught.value.column.endswith(".must")


@pytest.mark.parametrize("way", WAYS)
def test_a_column_that_must_be_there_is_said_to_be_missing(way):
    schema = pa.schema([("v", pa.int64()), pa.field("id", pa.int64(), nullable=False)])
    with pytest.raises(BadBatch) as caught:
        appended(WAYS[way]([1]), schema)
    assert caught.value.column == "id"
    assert "as nulls" not in str(caught.value)
    if "rows" not in way:
        assert str(caught.value) == (
            "column 'id': missing and not nullable. Add it to every row"
        )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (pl.Series("v", [1]), "Series is a single column, not rows"),
        (pd.Series([1], name="v"), "Series is a single column, not rows"),
        (pa.array([1]), "is a single column, not rows"),
        (pa.chunked_array([[1]]), "is a single column, not rows"),
        (pl.LazyFrame({"v": [1]}), r"Collect it first: \.collect\(\)"),
        (({"v": n} for n in range(3)), r"Pass list\(rows\)"),
        ([{"v": 10**30}], "column 'v': a number is out of range"),
        ({"v": np.zeros((2, 2))}, "column 'v': has 2 dimensions"),
        (pd.DataFrame({"v": pd.arrays.SparseArray([0, 1])}), "column 'v': is sparse"),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_what_is_nearly_rows_is_refused_with_the_way_to_them(data, words):
    with pytest.raises(BadBatch, match=words):
        appended(data, pa.schema([("v", pa.int64())]))
