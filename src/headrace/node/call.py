"""One request on its way through a node, from the edge that took it to its answer."""

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
    """Ends with `finish`, once, on the loop's thread, whatever becomes of it."""

    request: Request
    body: Buffer
    deadline: float  # a moment of the clock
    answer: Answer
    began: float
    calls: "Calls"
    is_over: bool = False

    def finish(self, reply: Reply | HeadraceError, rows: Sequence[Buffer] = ()) -> None:
        """Count it, and answer whoever asked."""
        assert not self.is_over
        self.is_over = True
        self.calls.end(self, reply, rows)
        self.answer(reply, rows)

    def settle(self, result: object) -> None:
        """Answer with what the machine says of an operation, or with why it did not run."""
        self.finish(to_reply(result))


@dataclass(slots=True)
class Calls:
    """The calls of one node: how many are open, and what became of the others."""

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
        """Wait until every call that is open is answered."""
        if self.open_count:
            self._none_is_open = asyncio.Event()
            await self._none_is_open.wait()
