"""Accusations, installs and first elections in which something is forgotten half way."""

import pytest
from tests.vsr.test_catching_up import backups_of
from tests.vsr.test_divergence import a_group, leader_of, packet_to

from headrace.journal.entry import SEAL
from headrace.model.ids import OP_MAX, Op
from headrace.model.proposal import EntryProposal
from headrace.vsr import peer_messages as vm
from headrace.vsr.peer_messages import Amnesia
from headrace_lab.cluster.host import Host
from headrace_lab.cluster.scene import Scene


def test_who_is_accused_says_so_only_once_it_is_durable(monkeypatch):
    """Ops 3 to 5 are on two only; one comes back as an old copy that was started often."""
    scene = a_group()
    other, forgot = backups_of(scene)
    host = scene.hosts[forgot]
    scene.crash(forgot, power=False)
    copy = host.disk.clone()
    scene.boot(forgot).run(400)
    scene.forbid("late", lambda _from, to, one: to == other and isinstance(one, vm.Prepares))
    scene.ask(5, 6, 7).run(100).crash()
    assert scene.answers[-1][0] == 5
    host.disk = copy
    scene.world.oracles.forgot(host)
    for _ in range(20):
        scene.boot(forgot).run(200).crash(forgot)
    real, seen = Host._start, []

    def stalled(self, process, delay=None):
        """Let its disk stand still as soon as it is accused."""
        if self is host and process.state.recovering:
            seen.append(self.world.now)
        else:
            real(self, process, delay)

    monkeypatch.setattr(Host, "_start", stalled)
    scene.allow_all().boot(other, forgot).run(400)
    assert seen
    assert not host.process.group.superblock.current.recovering
    monkeypatch.setattr(Host, "_start", real)
    scene.crash(forgot).boot(forgot).run(2500)
    assert host.state.recovering
    assert not any(one.state.leads for one in scene.hosts if one.state)


def test_what_an_install_cut_is_suspect_at_once_and_not_from_the_next_start_on():
    scene = Scene(5).boot().run(600).register().ask(1).run(60)
    first = leader_of(scene)
    sick, slow, *away = backups_of(scene)
    host = scene.hosts[sick]
    for one in away:
        scene.isolate(one)

    def is_late(_from, to, one):
        is_new = isinstance(one, vm.Prepares) and any(entry.op > 10 for entry in one.entries)
        return to == slow and is_new

    scene.forbid("late", is_late)
    for number in range(6):
        scene.ask(10 + number, to=first)
    for _ in range(2):
        scene._give(EntryProposal(SEAL), first, "seal")
    for number in range(4):
        scene.ask(20 + number, to=first)
    scene.run(2)
    scene.forbid("nothing", lambda _from, to, _: to == sick)
    scene.run(30)
    journal = host.process.group.journal
    start, end = (journal.slot(Op(op)) for op in (8, 11))
    name = start.file.path.removeprefix("./")
    host.disk.overwrite(name, start.position, bytes([7]) * (end.position - start.position))
    scene.world.faults.damaged.add(sick)
    scene.crash(sick, power=False)
    scene.filters.clear()
    for one in away:
        scene.isolate(one)
    scene.forbid("no entries", lambda _from, _to, one: isinstance(one, vm.Prepares))
    scene.boot(sick).run(800)
    assert host.state.applied == 10
    assert host.state.suspect == host.process.group.superblock.current.suspect == (8, 14)


def test_a_wiped_replica_of_a_new_group_keeps_to_the_view_that_others_are_in():
    scene = a_group()
    state = scene.hosts[backups_of(scene)[0]].state
    blank = Scene(3)
    blank.filters.append(lambda *_: False)
    blank.wipe(0).boot(0)
    host = blank.hosts[0]
    assert host.state.recovering
    for peer in (1, 2):
        standing = vm.Standing(state.view, host.state.boot, is_blank=True, knows=True)
        message = packet_to(host, peer, standing)
        life = vm.Envelope(message.sender, 5, 1, 1, 0, standing)
        host.deliver(life)
        blank.run(20)
    assert not host.state.recovering
    assert host.state.view == state.view > 0


@pytest.mark.parametrize("replicas", [2, 3])
def test_two_that_accuse_each_other_hear_it_and_stop(replicas):
    scene = Scene(replicas).boot().run(600).register().ask(1).run(60)
    one, other = scene.hosts[0], scene.hosts[1]
    scene.crash(0, 1, power=False)
    old = one.disk.clone()
    scene.boot(0, 1).run(500).crash(0, 1, power=False)
    later = other.disk.clone()
    scene.boot(0, 1).run(500).restore(0, old)
    scene.forbid("not heard", lambda sender, to, _: sender == 0 or (to == 0 and sender != 1))
    scene.boot(0).run(100).crash(0, power=False).restore(1, later)
    scene.filters.clear()
    if replicas == 3:
        scene.crash(2)
    said = []

    def note(_from, _to, message):
        said.append(isinstance(message, Amnesia))
        return True

    scene.filters.append(note)
    scene.boot(0, 1).run(1000)
    assert 2 <= sum(said) <= 6
    assert one.state.recovering
    assert other.state.recovering


def test_who_caught_up_is_not_accused_for_a_life_that_only_one_had_heard():
    scene = Scene(5).boot().run(600).register().ask(1).run(60)
    first = leader_of(scene)
    wiped, witness, third, _ = backups_of(scene)
    scene.crash(wiped)
    scene.forbid("one hears it", lambda sender, to, _: sender == wiped and to != witness)
    scene.boot(wiped).run(60).crash(wiped).allow_all().crash(witness)
    scene.wipe(wiped).boot(wiped).run(1500)
    assert scene.hosts[wiped].state.may_vote
    scene.ask(5).run(60).crash(first, third).boot(witness).run(6000)
    assert any(host.state.leads for host in scene.hosts if host.state)


@pytest.mark.parametrize("sequence", [0, 2**62, OP_MAX])
def test_an_accusation_that_cannot_be_is_dropped(sequence):
    scene = a_group()
    host = scene.hosts[backups_of(scene)[0]]
    leader = leader_of(scene)
    before = (host.state.life, host.state.past)
    host.deliver(
        packet_to(host, leader, Amnesia(host.state.boot, host.state.life, sequence, 5))
    )
    scene.run(600)
    assert (host.state.life, host.state.past, host.state.recovering) == (*before, False)


def test_damage_around_a_checkpoint_that_the_primary_has_evicted_ends_in_a_transfer():
    scene = Scene(2).boot().run(600).register().ask(1).run(60)
    for number in range(4):
        scene.ask(number + 1).run(30)
    scene.seal()
    for number in range(4):
        scene.ask(number + 1).run(30)
    host = scene.hosts[backups_of(scene)[0]]
    newest = host.state.checkpoint
    scene.forbid("late", lambda _from, to, one: to == host.me and isinstance(one, vm.Heartbeat))
    scene.seal()
    journal = host.process.group.journal
    start, end = journal.slot(Op(newest - 1)), journal.slot(Op(newest + 2))
    name = start.file.path.removeprefix("./")
    host.disk.overwrite(name, start.position, bytes([7]) * (end.position - start.position))
    scene.world.faults.damaged.add(host.me)
    scene.crash(host.me, power=False).allow_all().boot(host.me).run(4000)
    scene.ask(5).run(200)
    assert host.state.applied == scene.world.oracles.top
    assert scene.answers[-1][0] == scene.world.oracles.top


def test_an_entry_below_a_cut_that_nobody_has_any_more_ends_in_a_transfer():
    scene = a_group().seal()
    host = scene.hosts[leader_of(scene)]
    scene.isolate(host.me)
    for number in range(5):
        scene.ask(100 + number, to=host.me).run(20)
    scene.run(900)
    last = host.state.sure
    scene.seal()
    for number in range(5):
        scene.ask(10 + number).run(30)
    scene.seal()
    scene.rot(host.me, last).crash(host.me, power=False).allow_all().boot(host.me)
    scene.run(3000)
    assert host.state.follows
    assert host.state.applied == scene.world.oracles.top
