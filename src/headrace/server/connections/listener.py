"""A listener for peers, on any kind of socket."""

import asyncio
from collections.abc import Callable, Sequence

from headrace.server.connections.connection_set import ConnectionSet
from headrace.server.connections.limits import PeerLimits
from headrace.server.connections.server_connection import ServerConnection
from headrace.server.connections.service import Service
from headrace.server.connections.traffic import Traffic


class Listener:
    """Accepts connections until it is closed."""

    def __init__(
        self,
        service: Service,
        limits: PeerLimits,
        *,
        token: bytes | None = None,
        release: str = "",
        traffic: Traffic | None = None,
    ) -> None:
        self.address = ""  # where it listens, once it does
        self._loop = asyncio.get_running_loop()
        self._crowd = ConnectionSet(
            service=service,
            limits=limits,
            token=token,
            release=release,
            traffic=Traffic() if traffic is None else traffic,
            loop=self._loop,
        )
        self._servers: Sequence[asyncio.AbstractServer] = ()
        self._on_close: Callable[[], None] = lambda: None
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def traffic(self) -> Traffic:
        """The traffic of this listener, and of those that share the object."""
        return self._crowd.traffic

    def connect(self) -> ServerConnection:
        """Create the protocol of an accepted connection."""
        return ServerConnection(self._crowd)

    def begin(
        self,
        servers: Sequence[asyncio.AbstractServer],
        address: str,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """Take over servers that are listening."""
        assert servers
        assert not self._servers
        self._servers, self.address, self._on_close = servers, address, on_close
        self._sweep()

    async def close(self, timeout: float) -> None:  # noqa: ASYNC109
        """Stop accepting, answer requests in flight until the timeout, then close.

        Peers see the end of the stream after their last answer. A peer that has not closed its
        side by the timeout is cut off.
        """
        if not self._servers or self._crowd.is_stopping:
            return
        self._on_close()
        for server in self._servers:
            server.close()
        await self._crowd.disperse(timeout)
        if self._sweeping is not None:
            self._sweeping.cancel()

    def _sweep(self) -> None:
        self._crowd.sweep()
        interval = self._crowd.limits.sweep_interval
        self._sweeping = self._loop.call_later(interval, self._sweep)
