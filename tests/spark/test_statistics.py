"""What readers skip the files of a table by: right for all, and there for each type."""

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given
from hypothesis import strategies as st
from tests.spark.test_pipeline_types import SOURCE, written

from headrace.spark.tables.table_record import create
from headrace.spark.worker.statistics import STRING_SIZE, Statistics

UTC_TIME, LOCAL_TIME = pa.timestamp("us", "UTC"), pa.timestamp("us")
LONG = pa.decimal128(38, 9)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int8()),
        ("ratio", pa.float64()),
        ("rough", pa.float32()),
        ("price", LONG),
        ("day", pa.date32()),
        ("at", UTC_TIME),
        ("local", LOCAL_TIME),
        ("name", pa.string()),
        ("a.b `c", pa.int32()),
        ("paid", pa.bool_()),
        ("raw", pa.binary()),
        ("who", pa.struct([("age", pa.int64()), ("seen", pa.struct([("at", UTC_TIME)]))])),
        ("tags", pa.list_(pa.int64())),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)
COMPARED = SCHEMA.names[:10]


def a_row(number):
    at = datetime(2020 + number, 1, 1, microsecond=123456, tzinfo=UTC)
    local = at.replace(tzinfo=None)
    digits = tuple(map(int, str(12345678901234567890123456789123456789 + number)))
    return {
        "id": number,
        "small": number,
        "ratio": number + 0.1,
        "rough": number + 0.5,
        "price": Decimal((0, digits, -9)),
        "day": local.date(),
        "at": at,
        "local": local,
        "name": f"{chr(ord('a') + number)}{'x' * 50}{number}",
        "a.b `c": number,
        "paid": number % 2 == 0,
        "raw": b"x",
        "who": {"age": number, "seen": {"at": at}},
        "tags": [number],
        "counts": [("k", number)],
    }


@pytest.fixture
def table(tmp_path):
    """Three files, with rows 0 and 3, 8 and 11, 16 and 19; and two of them with a null row."""
    record = create(str(tmp_path), SOURCE, SCHEMA)
    nothing = {**dict.fromkeys(SCHEMA.names), "who": {"age": None, "seen": None}}
    files = []
    for base, more in ((0, [nothing]), (8, [dict.fromkeys(SCHEMA.names)]), (16, [])):
        files += written(tmp_path, SCHEMA, [a_row(base), a_row(base + 3), *more])
    assert record.commit(files, {0: 0}, {0: 8})
    return DeltaTable(str(tmp_path))


def told(tmp_path):
    entry = tmp_path / "_delta_log" / f"{1:020}.json"
    adds = [json.loads(line).get("add") for line in entry.read_text().splitlines()]
    return [json.loads(add["stats"], parse_float=Decimal) for add in adds if add is not None]


def test_each_type_that_delta_has_bounds_for_has_them_in_the_log(tmp_path, table):
    first = next(one for one in told(tmp_path) if one["minValues"]["id"] == 0)
    assert first["numRecords"] == 3
    assert first["minValues"] == {
        "id": 0,
        "small": 0,
        "ratio": Decimal("0.1"),
        "rough": Decimal("0.5"),
        "price": Decimal("12345678901234567890123456789.123456789"),
        "day": "2020-01-01",
        "at": "2020-01-01T00:00:00.123Z",
        "local": "2020-01-01T00:00:00.123",
        "name": "a" + "x" * 31,
        "a.b `c": 0,
        "paid": False,
        "who": {"age": 0, "seen": {"at": "2020-01-01T00:00:00.123Z"}},
    }
    assert first["maxValues"] == {
        "id": 3,
        "small": 3,
        "ratio": Decimal("3.1"),
        "rough": Decimal("3.5"),
        "price": Decimal("12345678901234567890123456789.123456792"),
        "day": "2023-01-01",
        "at": "2023-01-01T00:00:00.124Z",
        "local": "2023-01-01T00:00:00.124",
        "name": "d" + "x" * 31 + "\U0010ffff",
        "a.b `c": 3,
        "paid": True,
        "who": {"age": 3, "seen": {"at": "2023-01-01T00:00:00.124Z"}},
    }
    plain = dict.fromkeys(SCHEMA.names, 1)
    assert first["nullCount"] == {**plain, "who": {"age": 1, "seen": {"at": 1}}}


def test_a_reader_opens_the_one_file_that_may_have_the_row(table):
    dataset, row = table.to_pyarrow_dataset(), a_row(11)
    for name in COMPARED:
        wanted = pc.field(name) == pa.scalar(row[name], SCHEMA.field(name).type)
        assert len(list(dataset.get_fragments(wanted))) == 1, name
        assert dataset.to_table(filter=wanted)["id"].to_pylist() == [11], name


def test_a_query_skips_files_by_fields_and_after_a_checkpoint(tmp_path, table):
    table.create_checkpoint()
    sql = "select id from t where who['age'] = 11 and at = '2031-01-01T00:00:00.123456Z'"
    query = QueryBuilder().register("t", DeltaTable(str(tmp_path)))
    assert pa.table(query.execute(sql).read_all())["id"].to_pylist() == [11]
    shown = str(pa.table(query.execute(f"explain analyze {sql}").read_all()).to_pylist())
    assert "files_opened=1," in shown


def bounds(kind, values):
    """Return what is told of a column, in two batches: least, greatest, count of nulls."""
    statistics = Statistics()
    for part in (values[:1], values[1:]):
        statistics.add(pa.table({"it": pa.array(part, kind)}))
    found = json.loads(statistics.told(), parse_float=Decimal)
    assert found["numRecords"] == len(values)
    edges = [found.get(name, {}).get("it") for name in ("minValues", "maxValues")]
    return *edges, found["nullCount"]["it"]


@pytest.mark.parametrize(
    ("kind", "values", "told"),
    [
        (pa.int32(), [None, None], (None, None, 2)),
        (pa.float64(), [1.0, math.nan], (None, None, 0)),
        (pa.float64(), [math.nan, math.nan, 1.0], (None, None, 0)),
        (pa.float64(), [-math.inf, 2.5], (None, None, 0)),
        (pa.float64(), [math.inf, None], (None, None, 1)),
        (pa.bool_(), [True, None], (True, True, 1)),
        (pa.bool_(), [True, False], (False, True, 0)),
        (pa.binary(), [b"a", None], (None, None, 1)),
        (pa.list_(pa.int32()), [[1], None], (None, None, 1)),
        (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)], ("0001-01-01", "9999-12-31", 0)),
        (pa.decimal128(5, 2), [Decimal("-1.50"), Decimal(0)], (Decimal("-1.50"), 0, 0)),
        (UTC_TIME, [-1], ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z", 0)),
        (LOCAL_TIME, [1000, 1001], ("1970-01-01T00:00:00.001", "1970-01-01T00:00:00.002", 0)),
        (LOCAL_TIME, [253402300799999999], (None, None, 0)),
        (UTC_TIME, [-(2**62), 0], (None, None, 0)),
        (pa.string(), ["", "ü" * 33], ("", "ü" * 32 + "\U0010ffff", 0)),
        (pa.string_view(), ["b", "a"], ("a", "b", 0)),
        (pa.string(), ["y" * 32], ("y" * 32, "y" * 32, 0)),
        (
            pa.string(),
            ["y" * 32 + "\U0010ffff" * 2 + "z"],
            ("y" * 32, "y" * 32 + "\U0010ffff" * 3, 0),
        ),
        (pa.string(), ["y" * 32 + "\U0010ffff"], ("y" * 32, "y" * 32 + "\U0010ffff", 0)),
    ],
)
def test_bounds_are_what_every_reader_takes_rightly(kind, values, told):
    assert bounds(kind, values) == told


def test_a_zero_is_told_so_that_both_of_them_are_found():
    for value in (0.0, -0.0):
        statistics = Statistics()
        statistics.add(pa.table({"it": [value]}))
        assert '"minValues":{"it":-0.0},"maxValues":{"it":0.0}' in statistics.told()


def test_a_text_that_is_no_utf_8_has_no_bound_and_stops_nothing():
    """Spark has such strings: cast(x'ff' as string)."""
    strange = pa.array([b"\xff\xfe", b"a", None]).view(pa.string())
    statistics = Statistics()
    statistics.add(pa.table({"it": strange}))
    assert json.loads(statistics.told()) == {"numRecords": 3, "nullCount": {"it": 1}}


def told_of(**columns):
    statistics = Statistics()
    statistics.add(pa.table(columns))
    return json.loads(statistics.told())


def test_a_file_in_which_one_column_lacks_a_bound_has_none_at_all():
    """A reader that takes no bound for no value would skip it."""
    infinite, late = [1.0, math.inf], datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    nested = pa.array([{"at": late}], pa.struct([("at", UTC_TIME)]))
    for columns in ({"it": infinite}, {"it": [math.nan, 1.0]}):
        found = told_of(id=[1, 2], **columns)
        assert found == {"numRecords": 2, "nullCount": {"id": 0, "it": 0}}
    found = told_of(id=[1], it=nested)
    assert found == {"numRecords": 1, "nullCount": {"id": 0, "it": {"at": 0}}}


def test_columns_without_values_and_those_of_no_order_take_no_bounds_from_others():
    nothing = pa.array([None], pa.float64())
    who = pa.array([None], pa.struct([("age", pa.int64())]))
    found = told_of(id=[1], it=nothing, who=who, raw=[b"x"], tags=[[1]])
    assert found["minValues"] == found["maxValues"] == {"id": 1, "who": {}}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=70), min_size=1))
def test_texts_lie_between_their_bounds_as_bytes(values):
    texts = values + [value * 20 + "\U0010ffff" for value in values]
    low, high, _ = bounds(pa.string(), texts)
    assert all(low.encode() <= value.encode() <= high.encode() for value in texts)
    assert len(low) <= STRING_SIZE


@given(st.lists(st.integers(-(2**47), 2**47), min_size=1))
def test_times_lie_between_their_bounds_and_less_than_a_millisecond_apart(values):
    low, high, _ = bounds(UTC_TIME, values)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    least, most = (epoch + timedelta(microseconds=of(values)) for of in (min, max))
    short = timedelta(milliseconds=1)
    assert timedelta() <= least - datetime.fromisoformat(low) < short
    assert timedelta() <= datetime.fromisoformat(high) - most < short
