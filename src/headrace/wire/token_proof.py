"""Proof that a peer has the token, without sending the token.

    proof := HMAC-SHA256(token, label  version:u16  client_nonce  node_nonce)

Each nonce is preceded by its size as a u16. Client and node have different labels, so a proof
cannot be reflected; both nonces are in each proof, so it cannot be replayed. It covers the
negotiated version, so a man in the middle cannot force an older one.
"""

import hmac
import struct
from typing import Final

NONCE_SIZE: Final = 16

_CLIENT: Final = b"headrace client proof\0"
_NODE: Final = b"headrace node proof\0"
_U16: Final = struct.Struct("<H")


def client_mac(token: bytes, client_nonce: bytes, node_nonce: bytes, *, version: int) -> bytes:
    """Compute the client's TokenProof. `version` is the one chosen by Welcome."""
    return _mac(_CLIENT, token, version, client_nonce, node_nonce)


def node_mac(token: bytes, client_nonce: bytes, node_nonce: bytes, *, version: int) -> bytes:
    """Compute the node's proof in Accepted."""
    return _mac(_NODE, token, version, client_nonce, node_nonce)


def matches(a: bytes, b: bytes) -> bool:
    """Compare two proofs in constant time."""
    return hmac.compare_digest(a, b)


def _mac(label: bytes, token: bytes, version: int, *nonces: bytes) -> bytes:
    sized = b"".join(_U16.pack(len(nonce)) + nonce for nonce in nonces)
    return hmac.digest(token, label + _U16.pack(version) + sized, "sha256")
