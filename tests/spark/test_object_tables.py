"""Tables in a bucket: the same pipelines, proofs and commands, through S3."""

import json

import pytest
from deltalake import DeltaTable
from tests.cli.commands import headrace_here
from tests.spark.conftest import SCHEMA, rows
from tests.spark.sealing import seal_all

from headrace.errors import StorageFailed
from headrace.spark import read_table, table_writer
from headrace.spark.pipeline.definition import define
from headrace.spark.pipeline.pipeline import OFFSET, PARTITION, opened
from headrace.spark.pipeline.table_reset import carry_out, planned
from headrace.spark.prove.prove import Grade, prove
from headrace.spark.prove.recompute import recompute
from headrace.spark.stores.location import location_of
from headrace.spark.stores.options import storage_options
from headrace.spark.tables.leftovers import orphans_of, removable, remove
from headrace.spark.tables.table_errors import FileGone
from headrace.spark.tables.table_record import LogSource, look
from headrace_lab.spark.s3_proxy import Fault
from headrace_lab.spark.s3_server import settings_of

SQL = f"select id, upper(name) as name, {PARTITION}, {OFFSET} from source"


@pytest.fixture
def defined(tmp_path, s3, bucket):
    """A function that returns the definition of a pipeline into the bucket."""

    def a_definition(endpoint=s3.endpoint, **changes):
        given = {"name": "orders", "topic": "shop/orders", "path": "data"}
        where = {"table": f"s3://{bucket}/tables/orders", "store": settings_of(endpoint)}
        return define({**given, **where, **changes}, tmp_path)

    return a_definition


def table_at(definition):
    options = storage_options(definition.location)
    return DeltaTable(definition.table, storage_options=options)


def ids(definition):
    return sorted(table_at(definition).to_pyarrow_table()["id"].to_pylist())


def run(spark, definition):
    with opened(spark, definition) as pipeline:
        return list(pipeline.run(once=True))


def a_look(definition, topic):
    return look(definition.location, LogSource.reading(definition.name, topic))


@pytest.mark.parametrize("sql", ["", SQL])
def test_rows_come_once_in_rounds_and_drivers_go_on_where_the_table_says(
    spark, topic, defined, sql
):
    definition = defined(sql=sql, batch_rows=100)
    topic.append(rows(0, 250), partition=0)
    assert [one.row_count for one in run(spark, definition)] == [100, 100, 50]
    topic.append(rows(250, 300), partition=1)
    assert [one.row_count for one in run(spark, definition)] == [50]
    assert run(spark, definition) == []
    assert ids(definition) == list(range(300))
    found = read_table(spark, definition.location)
    assert found.count() == 300
    assert found.where("id >= 250").count() == 50


def test_sealed_segments_are_copied_into_the_bucket(spark, tmp_path, topic, defined):
    topic.append(rows(0, 200), partition=0)
    seal_all(tmp_path / "data")
    topic.append(rows(200, 230), partition=0)
    definition = defined()
    (done,) = run(spark, definition)
    assert done.segment_count == 1
    assert done.file_count == 2
    assert ids(definition) == list(range(230))
    *_, proof = prove(topic, a_look(definition, topic))
    assert proof.holds
    assert (proof.grade, proof.compared) == (Grade.IDENTITY, 230)
    assert proof.by_digest == 200


def test_log_and_table_are_proven_equal_and_a_lost_row_is_found(spark, topic, defined):
    definition = defined(sql="select * from source")
    topic.append(rows(0, 50), partition=0)
    run(spark, definition)
    with opened(spark, definition) as pipeline:
        assert recompute(pipeline, a_look(definition, topic)).holds
    table_at(definition).delete("id = 17")
    *_, proof = prove(topic, a_look(definition, topic))
    assert [(one.kind, one.start) for one in proof.findings] == [("missing", 17)]


def test_the_commands_take_a_bucket(spark, tmp_path, topic, s3, bucket, defined):
    topic.append(rows(0, 50), partition=0)
    run(spark, defined())
    file = tmp_path / "orders.toml"
    told = "\n".join(
        f"{key} = {json.dumps(value)}" for key, value in settings_of(s3.endpoint).items()
    )
    file.write_text(
        'name = "orders"\ntopic = "shop/orders"\npath = "data"\n'
        f'table = "s3://{bucket}/tables/orders"\n[store]\n{told}\n'
    )
    status = headrace_here("pipeline", "status", str(file), "--json")
    assert status.json["lag"] == 0
    assert status.json["table"] == f"s3://{bucket}/tables/orders"
    given = settings_of(s3.endpoint)
    settings = [f"--store={key}={value}" for key, value in given.items()]
    place = ["--table", f"s3://{bucket}/tables/orders", "--data", tmp_path / "data"]
    proven = headrace_here("prove", "shop/orders", "--json", *place, *settings)
    assert (proven.code, proven.json["compared"]) == (0, 50)
    ended = headrace_here("pipeline", "clean", str(file), "--json")
    assert ended.json["removed"] == []
    reset = headrace_here("pipeline", "reset", str(file), "--truncate", "--yes", "--json")
    assert (reset.code, reset.json["deleted"]) == (0, 50)
    assert headrace_here("pipeline", "check", str(file)).code == 0
    run(spark, defined())
    assert ids(defined()) == list(range(50))


def test_small_files_are_put_together(spark, topic, defined):
    definition = defined()
    for number in range(3):
        topic.append(rows(number * 10, number * 10 + 10), partition=0)
        run(spark, definition)
    assert len(table_at(definition).file_uris()) == 3
    with opened(spark, definition) as pipeline:
        assert pipeline.compact(files_min=2) == 3
    assert len(table_at(definition).file_uris()) == 1
    assert ids(definition) == list(range(30))


def test_a_reset_takes_its_rows_out_and_keeps_those_of_others(spark, topic, defined):
    definition = defined()
    topic.append(rows(0, 20), partition=0)
    run(spark, definition)
    record = a_look(definition, topic)
    bounds = {each.partition: each for each in topic.bounds()}
    plan = planned(record, bounds, {0: 15, 1: 0}, truncate=True)
    assert (plan.deleted, plan.again) == (20, 5)
    assert carry_out(record, plan)
    run(spark, definition)
    assert ids(definition) == list(range(15, 20))


def test_leftovers_are_removed_and_can_never_come(spark, topic, defined):
    definition = defined()
    topic.append(rows(0, 20), partition=0)

    def stop(step):
        if step == "after files":
            raise KeyboardInterrupt

    with opened(spark, definition) as pipeline:
        pipeline.on_step = stop
        with pytest.raises(KeyboardInterrupt):
            pipeline.round()
    (left,) = orphans_of(definition.location)
    record = a_look(definition, topic)
    found = removable(record)
    assert found == [left]
    remove(record, found)
    assert orphans_of(definition.location) == []
    run(spark, definition)
    assert ids(definition) == list(range(20))


def test_a_streaming_query_writes_its_batches_there(
    spark, tmp_path, topic, defined, s3, bucket
):

    topic.append(rows(0, 30), partition=0)
    url = f"s3://{bucket}/tables/copy"
    write = table_writer(url, name="copy", store=settings_of(s3.endpoint))

    def copy():
        query = (
            spark.readStream.format("headrace")
            .option("topic", "shop/orders")
            .option("path", str(tmp_path / "data"))
            .load()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    copy()
    topic.append(rows(30, 40), partition=1)
    copy()
    location = location_of(url, settings_of(s3.endpoint))
    found = DeltaTable(url, storage_options=storage_options(location)).to_pyarrow_table()
    assert sorted(found["id"].to_pylist()) == list(range(40))


class TestAnswersThatAreLost:
    """The entry of a commit is there, and the writer is told that it is not."""

    @pytest.mark.parametrize("fault", [Fault.LOSE, Fault.ANSWER_AFTER])
    def test_the_commit_is_known_again(self, spark, topic, defined, proxy, fault):
        definition = defined(proxy.endpoint)
        topic.append(rows(0, 10), partition=0)
        run(spark, definition)
        topic.append(rows(10, 20), partition=0)
        proxy.add(fault, target=r"_delta_log/0+2\.json")
        with opened(spark, definition) as pipeline:
            done = pipeline.round()
            assert pipeline.lost == 0
        assert [one.fault for one in proxy.asked if one.fault] == [fault]
        assert done.row_count == 10
        assert ids(definition) == list(range(20))
        assert orphans_of(definition.location) == []
        record = a_look(definition, topic)
        assert (record.number, record.ends[0]) == (2, 20)

    def test_files_that_vanish_before_the_commit_are_told(self, spark, topic, defined):
        definition = defined()
        topic.append(rows(0, 10), partition=0)

        def vanish(step):
            if step == "after files":
                record = a_look(definition, topic)
                record.store.remove([one.name for one in orphans_of(definition.location)])

        with opened(spark, definition) as pipeline:
            pipeline.on_step = vanish
            with pytest.raises(FileGone, match="no longer exists"):
                pipeline.round()
        run(spark, definition)
        assert ids(definition) == list(range(10))


def test_a_store_that_is_away_for_a_while_is_waited_for(spark, topic, defined, proxy):
    definition = defined(proxy.endpoint)
    topic.append(rows(0, 10), partition=0)
    run(spark, definition)
    topic.append(rows(10, 20), partition=0)
    with opened(spark, definition) as pipeline:
        pipeline.on_step = lambda step: step == "after files" and proxy.away(5.0)
        assert pipeline.round().row_count == 10
    assert ids(definition) == list(range(20))


def test_a_store_that_stays_away_is_told_and_nothing_comes_twice(spark, topic, defined, proxy):
    settings = {**settings_of(proxy.endpoint), "timeout": 3}
    definition = defined(store=settings)
    topic.append(rows(0, 10), partition=0)
    run(spark, definition)
    topic.append(rows(10, 20), partition=0)
    with opened(spark, definition) as pipeline:
        pipeline.on_step = lambda step: step == "after files" and proxy.stop()
        with pytest.raises(StorageFailed) as caught:
            pipeline.round()
    assert definition.table in str(caught.value)
    run(spark, defined())
    assert ids(defined()) == list(range(20))


def test_two_drivers_write_each_row_once(spark, topic, defined):
    definition = defined()
    topic.append(rows(0, 10), partition=0)
    with opened(spark, definition) as one, opened(spark, definition) as other:
        one.on_step = lambda step: step == "after files" and other.round()
        assert one.round() is None
        assert (one.lost, other.lost) == (1, 0)
    assert ids(definition) == list(range(10))
    assert len(orphans_of(definition.location)) == 1


@pytest.mark.usefixtures("topic")
def test_a_bucket_that_is_not_there_is_named(spark, defined, s3):
    definition = defined(table="s3://no-such-bucket/orders")
    with (
        opened(spark, definition) as pipeline,
        pytest.raises(Exception, match="no-such-bucket"),
    ):
        pipeline.round()


def test_no_secret_is_in_what_a_pipeline_says_or_keeps(
    spark, tmp_path, topic, aws, defined, caplog
):
    aws.setenv("AWS_SECRET_ACCESS_KEY", "canary-1b7f")
    definition = defined()
    topic.append(rows(0, 10), partition=0)
    done = run(spark, definition)
    assert "canary-1b7f" not in repr(definition) + repr(done) + caplog.text
    assert SCHEMA.keys() <= set(table_at(definition).to_pyarrow_table().column_names)
