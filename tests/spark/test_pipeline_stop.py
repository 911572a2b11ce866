"""A pipeline is stopped from elsewhere: after its batch, and with nothing lost."""

import threading
from contextlib import contextmanager

import pytest
from tests.spark.conftest import rows
from tests.spark.test_pipeline import a_definition, ids
from tests.spark.test_pipeline_status import a_file, a_report, told

from headrace.cli.pipelines.pipeline_stop import _asked
from headrace.spark.pipeline import driver_reports
from headrace.spark.pipeline.pipeline import opened


@contextmanager
def a_running(spark, definition, on_step=lambda step: None):
    """A pipeline that runs in a thread until it is stopped."""
    done, is_here = [], threading.Event()
    with opened(spark, definition) as pipeline:

        def go_on():
            for one in pipeline.run(once=False):
                done.append(one)
                is_here.set()

        pipeline.on_step = on_step
        thread = threading.Thread(target=go_on)
        thread.start()
        try:
            yield is_here, done, thread
        finally:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize("by", ["file", "name"])
def test_a_running_pipeline_stops_when_it_is_asked(spark, tmp_path, topic, by):
    topic.append(rows(0, 50), partition=0)
    place = [a_file(tmp_path)] if by == "file" else ["orders", "--data", tmp_path / "data"]
    with a_running(spark, a_definition(tmp_path, interval="1h")) as (is_here, done, thread):
        assert is_here.wait(60)
        found = told("stop", *place)
        thread.join(20)
        assert not thread.is_alive()
    ((state, brought),) = [(one["state"], one["rows"]) for one in found["drivers"]]
    assert (state, brought) == ("stopped", 50)
    assert found["seconds"] < 30
    assert [one.row_count for one in done] == [50]
    assert told("stop", *place)["drivers"] == []
    assert ids(tmp_path) == list(range(50))


def test_a_batch_that_is_under_way_is_finished(spark, tmp_path, topic):
    topic.append(rows(0, 50), partition=0)
    is_writing, may_go_on = threading.Event(), threading.Event()

    def on_step(step):
        if step == "after files":
            is_writing.set()
            assert may_go_on.wait(120)

    with a_running(spark, a_definition(tmp_path, batch_rows=20), on_step) as (_, done, thread):
        assert is_writing.wait(60)
        said = told("stop", a_file(tmp_path), "--timeout", "1s", code=5)
        assert "still runs after 1s" in said
        may_go_on.set()
        found = told("stop", a_file(tmp_path))
    assert [one.row_count for one in done] == [20]
    assert [one["rows"] for one in found["drivers"]] in ([20], [])  # it may have ended before
    assert ids(tmp_path) == list(range(20))
    assert not thread.is_alive()


def test_one_that_has_never_run_is_not_found(tmp_path, topic):
    said = told("stop", "orders", "--data", tmp_path / "data", code=3)
    assert "no pipeline 'orders' has run on this log" in said
    topic.store_cursors("pipeline.orders", {0: 0})
    assert told("stop", "orders", "--data", tmp_path / "data")["drivers"] == []
    assert "Did you mean 'orders'?" in told(
        "stop", "order", "--data", tmp_path / "data", code=3
    )
    assert told("stop", a_file(tmp_path))["drivers"] == []


def test_a_driver_that_was_killed_is_not_waited_for(log, monkeypatch):
    driver_reports.tell(driver_reports.make(log), a_report())
    monkeypatch.setattr(driver_reports, "SILENT_SECONDS", 0.0)
    assert _asked(log, "orders", None) == []
    monkeypatch.setattr(driver_reports, "SILENT_SECONDS", 60.0)
    assert [one.run for one in _asked(log, "orders", None)] == ["1"]
