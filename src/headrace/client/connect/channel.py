"""The seam between the client's core and a node, remote or in this process."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, Protocol, get_args

from headrace.errors import ConnectionLost, HeadraceError
from headrace.wire.erase_messages import EraseDeleted
from headrace.wire.file_messages import FetchFile, GetFileDigests
from headrace.wire.greeting import GetStatus, Ping
from headrace.wire.lease_messages import LeaseFiles, ReleaseLease, RenewLease
from headrace.wire.messages import Reply, Request
from headrace.wire.msgpack import Buffer
from headrace.wire.read_messages import (
    Fetch,
    GetBounds,
    GetCursors,
    GetOffset,
    StoreCursorRequest,
)
from headrace.wire.topic_messages import DescribeTopic, ListTopics
from headrace.wire.write_messages import (
    DiscardRequest,
    PublishRequest,
    StageRequest,
    TrimRequest,
)

_LOOKS: Final[frozenset[type[Request]]] = frozenset(
    {
        DescribeTopic,
        ListTopics,
        GetBounds,
        GetOffset,
        GetCursors,
        GetStatus,
        Fetch,
        GetFileDigests,
        FetchFile,
        Ping,
    }
)
# Idempotent requests. Append is not one: the lane repeats it, as it knows what else is in
# flight.
REPEATABLE: Final[frozenset[type[Request]]] = _LOOKS | {
    StoreCursorRequest,
    StageRequest,
    PublishRequest,
    DiscardRequest,
    TrimRequest,
    LeaseFiles,
    RenewLease,
    ReleaseLease,
    EraseDeleted,
}
CHANGING: Final[frozenset[type[Request]]] = frozenset(get_args(Request)) - _LOOKS


class HolderEnded(ConnectionLost):
    """The process through which a log was reached has ended: retrying is useless."""

    hint = "Open the directory again: everything acknowledged is in it"


OnHead = Callable[[Reply], None]  # called with an answer whose body is still arriving
# Called with the outcome of a call. CancelledError: its loop ended, or it was cancelled.
Done = Callable[[Reply | BaseException], None]


class Channel(Protocol):
    """Carries requests to a node. Use it only from the loop that created it."""

    @property
    def address(self) -> str:
        """Where the node is, for display."""

    @property
    def body_size_max(self) -> int:
        """The largest body that the node accepts."""

    @property
    def cluster(self) -> bytes:
        """The unique id of the log."""

    async def call(
        self,
        request: Request,
        body: Sequence[Buffer] = (),
        *,
        timeout: float,  # noqa: ASYNC109
        on_head: OnHead | None = None,
    ) -> tuple[Reply, Buffer]:
        """Send a request once, and return the answer with its body.

        `on_head` may be called with the answer before its body has arrived; the body may still
        be lost.

        Unknown: a changing request was sent, and no answer came. ConnectionLost, TimedOut: it
        had no effect. Every other HeadraceError is the node's own answer.
        """

    def begin(
        self, request: Request, body: Sequence[Buffer], *, deadline: float, done: Done
    ) -> Callable[[], object]:
        """Send a request once; `done` gets what `call` would return (no body) or raise.

        Call it on the loop, on which `done` is called: once, and never before this returns.
        The returned function abandons the call: `done` is not called, or gets CancelledError.
        The request may still be on its way.
        """

    async def close(self) -> None:
        """End every open call and disconnect from the node."""


class PendingCall:
    """A call in progress. The first to settle it wins."""

    __slots__ = ("_done", "_is_begun", "_loop", "_timer")

    def __init__(self, done: Done, deadline: float, late: Callable[[], HeadraceError]) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: Done | None = done
        self._is_begun = False
        self._timer = self._loop.call_at(deadline, lambda: self.settle(late()))

    def begun(self) -> Callable[[], object]:
        """Note that `begin` returns now. An outcome that came meanwhile is delivered next."""
        self._is_begun = True
        return self.cancel

    def settle(self, answer: Reply | BaseException) -> None:
        """Deliver an outcome, unless one was delivered already."""
        if not self._is_begun:
            self._loop.call_soon(self.settle, answer)
        elif (done := self._done) is not None:
            self.cancel()
            done(answer)

    def cancel(self) -> None:
        """Deliver nothing from now on."""
        self._done = None
        self._timer.cancel()


def begin_task(
    asking: Coroutine[object, object, tuple[Reply, Buffer]], done: Done
) -> Callable[[], object]:
    """Run the coroutine of a `call` as a task. See Channel.begin."""

    def ended(task: asyncio.Task[tuple[Reply, Buffer]]) -> None:
        if task.cancelled():
            done(asyncio.CancelledError())
        else:
            done(task.exception() or task.result()[0])

    task = asyncio.get_running_loop().create_task(asking)
    task.add_done_callback(ended)
    return task.cancel
