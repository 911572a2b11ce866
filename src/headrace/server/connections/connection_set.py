"""The connections of one listener: what they share, and what is done for all at once."""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from headrace.server.connections.limits import PeerLimits
from headrace.server.connections.service import Service
from headrace.server.connections.traffic import Traffic


class OpenConnection(Protocol):
    """A connection, as the crowd sees it."""

    def flush(self, now: float) -> None:
        """Write everything there is to say."""

    def sweep(self, now: float) -> None:
        """Cut the peer off if it takes too long."""

    def stop(self) -> None:
        """Begin no request any more; end once those in flight are answered."""

    def abort(self) -> None:
        """End the connection at once."""


@dataclass(slots=True)
class ConnectionSet:
    """Writes answers once per turn of the loop, and looks at all times in one sweep."""

    service: Service
    limits: PeerLimits
    token: bytes | None
    release: str
    traffic: Traffic
    loop: asyncio.AbstractEventLoop
    members: set[OpenConnection] = field(default_factory=set)
    is_stopping: bool = False
    # Where bytes go that nobody wants.
    scratch: memoryview = field(default_factory=lambda: memoryview(bytearray(64 * 1024)))
    _awake: list[OpenConnection] = field(default_factory=list)
    _emptied: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_full(self) -> bool:
        """Nobody more is let in."""
        return len(self.members) >= self.limits.connection_count_max

    def enter(self, member: OpenConnection) -> None:
        """Let a connection in."""
        self.members.add(member)
        self._emptied.clear()
        self.traffic.connections_open += 1

    def leave(self, member: OpenConnection) -> None:
        """Forget a connection, if it was ever let in."""
        if member in self.members:
            self.members.remove(member)
            self.traffic.connections_open -= 1
            if not self.members:
                self._emptied.set()

    def wake(self, member: OpenConnection) -> None:
        """Have this connection written, with all others, later in this turn of the loop."""
        if not self._awake:
            self.loop.call_soon(self._flush)
        self._awake.append(member)

    def sweep(self) -> None:
        """Cut off the peers that are too slow or too silent."""
        now = self.loop.time()
        for member in list(self.members):
            member.sweep(now)

    async def disperse(self, timeout: float) -> None:  # noqa: ASYNC109
        """End every connection: once it is answered, but not later than the timeout."""
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
