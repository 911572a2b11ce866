"""Sessions: once each, in order, fenced, evicted alike everywhere, and kept by a snapshot."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.model.ids import Op
from headrace_lab.cluster.sessions import Refusal, Sessions

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def with_session(size: int = 2, window: int = 3) -> tuple[Sessions, int]:
    sessions = Sessions(size, window)
    return sessions, sessions.register(A, Op(1))


def test_a_new_request_runs_and_its_repeat_gets_the_first_result():
    sessions, number = with_session()
    assert sessions.judge(A, number, 1) is None
    sessions.record(A, 1, 42, Op(2))
    assert sessions.judge(A, number, 1) == 42


def test_a_second_session_fences_the_first():
    sessions, number = with_session()
    second = sessions.register(A, Op(5))
    assert sessions.judge(A, number, 1) is Refusal.FENCED
    assert sessions.judge(A, second, 1) is None


def test_a_session_that_nobody_opened_is_evicted():
    sessions, number = with_session()
    assert sessions.judge(B, 3, 1) is Refusal.EVICTED
    assert sessions.judge(A, number + 1, 1) is Refusal.EVICTED


def test_a_full_table_evicts_the_one_used_longest_ago():
    sessions, number = with_session()
    other = sessions.register(B, Op(2))
    sessions.record(A, 1, 0, Op(3))
    sessions.register(C, Op(4))
    assert sessions.judge(A, number, 2) is None
    assert sessions.judge(B, other, 1) is Refusal.EVICTED


def test_a_result_older_than_the_window_is_forgotten_and_never_run_again():
    sessions, number = with_session(window=3)
    for request in range(1, 6):
        sessions.record(A, request, request * 10, Op(request + 1))
    assert sessions.judge(A, number, 2) is Refusal.FORGOTTEN
    assert sessions.judge(A, number, 3) == 30


def test_a_request_that_was_overtaken_by_a_later_one_still_runs():
    sessions, number = with_session(window=3)
    sessions.record(A, 2, 20, Op(2))
    assert sessions.judge(A, number, 1) is None
    sessions.record(A, 1, 10, Op(3))
    assert (sessions.judge(A, number, 1), sessions.judge(A, number, 2)) == (10, 20)
    sessions.record(A, 5, 50, Op(4))
    assert sessions.judge(A, number, 3) is None, "above the oldest that is kept"


Steps = st.lists(st.tuples(st.sampled_from((A, B, C)), st.booleans()), max_size=40)


@given(Steps, st.integers(0, 40))
def test_a_table_restored_from_a_snapshot_goes_on_as_if_never_stopped(steps, cut):
    live, restored = Sessions(2, 3), Sessions(2, 3)
    for op, (client, opens) in enumerate(steps, start=1):
        if op == cut:
            restored.unfold(live.fold())
        for table in (live, restored) if op >= cut else (live,):
            session = table.table.get(client)
            if opens or session is None:
                table.register(client, Op(op))
            else:
                table.record(client, session.newest + 1, op, Op(op))
    if len(steps) >= cut > 0:
        assert restored.fold() == live.fold()
