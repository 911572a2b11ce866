"""A node in this process, and the channel to it.

It also listens on a socket in the data directory, for other processes of the same user.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headrace.client.connect.channel import CHANGING, Done, OnHead, PendingCall
from headrace.errors import HeadraceError, TimedOut, Unknown
from headrace.node.config.config import load
from headrace.node.config.settings import Config
from headrace.server.serve import Serving, serve
from headrace.wire.codec import encode
from headrace.wire.messages import Reply, Request, word_of
from headrace.wire.msgpack import Buffer

NodeConfig = Config  # for modules of this room that may not import the node

GRACE: Final = 1.0  # seconds that the node's own answer may come after the deadline


def config_of(settings: Mapping[str, object]) -> Config:
    """Return the config for settings such as `seal__size="64MiB"`."""
    flags = {name.replace("__", ".", 1): _text(value) for name, value in settings.items()}
    return load(None, os.environ, flags)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class EmbeddedChannel:
    """Channel to a node on the same loop."""

    def __init__(self, path: str, serving: Serving) -> None:
        self.address = path
        self.body_size_max = serving.boot.config.limits.body_size
        self._serving = serving
        self._is_closed = False

    @classmethod
    async def start(cls, path: str, config: Config, release: str) -> "EmbeddedChannel":
        """Start a node in `path`, which is created if missing."""
        return cls(path, await serve(path, config, release=release, tcp=False, strict=True))

    @property
    def cluster(self) -> bytes:
        node = self._serving.boot.node
        return b"" if node is None else node.cluster

    @property
    def config(self) -> Config:
        return self._serving.boot.config

    @property
    def guest_count(self) -> int:
        """The number of connections from other processes. Thread-safe."""
        return self._serving.traffic.connections_open

    @property
    def guest_requests(self) -> int:
        """The number of requests from other processes so far. Thread-safe."""
        return self._serving.traffic.frames_in

    async def call(
        self,
        request: Request,
        body: Sequence[Buffer] = (),
        *,
        timeout: float,  # noqa: ASYNC109
        on_head: OnHead | None = None,
    ) -> tuple[Reply, Buffer]:
        """Send a request once. See Channel.call. `on_head` is unused: the body comes along."""
        loop = asyncio.get_running_loop()
        if timeout <= 0:
            raise TimedOut("no time was left to send the request")
        future: asyncio.Future[tuple[Reply | HeadraceError, Sequence[Buffer]]]
        future = loop.create_future()

        def answer(reply: Reply | HeadraceError, rows: Sequence[Buffer]) -> None:
            if not future.done():
                future.set_result((reply, rows))

        encode(request)  # raises for what the wire could not carry
        deadline = loop.time() + timeout
        self._serving.service.submit(request, _joined(body), deadline, answer)
        try:
            async with asyncio.timeout_at(deadline + GRACE):
                reply, rows = await future
        except TimeoutError:
            raise _late(request) from None
        if isinstance(reply, HeadraceError):
            raise reply
        return reply, _joined(rows)

    def begin(
        self, request: Request, body: Sequence[Buffer], *, deadline: float, done: Done
    ) -> Callable[[], object]:
        """Send a request once. See Channel.begin. The wire could carry the request."""
        call = PendingCall(done, deadline + GRACE, lambda: _late(request))
        if deadline <= asyncio.get_running_loop().time():
            call.settle(TimedOut("no time was left to send the request"))
        else:
            self._serving.service.submit(
                request, _joined(body), deadline, lambda reply, _: call.settle(reply)
            )
        return call.begun()

    async def close(self) -> None:
        """Stop the node. Requests in progress finish first."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._serving.stop()


def _late(request: Request) -> HeadraceError:
    text = f"the node did not answer {word_of(request)} in time"
    return Unknown(text) if type(request) in CHANGING else TimedOut(text)


def _joined(pieces: Sequence[Buffer]) -> Buffer:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
