"""Proof that a peer has the token, without sending it.

    proof := HMAC-SHA256(token, label  version:u16  client_nonce  node_nonce)

Each nonce goes with its size before it, as a u16. Client and node have different labels, so
neither proof can be sent back as the other; both nonces are in each, so none is good twice.
The version is the one that was chosen: nobody in between can talk both into an older one.
"""

import hmac
import struct
from typing import Final

NONCE_SIZE: Final = 16

_CLIENT: Final = b"headrace client proof\0"
_NODE: Final = b"headrace node proof\0"
_U16: Final = struct.Struct("<H")


def client_mac(token: bytes, client_nonce: bytes, node_nonce: bytes, *, version: int) -> bytes:
    """Make what a client sends in TokenProof. `version` is the one that Welcome chose."""
    return _mac(_CLIENT, token, version, client_nonce, node_nonce)


def node_mac(token: bytes, client_nonce: bytes, node_nonce: bytes, *, version: int) -> bytes:
    """Make what a node sends in Accepted."""
    return _mac(_NODE, token, version, client_nonce, node_nonce)


def matches(a: bytes, b: bytes) -> bool:
    """Compare two proofs in a time that does not tell where they differ."""
    return hmac.compare_digest(a, b)


def _mac(label: bytes, token: bytes, version: int, *nonces: bytes) -> bytes:
    sized = b"".join(_U16.pack(len(nonce)) + nonce for nonce in nonces)
    return hmac.digest(token, label + _U16.pack(version) + sized, "sha256")
