"""Sealed segments enter a table as the files that they are, and only if they may."""

import hashlib
import math
import stat
from collections import Counter
from dataclasses import replace
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from tests.spark.conftest import SCHEMA, rows
from tests.spark.sealing import seal_all
from tests.spark.test_copy import TYPES, a_row
from tests.spark.test_pipeline import a_definition, ids, run, table_of
from tests.spark.test_prove import prove

from headrace.client.connect.embedded_nodes import home_of
from headrace.errors import BadConfig, BadRequest
from headrace.node import leases
from headrace.spark import read_table
from headrace.spark.friendly_errors import RoundFailed
from headrace.spark.pipeline import sealed_rows
from headrace.spark.pipeline.pipeline import OFFSET, PARTITION, opened
from headrace.spark.pipeline.sealed_rows import SealedRows
from headrace.spark.tables.leftovers import orphans_of
from headrace.spark.worker import segment_copy


def segments_of(topic):
    with topic.lease_files() as lease:
        return [Path(file.path) for each in lease.partitions for file in each.files]


def leased(topic):
    with topic.lease_files() as lease:
        return lease.partitions


def files_of(tmp_path):
    return [Path(uri) for uri in DeltaTable(str(tmp_path / "table")).file_uris()]


def digests(paths):
    return sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)


def places_of(found):
    return Counter(zip(found[PARTITION].to_pylist(), found[OFFSET].to_pylist(), strict=True))


@pytest.fixture
def sealed(tmp_path, log):
    """A topic of every type, of which all rows are sealed."""
    topic = log.create_topic("shop/orders", TYPES, partitions=2)
    for start in range(0, 300, 100):
        topic.append([a_row(number) for number in range(start, start + 100)], partition=0)
    topic.append([a_row(number) for number in range(300, 330)], partition=1)
    seal_all(tmp_path / "data")
    return topic


def test_the_files_of_the_table_are_the_segments_byte_for_byte(spark, tmp_path, sealed):
    (done,) = run(spark, a_definition(tmp_path))
    assert (done.row_count, done.written) == (330, 330)
    assert done.segment_count == done.file_count == len(segments_of(sealed)) > 0
    assert digests(files_of(tmp_path)) == digests(segments_of(sealed))
    for file in files_of(tmp_path):
        assert file.stat().st_nlink == 1
        assert stat.S_IMODE(file.stat().st_mode) & 0o444 == 0o444
    assert places_of(table_of(tmp_path)) == Counter(
        [(0, n) for n in range(300)] + [(1, n) for n in range(30)]
    )
    code, proof = prove(tmp_path)
    assert (code, proof["grade"], proof["compared"]) == (0, "identity", 330)
    assert proof["compared_by_digest"] == 330


def test_every_reader_finds_in_them_what_the_log_has(spark, tmp_path, sealed):
    run(spark, a_definition(tmp_path))
    log = (
        sealed.read()
        .to_table()
        .rename_columns([PARTITION, OFFSET, "_hr_timestamp", *TYPES.names])
    )
    order = [(PARTITION, "ascending"), (OFFSET, "ascending")]
    expected = log.drop_columns("_hr_timestamp").sort_by(order)
    names, table = expected.column_names, DeltaTable(str(tmp_path / "table"))
    found = table.to_pyarrow_table().select(names).sort_by(order)
    assert found.cast(expected.schema).equals(expected)
    in_spark = read_table(spark, str(tmp_path / "table")).select(*names).toArrow()
    quoted = [f'"{name}"' for name in names]
    in_duckdb = duckdb.sql(
        f"select {', '.join(quoted)} from read_parquet({[str(f) for f in files_of(tmp_path)]})"
    ).to_arrow_table()
    in_polars = polars.read_delta(str(tmp_path / "table")).select(names).to_arrow()
    for other in (in_spark, in_duckdb, in_polars):
        assert _plain(other.sort_by(order)) == _plain(expected)
    for number in (0, 17, 299):
        one = duckdb.from_arrow(table.to_pyarrow_dataset()).filter(f"id = {number}")
        assert [row[2] for row in one.select(f"{PARTITION}, {OFFSET}, id").fetchall()] == [
            number
        ]


def test_statistics_of_a_footer_are_those_of_its_rows(spark, tmp_path, sealed):
    run(spark, a_definition(tmp_path))
    run(spark, a_definition(tmp_path, name="other", table="made", sql="select * from source"))
    copied, made = (_statistics(tmp_path / name) for name in ("table", "made"))
    lists = {"null_count.tags", "null_count.counts"}
    for column in made.keys() - lists:
        merge = min if column.startswith("min") else max if column.startswith("max") else sum
        assert _merged(copied[column], merge) == _merged(made[column], merge), column


def _plain(table):
    """Return rows in which each map is a list of pairs: some readers have structs there."""
    found = table.to_pylist()
    for row in found:
        pairs = row["counts"] or []
        row["counts"] = [tuple(p.values()) if isinstance(p, dict) else p for p in pairs]
    return found


def _statistics(path):
    actions = pa.table(DeltaTable(str(path)).get_add_actions(flatten=True))
    return {
        name: actions[name].to_pylist()
        for name in actions.column_names
        if name.startswith(("min.", "max.", "null_count.", "num_records"))
    }


def _merged(values, merge):
    return merge(value for value in values if value is not None)


def test_what_is_not_sealed_goes_by_rows_around_them(spark, tmp_path, topic):
    topic.append(rows(0, 100), partition=0)
    seal_all(tmp_path / "data")
    topic.append(rows(100, 130), partition=0)
    topic.append(rows(130, 140), partition=1)
    (done,) = run(spark, a_definition(tmp_path))
    assert (done.row_count, done.segment_count) == (140, len(segments_of(topic)))
    assert done.file_count > done.segment_count
    assert ids(tmp_path) == list(range(140))
    assert prove(tmp_path)[0] == 0


def test_a_segment_in_which_the_place_is_goes_by_rows(spark, tmp_path, topic):
    topic.append(rows(0, 50), partition=0)
    run(spark, a_definition(tmp_path))
    topic.append(rows(50, 100), partition=0)
    seal_all(tmp_path / "data")
    topic.append(rows(100, 200), partition=0)
    seal_all(tmp_path / "data")
    found = [pq.read_metadata(path).num_rows for path in segments_of(topic)]
    (done,) = run(spark, a_definition(tmp_path))
    assert ids(tmp_path) == list(range(200))
    assert done.segment_count == len(found) - 1
    assert prove(tmp_path)[0] == 0


def test_a_round_that_begins_a_segment_takes_all_of_it(spark, tmp_path, topic):
    topic.append(rows(0, 100), partition=0)
    seal_all(tmp_path / "data")
    topic.append(rows(100, 150), partition=0)
    done = run(spark, a_definition(tmp_path, batch_rows=60))
    assert [one.row_count for one in done] == [100, 50]
    assert done[0].segment_count == done[0].file_count
    assert ids(tmp_path) == list(range(150))


def test_only_sealed_rows_come_if_that_is_asked(spark, tmp_path, topic):
    topic.append(rows(0, 100), partition=0)
    assert run(spark, a_definition(tmp_path, tail="sealed")) == []
    seal_all(tmp_path / "data")
    topic.append(rows(100, 130), partition=0)
    (done,) = run(spark, a_definition(tmp_path, tail="sealed"))
    assert (done.row_count, done.lag) == (100, 30)
    assert done.segment_count == done.file_count
    assert run(spark, a_definition(tmp_path, tail="sealed")) == []
    seal_all(tmp_path / "data")
    run(spark, a_definition(tmp_path, tail="sealed"))
    assert ids(tmp_path) == list(range(130))
    with pytest.raises(BadConfig, match="cannot be 'sealed' with sql"):
        a_definition(tmp_path, tail="sealed", sql="select * from source")


def test_a_pipeline_of_sealed_rows_goes_on_from_the_middle_of_a_segment(spark, tmp_path, topic):
    topic.append(rows(0, 100), partition=0)
    run(spark, a_definition(tmp_path, batch_rows=30))  # nothing is sealed
    topic.append(rows(100, 200), partition=0)
    seal_all(tmp_path / "data")
    (end,) = {file.end for each in leased(topic) for file in each.files if file.start == 0}
    with opened(spark, a_definition(tmp_path, name="other", table="other")) as pipeline:
        pipeline.round()
    definition = a_definition(tmp_path, tail="sealed", batch_rows=5)
    with opened(spark, definition) as pipeline:
        while pipeline.round() is not None:
            pass
    assert ids(tmp_path) == list(range(200))
    assert end in (100, 200)
    assert prove(tmp_path)[0] == 0


def test_a_lease_of_too_many_segments_is_done_without(spark, tmp_path, sealed, monkeypatch):
    monkeypatch.setattr(leases, "FILE_COUNT_MAX", 0)
    (done,) = run(spark, a_definition(tmp_path))
    assert (done.row_count, done.segment_count) == (330, 0)
    with pytest.raises(BadRequest, match="a lease can keep at most 0"):
        run(spark, a_definition(tmp_path, name="other", table="other", tail="sealed"))


def test_a_column_of_others_with_the_name_of_ours_keeps_its_rows(spark, tmp_path, topic):
    topic.append(rows(0, 10), partition=0)
    run(spark, a_definition(tmp_path))
    more = pa.schema([("_hr_timestamp", pa.string())])
    DeltaTable(str(tmp_path / "table")).alter.add_columns(Schema.from_arrow(more).fields)
    topic.append(rows(10, 20), partition=1)
    seal_all(tmp_path / "data")
    (done,) = run(spark, a_definition(tmp_path))
    assert done.segment_count == 0
    assert table_of(tmp_path)["_hr_timestamp"].to_pylist() == [None] * 20


def test_columns_that_came_later_are_null_in_older_segments(spark, tmp_path, topic):
    topic.append(rows(0, 10), partition=0)
    seal_all(tmp_path / "data")
    topic.evolve({**SCHEMA, "price": "float64"})
    topic.append([{"id": 10, "name": "n10", "price": 2.5}], partition=0)
    seal_all(tmp_path / "data")
    done = run(spark, a_definition(tmp_path))
    assert sum(one.segment_count for one in done) == sum(one.file_count for one in done) == 2
    found = table_of(tmp_path).sort_by(OFFSET)
    assert found["price"].to_pylist() == [None] * 10 + [2.5]
    assert prove(tmp_path)[0] == 0


def test_segments_of_a_narrower_type_go_by_rows(spark, tmp_path, log):
    topic = log.create_topic("shop/orders", {"id": "int32", "name": "string"})
    topic.append(rows(0, 10), partition=0)
    seal_all(tmp_path / "data")
    topic.evolve(SCHEMA)
    topic.append([{"id": 2**40, "name": "far"}], partition=0)
    seal_all(tmp_path / "data")
    done = run(spark, a_definition(tmp_path))
    assert sum(one.segment_count for one in done) == 1
    assert ids(tmp_path) == [*range(10), 2**40]
    for file in files_of(tmp_path):
        assert pq.read_schema(file).field("id").type == pa.int64()


def test_a_float_that_has_nan_has_no_bounds(spark, tmp_path, log):
    topic = log.create_topic("shop/orders", {"id": "int64", "x": "float64"})
    values = [1.0, math.nan, 50.0]
    topic.append([{"id": n, "x": x} for n, x in enumerate(values)])
    seal_all(tmp_path / "data")
    (done,) = run(spark, a_definition(tmp_path))
    assert done.segment_count == 1
    actions = pa.table(DeltaTable(str(tmp_path / "table")).get_add_actions(flatten=True))
    assert "max.x" not in actions.column_names or actions["max.x"].to_pylist() == [None]
    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_dataset()
    assert found.to_table(filter=pc.is_nan(pc.field("x")))["id"].to_pylist() == [1]


def test_segments_of_format_1_go_by_rows(spark, tmp_path, topic, monkeypatch):
    """As in a log of an older release: the names in its segments are others."""
    topic.append(rows(0, 30), partition=0)
    for running in home_of(str(tmp_path / "data")).channel._serving.boot.node.shards.values():
        monkeypatch.setattr(running.driver.pump, "segment_format", lambda: 1)
    seal_all(tmp_path / "data")
    (path,) = segments_of(topic)
    assert "_offset" in pq.read_schema(path).names
    (done,) = run(spark, a_definition(tmp_path))
    assert (done.segment_count, done.row_count) == (0, 30)
    assert ids(tmp_path) == list(range(30))
    assert prove(tmp_path)[0] == 0


@pytest.fixture
def unseen(monkeypatch):
    """Executors that do not see the node's disk: they ask the node."""
    real = SealedRows.part

    def part(self, number, file, span):
        found = real(self, number, file, span)
        path = f"/not/here{file.path}"
        return replace(found, segment=replace(found.segment, path=path))

    monkeypatch.setattr(SealedRows, "part", part)


def test_the_node_sends_what_a_task_does_not_see(spark, tmp_path, sealed, unseen):
    (done,) = run(spark, a_definition(tmp_path))
    assert done.segment_count == done.file_count > 0
    assert digests(files_of(tmp_path)) == digests(segments_of(sealed))
    assert prove(tmp_path)[0] == 0


def test_a_file_of_another_machine_with_that_name_is_not_taken(
    spark, tmp_path, sealed, monkeypatch
):
    """It is as large and a segment, too: its digest tells, and the node is asked."""
    real = SealedRows.part
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def part(self, number, file, span):
        path = elsewhere / Path(file.path).name
        data = bytearray(Path(file.path).read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
        found = real(self, number, file, span)
        return replace(found, segment=replace(found.segment, path=str(path)))

    monkeypatch.setattr(SealedRows, "part", part)
    run(spark, a_definition(tmp_path))
    assert digests(files_of(tmp_path)) == digests(segments_of(sealed))
    assert orphans_of(str(tmp_path / "table")) == []


def test_a_segment_that_rotted_does_not_enter_the_table(spark, tmp_path, sealed):
    path = max(segments_of(sealed), key=lambda each: each.stat().st_size)
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(RoundFailed, match=r"CorruptSegment: .*damaged on its disk"):
        run(spark, a_definition(tmp_path))
    assert table_of(tmp_path).num_rows == 0


def test_a_transform_takes_no_segments(spark, tmp_path, sealed, monkeypatch):
    monkeypatch.setattr(sealed_rows, "leased", None)
    (done,) = run(spark, a_definition(tmp_path, sql="select * from source"))
    assert (done.segment_count, done.row_count) == (0, 330)


def test_where_files_cannot_be_checked_they_go_by_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_copy, "has_file_digest", lambda: False)
    assert segment_copy.copied_segment(None, None) is None
