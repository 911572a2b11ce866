"""The seam between the client's core and whoever answers: a node far away, or one in here."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, get_args

from headrace.errors import ConnectionLost
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

    hint = "Open the directory again: what was acknowledged is in it"


OnHead = Callable[[Reply], None]  # told an answer whose body is still coming


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

    async def close(self) -> None:
        """End every open call, and let go of the node."""
