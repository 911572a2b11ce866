"""What failed waits longer each time, and nothing else waits for it."""

import pytest

from headrace.model.ids import Revision
from headrace.model.namespace import Namespace
from headrace.node.shard.retry_table import (
    DELAY_MAX_MS,
    Failure,
    ReconcileWork,
    RetryTable,
    delay_ms,
)
from headrace.partition.reader import Key
from headrace_lab.harness.mutants import planted
from headrace_lab.reconcile.mutants import TESTED

KEY = Key(Namespace(4), Revision(7))
NEXT_LIFE = Key(Namespace(4), Revision(9))


def test_delays_double_from_a_second_to_a_minute():
    assert [delay_ms(count) for count in range(1, 9)] == [
        1_000,
        2_000,
        4_000,
        8_000,
        16_000,
        32_000,
        60_000,
        60_000,
    ]
    assert delay_ms(10**9) == DELAY_MAX_MS


def test_a_failure_holds_its_work_for_its_delay_and_no_longer():
    backoff = RetryTable()
    backoff.fail(ReconcileWork.BUILD, KEY, "busy", 5_000)
    assert backoff.is_held(ReconcileWork.BUILD, KEY, 5_999)
    assert not backoff.is_held(ReconcileWork.BUILD, KEY, 6_000)
    backoff.fail(ReconcileWork.BUILD, KEY, "busy", 6_000)
    assert backoff.is_held(ReconcileWork.BUILD, KEY, 7_999)
    assert not backoff.is_held(ReconcileWork.BUILD, KEY, 8_000)


def test_each_cause_counts_for_itself():
    backoff = RetryTable()
    for now_ms in (0, 10, 20):
        backoff.fail(ReconcileWork.REMOVAL, KEY, "delete failed", now_ms)
    backoff.fail(ReconcileWork.REMOVAL, KEY, "stale", 20)
    assert backoff.failures() == [
        Failure(ReconcileWork.REMOVAL, KEY, "delete failed", 3, 4_020),
        Failure(ReconcileWork.REMOVAL, KEY, "stale", 1, 1_020),
    ]
    assert backoff.is_held(ReconcileWork.REMOVAL, KEY, 4_019)  # by the longer of both


def a_stuck_removal_holds_up_nothing_else() -> None:
    backoff = RetryTable()
    for _ in range(9):
        backoff.fail(ReconcileWork.REMOVAL, KEY, "delete failed", 0)
    assert backoff.is_held(ReconcileWork.REMOVAL, KEY, 1)
    assert not backoff.is_held(ReconcileWork.BUILD, KEY, 1)
    assert not backoff.is_held(ReconcileWork.SCHEMA, KEY, 1)
    assert not backoff.is_held(ReconcileWork.REMOVAL, NEXT_LIFE, 1)


def test_a_stuck_removal_holds_up_nothing_else():
    a_stuck_removal_holds_up_nothing_else()


def test_one_backoff_for_all_work_is_noticed():
    with planted("one backoff for all work", TESTED), pytest.raises(AssertionError):
        a_stuck_removal_holds_up_nothing_else()


def test_what_was_done_begins_anew():
    backoff = RetryTable()
    for _ in range(5):
        backoff.fail(ReconcileWork.BUILD, KEY, "busy", 0)
    backoff.fail(ReconcileWork.REMOVAL, KEY, "stale", 0)
    backoff.clear(ReconcileWork.BUILD, KEY)
    assert not backoff.is_held(ReconcileWork.BUILD, KEY, 1)
    assert backoff.is_held(ReconcileWork.REMOVAL, KEY, 1)
    backoff.fail(ReconcileWork.BUILD, KEY, "busy", 0)
    assert not backoff.is_held(ReconcileWork.BUILD, KEY, 1_000)


def test_only_what_is_wanted_is_kept():
    backoff = RetryTable()
    for work in ReconcileWork:
        backoff.fail(work, KEY, "busy", 0)
    backoff.fail(ReconcileWork.BUILD, NEXT_LIFE, "busy", 0)
    backoff.prune(lambda work, key: work == ReconcileWork.BUILD and key == NEXT_LIFE)
    assert [(each.work, each.key) for each in backoff.failures()] == [
        (ReconcileWork.BUILD, NEXT_LIFE)
    ]
    assert len(backoff) == 1
