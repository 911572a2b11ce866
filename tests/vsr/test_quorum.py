"""Quorums meet, for every size that a group may have."""

from itertools import combinations

import pytest

from headrace.vsr.quorum import Quorum, quorum_of

SIZES = range(1, 8)


def sets(count: int, size: int):
    return [frozenset(one) for one in combinations(range(count), size)]


@pytest.mark.parametrize("count", SIZES)
def test_a_view_change_meets_every_committed_op(count):
    quorum = quorum_of(count)
    for holders in sets(count, quorum.replication):
        assert all(holders & voters for voters in sets(count, quorum.view_change))


@pytest.mark.parametrize("count", SIZES)
def test_two_view_changes_meet(count):
    quorum = quorum_of(count)
    for one in sets(count, quorum.view_change):
        assert all(one & other for other in sets(count, quorum.view_change))


@pytest.mark.parametrize("count", SIZES)
def test_the_holders_of_a_committed_op_leave_no_nack_quorum(count):
    quorum = quorum_of(count)
    for holders in sets(count, quorum.replication):
        assert count - len(holders) < quorum.nack


@pytest.mark.parametrize("count", range(2, 8))
def test_witnesses_meet_every_view_change_that_one_forgot(count):
    quorum = quorum_of(count)
    others = range(1, count)
    for voters in sets(count, quorum.view_change):
        if 0 in voters:
            for witnesses in combinations(others, quorum.witness):
                assert voters & set(witnesses)


def test_of_two_both_are_needed():
    assert quorum_of(2) == Quorum(2, replication=2, view_change=2, nack=1, witness=1)


def test_sizes_that_do_not_meet_cannot_be_made():
    with pytest.raises(AssertionError):
        Quorum(3, replication=1, view_change=2, nack=2, witness=2)
