"""`foreachBatch(headrace.spark.table_writer(…))`: batches of a query in a table, each once."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import StreamingQueryException
from tests.spark.conftest import rows
from tests.spark.test_pipeline import a_definition
from tests.spark.test_pipeline import run as run_pipeline
from tests.spark.test_prove import prove
from tests.spark.windows import NAME, SCHEMA, counted, events, minutes_of, whole

import headrace
from headrace.errors import BadConfig, BadName, BadRequest
from headrace.spark import table_writer
from headrace.spark.sink import table_sink
from headrace.spark.tables.leftovers import orphans_of
from headrace.spark.tables.table_errors import TableForeign

ANEW = "start over with a new table and a new checkpointLocation"


@pytest.fixture
def minutes(log):
    return log.create_topic("shop/events", SCHEMA)


def copy(spark, tmp_path, each=None, checkpoint="checkpoint"):
    """Bring orders into the table by a query without state, which is faster; return its id."""
    source = spark.readStream.format("headrace").option("topic", "shop/orders")
    frame = source.option("path", str(tmp_path / "data")).load().select("id", "name")
    query = frame.writeStream.option("checkpointLocation", str(tmp_path / checkpoint))
    query = query.foreachBatch(each or table_writer(tmp_path / "table", name="copy"))
    running = query.trigger(availableNow=True).start()
    running.awaitTermination(120)
    return str(running.id)


def ids(tmp_path, table="table"):
    return sorted(DeltaTable(str(tmp_path / table)).to_pyarrow_table()["id"].to_pylist())


def stopped(spark, tmp_path, **options):
    """Start a query that ends at once; return our own sentence."""
    with pytest.raises(StreamingQueryException) as caught:
        copy(spark, tmp_path, **options)
    told = [line for line in str(caught.value).splitlines() if line.startswith("headrace.")]
    assert told, caught.value
    return told[-1].partition(": ")[2]


@pytest.mark.campaign(2, of="lives of a query's table")
def test_windows_come_once_over_restarts(spark, tmp_path, minutes):
    place = {"path": str(tmp_path / "data")}
    for start in (0, 3):
        end = start + 3
        minutes.append(events(start, end))
        append = table_writer(tmp_path / "table", name=NAME)
        query = counted(spark, place, tmp_path, append)
        assert minutes_of(tmp_path / "table") == whole(end - 1)
    table = DeltaTable(str(tmp_path / "table"))
    assert table.metadata().configuration == {"headrace.windows": f"query {query}"}


@pytest.mark.campaign(1)
@pytest.mark.parametrize(
    ("batch", "step"), [(0, "after commit"), (1, "after files"), (1, "after commit")]
)
def test_a_driver_that_is_killed_leaves_nothing_twice(spark, tmp_path, node, batch, step):
    """Batch 0 brings events, and moves the watermark; batch 1 gives what is over by then."""
    with headrace.connect(node.address) as log:
        topic = log.create_topic("shop/events", SCHEMA)
        topic.append(events(0, 5))
        driver = Path(__file__).with_name("windows.py")
        words = [node.address, str(tmp_path), str(batch), step]
        done = subprocess.run([sys.executable, str(driver), *words], timeout=240, check=False)
        assert done.returncode == -signal.SIGKILL
        table = tmp_path / "table"
        assert not (tmp_path / "checkpoint" / "commits" / str(batch)).exists()
        assert minutes_of(table) == whole(4 if (batch, step) == (1, "after commit") else 0)
        assert bool(orphans_of(str(table))) == (step == "after files")
        append = table_writer(table, name=NAME)
        for end in (5, 8):  # what is late is dropped, as it would have been
            counted(spark, {"address": node.address}, tmp_path, append)
            assert minutes_of(table) == whole(end - 1)
            topic.append([*events(0, 1), *events(end, end + 3)])


@pytest.mark.campaign(2, of="lives of a query's table")
def test_another_query_is_refused_and_both_ways_out_work(spark, tmp_path, topic):
    topic.append(rows(0, 10), partition=0)
    table, first = tmp_path / "table", copy(spark, tmp_path)
    said = stopped(spark, tmp_path, checkpoint="other")
    assert said.startswith(f"the table at {table} is filled by query {first}, but this is ")
    assert f"continue with the checkpointLocation of query {first}, or " in said
    assert said.endswith("start over with a separate table for this query")
    topic.append(rows(10, 20), partition=0)
    assert copy(spark, tmp_path) == first
    assert ids(tmp_path) == list(range(20))
    copy(spark, tmp_path, table_writer(tmp_path / "new", name="copy"), checkpoint="other")
    assert ids(tmp_path, "new") == list(range(20))
    topic.append(rows(20, 30), partition=0)
    said = stopped(spark, tmp_path, checkpoint="other")  # which is not at its beginning now
    assert said.endswith(ANEW)
    assert ids(tmp_path) == list(range(20))


@pytest.mark.campaign(2, of="lives of a query's table")
def test_a_table_that_was_put_back_from_a_copy_stops_the_query(spark, tmp_path, topic):
    table, older, newest = (tmp_path / name for name in ("table", "older", "newest"))
    for start in (0, 10, 20):
        topic.append(rows(start, start + 10), partition=0)
        query = copy(spark, tmp_path)
        if not start:
            shutil.copytree(table, older)
    topic.append(rows(30, 40), partition=0)
    table.rename(newest)
    said = stopped(spark, tmp_path)
    assert said.startswith(
        f"there is no table at {table} for query {query}, but its checkpointLocation is at 3: "
    )
    assert not table.exists()
    older.rename(table)
    said = stopped(spark, tmp_path)
    assert said.startswith(
        f"the table at {table} has the batches of query {query} up to 0, but its "
        "checkpointLocation is at 3: batches are missing. Two ways out: restore the table "
        f"that has batch 2 and continue, or {ANEW}"
    )
    assert ids(tmp_path) == list(range(10))
    shutil.rmtree(table)
    newest.rename(table)
    copy(spark, tmp_path)
    assert ids(tmp_path) == list(range(40))


@pytest.mark.campaign(2, of="lives of a query's table")
def test_a_table_that_was_restored_to_an_older_version_stops_the_query(spark, tmp_path, topic):
    for start in (0, 10):
        topic.append(rows(start, start + 10), partition=0)
        copy(spark, tmp_path)
    table = DeltaTable(str(tmp_path / "table"))
    newest = table.version()
    table.restore(newest - 1)
    topic.append(rows(20, 30), partition=0)
    said = stopped(spark, tmp_path)
    assert said.startswith(
        f"version {newest + 1} of the table at {tmp_path / 'table'} restored an older version, "
        "so the table lacks rows of the batches that it records. Two ways out: "
        f"restore version {newest} and continue, or {ANEW}"
    )
    assert ids(tmp_path) == list(range(10))
    DeltaTable(str(tmp_path / "table")).restore(newest)
    copy(spark, tmp_path)
    assert ids(tmp_path) == list(range(30))


@pytest.mark.parametrize("more", [0, 10])
def test_a_checkpoint_that_was_put_back_from_a_copy_stops_the_query(
    spark, tmp_path, topic, more
):
    """One batch behind, its number is the same, and its rows are others."""
    topic.append(rows(0, 10), partition=0)
    copy(spark, tmp_path)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "copy")
    for start in range(10, 20 + more, 10):
        topic.append(rows(start, start + 10), partition=0)
        copy(spark, tmp_path)
    (tmp_path / "checkpoint").rename(tmp_path / "newest")
    (tmp_path / "copy").rename(tmp_path / "checkpoint")
    topic.append(rows(20 + more, 25 + more), partition=0)
    said = stopped(spark, tmp_path)
    assert said.startswith(f"the table at {tmp_path / 'table'} has the batches of query ")
    flaw = "is at 1: it was" if more else "has different rows in 1: it was"
    assert (
        f", but its checkpointLocation {flaw} copied, or restored from an old backup. " in said
    )
    newest = 2 if more else 1
    assert f"restore the checkpointLocation that wrote batch {newest}, or " in said
    assert ids(tmp_path) == list(range(20 + more))
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "newest").rename(tmp_path / "checkpoint")
    copy(spark, tmp_path)
    assert ids(tmp_path) == list(range(25 + more))


def test_a_second_frame_of_one_batch_is_refused_and_not_dropped(spark, tmp_path, topic):
    topic.append(rows(0, 10), partition=0)
    told = []

    def each(found, batch_id):
        table_writer(tmp_path / "table", name="copy")(found.where("id < 5"), batch_id)
        table_writer(tmp_path / "rest", name="rest")(found.where("id >= 5"), batch_id)
        again = table_writer(f"{tmp_path}/x/../table", name="copy")
        with pytest.raises(BadRequest) as caught:
            again(found.where("id >= 5"), batch_id)
        told.append(str(caught.value))

    copy(spark, tmp_path, each)
    assert len(told) == 1
    assert told[0].startswith(f"batch 0 was already written to {tmp_path}/x/../table: a second")
    assert ids(tmp_path) == list(range(5))
    rest = DeltaTable(str(tmp_path / "rest")).to_pyarrow_table()
    assert sorted(rest["id"].to_pylist()) == list(range(5, 10))


def test_a_batch_that_failed_behind_its_commit_adds_nothing_when_it_is_repeated(
    spark, tmp_path, topic
):
    topic.append(rows(0, 10), partition=0)
    append, flaws = table_writer(tmp_path / "table", name="copy"), ["of another table"]

    def each(found, batch_id):
        append(found, batch_id)
        if flaws:
            raise ValueError(flaws.pop())

    with pytest.raises(StreamingQueryException, match="of another table"):
        copy(spark, tmp_path, each)
    for _ in range(2):  # the same process goes on
        copy(spark, tmp_path, each)
    assert ids(tmp_path) == list(range(10))


def test_a_foreign_commit_between_files_and_commit_is_not_lost_and_loses_nothing(
    spark, tmp_path, topic, monkeypatch
):
    topic.append(rows(0, 10), partition=0)
    foreign = pa.table({"id": pa.array([-1], pa.int64()), "name": ["foreign"]})
    real, writes = table_sink.write_files, []

    def meddle(*given):
        found = real(*given)
        write_deltalake(str(tmp_path / "table"), foreign, mode="append")
        writes.append(found)
        return found

    monkeypatch.setattr(table_sink, "write_files", meddle)
    copy(spark, tmp_path)
    assert len(writes) == 1  # the files are committed as they are, and not written again
    assert ids(tmp_path) == [-1, *range(10)]


def test_two_drivers_of_one_query_add_a_batch_once(spark, tmp_path, topic, monkeypatch):
    topic.append(rows(0, 10), partition=0)
    real, append = table_sink.write_files, table_writer(tmp_path / "table", name="copy")
    frames = []

    def race(*given):
        found = real(*given)
        if len(frames) == 1:
            frames.append(None)
            now = table_sink.moment_of(frames[0], 0)
            table_writer(tmp_path / "table", name="copy")._add(frames[0], now)
        return found

    def each(found, batch_id):
        frames.append(found)
        append(found, batch_id)

    monkeypatch.setattr(table_sink, "write_files", race)
    copy(spark, tmp_path, each)
    assert len(frames) == 2
    assert ids(tmp_path) == list(range(10))
    assert len(orphans_of(str(tmp_path / "table"))) == 1


def test_small_files_are_put_together(spark, tmp_path, topic):
    topic.append(rows(0, 400), partition=0)
    append = table_writer(tmp_path / "table", name="copy")
    never = table_writer(tmp_path / "never", name="copy", file_size="0")

    def each(found, batch_id):
        append(found.repartition(40, "id"), batch_id)
        never(found.repartition(40, "id"), batch_id)

    copy(spark, tmp_path, each)
    assert len(DeltaTable(str(tmp_path / "table")).file_uris()) == 1
    assert len(DeltaTable(str(tmp_path / "never")).file_uris()) > 32
    topic.append(rows(400, 410), partition=0)
    copy(spark, tmp_path, each)
    assert ids(tmp_path) == list(range(410))


@pytest.mark.campaign(2, of="lives of a query's table")
def test_a_new_column_comes_with_its_rows_and_another_type_stops_the_query(
    spark, tmp_path, topic
):
    append = table_writer(tmp_path / "table", name="copy")
    for start, columns in ((0, ["id", "name"]), (5, ["*", "id + 1 as more"])):
        topic.append(rows(start, start + 5), partition=0)
        copy(spark, tmp_path, lambda found, n, c=columns: append(found.selectExpr(*c), n))
    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert {row["id"]: row["more"] for row in found} == {
        **dict.fromkeys(range(5)),
        **{number: number + 1 for number in range(5, 10)},
    }
    topic.append(rows(10, 15), partition=0)
    for columns, flaw in (
        (["id", "id as name"], "column name is string in the table, but int64 in the next"),
        (["id", "name", "name as Id"], "rows: it produces id more than once"),
        (["id", "interval '1' day as name"], "rows: column name is interval day, which Del"),
    ):
        said = stopped(
            spark,
            tmp_path,
            each=lambda found, n, c=columns: append(found.selectExpr(*c), n),
        )
        assert said.startswith(flaw)
    assert ids(tmp_path) == list(range(10))


def test_tables_of_others_are_not_touched(spark, tmp_path, topic):
    topic.append(rows(0, 5), partition=0)
    write_deltalake(str(tmp_path / "table"), pa.table({"id": [1]}))
    said = stopped(spark, tmp_path)
    assert said.startswith(
        f"the table at {tmp_path / 'table'} was not created by query 'copy'. "
    )
    run_pipeline(spark, a_definition(tmp_path, name="copy", table="brought"))
    brought = table_writer(tmp_path / "brought", name="copy")
    said = stopped(spark, tmp_path, each=brought)
    assert said.startswith(
        f"the table at {tmp_path / 'brought'} is filled by pipeline 'copy' from shop/orders"
    )
    copy(spark, tmp_path, table_writer(tmp_path / "own", name="copy"))
    with pytest.raises(
        TableForeign, match=r"is filled by query .*, not by shop/orders created"
    ):
        run_pipeline(spark, a_definition(tmp_path, name="copy", table="own"))
    assert ids(tmp_path) == [1]


def test_a_table_that_would_forget_its_batches_stops_the_query(spark, tmp_path, topic):
    topic.append(rows(0, 5), partition=0)
    copy(spark, tmp_path)
    setting = {"delta.setTransactionRetentionDuration": "interval 1 days"}
    DeltaTable(str(tmp_path / "table")).alter.set_table_properties(setting)
    topic.append(rows(5, 10), partition=0)
    said = stopped(spark, tmp_path)
    assert "has delta.setTransactionRetentionDuration, which drops the pipeline's" in said
    assert said.endswith("Remove that property from the table")


def test_a_proof_claims_nothing_of_such_a_table(spark, tmp_path, topic):
    topic.append(rows(0, 5), partition=0)
    copy(spark, tmp_path)
    code, found = prove(tmp_path)
    assert (code, found["grade"], found["holds"]) == (7, "not provable", False)
    words = ["prove", "shop/orders", "--table", str(tmp_path / "table")]
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *words, "--data", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 7
    assert done.stderr.startswith("not provable: query ")


def test_a_ledger_is_compared_with_the_log_though_nothing_is_claimed_of_the_table(
    spark, tmp_path, log, topic
):
    ledger = tmp_path / "ledger"
    with log.producer(topic, ledger=ledger, partition=0) as producer:
        producer.send(rows(0, 10))
    copy(spark, tmp_path)
    code, found = prove(tmp_path, "--ledger", str(ledger))
    assert (code, found["acknowledged"], found["lost"]) == (7, 10, 0)
    line = json.loads(ledger.read_text()) | {"start": 10, "end": 17}
    ledger.write_text(ledger.read_text() + json.dumps(line) + "\n")
    code, found = prove(tmp_path, "--ledger", str(ledger))
    assert (code, found["grade"], found["lost"]) == (6, "not provable", 7)


def test_what_cannot_be_is_told_at_once(spark, tmp_path):
    with pytest.raises(BadName, match="'a b' is not a valid name for a query"):
        table_writer(tmp_path / "table", name="a b")
    with pytest.raises(BadConfig, match="hdfs:// is not supported"):
        table_writer("hdfs://somewhere/table", name="copy")
    with pytest.raises(BadRequest, match="these rows do not belong to a streaming query"):
        table_writer(tmp_path / "table", name="copy")(spark.range(3), 0)
    assert not (tmp_path / "table").exists()
