"""A pipeline without a transform: its rows go from the log into files in one Python worker."""

import datetime
import decimal
import json
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.cli.commands import headrace_here
from tests.spark.conftest import SCHEMA, rows
from tests.spark.test_pipeline import a_definition, ids, run, table_of

import headrace.spark
from headrace.spark.friendly_errors import RoundFailed
from headrace.spark.pipeline import pipeline as pipelines
from headrace.spark.pipeline.pipeline import OFFSET, PARTITION, TableBehind, opened
from headrace.spark.tables import table_files
from headrace.spark.tables.leftovers import orphans_of
from headrace.spark.tables.table_record import look
from headrace.spark.topic_source import TopicSource

TYPES = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int8()),
        ("paid", pa.bool_()),
        ("ratio", pa.float32()),
        ("price", pa.decimal128(20, 4)),
        ("cost", pa.decimal128(9, 2)),
        ("total", pa.decimal128(18, 3)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("raw", pa.binary()),
        ("name", pa.string()),
        pa.field("must", pa.string(), nullable=False),
        (
            "who",
            pa.struct([("name", pa.string()), pa.field("age", pa.int32(), nullable=False)]),
        ),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def a_row(number):
    if number % 3 == 0:
        return {"id": number, "must": f"m{number}"}
    return {
        "id": number,
        "small": number % 100,
        "paid": number % 2 == 0,
        "ratio": number / 4,
        "price": decimal.Decimal(number) / 8,
        "cost": decimal.Decimal(-number) / 4,
        "total": decimal.Decimal(number) * 10**12 / 8,
        "day": datetime.date(2026, 11, 1 + number % 28),
        "at": datetime.datetime(2026, 11, 15, 10, microsecond=number, tzinfo=datetime.UTC),
        "raw": bytes([number % 256]),
        "name": f"n{number}",
        "must": f"m{number}",
        "who": {"name": f"w{number}", "age": number},
        "tags": [f"t{number}", None],
        "counts": [("a", number), ("b", None)],
    }


def no_spark():
    raise AssertionError("Spark was started")


def statistics_of(tmp_path, name):
    """Return what the table's log says of its columns."""
    actions = pa.table(DeltaTable(str(tmp_path / name)).get_add_actions(flatten=True))
    is_said = ("min.", "max.", "null_count.", "num_records")
    return {
        column: actions[column].to_pylist()
        for column in actions.column_names
        if column.startswith(is_said)
    }


def test_a_copy_is_what_spark_would_have_written(spark, tmp_path, log):
    topic = log.create_topic("shop/orders", TYPES)
    topic.append([a_row(number) for number in range(100)])
    run(spark, a_definition(tmp_path, table="copied"))
    run(spark, a_definition(tmp_path, name="other", table="made", sql="select * from source"))
    copied, made = (DeltaTable(str(tmp_path / name)) for name in ("copied", "made"))
    assert copied.schema().to_json() == made.schema().to_json()
    order = [(OFFSET, "ascending")]
    found = copied.to_pyarrow_table().sort_by(order)
    assert found.num_rows == 100
    assert found.equals(made.to_pyarrow_table().sort_by(order))
    assert statistics_of(tmp_path, "copied") == statistics_of(tmp_path, "made")


def test_several_tasks_share_a_partition_and_each_row_comes_once(spark, tmp_path, topic):
    for start in range(0, 120, 20):
        topic.append(rows(start, start + 20), partition=0)
    topic.append(rows(120, 130), partition=1)
    (done,) = run(spark, a_definition(tmp_path, min_partitions=4))
    assert (done.row_count, done.written) == (130, 130)
    assert done.file_count >= 4
    found = table_of(tmp_path)
    places = [found[name].to_pylist() for name in (PARTITION, OFFSET)]
    assert Counter(zip(*places, strict=True)) == Counter(
        [(0, n) for n in range(120)] + [(1, n) for n in range(10)]
    )
    assert ids(tmp_path) == list(range(130))


def test_without_new_rows_spark_is_not_started(spark, tmp_path, topic):
    topic.append(rows(0, 10), partition=0)
    for changes in ({}, {"name": "sql", "table": "made", "sql": "select * from source"}):
        definition = a_definition(tmp_path, **changes)
        run(spark, definition)
        with opened(no_spark, definition) as pipeline:
            assert pipeline.round() is None
            assert pipeline.lost == 0
        told = topic.cursors(f"pipeline.{definition.name}")
        assert [(each.partition, each.next) for each in told] == [(0, 10), (1, 0)]


def test_the_command_ends_without_spark_if_nothing_is_new(spark, tmp_path, topic, monkeypatch):
    topic.append(rows(0, 10), partition=0)
    file = tmp_path / "orders.toml"
    file.write_text('name = "orders"\ntopic = "shop/orders"\npath = "data"\ntable = "table"\n')
    run(spark, a_definition(tmp_path))
    monkeypatch.setattr(headrace.spark, "session", no_spark)
    ended = headrace_here("pipeline", "run", str(file), "--once", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["rounds"] == 0
    checked = headrace_here("pipeline", "check", str(file))
    assert checked.code == 0, checked.err


def test_a_new_column_comes_with_its_rows(spark, tmp_path, topic):
    topic.append(rows(0, 10), partition=0)
    definition = a_definition(tmp_path)
    run(spark, definition)
    topic.evolve({**SCHEMA, "price": "float64"})
    assert run(spark, definition) == []
    topic.append([{"id": 10, "name": "n10", "price": 2.5}], partition=0)
    run(spark, definition)
    found = table_of(tmp_path).sort_by(OFFSET)
    assert found["price"].to_pylist() == [None] * 10 + [2.5]


def test_a_task_that_leaves_rows_out_ends_the_round(spark, tmp_path, topic, monkeypatch):
    topic.append(rows(0, 50), partition=0)
    real = table_files.copier

    def shorter(part):
        return replace(part, span=replace(part.span, end=part.span.end - 1))

    def short(tasks, writing):
        return real([[shorter(part) for part in each] for each in tasks], writing)

    definition = a_definition(tmp_path)
    with monkeypatch.context() as planted:
        planted.setattr(table_files, "copier", short)
        with pytest.raises(RoundFailed, match=r"rows 0 to 49 of partition 0 .* wrote 49"):
            run(spark, definition)
    assert ids(tmp_path) == []
    assert len(orphans_of(str(tmp_path / "table"))) == 1
    run(spark, definition)
    assert ids(tmp_path) == list(range(50))


def test_the_jobs_of_a_round_are_named_and_later_ones_are_not(
    spark, tmp_path, topic, monkeypatch
):
    topic.append(rows(0, 10), partition=0)
    real, named = pipelines.copy_files, []

    def noted(*given):
        named.append(spark.sparkContext.getLocalProperty("spark.job.description"))
        return real(*given)

    monkeypatch.setattr(pipelines, "copy_files", noted)
    run(spark, a_definition(tmp_path))
    assert named == ["headrace pipeline orders: 10 rows of shop/orders"]
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None


def test_a_partition_that_comes_during_a_round_is_loaded_by_the_next(
    spark, tmp_path, topic, monkeypatch
):
    topic.append(rows(0, 10), partition=0)
    real, looks = TopicSource.bounds, []

    def bounds(self):
        looks.append(self)
        if len(looks) == 2:  # after the first look of a round
            topic.add_partitions(3)
            topic.append(rows(10, 20), partition=2)
        return real(self)

    with opened(spark, a_definition(tmp_path)) as pipeline:
        monkeypatch.setattr(TopicSource, "bounds", bounds)
        while pipeline.round() is not None:
            assert look(str(tmp_path / "table"), pipeline.source).ends.keys() >= {0, 1}
    assert ids(tmp_path) == list(range(20))


def test_rows_that_are_trimmed_during_a_round_stop_it_by_name(spark, tmp_path, topic):
    topic.append(rows(0, 10), partition=0)

    def trim(step):
        if step == "before files":
            topic.trim(5, partition=0, past_hold=True)

    with opened(spark, a_definition(tmp_path)) as pipeline:
        pipeline.on_step = trim
        with pytest.raises(TableBehind, match="rows 0 to 4 of partition 0"):
            pipeline.round()
    assert ids(tmp_path) == []


def test_what_is_left_of_a_backlog_is_said(spark, tmp_path, topic):
    topic.append(rows(0, 30), partition=0)
    file = tmp_path / "orders.toml"
    file.write_text(
        'name = "orders"\ntopic = "shop/orders"\npath = "data"\ntable = "table"\n'
        "batch_rows = 10\n"
    )
    ended = headrace_here("pipeline", "run", str(file), "--once")
    assert ended.code == 0, ended.err
    first, second, last = ended.out.splitlines()
    assert "lag 20, about " in first
    assert "lag 10, about " in second
    assert last.endswith("lag 0")
