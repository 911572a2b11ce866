"""Segments are plain Parquet: other programs read the same rows, without Headrace."""

import math

import duckdb
import pandas
import polars
import pyarrow as pa
import pytest
from tests.partition.segments import FIRST, START_US, USER, a_batch, a_segment, small_groups

from headrace.storage.file import FileDirectory

COUNT = 60


@pytest.fixture
def path(tmp_path):
    """A segment of six row groups, as the file it is on a real disk."""
    with FileDirectory.open_root(str(tmp_path / "data"), create=True) as root, small_groups(10):
        info, _ = a_segment(root, a_batch(COUNT))
    return str(tmp_path / "data" / info.name)


def plain(value):
    """Return a value without what is only a reader's way of saying it."""
    match value:
        case dict() if {"key", "value"} == value.keys():
            return [plain(value["key"]), plain(value["value"])]
        case dict():
            return [(key, plain(inner)) for key, inner in value.items()]
        case list() | tuple():
            return [plain(inner) for inner in value]
        case float() if math.isnan(value):
            return "NaN"
        case _:
            return value


def columns(table):
    return {
        name: [plain(v) for v in table.column(name).to_pylist()] for name in table.schema.names
    }


def expected():
    return columns(pa.Table.from_batches([a_batch(COUNT)]))


def as_arrow(found):
    """Return a reader's answer with the types that the rows were sealed with."""
    schema = a_batch(COUNT).schema
    return pa.table(found).rename_columns(schema.names).cast(schema)


class TestDuckDb:
    @pytest.fixture
    def database(self):
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            yield connection

    def test_reads_the_same_rows(self, database, path):
        found = database.read_parquet(path).to_arrow_table()
        assert columns(as_arrow(found)) == expected()

    def test_finds_rows_by_offset_and_time(self, database, path):
        query = (
            "SELECT min(_hr_offset), max(_hr_offset), count(*), sum(id) FROM read_parquet(?) "
            "WHERE _hr_offset >= 125 AND epoch_us(_hr_timestamp) < ?"
        )
        late = START_US + 4000  # rows come ten to the millisecond
        (answer,) = database.execute(query, [path, late]).fetchall()
        assert answer == (125, 139, 15, sum(3 * n for n in range(125, 140)))

    def test_sees_what_the_segment_says_about_itself(self, database, path):
        query = "SELECT decode(key), decode(value) FROM parquet_kv_metadata(?)"
        words = dict(database.execute(query, [path]).fetchall())
        assert words["headrace.first"] == str(FIRST)
        assert words["headrace.end"] == str(FIRST + COUNT)

    def test_reads_many_segments_as_one_table(self, database, path, tmp_path):
        with FileDirectory.open_root(str(tmp_path / "data"), create=False) as root:
            a_segment(root, a_batch(40, first=FIRST + COUNT))
        query = "SELECT count(DISTINCT _hr_offset), max(_hr_offset) FROM read_parquet(?)"
        (answer,) = database.execute(query, [str(tmp_path / "data" / "*.parquet")]).fetchall()
        assert answer == (100, 199)


class TestPolars:
    def test_reads_the_same_rows(self, path):
        found = polars.read_parquet(path)
        assert found.schema["_hr_timestamp"] == polars.Datetime("us", "UTC")
        assert found.schema["price"] == polars.Decimal(38, 4)
        found = found.rename({f"_hr{name}": name for name in a_batch(1).schema.names[:3]})
        assert found.columns == a_batch(1).schema.names
        by_name = {name: [plain(v) for v in found[name].to_list()] for name in found.columns}
        assert by_name == expected()

    def test_finds_rows_by_offset(self, path):
        lazy = polars.scan_parquet(path).filter(polars.col("_hr_offset") >= 150).select("id")
        assert lazy.collect()["id"].to_list() == [3 * n for n in range(150, 160)]


class TestPandas:
    def test_reads_the_same_rows(self, path):
        found = pandas.read_parquet(path, dtype_backend="pyarrow")
        table = pa.Table.from_pandas(found, preserve_index=False)
        assert columns(as_arrow(table)) == expected()

    def test_reads_numbers_and_times_as_its_own(self, path):
        found = pandas.read_parquet(path, columns=["_hr_offset", "_hr_timestamp", "id"])
        assert found["_hr_offset"].tolist() == list(range(FIRST, FIRST + COUNT))
        assert found["id"].tolist() == [3 * n for n in range(FIRST, FIRST + COUNT)]
        assert str(found["_hr_timestamp"].dtype) == "datetime64[us, UTC]"
        assert found["_hr_timestamp"].iloc[0].value == START_US * 1000


def test_every_column_is_compared():
    assert list(expected()) == ["_partition", "_offset", "_timestamp", *USER.names]
    assert all(any(v is not None for v in c) for n, c in expected().items() if n != "nothing")
