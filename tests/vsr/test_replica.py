"""A replica alone: ops in order, no answer before the disk, going back after a failure."""

from dataclasses import dataclass

import pytest

from headrace.errors import DiskFull, StorageFailed, Unknown
from headrace.model.ids import Op, View
from headrace.model.proposal import EntryProposal
from headrace.vsr.peer_messages import SoloAppend, SoloReply
from headrace.vsr.replica import Replica

ROOT = b"root"


@dataclass(frozen=True)
class Sealed:
    op: Op
    parent: bytes
    timestamp: int
    request: EntryProposal

    @property
    def checksum(self) -> bytes:
        return b"%d after %s: %s" % (self.op, self.parent, bytes(self.request.body))


def a_replica(op: int = 0, timestamp: int = 0) -> Replica[Sealed]:
    def seal(
        request: EntryProposal, *, op: Op, parent: bytes, view: View, timestamp: int
    ) -> Sealed:
        return Sealed(op, parent, timestamp, request)

    return Replica(seal, Op(op), ROOT, timestamp)


def prepared(replica: Replica[Sealed], *bodies: bytes, now: int = 100) -> list[Sealed]:
    found = []
    for body in bodies:
        append = replica.on_request(
            EntryProposal(40, body), now, ticket=body.decode(), deadline=9.0
        )
        assert isinstance(append, SoloAppend)
        found += append.prepares
    return found


def applied(replica: Replica[Sealed], prepares) -> list[object]:
    replies = []
    for prepare in prepares:
        replies += replica.on_applied(prepare.op, f"did {prepare.op}")
    return replies


def test_ops_follow_the_head_and_chain_to_it():
    replica = a_replica(op=7)
    first, second = prepared(replica, b"a", b"b")
    assert (first.op, first.parent) == (8, ROOT)
    assert (second.op, second.parent) == (9, first.checksum)


def test_nobody_is_answered_before_the_disk_and_the_machine():
    replica = a_replica()
    prepared(replica, b"a", b"b", b"c")
    durable = replica.on_durable(Op(2))
    assert [one.op for one in durable] == [1, 2]
    assert applied(replica, durable) == [SoloReply("a", "did 1"), SoloReply("b", "did 2")]
    assert replica.on_durable(Op(2)) == []
    assert applied(replica, replica.on_durable(Op(3))) == [SoloReply("c", "did 3")]
    assert (replica.applied, replica.in_flight_size) == (3, 0)


def test_an_op_cannot_be_applied_before_it_is_durable():
    replica = a_replica()
    prepared(replica, b"a")
    with pytest.raises(AssertionError):
        replica.on_applied(Op(1), "early")


def test_time_rises_with_every_op_whatever_the_clock_does():
    replica = a_replica(timestamp=50)
    times = [prepared(replica, b"x", now=now)[0].timestamp for now in (60, 60, 10, 90)]
    assert times == [60, 61, 62, 90]


def test_what_the_journal_has_not_is_refused_and_its_ops_are_used_again():
    replica = a_replica()
    prepared(replica, b"a", b"b", b"c")
    applied(replica, replica.on_durable(Op(1)))
    full = DiskFull("journal", "append")
    assert replica.on_failed(full) == [SoloReply("b", full), SoloReply("c", full)]
    (again,) = prepared(replica, b"d")
    assert again.op == 2
    assert again.parent == b"1 after root: a"
    assert replica.in_flight_size == 1


def test_a_deadline_that_passes_in_flight_ends_as_unknown_once():
    replica = a_replica()
    prepared(replica, b"a")
    assert replica.on_tick(8.9) == []
    (late,) = replica.on_tick(9.0)
    assert isinstance(late.result, Unknown)
    assert replica.on_tick(9.1) == []
    assert applied(replica, replica.on_durable(Op(1))) == []


def test_a_poisoned_disk_leaves_what_is_in_flight_unknown():
    replica = a_replica()
    prepared(replica, b"a", b"b")
    failed = StorageFailed("journal", "append", OSError(5, "broken"))
    replies = replica.on_halted(failed)
    assert [reply.ticket for reply in replies] == ["a", "b"]
    assert all(isinstance(reply.result, Unknown) for reply in replies)
    assert replica.on_halted(failed) == []
