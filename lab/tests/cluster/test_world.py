"""The simulator itself: what it counts, whom it leaves alive, and what it notices."""

import pytest

from headrace.model.ids import Op
from headrace_lab.cluster.cluster import World, _Streams, run_seed
from headrace_lab.cluster.oracles import Violation
from headrace_lab.cluster.scene import QUIET, Scene
from headrace_lab.cluster.swarm import draw


def a_world(seed: int, replicas: int | None = None) -> World:
    return World(seed, draw(_Streams(seed).next("swarm"), replicas))


@pytest.mark.parametrize("replicas", [3, 5])
def test_in_many_seeds_only_a_part_of_the_group_is_left_to_go_on(replicas):
    smaller = 0
    for seed in range(4, 12):
        world = a_world(seed, replicas)
        world.run()
        smaller += len(world.core) < replicas
    assert smaller >= 2


def test_whatever_a_seed_trips_over_it_is_named(monkeypatch):
    def run(self: World) -> None:
        raise KeyError("slot 7")

    monkeypatch.setattr(World, "run", run)
    outcome = run_seed(11)
    assert (outcome.seed, outcome.violation) == (11, "KeyError: 'slot 7'")


@pytest.mark.parametrize(
    "fault", ["isolate", "one_way_cut", "two_way_cut", "clog_a_link", "slow", "clock_jump"]
)
def test_a_fault_without_an_effect_is_not_counted(fault):
    world = World(3, QUIET.__class__(**{**_fields(QUIET), "replicas": 1}))
    getattr(world.faults, f"_{fault}")(world.hosts[0])
    assert world.tally.landed.total() == 0
    assert world.network.cuts == world.network.clogs == {}


def _fields(swarm) -> dict[str, object]:
    return {name: getattr(swarm, name) for name in swarm.__slots__}


def test_an_unreadable_sector_counts_when_somebody_reads_it():
    scene = Scene().boot().run(600).register().ask(1).run(60)
    faults, host = scene.world.faults, scene.hosts[0]
    faults._unreadable_sector(host)
    assert scene.world.tally.landed["unreadable sector"] == 0
    path = next(iter(host.disk.files()))
    for path in host.disk.files():
        for start in range(0, len(host.disk.content(path)), 512):
            host.disk.read_fault(f"./{path}", start, 512)
    assert scene.world.tally.landed["unreadable sector"] == 1


def test_a_replica_that_replays_another_log_than_was_committed_is_noticed():
    scene = Scene().boot().run(600).register().ask(1, 2, 3).run(60)
    oracles, host = scene.world.oracles, scene.hosts[0]
    oracles.holds(host)
    known = oracles.log[3]
    oracles.log[3] = type(known)(b"x" * 16, known.parent, known.result, known.digest)
    with pytest.raises(Violation, match="replay: op 3 differs on replica 0"):
        oracles.holds(host)
    oracles.log[3] = known
    host.process.machine.counters["n"] += 1
    with pytest.raises(Violation, match="replay: state at op 4 of replica 0"):
        oracles.holds(host)


def test_what_is_counted_of_a_life_that_is_not_durable_is_noticed():
    scene = Scene().boot().run(600).register().ask(1).run(60)
    oracles = scene.world.oracles
    leader = next(host for host in scene.hosts if host.state.leads)
    peer = next(host for host in scene.hosts if host is not leader)
    packet = peer.process.member.envelope(None)
    before = oracles.counted(leader, peer.me)
    leader.state.acked[peer.me] = Op(leader.state.acked[peer.me] + 1)
    oracles.heard(leader, packet, before)
    ahead = type(packet)(peer.me, packet.boot, packet.life + 1, packet.life + 1, 0, None)
    with pytest.raises(Violation, match="life durable"):
        oracles.heard(leader, ahead, before)
