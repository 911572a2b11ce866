"""How long rows take to the table: by their own append times and the log's clock."""

import time
from contextlib import closing

import pytest
from tests.spark.conftest import rows
from tests.spark.test_pipeline import a_definition
from tests.spark.test_pipeline_status import a_report, told

from headrace.errors import BadConfig
from headrace.spark.pipeline import driver_reports
from headrace.spark.pipeline.pace import ROUNDS, ROWS_MIN, TURNS, USED, WAIT_MIN, Pace
from headrace.spark.pipeline.pipeline import opened
from headrace.spark.pipeline.table_times import (
    HIGH,
    MEDIAN,
    ROUNDS_MAX,
    LogClock,
    RowTimes,
    TableTimes,
    read_times,
)


def the_line(tmp_path):
    (line,) = told("status", "--data", tmp_path / "data")["pipelines"]
    return line


def test_quantiles_weigh_rows_and_lie_between_the_newest_and_the_oldest():
    times = TableTimes()
    assert times.quantile(MEDIAN) is None
    times.add([RowTimes(1_000, 1.0, 3.0), RowTimes(1, 3_600.0, 3_600.0)])
    assert times.quantile(MEDIAN) == pytest.approx(2.0, abs=0.01)
    assert times.quantile(HIGH) == pytest.approx(2.98, abs=0.01)
    assert times.quantile(1.0) == pytest.approx(3_600.0)
    times.add([RowTimes(9_000, 5.0, 5.0)])
    assert times.quantile(MEDIAN) == pytest.approx(5.0, abs=0.01)


def test_only_the_last_rounds_count():
    times = TableTimes()
    times.add([RowTimes(1_000_000, 100.0, 200.0)])
    for _ in range(ROUNDS_MAX):
        times.add([RowTimes(1, 1.0, 1.0)])
    assert times.quantile(HIGH) == pytest.approx(1.0, abs=0.01)


def test_the_times_are_those_of_the_first_and_the_last_row_of_each_partition(topic):
    before = time.time()
    topic.append(rows(0, 50), partition=0)
    time.sleep(0.5)
    topic.append(rows(50, 150), partition=0)
    topic.append(rows(150, 160), partition=1)
    now = time.time() + 10
    one, other = read_times(topic, {0: 0, 1: 0}, {0: 150, 1: 10}, now)
    assert (one.row_count, other.row_count) == (150, 10)
    assert 10 + 0.5 <= one.oldest <= now - before
    assert 10 <= one.newest <= one.oldest - 0.5
    assert other.newest == other.oldest >= 10
    (last,) = read_times(topic, {0: 50, 1: 10}, {0: 150, 1: 10}, now)
    assert last.newest == last.oldest == one.newest
    topic.trim(50, 0)
    assert read_times(topic, {0: 0, 1: 0}, {0: 150, 1: 10}, now) == ()


@pytest.mark.parametrize(
    ("at", "ahead"), [(100.0, 0.0), (100.2, 0.0), (107.0, 6.8), (93.0, -7.0)]
)
def test_clocks_that_may_agree_do_and_others_are_told_apart(at, ahead):
    clock = LogClock()
    clock.learn(100.0, at, 100.2)
    assert clock.ahead == pytest.approx(ahead)


def test_status_shows_the_times_of_a_run(spark, tmp_path, topic):
    topic.append(rows(0, 50), partition=0)
    with opened(spark, a_definition(tmp_path)) as pipeline:
        (done,) = pipeline.run(once=True)
        assert pipeline.clock.ahead == 0.0
    line = the_line(tmp_path)
    assert 0 < line["to_table_p50_seconds"] <= line["to_table_p99_seconds"] < 120
    assert line["to_table_p99_seconds"] == pytest.approx(done.times[0].oldest, abs=0.1)


def test_a_topic_of_reports_of_an_earlier_release_gets_the_columns(log):
    first = list(driver_reports.SCHEMA)[:-2]
    log.create_topic(driver_reports.NAME, {one.name: one.type for one in first})
    old = driver_reports.find(log)
    assert driver_reports.tell(old, a_report(run="1", to_table_p99=3.0)) is not None
    driver_reports.tell(driver_reports.make(log), a_report(run="2", to_table_p99=2.0))
    found = {one.run: one.to_table_p99 for one in driver_reports.newest(log)}
    assert found == {"1": None, "2": 2.0}


def test_without_a_target_the_pace_is_the_interval():
    pace = Pace(1.0)
    pace.done(3.0, 10, 100.0)
    assert (pace.wait(0.0, found=False), pace.wait(0.0, found=True)) == (1.0, 0.0)
    assert pace.row_count_max(1_000_000) == 1_000_000
    assert not pace.is_late


def test_a_row_that_just_misses_a_look_is_in_time_with_the_next():
    pace = Pace(1.0, target=5.0)
    for seconds in (0.2, 1.5, 0.3):
        pace.done(seconds, 10, 2.0)
    assert pace.wait(0.3, found=True) == pytest.approx(5.0 * USED - 1.5 - 0.3)
    assert pace.wait(60.0, found=True) == 0.0
    assert pace.wait(60.0, found=False) == WAIT_MIN
    for _ in range(ROUNDS):
        pace.done(0.5, 10, 2.0)
    assert pace.wait(0.5, found=True) == pytest.approx(5.0 * USED - 1.0)


def test_a_burst_comes_in_parts_unless_the_driver_is_behind():
    pace = Pace(1.0, target=5.0)
    assert pace.row_count_max(1_000_000) == 1_000_000  # nothing is known
    pace.done(1.0, 40_000, 2.0)
    assert pace.row_count_max(1_000_000) == 100_000
    assert pace.row_count_max(50_000) == 50_000
    pace.done(1.0, 40_000, 5.1)
    assert pace.row_count_max(1_000_000) == 1_000_000
    slow = Pace(1.0, target=5.0)
    slow.done(1.0, 10, 2.0)
    assert slow.row_count_max(1_000_000) == ROWS_MIN


def test_a_target_that_is_missed_is_told_once_and_so_is_its_return():
    pace, changes = Pace(1.0, target=5.0), []
    for slowest in [6.0, 1.0, 6.0, 6.0] + TURNS * [6.0] + [1.0, 6.0] + TURNS * [1.0]:
        was = pace.is_late
        pace.done(1.0, 10, slowest)
        changes += [pace.is_late] if pace.is_late != was else []
    assert changes == [True, False]


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({"freshness": "5s", "interval": "1s"}, "cannot be combined with interval"),
        ({"freshness": "500ms"}, "must be at least 1s"),
        ({"freshness": "soon"}, "freshness"),
    ],
)
def test_a_target_that_cannot_be_is_refused(tmp_path, changes, flaw):
    with pytest.raises(BadConfig, match=flaw):
        a_definition(tmp_path, **changes)


def test_a_driver_that_cannot_keep_its_target_says_so_once(spark, tmp_path, topic):
    notes = []
    definition = a_definition(tmp_path, freshness="1s", batch_rows=10)
    topic.append(rows(0, 10 * (TURNS + 3)), partition=0)
    time.sleep(1.1)
    with opened(spark, definition) as pipeline:
        pipeline.on_note = notes.append
        with closing(pipeline.run(once=False)) as running:
            for number, _ in enumerate(running, 1):
                if number == TURNS + 3:
                    break
            assert len(notes) == 1
            assert "more than freshness = 1s" in notes[0]
            latest = time.monotonic() + 60
            while not the_line(tmp_path)["note"] and time.monotonic() < latest:
                time.sleep(0.5)
            assert the_line(tmp_path)["note"] == notes[0]
    line = the_line(tmp_path)
    assert line["to_table_p99_seconds"] > 1
