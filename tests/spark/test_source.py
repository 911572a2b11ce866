"""`format("headrace")` on a real Spark."""

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from tests.spark.conftest import SCHEMA, rows

import headrace
from headrace.spark.spark_session import packed


def reading(spark, tmp_path, name="shop/orders", *, stream=False, **options):
    reader = spark.readStream if stream else spark.read
    reader = reader.format("headrace").option("topic", name)
    for key, value in options.items():
        reader = reader.option(key, value)
    if "address" not in options and "path" not in options:
        reader = reader.option("path", str(tmp_path / "data"))
    return reader.load()


def run(frame, tmp_path, each=None):
    """Run a query over all there is, and return the rows of each of its batches."""
    batches = []

    def see(batch, _):
        batches.append(batch.collect())

    query = (
        frame.writeStream.foreachBatch(each or see)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    return batches


@contextmanager
def ended_by(said, next_step):
    """Have Spark end by an error of ours: its sentence and the next step, before any trace."""
    with pytest.raises(PySparkException) as caught:
        yield
    text = str(caught.value)
    assert said in text
    before, _, after = text.partition(said)
    assert "Traceback" not in before
    assert "\n\tat " not in before
    assert next_step in after.splitlines()[0]


def ids(batches):
    return [sorted(row.id for row in batch) for batch in batches]


def test_a_batch_read_has_typed_columns_and_every_row_once(spark, tmp_path, topic):
    topic.append(rows(0, 1000), partition=0)
    topic.append(rows(1000, 1500), partition=1)
    frame = reading(spark, tmp_path)
    assert frame.dtypes == [
        ("_partition", "int"),
        ("_offset", "bigint"),
        ("_timestamp", "timestamp"),
        ("id", "bigint"),
        ("name", "string"),
    ]
    found = frame.select("id", "_partition", "_offset").collect()
    assert sorted(row.id for row in found) == list(range(1500))
    assert len({(row._partition, row._offset) for row in found}) == 1500


def test_columns_offsets_and_tasks_are_chosen(spark, tmp_path, topic):
    topic.append(rows(0, 100), partition=0)
    frame = reading(
        spark,
        tmp_path,
        columns="name,_offset",
        startingOffsets='{"0": 10, "1": 0}',
        endingOffsets='{"0": 20, "1": 0}',
        minPartitions="4",
    )
    assert frame.columns == ["name", "_offset"]
    assert frame.rdd.getNumPartitions() >= 4
    assert sorted(row._offset for row in frame.collect()) == list(range(10, 20))


def test_a_stream_reads_in_limits_and_goes_on_where_it_was(spark, tmp_path, topic):
    topic.append(rows(0, 250), partition=0)
    frame = reading(spark, tmp_path, stream=True, maxOffsetsPerTrigger="100")
    assert [len(batch) for batch in run(frame, tmp_path)] == [100, 100, 50]
    topic.append(rows(250, 300), partition=1)
    assert ids(run(frame, tmp_path)) == [list(range(250, 300))]


def test_a_repeated_batch_is_the_same_rows(spark, tmp_path, topic):
    topic.append(rows(0, 50), partition=0)
    frame = reading(spark, tmp_path, stream=True)
    assert ids(run(frame, tmp_path)) == [list(range(50))]
    for each in (tmp_path / "checkpoint" / "commits").iterdir():
        each.unlink()  # as if the driver had died before it was done
    topic.append(rows(50, 60), partition=0)
    assert ids(run(frame, tmp_path)) == [list(range(50)), list(range(50, 60))]


def test_a_first_batch_that_failed_is_played_again_whenever_the_query_is_restarted(
    spark, tmp_path, topic
):
    def fail(batch, _):
        raise ValueError("of the query's own")

    def frame(start):
        return reading(spark, tmp_path, stream=True, startingTimestamp=start)

    topic.append(rows(0, 50), partition=0)
    with pytest.raises(PySparkException, match="of the query's own"):
        run(frame("-1h"), tmp_path, fail)
    later = datetime.now(UTC).isoformat()  # what a relative start has come to by then
    topic.append(rows(50, 60), partition=0)
    assert ids(run(frame(later), tmp_path)) == [list(range(50)), list(range(50, 60))]


def test_a_new_schema_stops_a_query_before_its_rows_and_a_restart_goes_on(
    spark, tmp_path, topic
):
    topic.append(rows(0, 5), partition=0)
    frame = reading(spark, tmp_path, stream=True)
    batches = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: batches.append(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    topic.evolve({"id": "int64", "name": "string", "note": "string"})
    topic.append([{"id": 5, "name": "n5", "note": "new"}], partition=0)
    with ended_by("SchemaChanged: the schema of shop/orders", "restart the query to continue"):
        query.awaitTermination(60)
    assert ids(batches) == [list(range(5))]
    ((row,),) = run(reading(spark, tmp_path, stream=True), tmp_path)
    assert (row.id, row.note) == (5, "new")


def test_a_pinned_query_goes_on_without_the_new_columns(spark, tmp_path, topic):
    topic.append(rows(0, 5), partition=0)
    frame = reading(spark, tmp_path, stream=True, schemaChange="pin")
    topic.evolve({"id": "int64", "name": "string", "note": "string"})
    topic.append([{"id": 5, "name": "n5", "note": "new"}], partition=0)
    assert frame.columns[3:] == ["id", "name"]
    assert ids(run(frame, tmp_path)) == [list(range(5)), [5]]


def test_a_batch_never_crosses_a_schema_version(spark, tmp_path, topic):
    topic.append(rows(0, 5), partition=0)
    topic.evolve({"id": "int64", "name": "string", "note": "string"})
    topic.append([{"id": 5, "name": "n5", "note": "new"}], partition=0)
    topic.append(rows(6, 8), partition=1)
    frame = reading(spark, tmp_path, stream=True)
    assert ids(run(frame, tmp_path)) == [list(range(5)), [5, 6, 7]]


def test_a_recreated_topic_ends_the_query_by_name(spark, tmp_path, log, topic):
    topic.append(rows(0, 5))
    run(reading(spark, tmp_path, stream=True), tmp_path)
    topic.delete()
    log.create_topic("shop/orders", {"id": "int64", "name": "string"}).append(rows(0, 9))
    said = "TopicRecreated: shop/orders was deleted and recreated"
    with ended_by(said, "Read the new topic with a new checkpointLocation"):
        run(reading(spark, tmp_path, stream=True), tmp_path)


def test_a_log_that_was_put_back_ends_the_query_by_name(spark, tmp_path):
    with headrace.open(tmp_path / "data") as log:
        log.create_topic("shop/orders", SCHEMA).append(rows(0, 10))
    shutil.copytree(tmp_path / "data", tmp_path / "old")
    with headrace.open(tmp_path / "data") as log:
        log.topic("shop/orders").append(rows(10, 20))
        run(reading(spark, tmp_path, stream=True), tmp_path)
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "old").rename(tmp_path / "data")
    with headrace.open(tmp_path / "data"):
        frame = reading(spark, tmp_path, stream=True)
        said = "CheckpointAhead: the query resumes at row 20"
        with ended_by(said, "start with a new checkpointLocation"):
            run(frame, tmp_path)


def test_trimmed_rows_end_the_query_unless_they_may_be_lost(spark, tmp_path, topic):
    topic.append(rows(0, 5), partition=0)
    run(reading(spark, tmp_path, stream=True), tmp_path)
    (given_up,) = {cursor.group for cursor in topic.cursors()}
    topic.delete_cursors(given_up)
    topic.append(rows(5, 20), partition=0)
    topic.trim(10, partition=0)
    said = "RowsLost: rows 5 to 9 of partition 0 of shop/orders were trimmed"
    with ended_by(said, 'Continue without them with .option("failOnDataLoss", "false")'):
        run(reading(spark, tmp_path, stream=True), tmp_path)
    frame = reading(spark, tmp_path, stream=True, failOnDataLoss="false")
    assert ids(run(frame, tmp_path)) == [list(range(10, 20))]


def test_a_query_holds_what_it_has_not_read_and_says_where_the_log_ends(spark, tmp_path, topic):
    topic.append(rows(0, 250), partition=0)
    seen = []

    def see(batch, _):
        start = min(row._offset for row in batch.collect())
        topic.trim(250, partition=0)  # as retention would
        seen.append(topic.bounds()[0].first <= start)

    query = (
        reading(spark, tmp_path, stream=True, maxOffsetsPerTrigger="100")
        .writeStream.foreachBatch(see)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert seen == [True, True, True]
    assert {each.hold for each in topic.cursors()} == {True}
    (source,) = query.recentProgress[0]["sources"]
    ends = [json.loads(source[name])["partitions"] for name in ("endOffset", "latestOffset")]
    assert ends == [{"0": 100, "1": 0}, {"0": 250, "1": 0}]


def test_a_finished_query_is_a_consumer_without_lag(spark, tmp_path, topic):
    topic.append(rows(0, 250), partition=0)
    frame = reading(spark, tmp_path, stream=True, maxOffsetsPerTrigger="100")
    run(frame, tmp_path)
    (group,) = {each.group for each in topic.cursors()}
    assert group.startswith("spark-")
    assert {each.lag for each in topic.cursors(group)} == {0}
    topic.append(rows(250, 260), partition=0)
    assert sum(each.lag for each in topic.cursors(group)) == 10
    named = reading(spark, tmp_path, stream=True, groupId="billing")
    run(named, tmp_path)
    assert {each.lag for each in topic.cursors("billing")} == {0}


@pytest.mark.parametrize(
    ("options", "said", "next_step"),
    [
        ({"name": "shop/oders"}, "TopicUnknown: ", "Did you mean 'shop/orders'?"),
        (
            {"maxOffsetPerTrigger": "5"},
            "is not a valid option",
            "Did you mean maxOffsetsPerTrigger?",
        ),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: is '0'", "Give an integer >="),
        ({"maxBytesPerTrigger": "-1"}, "maxBytesPerTrigger: ", "Write a whole number and"),
        ({"columns": "idd"}, "there is no column 'idd'", "Did you mean 'id'?"),
        (
            {"address": "127.0.0.1:1", "timeout": "1s"},
            "no node answers at 127.0.0.1:1",
            "refused",
        ),
        ({"path": "/nowhere"}, "no process serves /nowhere", "Start one: headrace serve"),
        ({"startingOffsets": '{"9": 1}'}, "has no partition 9", "It has 2, numbered from 0"),
        ({"endingOffsets": '{"0": 0}'}, "endingOffsets: has no offset for", "List each of"),
    ],
)
def test_bad_input_is_told_before_any_trace(spark, tmp_path, topic, options, said, next_step):
    with ended_by(said, next_step):
        reading(spark, tmp_path, **options).collect()


def test_offsets_are_stored_as_documented(spark, tmp_path, topic):
    topic.append(rows(0, 5), partition=1)
    run(reading(spark, tmp_path, stream=True), tmp_path)
    stored = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    assert json.loads(stored) == {
        "v": 1,
        "topic": "shop/orders",
        "created": topic.created,
        "cluster": topic.cluster,
        "partitions": {"0": 0, "1": 5},
        "from": {"0": 0, "1": 0},
    }
    assert packed().endswith(".zip")


ENDING = """
from pyspark.sql.types import StructType
from headrace.spark.source.data_source import StreamReader
reader = StreamReader({}, StructType([]))
try:
    raise %s
finally:
    reader.stop()
"""


@pytest.mark.parametrize(("error", "is_told"), [("EOFError", False), ("OSError", True)])
def test_the_process_of_a_query_ends_without_a_trace_when_spark_hangs_up(error, is_told):
    command = [sys.executable, "-c", ENDING % error]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ("Traceback" in done.stderr) == is_told
