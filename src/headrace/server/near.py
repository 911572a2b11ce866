"""Peers on this machine: how much of an answer is put into their sockets at once.

A write takes as much as the socket has room for, and Python's lock is held meanwhile: with room
for megabytes, those who read the next answer from disk stand still. What is left over is
written by the loop without the lock. To a peer on this machine nothing is under way for long,
so its socket needs little room; for one far away the system chooses what the way needs.
"""

import asyncio
import ipaddress
import socket
from typing import Final

ROOM_SIZE: Final = 512 * 1024


def keep_room_small(transport: asyncio.Transport) -> None:
    """Bound what a write takes at once, if the peer is on this machine."""
    found: socket.socket | None = transport.get_extra_info("socket")
    if found is not None and _is_near(found.family, transport.get_extra_info("peername")):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM_SIZE)


def _is_near(family: int, peer: object) -> bool:
    if family == socket.AF_UNIX:
        return True
    if not isinstance(peer, tuple) or not peer:
        return False
    host = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    mapped = getattr(host, "ipv4_mapped", None)
    return host.is_loopback or (mapped is not None and mapped.is_loopback)
