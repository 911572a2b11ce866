"""The time that entries carry: small steps are followed, great ones need a majority."""

from headrace.model.ids import ReplicaId
from headrace.vsr.clock import STEP_MAX, TICK, Clock

NOON = 10**15


def a_clock(count: int = 3) -> Clock:
    """A clock that a majority took the side of, at noon."""
    clock = Clock(count)
    clock.observe(NOON, 0)
    clock.hear(ReplicaId(1), NOON)
    clock.observe(NOON, 0)
    return clock


def test_small_steps_are_followed():
    clock = a_clock()
    clock.observe(NOON + TICK + 1_000_000, 1)
    assert clock.trusted == NOON + TICK + 1_000_000
    assert not clock.in_doubt


def test_a_great_step_is_not_followed_on_one_clock_alone():
    clock = a_clock()
    clock.observe(NOON + TICK + STEP_MAX * 2, 1)
    assert clock.trusted == NOON + TICK
    assert clock.in_doubt


def test_a_great_step_is_followed_when_a_majority_agrees():
    clock = a_clock()
    late = NOON + STEP_MAX * 2
    clock.observe(late, 1)
    clock.hear(ReplicaId(1), late + 5)
    clock.observe(late + TICK, 2)
    assert clock.trusted == late + TICK
    assert not clock.in_doubt


def test_peers_that_disagree_do_not_vouch():
    clock = a_clock()
    clock.hear(ReplicaId(1), NOON)
    clock.hear(ReplicaId(2), NOON)
    clock.observe(NOON + STEP_MAX * 3, 1)
    assert clock.in_doubt


def test_what_was_heard_before_our_own_jump_does_not_jump_with_us():
    clock = a_clock()
    clock.hear(ReplicaId(1), NOON)
    clock.observe(NOON - STEP_MAX * 2, 1)
    assert clock.in_doubt


def test_the_first_reading_is_not_believed_against_a_majority():
    clock = Clock(3)
    ahead = NOON + 10 * 365 * 86_400_000_000
    clock.observe(ahead, 0)
    assert clock.in_doubt
    clock.hear(ReplicaId(1), NOON)
    clock.hear(ReplicaId(2), NOON + 5)
    clock.observe(ahead + TICK, 1)
    assert clock.in_doubt
    assert abs(clock.trusted - NOON) <= STEP_MAX


def test_a_replica_that_is_alone_goes_by_its_own_clock():
    clock = Clock(1)
    clock.observe(NOON, 5)
    assert (clock.trusted, clock.in_doubt) == (NOON, False)
