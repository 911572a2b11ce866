"""A replica that is behind: it catches up with whoever is left, and never goes back."""

import pytest
from tests.vsr.test_divergence import a_group, leader_of, packet_to

from headrace.journal.entry import Entry
from headrace.model.ids import Op, ReplicaId
from headrace.vsr import effects as fx
from headrace.vsr import join, repair
from headrace.vsr import peer_messages as vm
from headrace.vsr.member_state import MemberState
from headrace.vsr.op_log import OpLog
from headrace.vsr.quorum import quorum_of
from headrace_lab.cluster.host import Host
from headrace_lab.cluster.scene import Scene


def backups_of(scene: Scene) -> list[int]:
    leader = leader_of(scene)
    return [host.me for host in scene.hosts if host.me != leader]


def go_far(scene: Scene) -> None:
    """Let the log go so far that who was away needs a snapshot."""
    for _ in range(3):
        for number in range(6):
            scene.ask(10 + number).run(20)
        scene.seal()


def test_two_of_three_go_on_though_one_of_them_needed_a_snapshot():
    scene = a_group()
    one, late = backups_of(scene)
    scene.crash(late)
    go_far(scene)
    scene.crash(one).boot(late).run(3000)
    assert scene.world.tally.transfers == 1
    scene.ask(77).run(100)
    assert scene.answers[-1][0] == 24


def test_a_replica_in_the_middle_of_a_transfer_helps_to_elect_when_nobody_leads():
    scene = a_group()
    leader, (other, late) = leader_of(scene), backups_of(scene)
    scene.crash(late)
    go_far(scene)
    scene.forbid("no chunk passes", lambda _from, _to, one: isinstance(one, vm.SnapshotChunk))
    scene.boot(late).run(900)
    assert scene.hosts[late].state.syncing_to is not None
    scene.crash(other, leader).allow_all().boot(leader).run(4000)
    scene.ask(77).run(100)
    assert scene.answers[-1][0] == 24
    assert scene.hosts[late].state.applied == 24


@pytest.mark.parametrize("replicas", [3, 5])
def test_a_primary_whose_own_state_was_sent_to_it_can_send_it_on(replicas):
    scene = Scene(replicas).boot().run(600).register().ask(1).run(60)
    leader, (one, late, *more) = leader_of(scene), backups_of(scene)
    scene.crash(late)
    if replicas == 5:
        scene.crash(one)
        go_far(scene)
        scene.boot(one).run(1500).crash(leader, more[0])
    else:
        go_far(scene)
        scene.wipe(one).boot(one).run(1500).crash(leader)
    scene.boot(late).run(6000)
    assert scene.world.tally.transfers == 2
    assert scene.hosts[late].state.may_vote
    assert scene.hosts[late].state.applied == scene.world.oracles.top


def test_time_does_not_go_back_after_a_snapshot_and_a_restart():
    scene = a_group()
    late = backups_of(scene)[0]
    scene.crash(late)
    go_far(scene)
    scene.boot(late).run(1500)
    before = scene.hosts[late].state.timestamp
    scene.crash(late).boot(late)
    assert scene.hosts[late].state.timestamp == before > 0


def test_nothing_of_a_peers_new_life_is_counted_before_that_life_is_durable():
    scene = a_group()
    leader, peer = leader_of(scene), backups_of(scene)[0]
    member = scene.hosts[leader].process.member
    state = member.state
    scene.crash(peer)
    scene.filters.append(lambda *_: False)
    scene.ask(9).run(20)
    commit, head = state.commit, state.log.head
    past = (vm.Start(state.lives[peer], state.boots[peer]),)

    def of_its_new_life(message: vm.Message[Entry]) -> vm.Envelope[Entry]:
        life = state.seen[peer] + (state.boots[peer] != 12345)
        return vm.Envelope(ReplicaId(peer), 12345, life, life, 0, message, past)

    probe = vm.GetStartView(state.view, Op(1), is_blank=False)
    (persist,) = member.on_message(of_its_new_life(probe))
    ack = vm.PrepareOk(state.view, head, state.log.checksum(head), head)
    assert member.on_message(of_its_new_life(ack)) == []
    assert state.commit == commit
    member.on_persisted(persist.ticket, state.sequence + 1)
    member.on_message(of_its_new_life(ack))
    assert state.commit == head


def in_a_transfer(scene: Scene) -> tuple[Host, vm.Offer[Entry]]:
    """A backup that took an offer, and then got what it missed by name."""
    for number in range(6):
        scene.ask(10 + number).run(15)
    scene.seal()
    host = scene.hosts[backups_of(scene)[0]]
    state, member = host.state, host.process.member
    kinds = (vm.Heartbeat, vm.PrepareOk)
    scene.filters.append(lambda _from, _to, message: not isinstance(message, kinds))
    for number in range(4):
        scene.ask(20 + number).run(4)
    entry = host.process.group.journal.read(Op(state.applied + 1))
    newest = host.process.group.journal.read(Op(state.log.head - 1))
    member.on_faulty(entry.op)
    leader, other = state.primary, next(one for one in state.others if one != state.primary)
    member.on_message(packet_to(host, other, vm.Evicted(state.view, Op(entry.op + 5))))
    offer = vm.Offer(state.view, b"s" * 16, 10, newest)
    (persist,) = member.on_message(packet_to(host, leader, offer))
    member.on_persisted(persist.ticket, state.sequence + 1)
    effects = member.on_message(packet_to(host, other, vm.Exact((entry,))))
    mends = [one for one in effects if isinstance(one, fx.Mend)]
    effects = member.on_mended(mends[0].ticket)
    head = state.log.head
    beat = vm.Heartbeat(state.view, head, head, 10**6)
    effects += member.on_message(packet_to(host, leader, beat))
    for effect in effects:
        if isinstance(effect, fx.Apply):
            member.on_applied(effect.op, 0)
    assert state.applied == head > newest.op
    return host, offer


@pytest.mark.parametrize("data", [b"0123456789", b""], ids=["the last chunk", "no chunk"])
def test_a_snapshot_that_is_no_news_any_more_is_not_installed_and_the_replica_asks_on(data):
    host, offer = in_a_transfer(a_group())
    state, member = host.state, host.process.member
    effects = member.on_message(
        packet_to(host, state.primary, vm.SnapshotChunk(b"s" * 16, 0, data))
    )
    assert not any(isinstance(one, fx.Install) for one in effects)
    member.on_message(packet_to(host, state.primary, offer))
    assert (state.transfer, state.may_vote) == (None, False)
    asked = [
        effect
        for tick in range(1, 50)
        for effect in member.on_tick(state.now + 1, tick * 10_000)
        if isinstance(effect, fx.Send) and isinstance(effect.message, vm.GetStartView)
    ]
    assert len(asked) > 10


def test_a_mend_that_a_cut_took_away_does_not_keep_its_op_from_being_mended():
    def header(op: int, mine: bytes, below: bytes) -> vm.PrepareHeader:
        return vm.PrepareHeader(Op(op), mine * 16, below * 16, 1, op)

    class Sealed:
        def __init__(self, header: vm.PrepareHeader) -> None:
            self.__dict__.update(header._asdict())

    state = MemberState(
        me=ReplicaId(0),
        quorum=quorum_of(3),
        slots=48,
        seal=None,
        seal_operation=1,
        boot=1,
        log=OpLog(Op(0), b"0" * 16),
    )
    for op, mine, below in ((1, b"1", b"0"), (2, b"2", b"1")):
        state.log.found(Op(op), header(op, mine, below), mine * 16)
    state.log.spoiled(Op(2))
    repair.take(state, Sealed(header(2, b"2", b"1")))
    mend = state.out[-1]
    join.cut(state, Op(2))
    ticket = state.next_ticket()
    state.log.add(header(2, b"x", b"1"), ticket)
    state.log.durable(Op(2), Op(2), ticket)
    repair.on_faulty(state, Op(2))
    assert repair.wanted(state) == [vm.Name(Op(2), b"x" * 16)]
    repair.on_mended(state, mend.ticket)  # of a driver that was just done with it
    assert state.log.faulty == {2}


def test_a_backup_with_a_full_ring_and_no_seal_in_it_lets_the_older_checkpoint_go():
    scene = a_group()
    go_far(scene)
    backup = scene.hosts[backups_of(scene)[0]]
    state, group = backup.state, backup.process.group
    block = group.superblock.current
    assert block.previous_op < block.checkpoint.op
    state.slots = state.log.head - state.log.anchor  # as if as many had followed the Seal
    state.primary_op = Op(state.log.head + 5)
    state.due.pop("range", None)
    anchor, head = state.log.anchor, state.log.head
    backup.perform(backup.process.member.on_tick(state.now + 1, 0))
    scene.run(100)
    block = group.superblock.current
    assert block.previous_op == block.checkpoint.op == head
    assert anchor < state.log.anchor == head - 1
    scene.ask(77).run(100).crash(backup.me).boot(backup.me).run(900)
    assert backup.state.applied == scene.world.oracles.top
    assert backup.process.report.problem is None


def test_a_new_primary_whose_ring_is_too_small_for_the_log_makes_room_or_lets_another_lead():
    scene = a_group()
    go_far(scene)
    first = leader_of(scene)
    one, other = (first + 1) % 3, (first + 2) % 3  # the next view is led by the next replica
    scene.isolate(one)
    scene.forbid("no ack", lambda _from, _to, one: isinstance(one, vm.PrepareOk))
    scene.ask(1, 2, 3, 4).run(20)
    head, behind = scene.hosts[other].state.log.head, scene.hosts[one].state
    behind.slots = behind.log.head - behind.log.anchor + 1  # room for one of four
    most = []

    def watch(*_):
        most.append(behind.log.head - behind.log.anchor)
        return True

    scene.crash(first).allow_all().filters.append(watch)
    scene.run(2500)
    assert max(most) <= behind.slots
    assert behind.log.head >= head
    block = scene.hosts[one].process.group.superblock.current
    assert block.previous_op == block.checkpoint.op
    scene.ask(5).run(100)
    assert scene.answers[-1][0] > head
