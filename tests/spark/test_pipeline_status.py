"""Every pipeline of a log is seen from anywhere: its state, its rate, its lag, its table."""

import os
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from tests.cli.commands import headrace_here
from tests.spark.conftest import rows
from tests.spark.test_pipeline import a_definition, run

import headrace
from headrace.cli.topics.consumer_lag import lags_of
from headrace.errors import BadRequest
from headrace.spark.pipeline import driver_reports
from headrace.spark.pipeline import heartbeat as reporter_module
from headrace.spark.pipeline.driver_reports import DriverState, Report
from headrace.spark.pipeline.heartbeat import PipelineHeartbeat
from headrace.spark.pipeline.pipeline import opened
from headrace.wire.address import SOCKET_NAME


def told(*words, code=0):
    """Run a command of the pipeline's, and return its JSON."""
    done = headrace_here("pipeline", *words, "--json")
    assert done.code == code, done.err
    return done.json if done.out else done.err


def a_file(tmp_path, **changes):
    given = {"name": "orders", "topic": "shop/orders", "path": "data", "table": "table"}
    file = tmp_path / "orders.toml"
    file.write_text("".join(f'{key} = "{value}"\n' for key, value in (given | changes).items()))
    return file


def a_report(**changes):
    given = {
        "pipeline": "orders",
        "topic": "shop/orders",
        "run": "1",
        "state": DriverState.RUNNING,
    }
    return Report(**{**given, "table": "/tables/orders", **changes})


def test_a_finished_pipeline_is_stopped_without_lag(spark, tmp_path, topic):
    topic.append(rows(0, 250), partition=0)
    run(spark, a_definition(tmp_path, batch_rows=100))
    (line,) = told("status", "--data", tmp_path / "data")["pipelines"]
    assert (line["name"], line["topic"], line["state"]) == ("orders", "shop/orders", "stopped")
    assert (line["lag_rows"], line["lag_seconds"], line["rows_per_second"]) == (0, 0, 0)
    assert (line["table"], line["version"]) == (str(tmp_path / "table"), 3)
    age = datetime.now(UTC) - datetime.fromisoformat(line["last_commit"])
    assert timedelta(0) < age < timedelta(minutes=1)
    topic.append(rows(250, 260), partition=1)
    (line,) = told("status", "--data", tmp_path / "data")["pipelines"]
    assert line["lag_rows"] == 10
    assert line["lag_seconds"] > 0


def test_an_idle_pipeline_runs_without_lag(spark, tmp_path, topic):
    topic.append(rows(0, 30), partition=0)
    with opened(spark, a_definition(tmp_path)) as pipeline:
        with closing(pipeline.run(once=False)) as running:
            next(running)
            (line,) = told("status", "--data", tmp_path / "data")["pipelines"]
            assert (line["state"], line["drivers"]) == ("running", 1)
            assert (line["lag_rows"], line["lag_seconds"]) == (0, 0)
            assert line["pid"] == os.getpid()
        assert pipeline.flaw == ""
    (line,) = told("status", "--data", tmp_path / "data")["pipelines"]
    assert (line["state"], line["drivers"]) == ("stopped", 0)


def test_a_place_that_could_not_be_told_is_told_by_an_idle_round(spark, tmp_path, topic):
    topic.append(rows(0, 30), partition=0)
    with opened(spark, a_definition(tmp_path)) as pipeline:
        pipeline.round()
        topic.delete_cursors("pipeline.orders")
        pipeline.told = None  # as if the node had not answered
        assert pipeline.round() is None
    (lag,) = lags_of(topic, "pipeline.orders")
    assert (lag.lag_rows, lag.lag_seconds) == (0, 0)


def test_a_pipeline_that_fails_says_why(spark, tmp_path, topic):
    topic.append(rows(0, 5))
    definition = a_definition(tmp_path)
    run(spark, definition)
    topic.append(rows(5, 6))
    broken = a_definition(tmp_path, sql="select nothing from source")
    with pytest.raises(Exception, match="nothing"):
        run(spark, broken)
    (line,) = told("status", "--data", tmp_path / "data")["pipelines"]
    assert line["state"] == "failed"
    assert "nothing" in line["note"]


def test_a_killed_driver_is_silent_after_a_minute(log):
    topic = driver_reports.make(log)
    driver_reports.tell(topic, a_report(rows_per_second=7.0))
    (found,) = driver_reports.newest(log)
    assert (found.state, found.rows_per_second) == (DriverState.RUNNING, 7.0)
    later = found.reported_at + timedelta(seconds=driver_reports.SILENT_SECONDS + 1)
    assert (found.at(later).state, found.at(later).rows_per_second) == (DriverState.SILENT, 0.0)
    ended = replace(found, state=DriverState.STOPPED)
    assert ended.at(later).state == DriverState.STOPPED


def test_a_group_without_a_report_is_a_silent_pipeline(tmp_path, topic):
    topic.store_cursors("pipeline.old", {0: 0, 1: 0}, hold=True)
    topic.store_cursors("billing", {0: 0, 1: 0})
    (line,) = told("status", "--data", tmp_path / "data")["pipelines"]
    assert (line["name"], line["state"], line["table"]) == ("old", "silent", None)


def test_of_two_drivers_the_one_that_runs_counts(log):
    topic = driver_reports.make(log)
    driver_reports.tell(topic, a_report(run="1"))
    driver_reports.tell(topic, a_report(run="2", state=DriverState.FAILED))
    driver_reports.tell(topic, a_report(run="3", pipeline="other", state=DriverState.STOPPED))
    found = driver_reports.summed_up(driver_reports.newest(log))
    assert found["orders", "shop/orders"].run == "1"
    assert found["other", "shop/orders"].state == DriverState.STOPPED


def test_a_report_far_back_is_found_for_a_pipeline_that_is_known(log, monkeypatch):
    monkeypatch.setattr(driver_reports, "WINDOW", 3)
    topic = driver_reports.make(log)
    driver_reports.tell(topic, a_report(pipeline="old", run="0", state=DriverState.STOPPED))
    for number in range(1, 9):
        driver_reports.tell(topic, a_report(run=str(number)))
    assert {one.pipeline for one in driver_reports.newest(log)} == {"orders"}
    found = driver_reports.newest(log, [("old", "shop/orders")])
    assert {one.pipeline for one in found} == {"orders", "old"}


def test_rows_that_are_no_reports_are_passed_over(log):
    topic = driver_reports.make(log)
    row = dict.fromkeys(driver_reports.SCHEMA.names)
    topic.append([row, {**row, "kind": "report", "state": "dancing", "run": "1"}])
    driver_reports.tell(topic, a_report(note="x" * 5_000))
    (found,) = driver_reports.newest(log)
    assert len(found.note) == driver_reports.TEXT_SIZE_MAX


def test_a_foreign_topic_of_that_name_is_told_and_fails_no_pipeline(
    spark, tmp_path, log, topic
):
    log.create_topic(driver_reports.NAME, {"id": "int64"})
    with pytest.raises(BadRequest, match="has no column 'kind' of the type of reports"):
        driver_reports.newest(log)
    topic.append(rows(0, 5))
    with opened(spark, a_definition(tmp_path)) as pipeline:
        assert [each.row_count for each in pipeline.run(once=True)] == [5]
        assert "was not created by a pipeline" in pipeline.flaw


def test_a_driver_reports_again_when_the_topic_is_deleted_and_hears_what_is_asked(
    tmp_path, log, monkeypatch
):
    monkeypatch.setattr(reporter_module, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(reporter_module, "EVERY_SECONDS", 0.1)
    address = f"unix:{tmp_path / 'data' / SOCKET_NAME}"
    with PipelineHeartbeat(
        lambda: headrace.connect(address), "orders", "shop/orders", "/t"
    ) as one:
        (before,) = driver_reports.newest(log)
        log.delete_topic(driver_reports.NAME)
        deadline = time.monotonic() + 20
        while not driver_reports.newest(log):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        driver_reports.ask_to_stop(driver_reports.make(log), replace(before, run="another"))
        assert not one.asked.wait(0.5)
        driver_reports.ask_to_stop(driver_reports.make(log), before)
        assert one.asked.wait(20)


def test_one_pipeline_is_told_by_its_file(spark, tmp_path, topic):
    topic.append(rows(0, 30), partition=0)
    run(spark, a_definition(tmp_path))
    topic.append(rows(30, 35), partition=1)
    found = told("status", a_file(tmp_path))
    assert (found["version"], found["commits"], found["lag"]) == (1, 1, 5)
    assert found["ends"] == {"0": 30, "1": 0}
    assert found["report"]["state"] == "stopped"
    said = told("status", a_file(tmp_path), "--data", tmp_path / "data", code=2)
    assert "the file already names the log" in said


def test_a_name_that_leaves_no_room_for_its_group_is_refused(tmp_path):
    a_definition(tmp_path, name="n" * 55)
    with pytest.raises(headrace.errors.BadConfig, match="at most 55"):
        a_definition(tmp_path, name="n" * 56)


@pytest.mark.parametrize("once", [True, False])
def test_a_query_that_has_read_all_shows_no_lag(spark, tmp_path, topic, once):
    topic.append(rows(0, 50), partition=0)
    frame = spark.readStream.format("headrace").option("topic", "shop/orders")
    frame = frame.option("path", str(tmp_path / "data")).option("groupId", "billing").load()
    writer = frame.writeStream.foreachBatch(lambda batch, _: batch.count())
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start() if once else writer.start()
    try:
        if once:
            assert query.awaitTermination(60)
        else:
            query.processAllAvailable()
            deadline = time.monotonic() + 20
            while [one.lag_rows for one in lags_of(topic, "billing")] != [0]:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        (lag,) = lags_of(topic, "billing")
        assert (lag.lag_rows, lag.lag_seconds, lag.state) == (0, 0, "caught up")
        topic.append(rows(50, 60), partition=1)
        if once:
            (lag,) = lags_of(topic, "billing")
            assert lag.lag_rows == 10
            assert lag.lag_seconds > 0
    finally:
        query.stop()


def test_a_run_that_is_terminated_is_stopped_not_silent(tmp_path, topic):
    topic.append(rows(0, 5))
    command = [sys.executable, "-m", "headrace", "pipeline", "run", str(a_file(tmp_path))]
    with subprocess.Popen(
        [*command, "--master", "local[1]"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline().startswith(b"version 1: rows 5")
        process.terminate()
        assert process.wait(60) == 0
    (line,) = told("status", "--data", tmp_path / "data")["pipelines"]
    assert (line["state"], line["note"]) == ("stopped", "")
