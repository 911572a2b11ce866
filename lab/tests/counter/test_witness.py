"""What the witness holds against a group: each rule, broken once."""

import msgspec
import pytest

from headrace.cli.demo.child_process import Silent
from headrace.journal.entry import Flaw
from headrace.journal.recovery.recovery_report import RecoveryReport
from headrace.journal.recovery.scan_findings import Faulty
from headrace.model.ids import Op
from headrace_lab.counter.witness import GroupTestimony, Witness
from headrace_lab.counter.workload import GroupWorkload, Replay
from headrace_lab.counter.writer import Findings

WORKLOAD = GroupWorkload(seed=3)


def a_writer(acknowledged, tried=None):
    replay = Replay(WORKLOAD)
    said = GroupTestimony()
    for op in acknowledged:
        said.hear(f"trying {op}")
        said.hear(f"acknowledged {op} {replay.tip(Op(op)).hex()}")
    if tried is not None:
        said.hear(f"trying {tried}")
    return said


def a_recovery(head, *, is_dark=False, **report):
    digest = Replay(WORKLOAD).digest(Op(head)).hex()
    found = Findings(Op(head), Op(1), digest, RecoveryReport(head=Op(head), **report))
    said = GroupTestimony(is_dark=is_dark)
    said.hear(f"recovered {msgspec.json.encode(found).decode()}")
    return said


def a_witness(*heard):
    witness = Witness(Replay(WORKLOAD))
    for said in heard:
        witness.hear(said)
    return witness


@pytest.mark.parametrize("head", [8, 9, 12])
def test_a_recovery_between_acknowledged_and_tried_holds(head):
    witness = a_witness(a_writer([3, 8], tried=12), a_recovery(head))
    assert not witness.problems
    assert witness.acknowledged == head


def test_an_acknowledged_entry_that_is_gone_is_a_loss():
    witness = a_witness(a_writer([3, 8], tried=12), a_recovery(7))
    assert witness.problems == [
        "1 acknowledged entries are lost: up to op 8 acknowledged, up to op 7 recovered"
    ]


def test_an_entry_that_nobody_tried_is_invented():
    witness = a_witness(a_writer([3, 8], tried=12), a_recovery(13))
    assert "1 entries are invented" in witness.problems[0]


def test_what_one_recovery_showed_the_next_must_show_too():
    witness = a_witness(a_writer([3], tried=12), a_recovery(10), a_recovery(9))
    assert "1 acknowledged entries are lost" in witness.problems[0]


def test_what_is_said_after_the_power_went_is_no_promise():
    lit = a_writer([3, 8])
    lit.is_dark = True
    lit.hear("trying 12")
    lit.hear(f"acknowledged 12 {Replay(WORKLOAD).tip(Op(12)).hex()}")
    assert not a_witness(lit, a_recovery(8)).problems
    assert not a_witness(lit, a_recovery(12)).problems
    assert a_witness(lit, a_recovery(7)).problems
    assert not a_witness(lit, a_recovery(10, is_dark=True), a_recovery(9)).problems


def test_what_is_said_after_the_power_went_must_be_true_all_the_same():
    assert a_witness(a_writer([3, 8]), a_recovery(7, is_dark=True)).problems
    said = GroupTestimony(is_dark=True)
    tip = Replay(GroupWorkload(seed=4)).tip(Op(3)).hex()
    said.hear(f"acknowledged 3 {tip}")
    assert a_witness(said).problems == ["op 3 was acknowledged with another content"]


def test_an_acknowledgement_after_a_failed_sync_is_a_lie_in_the_dark_too():
    said = a_writer([3])
    said.is_dark = True
    said.hear("effect failed-sync 3.wal")
    assert said.effect_count == 0
    assert not a_witness(said).problems
    said.hear(f"acknowledged 8 {Replay(WORKLOAD).tip(Op(8)).hex()}")
    assert a_witness(said).problems == [
        "op 8 was acknowledged after a sync of the journal had failed"
    ]


def test_another_content_under_an_acknowledged_op_is_seen():
    said = GroupTestimony()
    tip = Replay(GroupWorkload(seed=4)).tip(Op(3)).hex()
    said.hear(f"acknowledged 3 {tip}")
    assert a_witness(said).problems == ["op 3 was acknowledged with another content"]


def test_a_state_that_is_not_the_replay_of_its_log_is_seen():
    found = Findings(Op(3), Op(1), "00" * 16, RecoveryReport(head=Op(3)))
    witness = a_witness(a_writer([3]), GroupTestimony(recovered=found))
    assert witness.problems == ["the state at op 3 is not what its log says"]


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ({"faulty": (Faulty(Op(1), None, "p", 0, Flaw("body")),)}, "faulty entries"),
        ({"fell_back": True}, "a snapshot passed over"),
        ({"quarantined": ("p",)}, "files in quarantine"),
    ],
)
def test_damage_after_a_mere_crash_is_seen(report, words):
    witness = a_witness(a_writer([3]), a_recovery(3, **report))
    assert witness.problems == [f"damage reported after a crash alone: {words}"]


@pytest.mark.parametrize(
    ("ops", "missing"), [([1, 2], 1), ([3], 2), ([1, 2, 3, 4], 0), ([2, 1, 3], 0)]
)
def test_a_journal_that_is_not_dense_is_seen(ops, missing):
    witness = a_witness(a_writer([3]))
    entries = {Op(op): witness.replay.tip(Op(op)).hex() for op in ops}
    witness._compare(a_recovery(3).recovered, entries)
    assert witness.problems == [
        "the journal must hold ops 1 to 3, in order, and nothing else: "
        f"{missing} of them are missing"
    ]


def test_an_entry_that_was_not_written_so_is_seen():
    witness = a_witness(a_writer([2]))
    entries = {Op(1): witness.replay.tip(Op(1)).hex(), Op(2): "00" * 16}
    witness._compare(a_recovery(2).recovered, entries)
    assert witness.problems == ["op 2 is not the entry that was written"]


@pytest.mark.parametrize(
    ("lines", "phase"),
    [
        ([], "start"),
        (["recovering"], "recovery"),
        (["RECOVERED"], "between"),
        (["RECOVERED", "trying 4"], "append"),
        (["RECOVERED", "trying 4", "acknowledged 4 00"], "between"),
        (["RECOVERED", "sealing 4"], "checkpoint"),
        (["RECOVERED", "sealing 4", "sealed 4"], "between"),
        (["RECOVERED", "done"], "done"),
    ],
)
def test_a_testimony_tells_what_its_process_was_at(lines, phase):
    said = GroupTestimony()
    for line in lines:
        if line == "RECOVERED":
            said.recovered = a_recovery(1).recovered
        else:
            said.hear(line)
    assert said.phase == phase


def test_a_line_that_no_writer_says_is_refused():
    with pytest.raises(Silent, match="never says: nonsense"):
        GroupTestimony().hear("nonsense 1")
