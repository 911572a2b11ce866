"""The log that a seed stands for: the same for the writer and for the witness."""

import pytest

from headrace.journal.entry import SEAL
from headrace.journal.recovery.recover import RecoveryOptions
from headrace.model.ids import Op
from headrace_lab.counter.counter import ADD
from headrace_lab.counter.solo import Solo
from headrace_lab.counter.workload import COUNTER_COUNT, GroupWorkload, Replay
from headrace_lab.disk.memory import MemoryDisk


def a_workload(**changes):
    return GroupWorkload(**{"seed": 7, "seal_every": 10, "body_size_max": 200, **changes})


def test_equal_seeds_make_equal_logs_and_others_do_not():
    one, same, other = (Replay(a_workload(seed=seed)) for seed in (7, 7, 8))
    assert one.tip(Op(50)) == same.tip(Op(50))
    assert one.digest(Op(50)) == same.digest(Op(50))
    assert one.tip(Op(50)) != other.tip(Op(50))


def test_a_seal_is_a_commit_group_of_its_own():
    workload = a_workload()
    assert workload.next_group(Op(9)) == [b""]
    assert all(len(workload.next_group(Op(head))) <= 9 - head for head in range(9))


def test_a_group_holds_the_bodies_of_the_ops_it_stands_for():
    workload = a_workload(seal_every=1000)
    for head in range(100):
        group = workload.next_group(Op(head))
        assert 1 <= len(group) <= workload.group_count_max
        assert group == [workload.body(Op(head + 1 + at)) for at in range(len(group))]


def test_the_state_stays_bounded_and_bodies_stay_below_their_limit():
    workload = a_workload(seal_every=10_000)
    bodies = {workload.body(Op(op))[8:] for op in range(1, 2000)}
    assert len(bodies) == COUNTER_COUNT
    assert max(map(len, bodies)) <= workload.body_size_max


def test_the_replay_is_what_a_group_makes_of_the_same_workload():
    workload = a_workload()
    solo = Solo.open(MemoryDisk().root, RecoveryOptions(slots=256, file_size=64 * 1024))
    replay = Replay(workload)
    while solo.head < 60:
        operation = SEAL if workload.is_seal(Op(solo.head + 1)) else ADD
        solo.append(workload.next_group(solo.head), operation)
        solo.group.checkpoints.run()
        assert replay.tip(solo.head) == solo.group.journal.tip
        assert replay.digest(solo.head) == solo.machine.digest()


@pytest.mark.parametrize("op", [0, 3, 30])
def test_the_replay_can_be_asked_about_an_earlier_op_again(op):
    replay = Replay(a_workload())
    before = replay.digest(Op(op))
    replay.digest(Op(40))
    assert replay.digest(Op(op)) == before
