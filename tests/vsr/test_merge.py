"""The log of a new view: every small case, then the rules one by one."""

from dataclasses import replace
from itertools import combinations, product

import pytest

from headrace.model.ids import OP_MAX, Op, ReplicaId, View
from headrace.vsr.merge import Merged, Waiting, merge
from headrace.vsr.peer_messages import DoViewChange, PrepareHeader, Vote
from headrace.vsr.quorum import quorum_of

HELD, NEVER, FAULTY, SUSPECT, PENDING = "held", "never", "faulty", "suspect", "pending"
CONDITIONS = (HELD, NEVER, FAULTY, SUSPECT, PENDING)


def header(op: int, name: str = "a", view: int = 1, below: str | None = None) -> PrepareHeader:
    parent = f"{below or name}{op - 1}".encode() if op > 2 else b"a1"
    return PrepareHeader(Op(op), f"{name}{op}".encode(), parent, View(view), op)


BASE = PrepareHeader(Op(1), b"a1", b"root", View(1), 1)


def a_vote(*tail: Vote, log_view: int = 1, suspect=None, commit: int = 1) -> DoViewChange:
    """A vote of one whose log is op 1, committed, and then `tail`."""
    votes = (Vote(BASE, present=True, nack=False), *tail)
    return DoViewChange(
        view=View(9),
        log_view=View(log_view),
        op=Op(len(votes)),
        commit=Op(commit),
        first=Op(1),
        votes=votes,
        suspect=suspect,
        lives=(0,) * 5,
        to_boot=1,
        boots=(0,) * 5,
    )


def held(one: PrepareHeader) -> Vote:
    return Vote(one, present=True, nack=False)


def vote_in(condition: str) -> DoViewChange:
    """What one says of op 2 whose slot is in this condition."""
    match condition:
        case "held":
            return a_vote(held(header(2)))
        case "never":
            return a_vote()
        case "faulty":
            return a_vote(Vote(None, present=False, nack=False))
        case "suspect":
            return a_vote(suspect=(Op(2), Op(2)))
        case _:
            return a_vote(Vote(header(2), present=False, nack=True))


def outcome(votes: dict[int, DoViewChange], count: int):
    return merge({ReplicaId(one): vote for one, vote in votes.items()}, quorum_of(count))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_case_of_one_op_keeps_what_may_be_committed(count):
    quorum = quorum_of(count)
    cases = 0
    for conditions in product(CONDITIONS, repeat=count):
        for size in range(quorum.view_change, count + 1):
            for voters in combinations(range(count), size):
                _check(conditions, voters, count)
                cases += 1
    assert cases >= len(CONDITIONS) ** count


def _check(conditions, voters, count):
    quorum = quorum_of(count)
    found = outcome({one: vote_in(conditions[one]) for one in voters}, count)
    said = [conditions[one] for one in voters]
    silent = count - len(voters)
    may_hold = sum(one in (HELD, FAULTY, SUSPECT) for one in said) + silent
    may_be_committed = may_hold >= quorum.replication
    if isinstance(found, Merged) and found.op == 1:
        all_said = silent == 0 and not {HELD, FAULTY} & set(said)
        assert not may_be_committed or all_said, (conditions, voters)
    if isinstance(found, Merged) and found.op == 2:
        assert HELD in said, "nobody could serve it"
        assert found.headers[-1] == header(2)
    if HELD in said and sum(one in (NEVER, PENDING) for one in said) < quorum.nack:
        assert isinstance(found, Merged), (conditions, voters)
        assert found.op == 2
    if isinstance(found, Waiting):
        assert silent or FAULTY in said
        assert found.op == 2


def test_committed_ops_that_no_voter_has_are_waited_for_by_name():
    votes = {0: a_vote(suspect=(Op(2), Op(9))), 1: a_vote(commit=5)}
    assert outcome(votes, 3) == Waiting(Op(5), (ReplicaId(2),))


def test_the_highest_log_view_wins_over_the_longest_log():
    old = a_vote(held(header(2, "x")), held(header(3, "x")), held(header(4, "x")))
    new = a_vote(held(header(2, "b", view=2)), log_view=2)
    found = outcome({0: old, 1: new}, 3)
    assert isinstance(found, Merged)
    assert (found.op, found.headers[-1].checksum) == (2, b"b2")


def test_of_two_logs_of_one_view_the_later_prepared_wins():
    left = a_vote(held(header(2, "b", view=2)))
    other = a_vote(held(header(2, "x", view=1)))
    found = outcome({0: left, 1: other, 2: left}, 3)
    assert isinstance(found, Merged)
    assert found.headers[-1].checksum == b"b2"


def test_what_any_voter_knows_committed_is_never_discarded():
    knows = a_vote(held(header(2)), commit=2)
    found = outcome({0: knows, 1: a_vote(), 2: a_vote()}, 3)
    assert isinstance(found, Merged)
    assert (found.op, found.commit) == (2, 2)


def test_a_faulty_slot_is_named_by_the_op_above_it():
    sick = a_vote(Vote(None, present=False, nack=False), held(header(3)), log_view=2)
    well = a_vote(held(header(2)))
    found = outcome({0: sick, 1: well}, 3)
    assert isinstance(found, Merged)
    assert [one.checksum for one in found.headers] == [b"a1", b"a2", b"a3"]


def test_an_open_suspect_waits_for_the_silent_one():
    sick = a_vote(suspect=(Op(2), OP_MAX))
    assert outcome({0: sick, 1: a_vote()}, 3) == Waiting(Op(2), (ReplicaId(2),))


def test_an_open_suspect_is_settled_when_all_have_answered():
    sick = a_vote(suspect=(Op(2), OP_MAX))
    found = outcome({0: sick, 1: a_vote(), 2: a_vote()}, 3)
    assert isinstance(found, Merged)
    assert found.op == 1


def test_a_given_up_op_ends_the_log_before_it():
    votes = {ReplicaId(0): a_vote(suspect=(Op(2), Op(2))), ReplicaId(1): a_vote()}
    found = merge(votes, quorum_of(3), given_up=Op(2))
    assert isinstance(found, Merged)
    assert found.op == 1


def test_nothing_committed_is_given_up():
    knows = replace(a_vote(held(header(2)), commit=2))
    votes = {ReplicaId(0): knows, ReplicaId(1): a_vote()}
    found = merge(votes, quorum_of(3), given_up=Op(2))
    assert isinstance(found, Merged)
    assert found.op == 2
