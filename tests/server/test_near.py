"""Sockets to peers on this machine have little room; those to others, what the system gives."""

import socket

import pytest

from headrace.server.connections.server_connection import ROOM_SIZE, keep_room_small


class Transport:
    def __init__(self, sock, peer):
        self.found = {"socket": sock, "peername": peer}

    def get_extra_info(self, name):
        return self.found.get(name)


def room(sock):
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


@pytest.mark.parametrize(
    ("family", "peer", "is_near"),
    [
        (socket.AF_INET, ("127.0.0.1", 9), True),
        (socket.AF_INET, ("127.8.8.8", 9), True),
        (socket.AF_INET6, ("::1", 9, 0, 0), True),
        (socket.AF_INET6, ("::ffff:127.0.0.1", 9, 0, 0), True),
        (socket.AF_UNIX, "", True),
        (socket.AF_INET, ("192.0.2.1", 9), False),
        (socket.AF_INET6, ("fe80::1%eth0", 9, 0, 2), False),
        (socket.AF_INET6, ("2001:db8::1", 9, 0, 0), False),
        (socket.AF_INET, None, False),  # gone already
    ],
)
def test_only_a_peer_on_this_machine_has_little_room(family, peer, is_near):
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        before = room(sock)
        keep_room_small(Transport(sock, peer))
        assert (room(sock) != before) == is_near
        assert room(sock) <= 2 * ROOM_SIZE


def test_a_transport_without_a_socket_is_left_alone():
    keep_room_small(Transport(None, None))
