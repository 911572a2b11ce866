"""A proof by rows reads each row group about once, and leaves no window out. No Spark."""

import random
import struct

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.spark.conftest import rows
from tests.spark.test_prove import prove
from tests.spark.test_prove_claims import bring, said

from headrace.spark.prove import table_parts
from headrace.spark.prove.table_parts import OFFSET, TableParts
from headrace.spark.tables.table_record import LogSource, look

NOTHING = {"missing": 0, "duplicated": 0, "changed": 0, "foreign": 0}


def kinds(found):
    return {name: found[name] for name in NOTHING}


@pytest.fixture
def narrow(monkeypatch):
    """Windows of a few rows."""
    monkeypatch.setattr(table_parts, "WINDOW", 20)
    monkeypatch.setattr(table_parts, "_WINDOW_MAX", 40)


def filled(tmp_path, topic, count=300):
    topic.append([{"id": 1_000 + n, "name": f"n{n}"} for n in range(count)], partition=0)
    topic.append(rows(0, 30), partition=1)
    bring(tmp_path, topic)


def table_of(tmp_path):
    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_table()
    return found.sort_by([("_hr_partition", "ascending"), (OFFSET, "ascending")])


def laid_out(tmp_path, made, *, sizes, **options):
    """Have the rows of a table in files of these sizes, in row groups of 16."""
    table = str(tmp_path / "table")
    write_deltalake(table, made.slice(0, 0), mode="overwrite")
    start = 0
    for size in sizes:
        write_deltalake(table, made.slice(start, size), mode="append")
        start += size
    assert start >= made.num_rows
    for uri in DeltaTable(table).file_uris():
        found = pq.read_table(uri)
        pq.write_table(found, uri, row_group_size=16, **options)


def test_each_row_group_is_read_once_and_all_windows_are_seen(
    tmp_path, topic, narrow, monkeypatch
):
    filled(tmp_path, topic)
    laid_out(tmp_path, table_of(tmp_path), sizes=[100, 7, 100, 100, 23])
    read, real = [], TableParts.rows

    def counted(self, window, columns):
        read.extend((part.file.path, part.number) for part in window.parts)
        return real(self, window, columns)

    monkeypatch.setattr(TableParts, "rows", counted)
    code, found = prove(tmp_path)
    assert (code, found["compared"], kinds(found)) == (0, 330, NOTHING)
    group_count = sum(
        pq.read_metadata(uri).num_row_groups
        for uri in DeltaTable(str(tmp_path / "table")).file_uris()
    )
    assert len(set(read)) == group_count == 24
    assert len(read) == group_count + 1  # one has rows of both partitions


@pytest.mark.parametrize("options", [{}, {"write_statistics": False}])
def test_rows_in_any_order_are_found(tmp_path, topic, narrow, options):
    filled(tmp_path, topic)
    whole = table_of(tmp_path)
    places = list(range(330))
    random.Random(3).shuffle(places)
    laid_out(tmp_path, whole.take(places), sizes=[110, 110, 110], **options)
    code, found = prove(tmp_path)
    assert (code, found["compared"], kinds(found)) == (0, 330, NOTHING)
    laid_out(tmp_path, whole.take([*places[1:], places[5]]), sizes=[330], **options)
    code, found = prove(tmp_path)
    assert (code, kinds(found)) == (6, {**NOTHING, "missing": 1, "duplicated": 1})


def test_windows_without_any_row_are_missing(tmp_path, topic, narrow):
    filled(tmp_path, topic)
    whole = table_of(tmp_path)
    laid_out(tmp_path, pa.concat_tables([whole.slice(0, 50), whole.slice(250)]), sizes=[130])
    code, found = prove(tmp_path)
    assert (code, kinds(found)) == (6, {**NOTHING, "missing": 200})
    assert (found["in_log"], found["in_table"]) == (330, 130)


def test_windows_divide_a_range_whatever_the_row_groups_are(tmp_path, topic, narrow):
    filled(tmp_path, topic)
    chance = random.Random(5)
    whole = table_of(tmp_path)
    for _ in range(5):
        sizes = [chance.randint(1, 90) for _ in range(20)]
        laid_out(tmp_path, whole, sizes=sizes)
        record = look(str(tmp_path / "table"), LogSource.reading("orders", topic))
        found = list(table_parts.table_parts(record).windows(0, 3, 297))
        assert [one.start for one in found] == [3, *(one.end for one in found[:-1])]
        assert found[-1].end == 297
        assert all(0 < one.end - one.start <= 40 for one in found)


def test_rows_that_a_footer_hides_are_not_passed_over(tmp_path, topic, narrow):
    """Its highest offset is too low: no window would ask the row group for the rest."""
    filled(tmp_path, topic)
    assert prove(tmp_path)[0] == 0
    table = str(tmp_path / "table")
    before = set(DeltaTable(table).file_uris())
    write_deltalake(table, table_of(tmp_path).slice(60, 40), mode="append")
    (uri,) = set(DeltaTable(table).file_uris()) - before
    pq.write_table(pq.read_table(uri), uri)
    assert kinds(prove(tmp_path)[1]) == {**NOTHING, "duplicated": 40}
    with open(uri, "r+b") as file:
        data = bytearray(file.read())
        start = len(data) - 8 - struct.unpack("<i", data[-8:-4])[0]
        footer = data[start:].replace(struct.pack("<q", 99), struct.pack("<q", 79))
        assert footer != data[start:]
        file.seek(start)
        file.write(footer)
    done = said(tmp_path)
    assert done.code == 6
    assert "rows at other positions than their footers say" in done.err


def test_plain_values_are_compared_with_nulls_and_nan(tmp_path, log):
    topic = log.create_topic("shop/orders", {"id": "int64", "x": "float64"})
    nan = float("nan")
    values = [nan, 1.0, None, nan, 2.0, None]
    topic.append([{"id": n, "x": x} for n, x in enumerate(values)])
    bring(tmp_path, topic)
    assert prove(tmp_path)[0] == 0
    whole = DeltaTable(str(tmp_path / "table")).to_pyarrow_table()
    other = pa.array([nan, 1.0, 0.0, 1.0, None, None], pa.float64())
    changed = whole.set_column(whole.schema.get_field_index("x"), "x", other)
    write_deltalake(str(tmp_path / "table"), changed, mode="overwrite")
    code, found = prove(tmp_path)
    assert (code, found["changed"]) == (6, 3)
    assert [(one["start"], one["end"]) for one in found["findings"]] == [(2, 5)]
