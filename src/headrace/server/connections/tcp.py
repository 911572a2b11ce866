"""The framed protocol over TCP."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headrace.errors import BadConfig
from headrace.server.connections.limits import PeerLimits
from headrace.server.connections.listener import Listener
from headrace.server.connections.service import Service
from headrace.server.connections.traffic import Traffic

BACKLOG: Final = 1024  # connections that wait to be accepted; the system may allow fewer


class TcpPort:
    """A reserved address that accepts no connections before `listen`.

    Earlier connections are refused, as if the node were down, and no other node can bind the
    address.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._sockets: list[socket.socket] = []  # a name may resolve to several addresses

    async def bind(self) -> None:
        """Bind the address, or raise BadConfig."""
        loop = asyncio.get_running_loop()
        with self._refusals():
            found = await loop.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, kind, protocol, _, address in dict.fromkeys(found):
                bound = socket.socket(family, kind, protocol)
                self._sockets.append(bound)
                if family == socket.AF_INET6:
                    bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                _share(bound, True)  # with remnants of closed connections
                bound.bind(address)
                if self._port:
                    # Some kernels let two sharing sockets bind in turn, but only one listen.
                    # A socket with an automatic port would lose it here.
                    bound.listen(1)
                    bound.shutdown(socket.SHUT_RDWR)
                _share(bound, False)
                bound.setblocking(False)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Every bound host and port, with the actual port for 0."""
        return [bound.getsockname()[:2] for bound in self._sockets]

    async def listen(self, listener: Listener) -> None:
        """Accept peers. BadConfig if a process that bound at the same time was faster."""
        loop = asyncio.get_running_loop()
        with self._refusals():
            for bound in self._sockets:
                _share(bound, True)
                bound.listen(BACKLOG)  # here, since uvloop does not report a failure
        where = _shown(*self.addresses[0])
        servers = [
            await loop.create_server(listener.connect, sock=bound, backlog=BACKLOG)
            for bound in self._sockets
        ]
        listener.begin(servers, where)

    def close(self) -> None:
        """Release the address, if nothing listens on it."""
        for bound in self._sockets:
            bound.close()

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (OSError, UnicodeError, OverflowError) as error:
            self.close()
            raise BadConfig(
                "listen.address",
                f"cannot listen on {_shown(self._host, self._port)}: {_reason(error)}",
                hint="Check the address, and that no other process listens on it",
            ) from error


async def bind_tcp(host: str, port: int) -> TcpPort:
    """Bind `host` and `port` (0: any free port), without listening yet."""
    found = TcpPort(host, port)
    await found.bind()
    return found


async def listen_tcp(
    service: Service,
    where: TcpPort,
    limits: PeerLimits,
    token: bytes | None,
    *,
    release: str = "",
    traffic: Traffic | None = None,
) -> Listener:
    """Listen on a bound address.

    With a token, every peer must prove that it knows it. Give all listeners of a node the same
    `traffic`: its bytes in flight are bounded together.
    """
    assert token != b""
    listener = Listener(service, limits, token=token, release=release, traffic=traffic)
    await where.listen(listener)
    return listener


def _share(bound: socket.socket, may: bool) -> None:
    """Set whether other sockets may bind our address while nothing listens on it."""
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(may))


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: Exception) -> str:
    """Return the system's message; resolver errors have negative numbers."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number is not None and number > 0 else str(error)
