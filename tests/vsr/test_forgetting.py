"""A replica that forgot, and does not know it: whoever remembers does not count it."""

import pytest
from tests.vsr.test_catching_up import backups_of
from tests.vsr.test_divergence import a_group, leader_of, packet_to

from headrace.journal.superblock import decode, encode
from headrace.model.ids import Op, ReplicaId, View
from headrace.sim.cluster_scene import Scene
from headrace.storage.memory import MemoryDisk
from headrace.vsr import messages as vm
from headrace.vsr.view_change import _is_past


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
    host.disk = copy if how == "a copy" else MemoryDisk()
    scene.world.oracles.forgot(host)
    if how == "init":
        host.init()
    scene.allow_all().boot(other, forgot)
    return scene, down, forgot


@pytest.mark.parametrize("how", ["init", "a copy"])
def test_who_forgot_is_no_voter_for_a_peer_that_was_restarted_meanwhile(how):
    scene, down, forgot = after_a_power_cut_with_one_down(how)
    scene.run(1500)
    assert scene.hosts[forgot].state.recovering
    assert not any(host.state.leads for host in scene.hosts if host.state)
    scene.boot(down).run(2500)
    assert [host.state.applied for host in scene.hosts] == [5, 5, 5]
    assert scene.hosts[forgot].state.may_vote


def test_one_made_anew_stays_known_after_it_has_caught_up():
    scene = a_group()
    gone = backups_of(scene)[0]
    host = scene.hosts[gone]
    scene.wipe(gone)
    host.init()
    scene.boot(gone).run(900)
    assert (host.state.may_vote, host.state.birth) == (True, 0)
    dropped = [one.state.dropped["of an earlier life"] for one in scene.hosts]
    scene.crash(gone).boot(gone).run(600)
    assert host.state.may_vote
    assert [one.state.dropped["of an earlier life"] for one in scene.hosts] == dropped


def test_a_vote_is_not_counted_if_another_voter_knows_that_its_giver_forgot():
    vote = vm.DoViewChange(
        View(3), View(2), Op(5), Op(5), Op(6), (), None, (0, 0, 7), 1, (0, 0, 90), (0, 0, 40)
    )
    gave = vm.Peer(ReplicaId(2), 7, 90, 40)
    assert not _is_past(gave, vote)
    assert not _is_past(gave._replace(life=8, birth=0, boot=41), vote)
    assert _is_past(gave._replace(life=6), vote)
    assert _is_past(gave._replace(life=9, birth=91), vote), "made anew"
    assert _is_past(gave._replace(boot=41), vote), "a copy"


def test_each_directory_that_init_makes_has_a_birth_of_its_own():
    scene = Scene()
    births = [host.disk.content("superblock.a") for host in scene.hosts]
    found = [decode(data, "superblock.a") for data in births]
    assert len({one.birth for one in found}) == 3
    assert 0 not in {one.birth for one in found}
    assert [encode(one) for one in found] == births


def test_what_is_known_of_a_peer_is_durable():
    scene = a_group()
    host = scene.hosts[leader_of(scene)]
    known = list(zip(host.state.lives, host.state.births, host.state.boots, strict=True))
    scene.crash(host.me)
    scene.filters.append(lambda *_: False)
    scene.boot(host.me)
    again = list(zip(host.state.lives, host.state.births, host.state.boots, strict=True))
    assert again == known
    peer = (host.me + 1) % 3
    host.deliver(packet_to(host, peer, vm.StartViewChange(host.state.view)))
    assert host.process.member.state.unsure == set()
