"""One request in a node, from its arrival to its answer."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.errors import HeadraceError
from headrace.node.counters import NodeCounters
from headrace.node.requests.proposals import to_reply
from headrace.storage.seam import Buffer
from headrace.wire.messages import Reply, Request

Answer = Callable[[Reply | HeadraceError, Sequence[Buffer]], None]


@dataclass(slots=True, eq=False)
class Call:
    """Always ends with exactly one `finish`, on the loop's thread."""

    request: Request
    body: Buffer
    deadline: float  # a moment of the clock
    answer: Answer
    began: float
    calls: "Calls"
    is_over: bool = False

    def finish(self, reply: Reply | HeadraceError, rows: Sequence[Buffer] = ()) -> None:
        """Count it, and answer the caller."""
        assert not self.is_over
        self.is_over = True
        self.calls.end(self, reply, rows)
        self.answer(reply, rows)

    def settle(self, result: object) -> None:
        """Answer with the machine's result, or with the error that prevented it."""
        self.finish(to_reply(result))


@dataclass(slots=True)
class Calls:
    """The calls of one node: the open ones, and counters of the finished ones."""

    clock: Callable[[], float]
    counters: NodeCounters = field(default_factory=NodeCounters)
    open_count: int = 0
    _none_is_open: asyncio.Event | None = None  # a stop waits for it

    def begin(self, request: Request, body: Buffer, deadline: float, answer: Answer) -> Call:
        """Open a call."""
        self.open_count += 1
        return Call(request, body, deadline, answer, self.clock(), self)

    def end(self, call: Call, reply: Reply | HeadraceError, rows: Sequence[Buffer]) -> None:
        """Count a call as answered."""
        self.open_count -= 1
        if self._none_is_open is not None and self.open_count == 0:
            self._none_is_open.set()
        self.counters.count(call.body, reply, rows, self.clock() - call.began)

    async def drained(self) -> None:
        """Wait until every open call is answered."""
        if self.open_count:
            self._none_is_open = asyncio.Event()
            await self._none_is_open.wait()
