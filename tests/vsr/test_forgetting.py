"""A replica that forgot, and does not know it: whoever remembers does not count it."""

from dataclasses import replace

import pytest
from lab.tests.scenarios.scripts import the_operator_gives_up_an_op
from tests.vsr.test_catching_up import backups_of
from tests.vsr.test_divergence import a_group, leader_of, packet_to

from headrace.journal.superblock import decode, encode
from headrace.model.ids import STARTS_MAX, Op, ReplicaId, View
from headrace.storage.atomic import atomic_replace
from headrace.vsr import peer_messages as vm
from headrace.vsr.view_change import _is_past
from headrace_lab.cluster.scene import Scene
from headrace_lab.disk.memory import MemoryDisk


def after_a_power_cut_with_one_down(how: str) -> tuple[Scene, int, int]:
    """Ops 3 to 5 are on r_down and r_forgot only; r_forgot comes back without them."""
    scene = a_group()
    down, (other, forgot) = leader_of(scene), backups_of(scene)
    host = scene.hosts[forgot]
    scene.crash(forgot, power=False)
    copy = host.disk.clone()
    scene.boot(forgot).run(400)
    scene.forbid("late", lambda _from, to, one: to == other and isinstance(one, vm.Prepares))
    scene.ask(5, 6, 7).run(100).crash()
    assert scene.answers[-1][0] == 5
    host.disk = MemoryDisk() if how == "init" else copy
    scene.world.oracles.forgot(host)
    if how == "init":
        host.init()
    if how == "a copy that was started often":
        for _ in range(20):
            scene.boot(forgot).run(200).crash(forgot)
    scene.allow_all().boot(other, forgot)
    return scene, down, forgot


@pytest.mark.parametrize("how", ["init", "a copy", "a copy that was started often"])
def test_who_forgot_is_no_voter_for_a_peer_that_was_restarted_meanwhile(how):
    scene, down, forgot = after_a_power_cut_with_one_down(how)
    scene.run(1500)
    assert scene.hosts[forgot].state.recovering
    assert not any(host.state.leads for host in scene.hosts if host.state)
    scene.boot(down).run(2500)
    assert [host.state.applied for host in scene.hosts] == [5, 5, 5]
    assert scene.hosts[forgot].state.may_vote


def test_one_that_promised_a_view_before_it_was_accused_is_met_in_that_view():
    scene = a_group()
    ahead = backups_of(scene)[0]
    host = scene.hosts[ahead]
    scene.crash(ahead)
    block = decode(host.disk.content("superblock.a"), "superblock.a")
    data = encode(replace(block, view=View(block.view + 1), recovering=True))
    for name in ("superblock.a", "superblock.b"):
        atomic_replace(host.disk.root, name, [data])
    scene.boot(ahead).run(900)
    assert host.state.may_vote
    assert {one.state.view for one in scene.hosts} == {block.view + 1}


def test_one_made_anew_stays_known_after_it_has_caught_up():
    scene = a_group()
    gone = backups_of(scene)[0]
    host = scene.hosts[gone]
    scene.wipe(gone)
    host.init()
    scene.boot(gone).run(900)
    assert host.state.may_vote
    dropped = [one.state.dropped["of an earlier life"] for one in scene.hosts]
    scene.crash(gone).boot(gone).run(600)
    assert host.state.may_vote
    assert [one.state.dropped["of an earlier life"] for one in scene.hosts] == dropped


def test_a_vote_is_not_counted_if_another_voter_knows_that_its_giver_forgot():
    vote = vm.DoViewChange(
        View(3), View(2), Op(5), Op(5), Op(6), (), None, (0, 0, 7), 1, (0, 0, 40)
    )
    gave = vm.Peer(ReplicaId(2), 7, 40)
    assert not _is_past(gave, vote)
    first, known, last = vm.Start(4, 39), vm.Start(7, 40), vm.Start(8, 41)
    assert not _is_past(gave._replace(life=9, boot=42, past=(first, known, last)), vote)
    assert _is_past(gave._replace(life=6), vote)
    assert _is_past(gave._replace(life=9, boot=42, past=(first, last)), vote), "a copy"
    assert _is_past(gave._replace(life=9, boot=42), vote), "made anew"
    assert not _is_past(gave._replace(life=9, boot=42, past=(last,)), vote), "too far back"
    assert not _is_past(vm.Peer(ReplicaId(1), 1, 50), vote), "of whom it knows nothing"


def starts_of(scene: Scene) -> list[tuple[tuple[int, int], ...]]:
    copies = [host.disk.content("superblock.a") for host in scene.hosts]
    found = [decode(data, "superblock.a") for data in copies]
    assert [encode(one) for one in found] == copies
    return [one.starts for one in found]


def test_each_start_has_a_number_that_is_durable_before_anything_is_said():
    scene = Scene()
    made = starts_of(scene)
    scene.filters.append(lambda *_: False)
    scene.boot().run(10)
    started = starts_of(scene)
    assert [one[:-1] for one in started] == made
    assert [host.state.boot for host in scene.hosts] == [one[-1][1] for one in started]
    assert [host.state.past for host in scene.hosts] == made
    assert len({boot for one in started for _, boot in one}) == 6


def test_a_peer_that_slept_through_more_starts_than_are_named_counts_the_newest():
    scene = a_group()
    away, often = backups_of(scene)
    scene.crash(away)
    for _ in range(STARTS_MAX + 1):
        scene.crash(often).boot(often).run(100)
    assert len(starts_of(scene)[often]) == STARTS_MAX
    scene.run(400).boot(away).run(600)
    assert scene.hosts[away].state.boots[often] == scene.hosts[often].state.boot
    assert scene.hosts[away].state.dropped["of an earlier life"] == 0


def test_who_caught_up_again_is_not_accused_by_one_that_knows_an_older_life():
    scene = Scene(5).boot().run(600).register().ask(1).run(60)
    old, gone, *_ = backups_of(scene)
    scene.crash(gone, power=False)
    copy = scene.hosts[gone].disk.clone()
    scene.boot(gone).run(400).crash(old)
    scene.crash(gone).boot(gone).run(400).crash(gone)
    scene.restore(gone, copy).boot(gone).run(900)
    assert scene.hosts[gone].state.may_vote
    life = scene.hosts[gone].state.life
    scene.boot(old).run(900)
    assert all(host.state.may_vote for host in scene.hosts)
    assert scene.hosts[gone].state.life == life


def test_what_is_known_of_a_peer_is_durable():
    scene = a_group()
    host = scene.hosts[leader_of(scene)]
    known = list(zip(host.state.lives, host.state.boots, strict=True))
    scene.crash(host.me)
    scene.filters.append(lambda *_: False)
    scene.boot(host.me)
    again = list(zip(host.state.lives, host.state.boots, strict=True))
    assert again == known
    peer = (host.me + 1) % 3
    host.deliver(packet_to(host, peer, vm.StartViewChange(host.state.view)))
    assert host.process.member.state.unsure == set()


def test_what_the_operator_gave_up_is_in_the_superblock_of_each_that_was_reached():
    scene = the_operator_gives_up_an_op()
    left = [host for host in scene.hosts if host.state is not None]
    assert left
    for host in left:
        found = decode(host.disk.content("superblock.a"), "superblock.a")
        assert found.gave_up == host.state.gave_up
        assert found.gave_up is not None
    again = left[0]
    scene.crash(again.me).boot(again.me)
    assert again.state.gave_up == left[1].state.gave_up
    assert again.state.given_up is None, "it counts in the election that waited for it only"


def test_giving_up_counts_for_nothing_while_nothing_waits():
    scene = a_group()
    host = scene.hosts[leader_of(scene)]
    assert host.process.member.on_give_up(Op(1)) == []
    assert (host.state.given_up, host.state.gave_up) == (None, None)
