"""What the sockets ask of a node."""

from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.errors import HeadraceError
from headrace.wire.messages import Reply, Request
from headrace.wire.msgpack import Buffer

Answer = Callable[[Reply | HeadraceError, Sequence[Buffer]], None]


class Service(Protocol):
    """A node, as connections see it."""

    @property
    def cluster(self) -> bytes:
        """The cluster's identity, which every peer is told."""

    def submit(self, request: Request, body: Buffer, deadline: float, answer: Answer) -> None:
        """Begin a request. Called on the loop's thread; raises nothing.

        `answer` is called exactly once, on the loop's thread, maybe before this returns.
        `deadline` is a moment of `loop.time()`. The body of an Append or a Stage that brings
        its own checksum has not been compared with anything yet; any other body has.
        """
