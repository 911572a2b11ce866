"""The seam between the client's core and whoever answers: a node far away, or one in here."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, Protocol, get_args

from headrace.errors import ConnectionLost, HeadraceError
from headrace.wire.erase_messages import EraseDeleted
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
    {DescribeTopic, ListTopics, GetBounds, GetOffset, GetCursors, GetStatus, Fetch, Ping}
)
# Sent twice, they leave what they leave when sent once. Append is not among them: its repeats
# are for the lane, which knows what else is under way.
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
    """The process through which a log was reached has ended: repeating is of no use."""

    hint = "Open the directory again: everything acknowledged is in it"


OnHead = Callable[[Reply], None]  # told an answer whose body is still coming
# Told how a call ended. CancelledError: its loop ends, or someone cut it short.
Done = Callable[[Reply | BaseException], None]


class Channel(Protocol):
    """Carries requests to a node. All calls come from the loop it was made on."""

    @property
    def address(self) -> str:
        """Where the node is, for people."""

    @property
    def body_size_max(self) -> int:
        """The largest body that the node takes."""

    @property
    def cluster(self) -> bytes:
        """Which log it is: no other has this id."""

    async def call(
        self,
        request: Request,
        body: Sequence[Buffer] = (),
        *,
        timeout: float,  # noqa: ASYNC109
        on_head: OnHead | None = None,
    ) -> tuple[Reply, Buffer]:
        """Ask once, and return the answer with its body.

        `on_head` may be told the answer as soon as it has come, while its body has not; what
        comes after it may still be lost.

        Unknown: it was sent, changes something, and no answer came. ConnectionLost, TimedOut:
        it did not happen. Every other HeadraceError is the node's own answer.
        """

    def begin(
        self, request: Request, body: Sequence[Buffer], *, deadline: float, done: Done
    ) -> Callable[[], object]:
        """Ask once, and have `done` told what `call` would return, without the body, or raise.

        Called on the loop, on which `done` is told: once, and never before this has returned.
        What is returned gives the call up: `done` is told nothing, or CancelledError. The
        request may be under way all the same.
        """

    async def close(self) -> None:
        """End every open call, and let go of the node."""


class PendingCall:
    """One call that was begun. It is settled once, by whoever is the first."""

    __slots__ = ("_done", "_is_begun", "_loop", "_timer")

    def __init__(self, done: Done, deadline: float, late: Callable[[], HeadraceError]) -> None:
        self._loop = asyncio.get_running_loop()
        self._done: Done | None = done
        self._is_begun = False
        self._timer = self._loop.call_at(deadline, lambda: self.settle(late()))

    def begun(self) -> Callable[[], object]:
        """Note that `begin` returns now. What settled it meanwhile is told next."""
        self._is_begun = True
        return self.cancel

    def settle(self, answer: Reply | BaseException) -> None:
        """Tell an answer, if none was told yet."""
        if not self._is_begun:
            self._loop.call_soon(self.settle, answer)
        elif (done := self._done) is not None:
            self.cancel()
            done(answer)

    def cancel(self) -> None:
        """Tell nothing any more."""
        self._done = None
        self._timer.cancel()


def begin_task(
    asking: Coroutine[object, object, tuple[Reply, Buffer]], done: Done
) -> Callable[[], object]:
    """Begin what `call` returned as a task. See Channel.begin."""

    def ended(task: asyncio.Task[tuple[Reply, Buffer]]) -> None:
        if task.cancelled():
            done(asyncio.CancelledError())
        else:
            done(task.exception() or task.result()[0])

    task = asyncio.get_running_loop().create_task(asking)
    task.add_done_callback(ended)
    return task.cancel
