"""The interface between sockets and a node."""

from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.wire.messages import Reply, Request
from headrace.wire.msgpack import Buffer

Answer = Callable[[Reply | HeadraceError, Sequence[Buffer]], None]


class Service(Protocol):
    """A node, as seen by connections."""

    @property
    def cluster(self) -> bytes:
        """The cluster's identity, sent to every peer."""

    def submit(self, request: Request, body: Buffer, deadline: float, answer: Answer) -> None:
        """Begin a request. Called on the loop's thread; raises nothing.

        `answer` is called exactly once, on the loop's thread, possibly before this returns.
        `deadline` is in terms of `loop.time()`. The body of an Append or a Stage with its own
        checksum has not been verified yet; any other body has.
        """
