"""When a pass over all files is due, and how long it waits between two reads."""

import pytest

from headrace.node.shard.scrub_schedule import FIRST_S, ScrubSchedule

WEEK = 7 * 24 * 3600.0
RATE = 1_000


def a_schedule(every: float = WEEK) -> ScrubSchedule:
    return ScrubSchedule(every, RATE, started_at=100.0)


def test_the_first_pass_is_an_hour_after_the_start():
    schedule = a_schedule()
    assert not schedule.is_due(100.0 + FIRST_S - 1)
    assert schedule.is_due(100.0 + FIRST_S)


def test_passes_that_are_closer_begin_sooner():
    assert a_schedule(every=60.0).is_due(160.0)


def test_the_next_pass_is_due_a_period_after_the_begin_of_this_one():
    schedule = a_schedule()
    schedule.begin(5_000.0)
    assert not schedule.is_due(5_000.0 + WEEK - 1)
    assert schedule.is_due(5_000.0 + WEEK)


def test_a_read_is_paid_for_before_the_next():
    schedule = a_schedule()
    assert schedule.pause(500, now=0.0) == pytest.approx(0.5)
    assert schedule.pause(500, now=0.5) == pytest.approx(0.5)


def test_reads_that_came_early_wait_for_all_of_them():
    schedule = a_schedule()
    schedule.pause(500, now=0.0)
    assert schedule.pause(500, now=0.0) == pytest.approx(1.0)


def test_time_without_reads_is_not_made_up_for():
    schedule = a_schedule()
    schedule.pause(500, now=0.0)
    assert schedule.pause(500, now=1_000.0) == pytest.approx(0.5)


def test_no_second_reads_more_than_the_rate():
    """Whatever the sizes: what was read by `now` is at most a read ahead of the rate."""
    schedule, now, read = a_schedule(), 0.0, 0
    for size in (1, 999, 4_000, 7, 250, 250, 2_000):
        read += size
        now += schedule.pause(size, now)
        assert read <= RATE * now + 1e-6
