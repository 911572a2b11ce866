"""Waits double from the first to the longest, whatever the unit."""

import pytest

from headrace.model.backoff import ExponentialBackoff


def test_waits_double_up_to_the_longest():
    waits = ExponentialBackoff(0.05, 2.0)
    assert [waits.after(count) for count in range(1, 9)] == [
        0.05,
        0.1,
        0.2,
        0.4,
        0.8,
        1.6,
        2.0,
        2.0,
    ]


def test_the_first_failures_may_be_free():
    waits = ExponentialBackoff(1, 4, free=2)
    assert [waits.after(count) for count in range(1, 7)] == [0, 0, 1, 2, 4, 4]


@pytest.mark.parametrize("count", [100, 10**9])
def test_no_count_is_too_large(count):
    assert ExponentialBackoff(1, 60).after(count) == 60
