"""Whatever a peer says, nothing trips: it is judged, counted and dropped."""

from dataclasses import fields, replace
from random import Random

import pytest
from tests.vsr.test_codec import an_entry, envelope, samples

from headrace.model.ids import OP_MAX, ReplicaId
from headrace.sim.cluster_scene import Scene
from headrace.vsr import messages as vm
from headrace.vsr.validate import flaw_of

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
    }
    for expected, one in cases.items():
        assert flaw_of(one, 0, 3) == expected
    assert flaw_of(packet, 0, 3) is None
