"""A proof is good for one token, one side and one pair of nonces."""

import hashlib
import hmac
from itertools import combinations

import pytest

from headrace.wire.token_proof import NONCE_SIZE, client_mac, matches, node_mac

TOKEN, OURS, THEIRS = b"secret", bytes(NONCE_SIZE), bytes([1]) * NONCE_SIZE


def test_what_is_proven_is_written_down():
    sized = b"\x10\0" + OURS + b"\x10\0" + THEIRS
    for label, mac in ((b"client", client_mac), (b"node", node_mac)):
        text = b"headrace " + label + b" proof\0\2\0" + sized
        made = mac(TOKEN, OURS, THEIRS, version=2)
        assert made == hmac.new(TOKEN, text, hashlib.sha256).digest()
        assert len(made) == 32


def test_no_two_proofs_are_the_same():
    proofs = [
        mac(token, *nonces, version=1)
        for mac in (client_mac, node_mac)
        for token in (TOKEN, b"other")
        for nonces in (
            *((OURS, THEIRS), (THEIRS, OURS), (OURS, OURS)),
            *((OURS + b"x", THEIRS), (OURS, b"x" + THEIRS)),
        )
    ]
    assert all(not matches(one, other) for one, other in combinations(proofs, 2))
    assert all(matches(one, bytes(one)) for one in proofs)


def test_a_proof_holds_for_one_version_only():
    for mac in (client_mac, node_mac):
        now = mac(TOKEN, OURS, THEIRS, version=1)
        assert matches(now, mac(TOKEN, OURS, THEIRS, version=1))
        assert not matches(now, mac(TOKEN, OURS, THEIRS, version=2))


@pytest.mark.parametrize("wrong", [b"", b"x", bytes(32), bytes(1000)])
def test_a_proof_of_any_size_is_compared(wrong):
    assert not matches(wrong, client_mac(TOKEN, OURS, THEIRS, version=1))
