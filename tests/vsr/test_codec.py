"""Messages as bytes: what is written is read, and nothing else is."""

from dataclasses import replace
from random import Random

import pytest

from headrace.journal.entry import Entry, seal
from headrace.model.ids import GroupId, Identity, Op, ReplicaId, View
from headrace.model.proposal import EntryProposal
from headrace.vsr import peer_messages as vm
from headrace.vsr.peer_codec import KINDS, PACKET_SIZE_MAX
from headrace_lab.cluster.network import decode_packet, encode_packet

IDENTITY = Identity(b"headrace-cluster", GroupId(0), ReplicaId(0), 3, (16, 24, 24))


def an_entry(op: int = 7, timestamp: int = 9) -> Entry:
    return seal(
        IDENTITY,
        EntryProposal(16, b"x"),
        op=Op(op),
        parent=b"p" * 16,
        view=View(3),
        timestamp=timestamp,
    )


def samples() -> list[vm.Message[Entry]]:
    """One message of each kind, in the order of their numbers."""
    entry = an_entry()
    header = vm.header_of(entry)
    view, op = View(3), Op(7)
    votes = (vm.Vote(header, present=True, nack=False), vm.Vote(None, present=False, nack=True))
    return [
        vm.Prepares(view, Op(5), op, (entry,)),
        vm.PrepareOk(view, op, b"c" * 16, op),
        vm.Heartbeat(view, Op(5), op, 12),
        vm.StartViewChange(view),
        vm.DoViewChange(
            view, View(2), Op(8), op, op, votes, (Op(9), Op(10)), (1, 2, 3), 77, (4, 5, 6)
        ),
        vm.StartView(view, op, Op(5), op, (header,), 5),
        vm.GetStartView(view, Op(1), is_blank=False),
        vm.Standing(view, 5, is_blank=True, knows=False),
        vm.Amnesia(5, 6, 7, 8),
        vm.GetRange(view, Op(1), op),
        vm.GetExact((vm.Name(op, b"c" * 16),)),
        vm.Exact((entry,)),
        vm.Evicted(view, op),
        vm.GetOffer(view),
        vm.Offer(view, b"s" * 16, 1000, entry),
        vm.GetChunk(b"s" * 16, op, 300),
        vm.SnapshotChunk(b"s" * 16, 300, b"data"),
    ]


def envelope(message: vm.Message[Entry]) -> vm.Envelope[Entry]:
    return vm.Envelope(ReplicaId(1), 2**62, 3, 4, 10**15, message, (vm.Start(6, 2**62),))


def test_there_is_a_sample_of_each_kind_in_the_order_of_its_number():
    assert [type(one) for one in samples()] == list(KINDS)


@pytest.mark.parametrize("message", samples(), ids=lambda one: type(one).__name__)
def test_each_kind_is_read_as_it_was_written(message):
    assert decode_packet(encode_packet(envelope(message))) == envelope(message)


@pytest.mark.parametrize("message", samples(), ids=lambda one: type(one).__name__)
def test_no_bit_can_flip_unnoticed(message):
    data = encode_packet(envelope(message))
    for bit in range(len(data) * 8):
        garbled = bytearray(data)
        garbled[bit // 8] ^= 1 << bit % 8
        assert isinstance(decode_packet(bytes(garbled)), str)


def test_no_part_of_a_packet_is_a_packet():
    data = encode_packet(envelope(samples()[0]))
    assert all(isinstance(decode_packet(data[:size]), str) for size in range(len(data)))


def test_bytes_under_a_good_checksum_that_are_no_message_are_named():
    from xxhash import xxh3_128_digest

    rng = Random(5)
    for _ in range(2000):
        rest = bytes([rng.randrange(24)]) + rng.randbytes(rng.randrange(1, 60))
        assert isinstance(decode_packet(xxh3_128_digest(rest) + rest), str)


def test_a_packet_that_nobody_would_read_is_not_made():
    entry = replace(an_entry(), body=bytes(PACKET_SIZE_MAX))
    with pytest.raises(AssertionError, match="peers would reject it"):
        encode_packet(envelope(vm.Exact((entry,))))
