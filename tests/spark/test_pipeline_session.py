"""Pipelines that share a Spark session do not see each other, nor what others do in it."""

import threading
from functools import partial

import pytest
from deltalake import DeltaTable
from pyspark.sql.classic.dataframe import DataFrame
from tests.spark.conftest import SCHEMA, rows
from tests.spark.lockstep import at_once
from tests.spark.test_pipeline import SQL, a_definition, ids, run

from headrace.spark.pipeline.pipeline import OFFSET, PARTITION, opened

VIEW = "source"
ROUNDS = 8


@pytest.fixture
def bills(log):
    topic = log.create_topic("shop/bills", SCHEMA, partitions=2)
    topic.append(rows(1_000, 1_010), partition=0)
    return topic


def a_bill(tmp_path, **changes):
    given = {"name": "bills", "topic": "shop/bills", "table": "bills", "sql": SQL}
    return a_definition(tmp_path, **{**given, **changes})


def test_a_view_that_another_pipeline_makes_in_between_takes_no_row(
    spark, tmp_path, topic, bills, monkeypatch
):
    topic.append(rows(0, 50), partition=0)
    real, is_in_between = DataFrame.createOrReplaceTempView, threading.Event()
    with (
        opened(spark, a_definition(tmp_path, sql=SQL)) as one,
        opened(spark, a_bill(tmp_path)) as other,
    ):

        def meddled(frame, name):
            real(frame, name)
            if not is_in_between.is_set():  # the view is made, and not looked up yet
                is_in_between.set()
                other.rows({0: 0, 1: 0}, {0: 0, 1: 0})
                is_in_between.clear()

        monkeypatch.setattr(DataFrame, "createOrReplaceTempView", meddled)
        done = one.round()
    assert (done.row_count, done.written) == (50, 50)
    assert ids(tmp_path) == list(range(50))


def test_two_pipelines_with_sql_in_two_threads_bring_each_its_own_rows(
    spark, tmp_path, topic, bills
):
    definitions = [a_definition(tmp_path, sql=SQL, batch_rows=10)]
    definitions.append(a_bill(tmp_path, batch_rows=10))
    topic.append(rows(0, 10 * ROUNDS), partition=0)
    bills.append(rows(1_010, 1_000 + 10 * ROUNDS), partition=0)
    together = threading.Barrier(2, timeout=120)

    def on_step(step):
        if step == "before files":
            together.wait()

    def drive(definition):
        with opened(spark, definition) as pipeline:
            pipeline.on_step = on_step
            for _ in range(ROUNDS):
                assert pipeline.round().written == 10

    at_once([partial(drive, each) for each in definitions], together)
    assert ids(tmp_path) == list(range(10 * ROUNDS))
    found = DeltaTable(str(tmp_path / "bills")).to_pyarrow_table()["id"].to_pylist()
    assert sorted(found) == list(range(1_000, 1_000 + 10 * ROUNDS))


def test_views_of_others_stay_as_they_are_and_settings_and_functions_hold(
    spark, tmp_path, topic
):
    topic.append(rows(0, 5), partition=0)
    spark.range(3).createOrReplaceTempView(VIEW)
    spark.range(7).createOrReplaceTempView("beside")
    spark.udf.register("doubled", lambda number: 2 * number, "long")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    sql = (
        "select doubled(id) as id, current_timezone() as zone, "
        f"(select count(*) from beside) as beside, {PARTITION}, {OFFSET} from source"
    )
    try:
        run(spark, a_definition(tmp_path, sql=sql))
        assert spark.table(VIEW).count() == 3
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        for view in (VIEW, "beside"):
            spark.catalog.dropTempView(view)
        spark.sql("drop temporary function doubled")
    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in found) == [0, 2, 4, 6, 8]
    assert {(row["zone"], row["beside"]) for row in found} == {("Asia/Tokyo", 7)}


def test_a_python_transform_finds_its_rows_in_the_session_that_it_knows(spark, tmp_path, topic):
    topic.append(rows(0, 5), partition=0)
    (tmp_path / "clean.py").write_text(
        "from pyspark.sql import SparkSession\n\n"
        "def transform(df):\n"
        "    df.createOrReplaceTempView('mine')\n"
        "    known = SparkSession.builder.getOrCreate()\n"
        "    return known.sql('select * from mine where id % 2 = 0')\n",
        encoding="utf-8",
    )
    run(spark, a_definition(tmp_path, transform="clean.py"))
    spark.catalog.dropTempView("mine")
    assert ids(tmp_path) == [0, 2, 4]
