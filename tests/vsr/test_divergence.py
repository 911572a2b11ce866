"""A log that differs from the view's: where that begins, and what is never believed."""

import pytest

from headrace.errors import NotNext
from headrace.journal.recovery.mend import cut
from headrace.model.ids import Op, ReplicaId, View
from headrace.vsr import peer_messages as vm
from headrace.vsr.merge import Merged
from headrace.vsr.op_log import OpLog
from headrace.vsr.view_change import _common
from headrace_lab.cluster.host import Host
from headrace_lab.cluster.scene import Scene


def a_group() -> Scene:
    return Scene().boot().run(600).register().ask(1).run(60)


def leader_of(scene: Scene) -> int:
    return next(host.me for host in scene.hosts if host.state and host.state.leads)


def with_a_different_tail(scene: Scene) -> int:
    """Cut the leader off with five ops of its own; the others commit seven in their place."""
    old = leader_of(scene)
    scene.isolate(old)
    for number in range(5):
        scene.ask(100 + number, to=old).run(20)
    scene.run(900)
    for number in range(7):
        scene.ask(10 + number).run(30)
    scene.run(100)
    return old


def packet_to(host: Host, sender: int, message: vm.Message) -> vm.Envelope:
    state = host.state
    return vm.Envelope(
        ReplicaId(sender),
        state.boots[sender],
        state.lives[sender],
        state.seen[sender],
        0,
        message,
    )


def test_two_rotten_frames_side_by_side_do_not_hide_a_difference_below_them():
    scene = a_group()
    old = with_a_different_tail(scene)
    host = scene.hosts[old]
    slot = host.process.group.journal.slot(Op(host.state.sure + 2))
    host.disk.overwrite(slot.file.path.removeprefix("./"), slot.position, bytes([7]) * 512)
    scene.crash(old, power=False).allow_all().boot(old)
    assert [one.checksum is None for one in host.process.report.faulty] == [True, False]
    scene.run(1500)
    assert host.state.applied == scene.world.oracles.top
    scene.world.oracles.ended(scene.hosts)


def test_a_faulty_op_without_a_name_is_named_only_above_what_is_equal():
    def header(op: int, mine: int, below: int) -> vm.PrepareHeader:
        return vm.PrepareHeader(Op(op), bytes([mine]) * 16, bytes([below]) * 16, View(1), op)

    log = OpLog(Op(0), bytes(16))
    log.found(Op(1), header(1, 1, 0), bytes([1]) * 16)
    log.found(Op(2), None, None)
    log.found(Op(3), header(3, 33, 32), bytes([33]) * 16)
    theirs = [header(1, 1, 0), header(2, 2, 1), header(3, 3, 2)]
    common = log.common(theirs)
    assert common == 1
    assert log.adopt(theirs, common) == 2
    assert log.checksum(Op(2)) == bytes([2]) * 16


def test_frames_written_while_a_cut_waits_say_nothing_of_the_new_logs_commit():
    scene = a_group()
    old = leader_of(scene)
    host = scene.hosts[old]
    scene.isolate(old)
    for number in range(5):
        scene.ask(100 + number, to=old).run(12)
    host.process.is_busy = True  # its disk stands still
    scene.ask(105, to=old)
    while not any(one.state.leads for one in scene.hosts if one is not host):
        scene.run(10)
    new = next(one.me for one in scene.hosts if one.state.leads and one is not host)
    for number in range(7):
        scene.ask(10 + number, to=new).run(4)
    scene.allow_all().run(90)
    jobs = [type(job).__name__ for job in host.process.jobs]
    assert jobs == ["Append", "Persist", "Cut", "Append"]
    host._work(host.life)
    scene.crash(old).boot(old)
    assert host.process.group.applied == 2
    scene.run(1500)
    scene.world.oracles.ended(scene.hosts)


def test_a_late_start_view_of_the_same_view_cuts_nothing_that_came_after_it():
    scene = a_group()
    seen: list[vm.StartView] = []

    def note(_from: int, to: int, message: object) -> bool:
        if isinstance(message, vm.StartView):
            seen.append(message)
        return True

    scene.filters.append(note)
    scene.crash(leader_of(scene)).run(700)
    leader, late = leader_of(scene), seen[0]
    backup = next(one for one in scene.hosts if one.state and one.me != leader)
    scene.ask(2).run(6)
    scene.filters.append(lambda *_: False)
    scene.crash(backup.me).boot(backup.me)
    head = backup.state.log.head
    assert (late.view, head) == (backup.state.log_view, late.op + 1)
    backup.deliver(scene.hosts[leader].process.member.envelope(late))
    scene.run(20)
    assert (backup.state.log.head, backup.halted) == (head, None)


def test_a_start_view_that_contradicts_what_is_committed_halts_by_name():
    scene = a_group()
    host = next(one for one in scene.hosts if not one.state.leads)
    state = host.state
    view = next(View(v) for v in range(state.view + 1, state.view + 9) if v % 3 != host.me)
    op = Op(state.sure + 1)
    header = vm.PrepareHeader(op, b"x" * 16, b"y" * 16, view, 10**9)
    message = vm.StartView(view, op, op, op, (header,), 0)
    process = host.process
    assert process is not None
    for effect in process.member.on_message(packet_to(host, view % 3, message)):
        if type(effect).__name__ == "Halt":
            assert (
                f"op 2 in the log of view {view} differs from the committed one"
                in effect.reason
            )
            break
    else:
        raise AssertionError("no halt")


def test_a_candidate_leads_with_an_empty_log_if_that_is_what_the_votes_leave():
    scene = Scene().boot().run(600)
    leader = leader_of(scene)
    scene.isolate(leader).ask(1, to=leader).run(60)
    state = scene.hosts[leader].state
    assert (state.log.head, state.sure) == (1, 0)
    assert _common(state, Merged(Op(0), Op(0), ())) == 0
    assert _common(state, Merged(Op(3), Op(3), ())) is None, "it lacks what is committed"


def test_a_start_view_that_came_late_cuts_nothing_that_is_committed_since():
    scene = a_group()
    leader = scene.hosts[leader_of(scene)].state
    host = scene.hosts[(leader.me + 1) % 3]
    headers = tuple(leader.log.headers(Op(1), leader.log.head))
    late = vm.StartView(leader.view, leader.log.head, leader.commit, Op(1), headers, 1)
    scene.ask(2).run(60).ask(3).run(60).ask(4).run(60).crash(host.me)
    scene.filters.append(lambda *_: False)
    scene.boot(host.me)
    # As one that caught up within this view and had not settled when it stopped.
    host.state.log_view = View(0)
    head = host.state.log.head
    host.deliver(packet_to(host, leader.me, late))
    assert (host.halted, host.state.log.head) == (None, head)
    assert host.state.dropped["start-view of a log that has grown since"] == 1


def test_the_entry_below_a_cut_is_mended_before_the_cut():
    scene = a_group()
    old = with_a_different_tail(scene)
    host = scene.hosts[old]
    last = host.state.sure  # of those that both logs have
    scene.rot(old, last).crash(old, power=False).allow_all().boot(old)
    assert [one.op for one in host.process.report.faulty] == [last]
    scene.forbid("no entry by name", lambda _from, _to, one: isinstance(one, vm.Exact))
    scene.run(300)
    assert (host.state.is_verified, host.state.log.head) == (False, last + 5)
    scene.allow_all().run(1500).ask(99).run(200)
    assert host.state.applied == scene.world.oracles.top
    scene.crash(old).boot(old).run(900)
    assert not host.process.report.faulty
    scene.world.oracles.ended(scene.hosts)


def test_no_disk_cuts_behind_an_entry_that_it_cannot_read():
    scene = a_group()
    old = with_a_different_tail(scene)
    host = scene.hosts[old]
    last = host.state.sure
    scene.rot(old, last).crash(old, power=False).boot(old)
    group = host.process.group
    before = host.disk.content("superblock.a")
    with pytest.raises(NotNext, match=f"op {last}, which is faulty"):
        cut(group.journal, group.superblock, Op(last + 1))
    assert host.disk.content("superblock.a") == before
