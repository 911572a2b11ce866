"""The pump of a group: order, bounds, Seals, and every way in which a disk says no."""

import errno

from tests.node.hands import KEY, hands

from headrace.errors import Busy, DiskFull, NotReady, SealFailed, TimedOut, Unknown
from headrace.journal.entry import SEAL
from headrace.model.ids import Offset
from headrace.model.results import AppendResult
from headrace.node.group.pump import RETRY_S
from headrace_lab.disk.faults import Fail


def offsets(pump_hands, *tickets):
    return [(pump_hands.answers[t].start, pump_hands.answers[t].end) for t in tickets]


def failing(kind, path, code=errno.ENOSPC):
    """Let the next such effect fail, and those after it succeed."""
    failures = []

    def hook(effect):
        if failures or effect.kind != kind or not effect.path.startswith(path):
            return None
        failures.append(effect)
        return Fail(code)

    return hook


def test_requests_are_answered_in_order_and_only_once_they_are_on_disk():
    one = hands()
    one.append("a")
    one.append("b", 2)
    assert "a" not in one.answers
    one.write(1)
    assert offsets(one, "a") == [(0, 1)]
    assert "b" not in one.answers
    one.write()
    assert offsets(one, "b") == [(1, 3)]


def test_what_does_not_fit_into_the_pipeline_waits_its_turn():
    one = hands(pipeline_count=2)
    for ticket in "abcd":
        one.append(ticket)
    assert len(one.waiting) == 2
    one.write()
    assert len(one.waiting) == 2
    one.write()
    assert offsets(one, *"abcd") == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_an_inbox_over_its_bound_answers_busy_and_loses_nothing():
    one = hands(pipeline_count=1, inbox_size=1)
    one.append("a")
    one.append("b")  # one may always wait, however large
    one.append("c")
    assert isinstance(one.answers["c"], Busy)
    one.version -= 1
    one.write()
    one.write()
    assert offsets(one, "a", "b") == [(0, 1), (1, 2)]


def test_a_deadline_in_the_inbox_means_that_it_did_not_happen():
    one = hands(pipeline_count=1)
    one.append("a")
    one.append("b", deadline=5.0)
    one.take(one.pump.on_tick(one.now, 4.9))
    assert "b" not in one.answers
    one.take(one.pump.on_tick(one.now, 5.0))
    assert isinstance(one.answers["b"], TimedOut)
    one.write()
    assert not one.waiting
    assert one.store.reader.bounds(KEY) == (0, 1)


def test_a_full_disk_refuses_what_is_in_flight_and_goes_on_when_there_is_room():
    one = hands()
    one.append("a")
    one.write()
    one.append("b")
    one.append("c")
    one.disk.hook = failing("write", "journal/")
    one.write()
    assert isinstance(one.answers["b"], DiskFull)
    assert isinstance(one.answers["c"], DiskFull)
    one.disk.hook = None
    one.version -= 2
    one.append("d")
    one.write()
    assert offsets(one, "a", "d") == [(0, 1), (1, 2)]


def test_a_failed_sync_halts_the_group_and_leaves_the_rest_unknown():
    one = hands(pipeline_count=1)
    one.append("a")
    one.append("b")
    one.disk.hook = failing("sync", "journal/", errno.EIO)
    one.write()
    assert isinstance(one.answers["a"], Unknown)
    assert isinstance(one.answers["b"], NotReady)
    one.append("c")
    assert isinstance(one.answers["c"], NotReady)
    assert one.pump.on_tick(one.now, 0.0) == []


def test_a_seal_comes_by_bytes_and_its_checkpoint_runs():
    one = hands(seal_size=2_000)
    count = 0
    while not any(entry.header.operation == SEAL for entry in one.waiting):
        count += 1
        one.append(count)
    one.write()
    assert one.persists == 1
    one.persist()
    assert one.pump.is_idle
    assert one.store.group.superblock.current.checkpoint.op == one.store.group.journal.durable


def test_nothing_is_prepared_behind_the_last_seal_that_may_be_pending():
    one = hands(seal_size=1)  # every append brings a Seal
    for ticket in "abc":
        one.append(ticket)
    assert [entry.header.operation == SEAL for entry in one.waiting] == [False, True] * 2
    one.write()
    assert "c" not in one.answers
    assert not one.waiting
    one.persist()
    one.write()
    assert offsets(one, *"abc") == [(0, 1), (1, 2), (2, 3)]


def test_a_ring_without_room_seals_by_itself_and_everything_gets_through():
    one = hands(slots=16)
    for ticket in range(100):
        one.append(ticket)
        while one.waiting or one.persists:
            if one.waiting:
                one.write()
            if one.persists:
                one.persist()
    assert offsets(one, *range(100)) == [(n, n + 1) for n in range(100)]


def test_a_checkpoint_that_cannot_be_written_is_tried_again_later():
    one = hands(seal_size=1)
    one.append("a")
    one.write()
    one.disk.hook = failing("create", "snapshots/")
    one.persist(clock=10.0)
    one.disk.hook = None
    assert one.persists == 0
    assert one.pump.last_failure is not None
    one.take(one.pump.on_tick(one.now, 10.5))
    assert one.persists == 0
    one.take(one.pump.on_tick(one.now, 11.0))
    one.persist()
    assert one.pump.last_failure is None
    assert one.pump.is_idle


def test_a_seal_that_met_a_full_disk_comes_again():
    one = hands(seal_size=1)
    one.disk.hook = failing("write", "journal/")
    one.append("a")
    one.write()
    assert isinstance(one.answers["a"], DiskFull)
    one.disk.hook = None
    one.version -= 1
    for clock in (1.0, 1.1, 0.9 + RETRY_S):  # not at each tick
        one.take(one.pump.on_tick(one.now, clock))
        assert not one.waiting
    one.take(one.pump.on_tick(one.now, 1.0 + RETRY_S))
    assert [entry.header.operation for entry in one.waiting] == [SEAL]
    one.write()
    one.persist()
    one.append("b")
    one.write()
    assert offsets(one, "b") == [(0, 1)]


def test_a_restart_goes_on_with_op_time_and_offsets():
    one = hands()
    one.append("a", 3)
    one.write()
    timestamp = one.pump.replica.timestamp
    again = hands(one.disk.kill())
    assert again.pump.replica.timestamp == timestamp
    again.version, again.now = 1, 0  # a clock that went back
    again.append("b")
    again.write()
    assert isinstance(again.answers["b"], AppendResult)
    assert offsets(again, "b") == [(3, 4)]
    found = list(again.store.reader.read(KEY, Offset(0), Offset(4)))
    times = [
        moment for batch in found for moment in batch["_timestamp"].cast("int64").to_pylist()
    ]
    assert times == sorted(times)
    assert len(set(times)) == 2


def test_errors_of_sealing_are_no_reason_to_stop():
    one = hands(seal_size=1)
    one.append("a")
    one.write()
    one.take(one.pump.on_unpersisted(SealFailed("segments", "no space"), 0.0))
    assert one.pump.halted is None


def test_a_deadline_says_that_checkpoints_are_what_is_waited_for():
    one = hands(seal_size=1)
    for ticket in "abc":
        one.append(ticket, deadline=5.0)
    one.write()
    one.take(one.pump.on_unpersisted(SealFailed("segments", "no space"), 0.0))
    one.take(one.pump.on_tick(one.now, 5.0))
    assert isinstance(one.answers["c"], TimedOut)
    assert "no space" in str(one.answers["c"])
