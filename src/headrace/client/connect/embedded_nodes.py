"""Nodes in this process: one per data directory, however many logs are opened there.

A node runs on a loop in its own thread, independent of the program. It stops when its last log
is closed.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.client.connect.channel import Done, OnHead, begin_task
from headrace.client.connect.embedded import EmbeddedChannel, NodeConfig, config_of
from headrace.client.connect.loop_thread import LoopThread
from headrace.errors import BadConfig, BadRequest
from headrace.wire.messages import Reply, Request
from headrace.wire.msgpack import Buffer

_homes: dict[str, "EmbeddedNode"] = {}  # by real path
_lock = threading.Lock()  # held while a node starts or stops


@dataclass(slots=True)
class EmbeddedNode:
    """A node, its loop, and the number of its open logs."""

    path: str
    channel: EmbeddedChannel
    runner: LoopThread
    log_count: int = 0

    def leave(self) -> None:
        """Release one log. Called from a thread other than the loop's."""
        with _lock:
            self.log_count -= 1
            if self.log_count:
                return
            if _homes.get(self.path) is self:
                del _homes[self.path]
            try:
                limit = self.channel.config.stop.timeout.seconds
                self.runner.finish(self.channel.close(), limit)
            finally:
                self.runner.stop()


def home_of(path: str) -> EmbeddedNode | None:
    """Return the node that this process runs in `path`, if any."""
    with _lock:
        return _homes.get(str(Path(path).resolve()))


def enter(path: str, settings: dict[str, object], release: str) -> EmbeddedNode:
    """Start a node in `path`, or return the one that this process already runs there."""
    real = str(Path(path).resolve())
    config = config_of(settings)
    with _lock:
        home = _homes.get(real)
        if home is None or not home.runner.is_ours:
            home = _homes[real] = _start(path, real, config, release)
        elif settings and config != home.channel.config:
            hint = "Close it first, or open it without settings"
            raise BadConfig("", f"{path} is already open with different settings", hint=hint)
        home.log_count += 1
        return home


def _start(path: str, real: str, config: NodeConfig, release: str) -> EmbeddedNode:
    runner = LoopThread(f"headrace {path}")
    try:
        channel = runner.run(EmbeddedChannel.start(path, config, release))
    except BaseException:
        runner.stop()
        raise
    return EmbeddedNode(real, channel, runner)


class Guest:
    """One log's channel to a node of this process, from the node's own loop or another."""

    def __init__(self, home: EmbeddedNode) -> None:
        self.address = home.channel.address
        self.body_size_max = home.channel.body_size_max
        self.cluster = home.channel.cluster
        self._home = home
        self._is_closed = False

    async def call(
        self,
        request: Request,
        body: Sequence[Buffer] = (),
        *,
        timeout: float,  # noqa: ASYNC109
        on_head: OnHead | None = None,
    ) -> tuple[Reply, Buffer]:
        """Send a request once. See Channel.call. `on_head` is unused: the body comes along."""
        if self._is_closed:
            raise BadRequest("the log is closed", hint="Open it again")
        asking = self._home.channel.call(request, body, timeout=timeout)
        if asyncio.get_running_loop() is self._home.runner.loop:
            return await asking
        return await self._home.runner.join(asking)

    def begin(
        self, request: Request, body: Sequence[Buffer], *, deadline: float, done: Done
    ) -> Callable[[], object]:
        """Send a request once. See Channel.begin."""
        loop = asyncio.get_running_loop()
        if self._is_closed or loop is not self._home.runner.loop:
            asking = self.call(request, body, timeout=deadline - loop.time())
            return begin_task(asking, done)
        return self._home.channel.begin(request, body, deadline=deadline, done=done)

    async def close(self) -> None:
        """Close the channel. On the node's own loop, the log's opener leaves the node."""
        if self._is_closed:
            return
        self._is_closed = True
        if asyncio.get_running_loop() is not self._home.runner.loop:
            leaving = asyncio.ensure_future(asyncio.to_thread(self._home.leave))
            try:
                await asyncio.shield(leaving)
            except asyncio.CancelledError:
                await asyncio.wait({leaving})  # let the node stop completely
                raise
