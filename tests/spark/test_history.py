"""`headrace.spark.table`: all rows of a topic, the sealed ones by Spark's own scan."""

import os
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from tests.spark.changing import Changing, read_whole
from tests.spark.conftest import SCHEMA, rows
from tests.spark.sealing import checkpoint, seal_all

import headrace
from headrace.errors import BadConfig, BadRequest, TopicUnknown, Unavailable
from headrace.spark import release, table

KEY = ("_partition", "_offset")
# 200 take minutes: HEADRACE_READS=200 python -m pytest tests/spark/test_history.py -k trimmed
READS = int(os.environ.get("HEADRACE_READS", "20"))


@pytest.fixture
def made(spark, tmp_path):
    """Make tables of the log in `tmp_path`, and let go of them in the end."""
    frames = []

    def make(name="shop/orders", **options):
        frames.append(table(spark, name, path=str(tmp_path / "data"), **options))
        return frames[-1]

    yield make
    for frame in frames:
        release(frame)


def in_order(found):
    return sorted((row.asDict(recursive=True) for row in found), key=_place)


def _place(row):
    return tuple(row[name] for name in KEY)


def read_by(topic):
    """Return the rows that the log's own reader gives, as Spark shows them."""
    found = topic.read().to_table().to_pylist()
    for row in found:
        row["_timestamp"] = row["_timestamp"].replace(tzinfo=None)
    return sorted(found, key=_place)


def segments(tmp_path):
    return sorted((tmp_path / "data").rglob("segments/*.parquet"))


def is_scan(frame):
    return "FileScan parquet" in plan_of(frame)


def plan_of(frame):
    return frame._jdf.queryExecution().toString()


def is_source(frame):
    return "BatchScan headrace" in plan_of(frame)


def test_a_table_is_what_the_log_reads_before_and_after_sealing(tmp_path, topic, made):
    assert made().collect() == []
    topic.append(rows(0, 300), partition=0)
    topic.append(rows(300, 500), partition=1)
    before = made()
    assert (is_scan(before), is_source(before)) == (False, True)
    seal_all(tmp_path / "data")
    sealed = made()
    assert (is_scan(sealed), is_source(sealed)) == (True, False)
    topic.append(rows(500, 550), partition=1)
    topic.trim(20, partition=0)
    both = made()
    assert (is_scan(both), is_source(both)) == (True, True)
    found = in_order(both.collect())
    assert found == read_by(topic)
    assert [_place(row) for row in found[:2]] == [(0, 20), (0, 21)]
    # Each is of the moment at which it was made, and stays so.
    assert [row["id"] for row in in_order(sealed.collect())] == list(range(500))
    assert both.dtypes == before.dtypes == sealed.dtypes


def test_every_kept_type_is_the_same_row_by_row(spark, tmp_path, log, made):
    kinds = {
        "yes": pa.bool_(),
        "tiny": pa.int8(),
        "small": pa.int16(),
        "number": pa.int32(),
        "big": pa.int64(),
        "half": pa.float32(),
        "real": pa.float64(),
        "money": pa.decimal128(12, 2),
        "huge": pa.decimal128(38, 10),
        "text": pa.string(),
        "raw": pa.binary(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "tags": pa.list_(pa.string()),
        "sizes": pa.map_(pa.string(), pa.int64()),
        "owner": pa.struct([("name", pa.string()), ("ages", pa.list_(pa.int32()))]),
        "we`ird, name": pa.string(),
    }
    full = {
        "yes": True,
        "tiny": -128,
        "small": -32768,
        "number": 2**31 - 1,
        "big": -(2**63),
        "half": 0.5,
        "real": 1e300,
        "money": Decimal("-1234567890.12"),
        "huge": Decimal("1234567890123456789012345678.0123456789"),
        "text": "größe",
        "raw": b"\x00\xff",
        "day": date(1, 1, 1),
        "at": datetime(1500, 1, 1, 12, tzinfo=UTC),
        "tags": ["a", None],
        "sizes": [("a", 1), ("b", None)],
        "owner": {"name": "x", "ages": [1, None]},
        "we`ird, name": "w",
    }
    schema = pa.schema(list(kinds.items()))
    topic = log.create_topic("shop/orders", schema)
    given = pa.Table.from_pylist([full, dict.fromkeys(full), full | {"tags": []}], schema)
    topic.append(given)
    source = spark.read.format("headrace").option("topic", "shop/orders")
    source = source.option("path", str(tmp_path / "data")).load()
    expected = in_order(source.collect())
    seal_all(tmp_path / "data")
    frame = made()
    assert is_scan(frame)
    assert not is_source(frame)
    assert in_order(frame.collect()) == expected
    assert frame.dtypes == source.dtypes


def test_older_segments_show_the_newest_schema(tmp_path, log, made):
    topic = log.create_topic("shop/orders", {"id": "int16", "size": "float32"})
    topic.append([{"id": 1, "size": 0.5}])
    seal_all(tmp_path / "data")
    topic.evolve({"id": "int64", "size": "float64", "note": "string"})
    topic.append([{"id": 2**40, "size": 1.5, "note": "new"}])
    seal_all(tmp_path / "data")
    topic.append([{"id": 3, "size": 2.5, "note": "open"}])
    frame = made()
    assert len(segments(tmp_path)) == 2
    assert is_scan(frame)
    assert in_order(frame.collect()) == read_by(topic)
    assert [row.note for row in frame.orderBy("_offset").collect()] == [None, "new", "open"]
    assert [row.id for row in frame.where("id > 1").orderBy("id").collect()] == [3, 2**40]


def test_columns_and_filters_reach_the_scan(tmp_path, topic, made, capsys):
    topic.append(rows(0, 300), partition=0)
    seal_all(tmp_path / "data")
    topic.append(rows(300, 310), partition=0)
    made().where("id > 5").select("id").explain()
    said = capsys.readouterr().out
    assert "PushedFilters: [IsNotNull(id), GreaterThan(id,5)]" in said
    assert "ReadSchema: struct<id:bigint>" in said
    narrow = made(columns=["name", "_offset"])
    assert narrow.columns == ["name", "_offset"]
    narrow.explain()
    said = capsys.readouterr().out
    assert "ReadSchema: struct<_hr_offset:bigint,name:string>" in said
    assert "BatchScan headrace[name" in said  # Spark prunes no source of Python: we do
    assert sorted(row._offset for row in narrow.collect()) == list(range(310))


NAN = float("nan")


@pytest.mark.parametrize(
    "condition",
    ["x > 5", "x = 'NaN'", "not (x <= 3)", "x = 0.0", "x in (0.0, 7.0)", "f > 5", "f = 0.0"],
)
def test_filters_find_nan_and_the_negative_zero(spark, tmp_path, log, made, condition):
    topic = log.create_topic("shop/orders", {"id": "int64", "x": "float64", "f": "float32"})
    numbers = (1.0, NAN, -0.0, 3.0)
    topic.append([{"id": place, "x": x, "f": x} for place, x in enumerate(numbers)])
    source = spark.read.format("headrace").option("topic", "shop/orders")
    source = source.option("path", str(tmp_path / "data")).load().where(condition)
    expected = sorted(row.id for row in source.collect())
    assert expected
    seal_all(tmp_path / "data")
    frame = made()
    assert is_scan(frame)
    assert sorted(row.id for row in frame.where(condition).collect()) == expected


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("column", ["_hr_offset", "id", "name"])
def test_a_flipped_bit_of_a_page_fails_by_the_name_of_its_file(
    spark, tmp_path, topic, made, column
):
    topic.append(rows(0, 300), partition=0)
    seal_all(tmp_path / "data")
    (path,) = segments(tmp_path)
    group = pq.read_metadata(path).row_group(0)
    place = group.column([group.column(n).path_in_schema for n in range(5)].index(column))
    start = place.dictionary_page_offset or place.data_page_offset
    flip(path, start + place.total_compressed_size - 2)  # behind the header of its last page
    frame = made()
    for lenient in ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles"):
        spark.conf.set(lenient, "true")
    try:
        with pytest.raises(Py4JJavaError, match=f"FAILED_READ_FILE.*{path.name}"):
            frame.collect()
    finally:
        spark.conf.unset("spark.sql.files.ignoreCorruptFiles")
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")


def test_a_flipped_bit_of_a_footer_is_left_to_the_node_which_names_it(tmp_path, topic, made):
    topic.append(rows(0, 300), partition=0)
    seal_all(tmp_path / "data")
    (path,) = segments(tmp_path)
    flip(path, path.read_bytes().rindex(b"headrace.row_digest"))
    with pytest.warns(UserWarning, match=path.name):
        frame = made()
    with pytest.raises(PySparkException, match=rf"CorruptSegment: .*{path.name}"):
        frame.collect()


def test_files_that_tasks_cannot_open_are_read_by_the_node(tmp_path, topic, made):
    topic.append(rows(0, 300), partition=0)
    seal_all(tmp_path / "data")
    expected = read_by(topic)  # the node has its segment open from here on
    (path,) = segments(tmp_path)
    path.rename(tmp_path / path.name)
    said = r"come through the node: .*No such file or directory \(on "
    with pytest.warns(UserWarning, match=said) as caught:
        frame = made()
    assert caught[0].filename == __file__
    assert (is_scan(frame), is_source(frame)) == (False, True)
    assert in_order(frame.collect()) == expected


def test_a_trim_does_not_take_the_files_of_a_table(tmp_path, log, topic, made):
    topic.append(rows(0, 300), partition=0)
    seal_all(tmp_path / "data")
    frame = made()
    (path,) = segments(tmp_path)
    topic.trim(300, partition=0)
    checkpoint(tmp_path / "data", 3)
    assert log.status()["leases"] == {
        "count": 1,
        "files": 1,
        "kept_bytes": path.stat().st_size,
    }
    assert sorted(row.id for row in frame.collect()) == list(range(300))
    assert made().collect() == []
    release(frame)
    until(lambda: not path.exists())
    assert log.status()["leases"]["count"] == 0


def until(is_so):
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_after_a_restart_a_missing_file_is_an_error_and_no_wrong_row(spark, tmp_path):
    path = tmp_path / "data"
    with headrace.open(path) as log:
        topic = log.create_topic("shop/orders", SCHEMA)
        topic.append(rows(0, 300))
        seal_all(path)
        frame = table(spark, "shop/orders", path=str(path))
        (file,) = segments(tmp_path)
    with headrace.open(path) as log:
        assert len(frame.collect()) == 300  # it is still there
        log.topic("shop/orders").trim(300)
        checkpoint(path, 3)
        assert not file.exists()
        with pytest.raises(Py4JJavaError, match=f"FILE_NOT_EXIST.*{file.name}"):
            frame.collect()
    release(frame)


def test_a_topic_that_is_made_again_gives_no_rows_to_the_old_table(tmp_path, log, topic, made):
    topic.append(rows(0, 300), partition=0)
    seal_all(tmp_path / "data")
    topic.append(rows(300, 310), partition=0)
    frame = made()
    topic.delete()
    again = log.create_topic("shop/orders", SCHEMA, partitions=2)
    again.append(rows(1000, 2000), partition=0)
    with pytest.raises(PySparkException, match="TopicRecreated: shop/orders was deleted and r"):
        frame.collect()
    assert len(made().collect()) == 1000


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (
            {"name": "shop/oders"},
            TopicUnknown,
            "topic 'shop/oders' does not exist. Did you mean 'shop/or",
        ),
        ({"columns": ["idd"]}, BadRequest, "there is no column 'idd'. Did you mean 'id'?"),
        (
            {"minPartition": "4"},
            BadConfig,
            "minPartition: is not a valid option of a table. Did you mean minP",
        ),
        (
            {"startingOffsets": "latest"},
            BadConfig,
            "startingOffsets: is not a valid option of a table",
        ),
        ({"address": "127.0.0.1:1"}, BadConfig, "address: cannot be combined with path"),
    ],
)
def test_bad_input_is_named_at_once(topic, log, made, options, error, said):
    with pytest.raises(error) as caught:
        made(**options)
    assert said in str(caught.value)
    assert log.status()["leases"]["count"] == 0


def test_a_log_that_is_not_there_is_named_at_once(spark, tmp_path):
    for options, error, said in (
        ({}, BadConfig, "address: is required unless path is set"),
        ({"path": tmp_path / "nowhere"}, Unavailable, "no process serves"),
        (
            {"address": "127.0.0.1:1", "timeout": "1s"},
            Unavailable,
            "no node answers at 127.0.0.1:1",
        ),
    ):
        with pytest.raises(error, match=said):
            table(spark, "shop/orders", **options)


def test_no_row_is_missing_or_there_twice_while_rows_come_are_sealed_and_trimmed(
    spark, tmp_path, topic
):
    with Changing(topic, tmp_path / "data") as changing:
        file_count = 0
        for _ in range(READS):
            changing.begin_read()
            before = topic.bounds()
            found, files = read_whole(spark, tmp_path / "data")
            file_count += files
            for old, new in zip(before, topic.bounds(), strict=True):
                places = [row._offset for row in found if row._partition == old.partition]
                assert min(places, default=0) <= new.first
                assert max(places, default=-1) >= old.end - 1
    assert changing.flaw is None
    assert file_count
    assert changing.seal_count > READS
    assert changing.trim_count
    assert all(each.first > 0 for each in topic.bounds())


def test_paths_are_taken_as_they_are(spark, tmp_path):
    path = Path(tmp_path, "a=1 [x] {y} *", "data")
    path.mkdir(parents=True)
    with headrace.open(path) as log:
        topic = log.create_topic("shop/orders", SCHEMA)
        topic.append(rows(0, 300))
        seal_all(path)
        frame = table(spark, "shop/orders", path=path)
        assert is_scan(frame)
        assert in_order(frame.collect()) == read_by(topic)
        release(frame)
