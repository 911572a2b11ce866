"""With a transform, Spark's own scan reads the sealed rows of a round: the same rows, once."""

import math
import re
import time
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.conftest import SCHEMA, rows
from tests.spark.sealing import checkpoint, seal_all
from tests.spark.test_copy import TYPES, a_row
from tests.spark.test_pipeline import a_definition, ids, run, table_of
from tests.spark.test_prove import prove
from tests.spark.test_segment_copy import places_of, segments_of

import headrace
from headrace.client.connect.embedded_nodes import home_of
from headrace.errors import BadConfig
from headrace.spark.friendly_errors import RoundFailed
from headrace.spark.pipeline import batch_scan, sealed_rows
from headrace.spark.pipeline import pipeline as pipelines
from headrace.spark.pipeline.batch_scan import BatchScans
from headrace.spark.pipeline.pipeline import OFFSET, PARTITION, opened
from headrace.wire.lease_messages import LeaseReleased, ReleaseLease

ALL = "select * from source"


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Scan however few sealed rows there are, and however few of a segment."""
    monkeypatch.setattr(batch_scan, "SIZE_MIN", 1)
    monkeypatch.setattr(batch_scan, "READ_MAX", 1_000.0)


@pytest.fixture
def scanned(monkeypatch):
    """Return what each round scans: the ends by partition, or None."""
    real, found = BatchScans.scan, []

    def scan(self, *given):
        made = real(self, *given)
        found.append(None if made is None else dict(made.ends))
        return made

    monkeypatch.setattr(BatchScans, "scan", scan)
    return found


@pytest.fixture
def unscanned(monkeypatch):
    """Return a function after which the source reads everything."""
    return lambda: monkeypatch.setattr(BatchScans, "is_worth", lambda *_: False)


def in_order(tmp_path, name="table"):
    found = headrace_table(tmp_path / name)
    return found.sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")])


def headrace_table(path):
    from deltalake import DeltaTable

    return DeltaTable(str(path)).to_pyarrow_table()


def both(spark, tmp_path, unscanned, **given):
    """Load the topic with scans and without, and return both tables and the rounds."""
    done = run(spark, a_definition(tmp_path, **given))
    unscanned()
    run(spark, a_definition(tmp_path, name="plain", **{**given, "table": "plain"}))
    return in_order(tmp_path), in_order(tmp_path, "plain"), done


def test_rows_of_every_type_are_those_of_the_source(spark, tmp_path, log, scanned, unscanned):
    topic = log.create_topic("shop/orders", TYPES, partitions=2)
    topic.append([a_row(number) for number in range(300)], partition=0)
    topic.append([a_row(number) for number in range(300, 330)], partition=1)
    seal_all(tmp_path / "data")
    topic.append([a_row(number) for number in range(330, 350)], partition=1)
    found, plain, (done,) = both(spark, tmp_path, unscanned, sql=ALL)
    assert scanned == [{0: 300, 1: 30}]
    assert done.row_count == 350
    assert found.schema.equals(plain.schema)
    assert found.equals(plain)
    assert prove(tmp_path)[0] == 0


def test_rounds_begin_and_end_inside_segments(spark, tmp_path, log, scanned):
    topic = log.create_topic("shop/orders", SCHEMA, partitions=2)
    for start in range(0, 300, 100):
        topic.append(rows(start, start + 100), partition=0)
        seal_all(tmp_path / "data")
    topic.append(rows(300, 330), partition=1)
    seal_all(tmp_path / "data")
    topic.append(rows(330, 340), partition=1)
    definition = a_definition(tmp_path, sql=ALL, batch_rows=70)
    done = run(spark, definition)
    assert len(segments_of(topic)) == 4
    assert all(one.row_count <= 70 for one in done)
    assert all(one is not None for one in scanned)
    assert places_of(table_of(tmp_path)) == Counter(
        [(0, n) for n in range(300)] + [(1, n) for n in range(40)]
    )
    assert ids(tmp_path) == list(range(340))
    assert prove(tmp_path)[0] == 0


def test_trimmed_rows_of_a_segment_do_not_come(spark, tmp_path, topic, scanned):
    topic.append(rows(0, 100), partition=0)
    topic.append(rows(100, 130), partition=1)
    seal_all(tmp_path / "data")
    topic.trim(40, partition=0)
    assert pq.read_metadata(segments_of(topic)[0]).num_rows == 100
    (done,) = run(spark, a_definition(tmp_path, sql=ALL))
    assert (done.row_count, scanned) == (90, [{0: 100, 1: 30}])
    assert ids(tmp_path) == list(range(40, 130))


def test_only_the_tail_comes_through_the_source(spark, tmp_path, topic):
    topic.append(rows(0, 100), partition=0)
    seal_all(tmp_path / "data")
    topic.append(rows(100, 110), partition=0)
    with (
        opened(spark, a_definition(tmp_path, sql=ALL)) as pipeline,
        topic.lease_files() as lease,
    ):
        frame, batch = pipeline._rows({0: 0, 1: 0}, {0: 110, 1: 0}, lease)
        assert sorted(row.id for row in batch.rows.collect()) == list(range(100))
        assert sorted(row.id for row in frame.collect()) == list(range(110))
        tail = pipeline._source(batch.ends, {0: 110, 1: 0})
        assert sorted(row.id for row in tail.collect()) == list(range(100, 110))


def test_columns_that_came_later_are_null_in_older_segments(spark, tmp_path, topic, scanned):
    topic.append(rows(0, 10), partition=0)
    seal_all(tmp_path / "data")
    topic.evolve({**SCHEMA, "price": "float64"})
    topic.append([{"id": 10, "name": "n10", "price": 2.5}], partition=0)
    seal_all(tmp_path / "data")
    run(spark, a_definition(tmp_path, sql=ALL))
    assert scanned == [{0: 10, 1: 0}, {0: 11, 1: 0}]  # a round has one schema version
    found = in_order(tmp_path)
    assert found["price"].to_pylist() == [None] * 10 + [2.5]
    assert found["id"].to_pylist() == list(range(11))


def test_segments_of_a_narrower_type_come_through_the_source(spark, tmp_path, log, scanned):
    topic = log.create_topic("shop/orders", {"id": "int32", "x": "float32"})
    topic.append([{"id": number, "x": 0.5} for number in range(10)])
    seal_all(tmp_path / "data")
    topic.evolve({"id": "int64", "x": "float64"})
    topic.append([{"id": 2**40, "x": 1e300}])
    seal_all(tmp_path / "data")
    run(spark, a_definition(tmp_path, sql=ALL))
    assert scanned == [None, {0: 11}]
    assert ids(tmp_path) == [*range(10), 2**40]


def test_segments_of_format_1_are_scanned_by_their_names(
    spark, tmp_path, topic, scanned, monkeypatch
):
    topic.append(rows(0, 30), partition=0)
    with monkeypatch.context() as older:
        for running in home_of(
            str(tmp_path / "data")
        ).channel._serving.boot.node.shards.values():
            older.setattr(running.driver.pump, "segment_format", lambda: 1)
        seal_all(tmp_path / "data")
    topic.append(rows(30, 50), partition=0)
    seal_all(tmp_path / "data")
    names = [pq.read_schema(path).names[1] for path in segments_of(topic)]
    assert names == ["_offset", "_hr_offset"]
    run(spark, a_definition(tmp_path, sql=ALL))
    assert scanned == [{0: 50, 1: 0}]
    assert ids(tmp_path) == list(range(50))
    assert prove(tmp_path)[0] == 0


@pytest.mark.parametrize("condition", ["x > 5", "x = 'NaN'", "x = 0.0", "not (x <= 3)"])
def test_filters_find_nan_and_the_negative_zero(
    spark, tmp_path, log, scanned, unscanned, condition
):
    topic = log.create_topic("shop/orders", {"id": "int64", "x": "float64"})
    topic.append([{"id": n, "x": x} for n, x in enumerate([1.0, math.nan, -0.0, 3.0, 4.0])])
    seal_all(tmp_path / "data")
    sql = f"{ALL} where {condition}"
    found, plain, _ = both(spark, tmp_path, unscanned, sql=sql)
    assert scanned == [{0: 5}]
    assert found["id"].to_pylist() == plain["id"].to_pylist() != []


def test_fields_that_are_never_null_stay_so(spark, tmp_path, log, scanned, unscanned):
    """Spark's scan takes them as nullable; the table's column is as without a scan."""
    inner = pa.field("element", pa.int64(), nullable=False)
    schema = pa.schema([("id", pa.int64()), ("tags", pa.list_(inner))])
    topic = log.create_topic("shop/orders", schema)
    topic.append([{"id": number, "tags": [number, -number]} for number in range(50)])
    seal_all(tmp_path / "data")
    sql = f"select id, {PARTITION}, {OFFSET}, explode(tags) as tag from source"
    with opened(spark, a_definition(tmp_path, sql=sql)) as pipeline:
        assert pipeline.round().row_count == 50
        topic.append([{"id": 50, "tags": [7]}])
        assert pipeline.round().row_count == 1
    unscanned()
    run(spark, a_definition(tmp_path, sql=sql, name="plain", table="plain"))
    assert scanned == [{0: 50}]
    found, plain = in_order(tmp_path), in_order(tmp_path, "plain")
    assert found.schema.equals(plain.schema)
    assert not found.schema.field("tag").nullable
    assert sorted(found["tag"].to_pylist()) == sorted(plain["tag"].to_pylist())


def test_a_python_transform_gets_scanned_rows(spark, tmp_path, topic, scanned):
    topic.append(rows(0, 100), partition=0)
    seal_all(tmp_path / "data")
    topic.append(rows(100, 110), partition=1)
    (tmp_path / "clean.py").write_text(
        "def transform(df):\n    return df.where('id % 2 = 0')\n"
    )
    (done,) = run(spark, a_definition(tmp_path, transform="clean.py", min_partitions=5))
    assert (done.row_count, done.written) == (110, 55)
    assert scanned == [{0: 100, 1: 0}]
    assert ids(tmp_path) == list(range(0, 110, 2))


MIXING = {
    "select a.id from source a join source b on a.id = b.id": "joins the batch with itself",
    "select name, count(*) as n from source group by name": "Aggregate [name]",
    "select distinct name from source": "Distinct",
    "select id from source where id = (select max(id) from source)": "Aggregate",
    "select id, monotonically_increasing_id() as n from source": "numbers the rows",
    "select id from source union all select 1": "rows of another table would be added",
    "select * from source limit 3": "Limit 3",
}


@pytest.mark.parametrize("tail", [0, 10])
def test_a_transform_that_mixes_rows_is_refused_with_a_scan_too(spark, tmp_path, topic, tail):
    topic.append(rows(0, 100), partition=0)
    seal_all(tmp_path / "data")
    topic.append(rows(100, 100 + tail), partition=0) if tail else None
    ends = {0: 100 + tail, 1: 0}
    with topic.lease_files() as lease:
        for sql, said in MIXING.items():
            with opened(spark, a_definition(tmp_path, sql=sql)) as pipeline:
                with pytest.raises(BadConfig, match=re.escape(said)):
                    pipeline._rows({0: 0, 1: 0}, ends, lease)
                assert pipeline.scans._formats  # it was a scan that was refused


def test_a_scan_of_others_is_another_table(spark, tmp_path, topic):
    """Even one of the same files: only the scan of this batch is the batch."""
    topic.append(rows(0, 100), partition=0)
    seal_all(tmp_path / "data")
    (path,) = segments_of(topic)
    spark.read.parquet(f"file://{path}").createOrReplaceTempView("sizes")
    joined = "select s.id from source s join (select distinct id from sizes) t on s.id = t.id"
    run(spark, a_definition(tmp_path, sql=joined, lineage=False))
    assert ids(tmp_path) == list(range(100))
    sql = "select id from source union all select id from sizes"
    with (
        opened(spark, a_definition(tmp_path, sql=sql, name="b", table="b")) as pipeline,
        topic.lease_files() as lease,
        pytest.raises(BadConfig, match="rows of another table would be added"),
    ):
        pipeline._rows({0: 0, 1: 0}, {0: 100, 1: 0}, lease)
    spark.catalog.dropTempView("sizes")


def test_the_row_that_fails_is_named(spark, tmp_path, topic, scanned):
    topic.append([{"id": n, "name": "ten" if n == 33 else str(n)} for n in range(50)])
    partition = next(each.partition for each in topic.bounds() if each.row_count)
    seal_all(tmp_path / "data")
    sql = f"select cast(name as int) as n, {PARTITION}, {OFFSET} from source"
    with pytest.raises(RoundFailed, match=f"^row 33 of partition {partition} of shop/orders"):
        run(spark, a_definition(tmp_path, sql=sql))
    assert scanned[0] is not None
    assert table_of(tmp_path).num_rows == 0


def test_files_are_looked_at_once(spark, tmp_path, topic, monkeypatch):
    looked = []
    real = batch_scan.seen_formats

    def seen(session, files, schemas, *, is_whole):
        assert is_whole
        looked.append(len(files))
        return real(session, files, schemas, is_whole=is_whole)

    monkeypatch.setattr(batch_scan, "seen_formats", seen)
    topic.append(rows(0, 100), partition=0)
    seal_all(tmp_path / "data")
    topic.append(rows(100, 200), partition=0)
    seal_all(tmp_path / "data")
    assert len(run(spark, a_definition(tmp_path, sql=ALL, batch_rows=30))) == 7
    assert looked == [1, 1]
    assert ids(tmp_path) == list(range(200))


def test_a_lease_is_taken_only_for_enough_sealed_rows(spark, tmp_path, topic, monkeypatch):
    topic.append(rows(0, 100), partition=0)
    seal_all(tmp_path / "data")
    size = next(each for each in topic.bounds() if each.row_count).size
    monkeypatch.setattr(batch_scan, "SIZE_MIN", size + 1)
    topic.append(rows(100, 1000), partition=0)  # what is not sealed does not count
    taken = []
    real = headrace.Topic.lease_files
    monkeypatch.setattr(
        headrace.Topic, "lease_files", lambda *given: taken.append(1) or real(*given)
    )
    run(spark, a_definition(tmp_path, sql=ALL))
    assert taken == []
    monkeypatch.setattr(batch_scan, "SIZE_MIN", size // 2)
    run(spark, a_definition(tmp_path, sql=ALL, name="other", table="other"))
    assert taken == [1]


def test_a_small_part_of_a_segment_comes_through_the_source(
    spark, tmp_path, topic, scanned, monkeypatch
):
    topic.append(rows(0, 100), partition=0)
    seal_all(tmp_path / "data")
    monkeypatch.setattr(batch_scan, "READ_MAX", 2.0)
    run(spark, a_definition(tmp_path, sql=ALL, batch_rows=49))
    assert scanned == [None, None, None]
    run(spark, a_definition(tmp_path, sql=ALL, batch_rows=50, name="other", table="other"))
    assert scanned[3:] == [{0: 50, 1: 0}, {0: 100, 1: 0}]


def test_the_lease_is_given_back_after_each_round(spark, tmp_path, log, topic):
    topic.append(rows(0, 100), partition=0)
    seal_all(tmp_path / "data")
    counts = []
    with opened(spark, a_definition(tmp_path, sql=ALL)) as pipeline:
        pipeline.on_step = lambda step: counts.append((step, log.status()["leases"]["count"]))
        assert len(list(pipeline.run(once=True))) == 1
    assert counts == [("before files", 1), ("after files", 1), ("after commit", 0)]
    assert log.status()["leases"]["count"] == 0


@pytest.fixture
def leases(monkeypatch):
    """Return the leases that are taken, which are renewed often."""
    found, real = [], headrace.Topic.lease_files

    def lease_files(self, *given):
        found.append(real(self, *given))
        return found[-1]

    monkeypatch.setattr(sealed_rows, "LASTING", "2s")
    monkeypatch.setattr(headrace.Topic, "lease_files", lease_files)
    return found


@pytest.mark.parametrize("step", ["before files", "after files"])
def test_a_lost_lease_fails_the_round_and_nothing_else(
    spark, tmp_path, log, topic, leases, step
):
    topic.append(rows(0, 100), partition=0)
    seal_all(tmp_path / "data")
    (path,) = segments_of(topic)

    def lose(found):
        if found != step:
            return
        lease = leases[-1]
        topic.trim(100, partition=0, past_hold=True)
        caller = topic.core.caller
        topic._runner.run(caller.get(ReleaseLease(lease.id), LeaseReleased))
        checkpoint(tmp_path / "data", 3)
        until(lambda: lease.lost is not None and not path.exists())

    with opened(spark, a_definition(tmp_path, sql=ALL)) as pipeline:
        pipeline.on_step = lose
        assert pipeline.round() is None
        assert pipeline.lost == 1
        assert pipeline.scans.flaw == ""
        assert table_of(tmp_path).num_rows == 0
        topic.append(rows(100, 110), partition=0)
        assert pipeline.round().row_count == 10
    assert ids(tmp_path) == list(range(100, 110))
    assert log.status()["leases"]["count"] == 0


def until(is_so):
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def a_page_of(path):
    """Return a position inside the last page of the column `name`."""
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    (chunk,) = [each for each in columns if each.path_in_schema == "name"]
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    return start + chunk.total_compressed_size - 2


def test_a_rotten_page_is_named_by_the_node_and_nothing_is_committed(
    spark, tmp_path, topic, scanned
):
    topic.append(rows(0, 300), partition=0)
    seal_all(tmp_path / "data")
    (path,) = segments_of(topic)
    flip(path, a_page_of(path))
    said = f"{path.name}: its bytes are not those that were sealed"
    with (
        pytest.warns(UserWarning, match=said),
        pytest.raises(RoundFailed, match=f"CorruptSegment: .*{path.name}"),
    ):
        run(spark, a_definition(tmp_path, sql=ALL))
    assert scanned == [None]
    assert table_of(tmp_path).num_rows == 0


def test_a_page_that_rots_after_the_look_fails_the_round_by_its_file(
    spark, tmp_path, topic, scanned, monkeypatch
):
    topic.append(rows(0, 300), partition=0)
    seal_all(tmp_path / "data")
    (path,) = segments_of(topic)
    position, real = a_page_of(path), pipelines.write_files

    def write_files(*given):
        if len(scanned) == 1:
            flip(path, position)
            scanned.append("rotten")
        return real(*given)

    monkeypatch.setattr(pipelines, "write_files", write_files)
    with (
        pytest.warns(UserWarning, match=f"FAILED_READ_FILE.*{path.name}"),
        pytest.raises(RoundFailed, match=f"CorruptSegment: .*{path.name}"),
    ):
        run(spark, a_definition(tmp_path, sql=ALL))
    assert scanned == [{0: 300, 1: 0}, "rotten"]
    assert table_of(tmp_path).num_rows == 0


def test_a_minimum_that_rotted_hides_no_row_from_a_filter(spark, tmp_path, topic):
    """A footer has no checksum, and Spark would skip a row group by it."""
    topic.append(rows(2**40, 2**40 + 300), partition=0)
    seal_all(tmp_path / "data")
    (path,) = segments_of(topic)
    most = (2**40 + 299).to_bytes(8, "little")
    size = 8 + int.from_bytes(path.read_bytes()[-8:-4], "little")  # of the footer
    data, footer = path.read_bytes()[:-size], path.read_bytes()[-size:]
    path.write_bytes(data + footer.replace(most, bytes(8)))
    group = pq.read_metadata(path).row_group(0)
    assert any(group.column(n).statistics.max == 0 for n in range(group.num_columns))
    with (
        pytest.warns(UserWarning, match="its bytes are not those that were sealed"),
        pytest.raises(RoundFailed, match=f"CorruptSegment: .*{path.name}"),
    ):
        run(spark, a_definition(tmp_path, sql=f"{ALL} where id >= {2**40}"))


def test_where_tasks_do_not_see_the_files_all_comes_through_the_source_said_once(
    spark, tmp_path, topic, scanned
):
    topic.append(rows(0, 300), partition=0)
    seal_all(tmp_path / "data")
    assert topic.read().to_table().num_rows == 300  # the node has its segment open from here on
    (path,) = segments_of(topic)
    path.rename(tmp_path / path.name)
    said = r"come through the node: .*No such file or directory \(on "
    with pytest.warns(UserWarning, match=said) as caught:
        done = run(spark, a_definition(tmp_path, sql=ALL, batch_rows=100))
    assert [one.row_count for one in done] == [100, 100, 100]
    assert len(caught) == 1
    assert scanned == [None]  # nor is it tried again in this run
    assert ids(tmp_path) == list(range(300))


@pytest.mark.parametrize("step", ["before files", "after commit"])
def test_a_file_that_goes_away_after_the_look_is_read_by_the_node(
    spark, tmp_path, topic, scanned, step
):
    topic.append(rows(0, 300), partition=0)
    seal_all(tmp_path / "data")
    assert topic.read().to_table().num_rows == 300
    (path,) = segments_of(topic)
    with opened(spark, a_definition(tmp_path, sql=ALL, batch_rows=100)) as pipeline:
        pipeline.check()
        pipeline.on_step = lambda found: (
            path.exists() and found == step and path.rename(tmp_path / path.name)
        )
        with pytest.warns(UserWarning, match="come through the node: ") as caught:
            done = list(pipeline.run(once=True))
    assert len(caught) == 1
    assert [one.row_count for one in done] == [100, 100, 100]
    assert scanned[-1] is None
    assert ids(tmp_path) == list(range(300))


def test_a_segment_that_spark_cannot_open_during_the_round_goes_by_the_node(
    spark, tmp_path, topic, monkeypatch
):
    topic.append(rows(0, 300), partition=0)
    seal_all(tmp_path / "data")
    assert topic.read().to_table().num_rows == 300
    (path,) = segments_of(topic)
    real = pipelines.write_files

    def write_files(*given):
        if path.exists():
            path.rename(tmp_path / path.name)
        return real(*given)

    monkeypatch.setattr(pipelines, "write_files", write_files)
    with (
        opened(spark, a_definition(tmp_path, sql=ALL)) as pipeline,
        pytest.warns(UserWarning, match=f"FILE_NOT_EXIST.*{path.name}"),
    ):
        (done,) = pipeline.run(once=True)
    assert (done.row_count, pipeline.lost) == (300, 1)
    assert ids(tmp_path) == list(range(300))
