"""The window: what failures mean for the versions behind them."""

import pytest
from tests.client.jumping import JumpingLoop

from headrace.client.connect.channel import HolderEnded
from headrace.client.write.in_flight import Draft, InFlight, is_hopeless, verdict
from headrace.errors import (
    BadBatch,
    ConnectionLost,
    CorruptEntry,
    NotYet,
    Refused,
    TimedOut,
    Unknown,
    WriterUnknown,
)

OLD, NEW = b"old writer", b"new writer"
NOT_YET = NotYet("out_of_order", "too early")


@pytest.fixture
def drafts():
    loop = JumpingLoop()
    yield [
        Draft(memoryview(b"%d" % n), 1, 1, b"", 10.0, loop.create_future()) for n in range(4)
    ]
    loop.close()


def a_window(drafts):
    window = InFlight(OLD, lambda: NEW)
    for draft in drafts:
        window.add(draft)
    return window


def versions(window):
    return [(bytes(each.body).decode(), each.version) for each in window.drafts]


def test_versions_count_from_one(drafts):
    assert versions(a_window(drafts)) == [("0", 1), ("1", 2), ("2", 3), ("3", 4)]


def test_what_may_be_repeated_keeps_its_version(drafts):
    window = a_window(drafts)
    for draft in drafts:
        window.on_failed(draft, Unknown("lost"))
    assert window.settle(now=0.0) == []
    assert versions(window) == [("0", 1), ("1", 2), ("2", 3), ("3", 4)]
    assert window.sendable(now=0.0) == drafts


def test_behind_a_refusal_all_move_down(drafts):
    window = a_window(drafts)
    error = BadBatch("bad")
    window.on_failed(drafts[0], error)
    for draft in drafts[1:]:
        window.on_failed(draft, NOT_YET)
    assert window.settle(now=0.0) == [(drafts[0], error)]
    assert versions(window) == [("1", 1), ("2", 2), ("3", 3)]
    assert (window.writer, window.next_version) == (OLD, 4)


def test_behind_a_refusal_a_copy_under_way_makes_a_new_writer(drafts):
    window = a_window(drafts)
    window.on_failed(drafts[0], BadBatch("bad"))
    window.on_failed(drafts[1], Unknown("lost"))
    window.on_failed(drafts[1], NOT_YET)
    assert [draft for draft, _ in window.settle(now=0.0)] == [drafts[0]]
    assert versions(window) == [("1", 1), ("2", 2), ("3", 3)]
    assert window.writer == NEW
    assert not any(draft.is_doubtful for draft in window.drafts)


def test_a_refusal_in_the_middle_waits_for_those_before_it(drafts):
    window = a_window(drafts)
    window.on_failed(drafts[0], ConnectionLost("lost"))
    window.on_failed(drafts[1], BadBatch("bad"))
    window.on_failed(drafts[2], NOT_YET)
    assert window.settle(now=0.0) == []
    assert window.sendable(now=0.0) == drafts[:1]
    window.on_appended(drafts[0])
    assert [draft for draft, _ in window.settle(now=0.0)] == [drafts[1]]
    assert versions(window) == [("2", 2), ("3", 3)]


def test_a_deadline_in_doubt_takes_those_in_doubt_with_it(drafts):
    window = a_window(drafts)
    drafts[0].deadline = 1.0
    for draft in drafts[:2]:
        window.on_failed(draft, Unknown("lost"))
    for draft in drafts[2:]:
        window.on_failed(draft, NOT_YET)
    given_up = window.settle(now=2.0)
    assert [draft for draft, _ in given_up] == drafts[:2]
    assert all(type(error) is Unknown for _, error in given_up)
    assert window.writer == NEW
    assert versions(window) == [("2", 1), ("3", 2)]


@pytest.mark.parametrize("code", ["writer_conflict", "too_old"])
def test_a_broken_count_of_versions_makes_a_new_writer(drafts, code):
    window = a_window(drafts)
    window.on_failed(drafts[0], Refused(code, "broken"))
    ((_, error),) = window.settle(now=0.0)
    assert type(error) is Unknown
    assert window.writer == NEW


def test_a_writer_is_forgotten_only_if_it_was_known(drafts):
    window = a_window(drafts)
    window.on_failed(drafts[1], WriterUnknown("who?"))
    assert window.settle(now=0.0) == []
    assert window.writer == OLD
    window.on_appended(drafts[0])
    window.on_failed(drafts[1], WriterUnknown("who?"))
    window.on_failed(drafts[2], Unknown("lost"))
    ((lost, error),) = window.settle(now=0.0)
    assert lost is drafts[2]
    assert type(error) is Unknown
    assert window.writer == NEW
    assert versions(window) == [("1", 1), ("3", 2)]


def test_verdicts_say_what_is_known(drafts):
    draft = drafts[0]
    assert type(verdict(draft)) is TimedOut
    draft.error = ConnectionLost("lost")
    assert verdict(draft) is draft.error
    draft.is_doubtful = True
    assert type(verdict(draft)) is Unknown
    draft.error = CorruptEntry("bad", path="journal")
    assert verdict(draft) is draft.error


def test_a_holder_that_has_ended_is_not_asked_again(drafts):
    draft = drafts[0]
    draft.error = HolderEnded("process 7, which held data, has ended")
    assert is_hopeless(draft, now=0.0)
    assert verdict(draft) is draft.error
    draft.is_doubtful = True  # an earlier try may have reached it
    assert type(verdict(draft)) is Unknown
    assert "process 7, which held data, has ended" in str(verdict(draft))
