"""The connections of one listener: shared state, and work done for all at once."""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from headrace.server.connections.limits import PeerLimits
from headrace.server.connections.service import Service
from headrace.server.connections.traffic import Traffic


class OpenConnection(Protocol):
    """A connection, as the crowd sees it."""

    def flush(self, now: float) -> None:
        """Write all pending answers."""

    def sweep(self, now: float) -> None:
        """Cut the peer off if it is too slow."""

    def stop(self) -> None:
        """Begin no more requests; end once those in flight are answered."""

    def abort(self) -> None:
        """End the connection at once."""


@dataclass(slots=True)
class ConnectionSet:
    """Writes answers once per loop turn, and checks all timeouts in one sweep."""

    service: Service
    limits: PeerLimits
    token: bytes | None
    release: str
    traffic: Traffic
    loop: asyncio.AbstractEventLoop
    members: set[OpenConnection] = field(default_factory=set)
    is_stopping: bool = False
    # Buffer for discarded bytes.
    scratch: memoryview = field(default_factory=lambda: memoryview(bytearray(64 * 1024)))
    _awake: list[OpenConnection] = field(default_factory=list)
    _emptied: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_full(self) -> bool:
        """Whether no more connections are accepted."""
        return len(self.members) >= self.limits.connection_count_max

    def enter(self, member: OpenConnection) -> None:
        """Add a connection."""
        self.members.add(member)
        self._emptied.clear()
        self.traffic.connections_open += 1

    def leave(self, member: OpenConnection) -> None:
        """Remove a connection, if it was added."""
        if member in self.members:
            self.members.remove(member)
            self.traffic.connections_open -= 1
            if not self.members:
                self._emptied.set()

    def wake(self, member: OpenConnection) -> None:
        """Schedule this connection's write, with all others, later in this loop turn."""
        if not self._awake:
            self.loop.call_soon(self._flush)
        self._awake.append(member)

    def sweep(self) -> None:
        """Cut off peers that are too slow or idle."""
        now = self.loop.time()
        for member in list(self.members):
            member.sweep(now)

    async def disperse(self, timeout: float) -> None:  # noqa: ASYNC109
        """End every connection, once its requests are answered or at the timeout."""
        self.is_stopping = True
        for member in list(self.members):
            member.stop()
        if not await self._is_empty_within(timeout):
            for member in list(self.members):
                member.abort()
            await self._is_empty_within(None)

    async def _is_empty_within(self, timeout: float | None) -> bool:  # noqa: ASYNC109
        if self.members:
            try:
                await asyncio.wait_for(self._emptied.wait(), timeout)
            except TimeoutError:
                return False
        return True

    def _flush(self) -> None:
        now = self.loop.time()
        members, self._awake = self._awake, []
        for member in members:
            member.flush(now)
