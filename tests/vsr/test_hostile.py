"""Whatever a peer says, nothing trips: it is judged, counted and dropped."""

from dataclasses import fields, replace
from random import Random

import pytest
from tests.vsr.test_codec import IDENTITY, an_entry, envelope, samples

from headrace.journal.entry import seal
from headrace.model.ids import OP_MAX, STARTS_MAX, GroupId, Op, ReplicaId, View
from headrace.model.proposal import EntryProposal
from headrace.vsr import peer_messages as vm
from headrace.vsr.validate import flaw_of
from headrace_lab.cluster.network import decode_packet, encode_packet
from headrace_lab.cluster.scene import Scene

NUMBERS = (0, 1, 2, 5, 7, 100, 2**31, 2**62, OP_MAX, -1, 2**64)


def a_running_cluster() -> Scene:
    return Scene().boot().run(600).register().ask(1, 2, 3).run(60)


def garbled(message, rng: Random):
    """Give some number in a message another value."""
    numbers = [
        one.name for one in fields(message) if isinstance(getattr(message, one.name), int)
    ]
    if not numbers:
        return message
    changes = {rng.choice(numbers): rng.choice(NUMBERS) for _ in range(rng.randrange(1, 3))}
    return replace(message, **changes)


@pytest.mark.parametrize("number", range(3))
def test_no_message_however_garbled_trips_a_replica(number):
    scene, rng = a_running_cluster(), Random(number)
    process = scene.hosts[number].process
    assert process is not None
    member = process.member
    sender = ReplicaId((number + 1) % 3)
    boot, life = member.state.boots[sender], member.state.lives[sender]
    for _ in range(3000):
        message = garbled(rng.choice(samples()), rng)
        packet = vm.Envelope(sender, boot, life, max(life, 10**6), 10**15, message)
        if rng.random() < 0.1:
            packet = replace(packet, sender=rng.choice(NUMBERS), life=rng.choice(NUMBERS))
        member.on_message(packet)
        member.state.halted = None
        if rng.random() < 0.02:
            member.on_tick(member.state.now + 1, 10**15)
        # What it asked of its disk is not done here: take back what waits for that.
        for ticket in list(member.state.waiting):
            member.on_persisted(ticket, member.state.sequence + 1)
    assert member.state.dropped.total() > 500


def test_each_flaw_is_named():
    packet = envelope(samples()[0])
    entries = (an_entry(7), an_entry(9))
    cases = {
        "sender out of range": replace(packet, sender=ReplicaId(3)),
        "life out of range": replace(packet, life=9, sequence=8),
        "wall out of range": replace(packet, wall=2**63),
        "past out of range": replace(packet, past=(vm.Start(1, 1),) * (STARTS_MAX + 1)),
        "boot out of range": replace(packet, message=vm.Amnesia(5, 6, 7, 0)),
        "op out of range": replace(packet, message=replace(samples()[1], op=-1)),
        "entries do not chain": replace(packet, message=replace(samples()[0], entries=entries)),
        "start-view headers out of place": replace(
            packet, message=replace(samples()[5], first=3)
        ),
        "do-view-change votes out of place": replace(
            packet, message=replace(samples()[4], votes=())
        ),
        "do-view-change suspects too much": replace(
            packet, message=replace(samples()[4], suspect=(9, 2**40))
        ),
        "do-view-change head out of reach": replace(
            packet, message=replace(samples()[4], op=2**40, first=2**40 + 1, votes=())
        ),
        "commit above the head": replace(packet, message=replace(samples()[2], commit=8)),
        "op out of reach": replace(packet, message=replace(samples()[2], op=2**41)),
        "view out of reach": replace(packet, message=vm.StartViewChange(View(OP_MAX))),
        "sequence out of range": replace(packet, message=vm.Amnesia(5, 6, OP_MAX, 7)),
        "size of a snapshot out of range": replace(
            packet, message=replace(samples()[14], size=2**40)
        ),
        "timestamp out of range": replace(
            packet, message=replace(samples()[11], entries=(an_entry(timestamp=2**63),))
        ),
        "header out of range": replace(
            packet,
            message=replace(
                samples()[5], headers=(samples()[5].headers[0]._replace(checksum=b""),)
            ),
        ),
    }
    for expected, one in cases.items():
        assert flaw_of(one, 0, 3, View(3), Op(7)) == expected
    assert flaw_of(packet, 0, 3, View(3), Op(7)) is None


def delivered(host: int, sender: int, make) -> Scene:
    """Have a running group hear something that passes the codec, and let it run on."""
    scene = a_running_cluster()
    state = scene.hosts[host].state
    life = (state.boots[sender], state.lives[sender], state.seen[sender], 0)
    packet = decode_packet(encode_packet(vm.Envelope(ReplicaId(sender), *life, make(state))))
    assert isinstance(packet, vm.Envelope)
    scene.hosts[host].deliver(packet)
    scene.run(700)
    scene.crash(host).boot(host).run(700)
    return scene


def leader_of(scene: Scene) -> int:
    return next(host.me for host in scene.hosts if host.state and host.state.leads)


def far_vote(state) -> vm.DoViewChange:
    view = next(v for v in range(state.view + 1, state.view + 4) if v % 3 == state.me)
    lives = tuple(state.lives)
    return vm.DoViewChange(
        View(view),
        state.log_view,
        Op(2**40),
        state.commit,
        Op(2**40 + 1),
        (),
        None,
        lives,
        state.boot,
        lives,
    )


def foreign_prepare(state) -> vm.Prepares:
    other = replace(IDENTITY, group=GroupId(5))
    head = state.log.head
    entry = seal(
        other,
        EntryProposal(16, b""),
        op=Op(head + 1),
        parent=state.log.checksum(head),
        view=state.view,
        timestamp=10**9,
    )
    return vm.Prepares(state.view, state.commit, entry.op, (entry,))


SHAPES = {
    "a head that nobody can have": far_vote,
    "the highest sequence": lambda state: vm.Amnesia(state.boot, state.life, OP_MAX, 7),
    "more than a number on disk": lambda state: vm.Amnesia(
        state.boot, state.life, 2**64 - 1, 7
    ),
    "an entry of another group": foreign_prepare,
    "a commit above the head": lambda state: vm.Heartbeat(state.view, OP_MAX, Op(1), 10**9),
    "an op far above": lambda state: vm.Heartbeat(state.view, OP_MAX, OP_MAX, 10**9),
    "the last view": lambda state: vm.StartViewChange(View(OP_MAX)),
    "an acknowledged head far above": lambda state: vm.PrepareOk(
        state.view, Op(0), b"x", OP_MAX
    ),
}


@pytest.mark.parametrize("make", SHAPES.values(), ids=SHAPES)
def test_a_message_that_is_whole_and_absurd_changes_nothing(make):
    leader = leader_of(a_running_cluster())
    backup = (leader + 1) % 3
    scene = delivered(backup, leader, make)
    assert [host.state.applied for host in scene.hosts] == [4, 4, 4]
    assert all(host.state.may_vote and host.state.view < 100 for host in scene.hosts)
    scene.world.oracles.ended(scene.hosts)
