"""From a topic into a Delta table: exactly once, whoever dies or runs twice."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.spark.conftest import SCHEMA, rows

import headrace
from headrace.errors import BadConfig
from headrace.spark.pipeline.definition import define, load
from headrace.spark.pipeline.pipeline import OFFSET, PARTITION, TableAhead, TableBehind, opened
from headrace.spark.tables.leftovers import orphans_of
from headrace.spark.tables.table_errors import RecordLost, TableForeign
from headrace.spark.tables.table_record import create

SQL = f"select id, upper(name) as name, {PARTITION}, {OFFSET} from source"


def a_definition(tmp_path, **changes):
    given = {"name": "orders", "topic": "shop/orders", "path": "data", "table": "table"}
    return define({**given, **changes}, tmp_path)


def run(spark, definition):
    with opened(spark, definition) as pipeline:
        return list(pipeline.run(once=True))


def table_of(tmp_path):
    return DeltaTable(str(tmp_path / "table")).to_pyarrow_table()


def ids(tmp_path):
    return sorted(table_of(tmp_path)["id"].to_pylist())


def test_rows_come_once_in_limits_with_their_places(spark, tmp_path, topic):
    topic.append(rows(0, 250), partition=0)
    definition = a_definition(tmp_path, sql=SQL, batch_rows=100)
    done = run(spark, definition)
    assert [each.row_count for each in done] == [100, 100, 50]
    assert done[-1].lag == 0
    assert ids(tmp_path) == list(range(250))
    found = table_of(tmp_path)
    assert sorted(found[OFFSET].to_pylist()) == list(range(250))
    assert set(found["name"].to_pylist()) == {f"N{number}" for number in range(250)}
    topic.append(rows(250, 260), partition=1)
    assert [each.row_count for each in run(spark, definition)] == [10]
    assert run(spark, definition) == []
    assert ids(tmp_path) == list(range(260))


def test_a_second_driver_loses_the_race_and_goes_on(spark, tmp_path, topic):
    topic.append(rows(0, 50), partition=0)
    definition = a_definition(tmp_path)
    with opened(spark, definition) as one, opened(spark, definition) as other:
        raced = []

        def race(step):
            if step == "after files" and not raced:
                raced.append(other.round())

        one.on_step = race
        assert one.round() is None
        assert raced[0].row_count == 50
        assert one.lost == 1
        assert one.round() is None
    assert ids(tmp_path) == list(range(50))


def test_rows_are_held_before_the_first_of_them_is_read(spark, tmp_path, topic):
    topic.append(rows(0, 50), partition=0)

    def die(step):
        raise KeyboardInterrupt(step)

    with opened(spark, a_definition(tmp_path)) as pipeline:
        pipeline.on_step = die
        with pytest.raises(KeyboardInterrupt, match="before files"):
            pipeline.round()
    held = topic.cursors("pipeline.orders")
    assert [(each.partition, each.next, each.hold) for each in held] == [
        (0, 0, True),
        (1, 0, True),
    ]


@pytest.mark.campaign(1)
@pytest.mark.parametrize("step", ["before files", "after files", "after commit"])
def test_a_driver_that_is_killed_leaves_nothing_twice(spark, tmp_path, node, step):
    with headrace.connect(node.address) as log:
        topic = log.create_topic("shop/orders", {"id": "int64", "name": "string"})
        topic.append(rows(0, 50))
        file = tmp_path / "orders.toml"
        file.write_text(
            f'name = "orders"\ntopic = "shop/orders"\naddress = "{node.address}"\n'
            'table = "table"\n'
        )
        driver = Path(__file__).with_name("driver.py")
        done = subprocess.run(
            [sys.executable, str(driver), str(file), step], timeout=240, check=False
        )
        assert done.returncode == -signal.SIGKILL
        left = orphans_of(str(tmp_path / "table"))
        assert len(left) == (1 if step == "after files" else 0)
        run(spark, load(file))
        assert ids(tmp_path) == list(range(50))
        told = [(each.partition, each.next) for each in topic.cursors("pipeline.orders")]
        assert told == [(0, 50)]


def test_a_foreign_commit_between_look_and_commit_is_not_lost_and_loses_nothing(
    spark, tmp_path, topic
):
    topic.append(rows(0, 20), partition=0)
    definition = a_definition(tmp_path, lineage=False, sql="select id, name from source")
    run(spark, definition)
    topic.append(rows(20, 30), partition=0)
    foreign = pa.table({"id": pa.array([-1], pa.int64()), "name": ["foreign"]})
    with opened(spark, definition) as pipeline:
        steps = []

        def meddle(step):
            if step == "after files" and not steps:
                steps.append(step)
                write_deltalake(str(tmp_path / "table"), foreign, mode="append")

        pipeline.on_step = meddle
        list(pipeline.run(once=True))
        assert pipeline.lost == 0  # the same files again
    assert ids(tmp_path) == [-1, *range(30)]
    assert orphans_of(str(tmp_path / "table")) == []


def test_rounds_are_won_beside_a_writer_that_commits_as_fast_as_it_can(spark, tmp_path, topic):
    topic.append(rows(0, 30), partition=0)
    definition, table = a_definition(tmp_path, batch_rows=10), str(tmp_path / "table")
    done, written = threading.Event(), []

    def write():
        while not done.is_set():
            one = {"id": -1 - len(written), "name": "other", PARTITION: None, OFFSET: None}
            write_deltalake(table, pa.Table.from_pylist([one], schema), mode="append")
            written.append(one["id"])

    with opened(spark, definition) as pipeline, ThreadPoolExecutor(1) as pool:
        schema = pipeline.schema()
        create(table, pipeline.source, schema)
        busy = pool.submit(write)
        try:
            rounds = [pipeline.round() for _ in range(3)]
        finally:
            done.set()
        busy.result()
    assert [each.row_count for each in rounds if each] == [10, 10, 10]
    assert len(written) > 3
    assert ids(tmp_path) == [*reversed(written), *range(30)]
    assert len(orphans_of(table)) == pipeline.lost


def test_compaction_and_clean_up_between_rounds_change_nothing(spark, tmp_path, topic):
    definition = a_definition(tmp_path)
    for start in range(0, 60, 10):
        topic.append(rows(start, start + 10), partition=0)
        run(spark, definition)
        table = DeltaTable(str(tmp_path / "table"))
        table.optimize.compact()
        table.create_checkpoint()
        table.cleanup_metadata()
    assert run(spark, definition) == []
    assert ids(tmp_path) == list(range(60))


def test_each_entry_of_the_tables_log_is_synced(spark, tmp_path, topic, monkeypatch):
    synced, real = set(), os.fsync

    def sync(descriptor):
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    topic.append(rows(0, 5), partition=0)
    definition = a_definition(tmp_path)
    run(spark, definition)
    topic.evolve({"id": "int64", "name": "string", "note": "string"})
    topic.append([{"id": 5, "name": "n5", "note": "new"}], partition=0)
    run(spark, definition)
    entries = {tmp_path / "table" / "_delta_log" / f"{number:020}.json" for number in range(4)}
    assert entries <= synced  # made, filled, widened, filled
    assert tmp_path / "table" / "_delta_log" in synced


def test_a_new_column_comes_with_its_rows(spark, tmp_path, topic):
    topic.append(rows(0, 5), partition=0)
    definition = a_definition(tmp_path)
    run(spark, definition)
    topic.evolve({"id": "int64", "name": "string", "note": "string"})
    topic.append([{"id": 5, "name": "n5", "note": "new"}], partition=0)
    run(spark, definition)
    found = {row["id"]: row["note"] for row in table_of(tmp_path).to_pylist()}
    assert found == {**dict.fromkeys(range(5)), 5: "new"}


def test_a_table_of_somebody_else_is_not_touched(spark, tmp_path, topic):
    topic.append(rows(0, 5))
    write_deltalake(str(tmp_path / "table"), pa.table({"id": [1]}))
    with pytest.raises(TableForeign, match="was not created by pipeline 'orders'"):
        run(spark, a_definition(tmp_path))
    assert table_of(tmp_path).num_rows == 1


def test_a_table_that_was_overwritten_does_not_begin_anew(spark, tmp_path, topic):
    topic.append(rows(0, 5))
    definition = a_definition(tmp_path)
    run(spark, definition)
    fresh = tmp_path / "fresh"
    table = DeltaTable(str(tmp_path / "table"))
    copied = a_definition(tmp_path, table="fresh")
    DeltaTable.create(
        str(fresh),
        table.schema(),
        configuration={"headrace.orders": "copied"},
        raise_if_key_not_exists=False,
    )
    with pytest.raises(RecordLost, match="does not record the position of"):
        run(spark, copied)


def test_a_recreated_topic_is_refused(spark, tmp_path, log, topic):
    topic.append(rows(0, 5))
    definition = a_definition(tmp_path)
    run(spark, definition)
    topic.delete()
    log.create_topic("shop/orders", {"id": "int64", "name": "string"}).append(rows(0, 2))
    said = f"was filled from shop/orders created {topic.created} in {topic.cluster}: that is "
    with pytest.raises(TableForeign, match=f"{said}another life of shop/orders"):
        run(spark, definition)
    assert table_of(tmp_path).num_rows == 5


def test_a_log_that_was_put_back_from_an_old_copy_is_refused(spark, tmp_path):
    data, copy = tmp_path / "data", tmp_path / "copy"
    definition = a_definition(tmp_path)
    with headrace.open(data) as log:
        log.create_topic("shop/orders", {"id": "int64", "name": "string"}).append(rows(0, 5))
    shutil.copytree(data, copy)
    with headrace.open(data) as log:
        log.topic("shop/orders").append(rows(5, 9))
        run(spark, definition)
    shutil.rmtree(data)
    copy.rename(data)
    said = "rows of partition 0 up to 9, but the log of shop/orders ends at 5"
    with headrace.open(data), pytest.raises(TableAhead, match=said):
        run(spark, definition)
    assert ids(tmp_path) == list(range(9))


def test_trimmed_rows_are_told_and_a_held_group_keeps_them(spark, tmp_path, topic):
    topic.append(rows(0, 10), partition=0)
    definition = a_definition(tmp_path)
    run(spark, definition)
    topic.append(rows(10, 20), partition=0)
    topic.trim(15, partition=0)
    assert topic.bounds()[0].first == 10  # the pipeline's group holds them
    topic.trim(15, partition=0, past_hold=True)
    with pytest.raises(TableBehind, match="rows 10 to 14 of partition 0"):
        run(spark, definition)


def test_a_log_that_is_shorter_than_the_table_is_refused(spark, tmp_path, topic):
    topic.append(rows(0, 10), partition=0)
    definition = a_definition(tmp_path)
    with opened(spark, definition) as pipeline:
        list(pipeline.run(once=True))
        record = pipeline._record()
        assert record is not None
        record.commit([], {0: 0, 1: 0}, {0: 99, 1: 0})
        with pytest.raises(TableAhead, match="up to 99, but the log of shop/orders ends at 10"):
            pipeline.round()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nam": "x"}, "Did you mean name?"),
        ({"name": "a/b"}, "is not a valid name"),
        ({"address": "a:1"}, "either address or path"),
        ({"transform": "t.py", "sql": "select 1"}, "cannot be combined with transform"),
        ({"batch_rows": 0}, "must be above 0, got 0"),
        ({"batch_rows": "many"}, "must be an integer"),
        ({"lineage": 1}, "must be true or false"),
        ({"batch_size": "big"}, "batch_size"),
        ({"batch_size": "0"}, "batch_size: must be at least 64KiB, got '0'"),
        ({"batch_size": "65535"}, "batch_size: must be at least 64KiB, got '65535'"),
        ({"interval": "0s"}, "interval: must be at least 100ms, got '0s'"),
        ({"interval": "99ms"}, "interval: must be at least 100ms, got '99ms'"),
        ({"table": "s3://bucket/a//b"}, "table: 's3://bucket/a//b' is ambiguous"),
        ({"table": "s3://key:secret@bucket/table"}, "table: the URL has a user or a password"),
        ({"path": "", "address": "a:1", "table": "hdfs:/t"}, "table: hdfs:// is not supported"),
        ({"path": "s3://bucket/log"}, "path: 's3://bucket/log' is a URL"),
        ({"transform": "gs://bucket/clean.py"}, "transform: 'gs://bucket/clean.py' is a URL"),
        ({"topic": ""}, "topic: is required"),
    ],
)
def test_a_definition_that_cannot_be_is_told(tmp_path, changes, said):
    with pytest.raises(BadConfig) as caught:
        a_definition(tmp_path, **changes)
    assert said in str(caught.value)


def test_a_path_with_a_colon_is_no_url(tmp_path):
    table = a_definition(tmp_path, table="tables:old/a:b").table
    assert table == str(tmp_path / "tables:old" / "a:b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "transform: {} does not exist"),
        ("def transform(df):\n    return df +\n", "transform: {} has a syntax error: "),
        ("transform = 1\n", "transform: {} does not define transform(df)"),
    ],
)
def test_a_transform_that_is_no_function_in_a_file_is_told(tmp_path, topic, text, said):
    file = tmp_path / "clean.py"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with (
        pytest.raises(BadConfig) as caught,
        opened(None, a_definition(tmp_path, transform="clean.py")),
    ):
        pass
    assert said.format(file) in str(caught.value)


def test_a_file_whose_transform_is_elsewhere_still_says_which_pipeline_it_is(tmp_path):
    file = tmp_path / "orders.toml"
    file.write_text(
        'name = "orders"\ntopic = "shop/orders"\npath = "data"\ntable = "table"\n'
        'transform = "clean.py"\n'
    )
    assert load(file).name == "orders"  # for `stop` and `status`, on any machine


def test_a_transform_that_drops_the_places_is_told(spark, tmp_path, topic):
    topic.append(rows(0, 5))
    with pytest.raises(BadConfig, match="drops _hr_offset, _hr_partition"):
        run(spark, a_definition(tmp_path, sql="select id from source"))


def test_a_python_transform_is_used(spark, tmp_path, topic):
    topic.append(rows(0, 5))
    (tmp_path / "clean.py").write_text(
        "def transform(df):\n    return df.where('id % 2 = 0')\n", encoding="utf-8"
    )
    run(spark, a_definition(tmp_path, transform="clean.py"))
    assert ids(tmp_path) == [0, 2, 4]


def test_a_table_of_an_earlier_topic_of_that_name_is_refused(spark, tmp_path, log, topic):
    topic.append(rows(0, 5), partition=0)
    run(spark, a_definition(tmp_path))
    topic.delete()
    log.create_topic("shop/orders", SCHEMA, partitions=2).append(rows(0, 9), partition=0)
    with pytest.raises(TableForeign, match="another life of shop/orders"):
        run(spark, a_definition(tmp_path))


def test_a_table_of_another_log_is_refused(spark, tmp_path, topic):
    topic.append(rows(0, 5), partition=0)
    run(spark, a_definition(tmp_path))
    with headrace.open(tmp_path / "other") as other:
        again = other.create_topic("shop/orders", SCHEMA, partitions=2)
        again.append(rows(100, 120), partition=0)
        with pytest.raises(TableForeign, match="another life of shop/orders, or another log"):
            run(spark, a_definition(tmp_path, path="other"))
    assert ids(tmp_path) == list(range(5))
