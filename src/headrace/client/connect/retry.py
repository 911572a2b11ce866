"""How long to wait between two tries, and how to ask until a deadline.

A producer uses `Backoff` alone: whether it tries again is decided in `write/in_flight`.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from headrace.client.connect.channel import REPEATABLE, Channel, HolderEnded
from headrace.errors import (
    BadFrame,
    Busy,
    HeadraceError,
    PartitionUnknown,
    TimedOut,
    Unavailable,
    Unknown,
    WriterUnknown,
)
from headrace.model.backoff import ExponentialBackoff
from headrace.wire.messages import Reply, Request, word_of
from headrace.wire.msgpack import Buffer

DELAY_MIN: Final = 0.01
_DELAYS: Final = ExponentialBackoff(DELAY_MIN, 1.0)

Answer = TypeVar("Answer", bound=Reply)


@dataclass(slots=True)
class Backoff:
    """Waits that double. Some chance is in each, so that many clients do not come as one."""

    failure_count: int = 0

    def next(self, error: HeadraceError | None = None) -> float:
        """Return how long to wait; a node that is busy has said it itself."""
        if isinstance(error, Busy):
            return max(error.retry_after_ms / 1_000, DELAY_MIN)
        self.failure_count += 1
        return _DELAYS.after(self.failure_count) * random.uniform(0.5, 1.0)


def now() -> float:
    """Return the loop's time, in which all deadlines of the client are."""
    return asyncio.get_running_loop().time()


def is_retryable(request: Request, error: HeadraceError) -> bool:
    """Say whether the same request may be sent again after `error`."""
    if isinstance(error, Unavailable):
        return not isinstance(error, TimedOut | HolderEnded)
    if isinstance(error, WriterUnknown):
        return False
    return isinstance(error, Unknown) and type(request) in REPEATABLE


@dataclass(frozen=True, slots=True)
class Caller:
    """Asks a channel until there is an answer, a refusal, or the deadline."""

    channel: Channel
    timeout: float
    # Asked when a partition is unknown: raises if it is gone for good.
    probe: Callable[[], Awaitable[None]] | None = None

    def deadline(self, timeout: float | None = None) -> float:
        return now() + (self.timeout if timeout is None else timeout)

    async def ask(
        self,
        request: Request,
        expected: type[Answer],
        body: Sequence[Buffer] = (),
        *,
        deadline: float | None = None,
        on_head: Callable[[Answer], None] | None = None,
    ) -> tuple[Answer, Buffer]:
        """Return the answer, which is an `expected`, and its body. See Channel.call."""
        end = self.deadline() if deadline is None else deadline
        backoff, doubtful = Backoff(), False

        def told(head: Reply) -> None:
            if on_head is not None and isinstance(head, expected):
                on_head(head)

        while True:
            try:
                reply, rows = await self.channel.call(
                    request, body, timeout=end - now(), on_head=on_head and told
                )
            except HeadraceError as error:
                delay = backoff.next(error)
                doubtful = doubtful or isinstance(error, Unknown)
                if not is_retryable(request, error) or now() + delay >= end:
                    if doubtful and isinstance(error, Unavailable):
                        raise Unknown(
                            f"{error}; an earlier {word_of(request)} may have taken effect"
                        ) from error
                    raise
                if isinstance(error, PartitionUnknown) and self.probe is not None:
                    await self.probe()
            else:
                if isinstance(reply, expected):
                    return reply, rows
                raise BadFrame(
                    f"in answer to {word_of(request)}: expected {expected.__name__}, "
                    f"found {type(reply).__name__}"
                )
            await asyncio.sleep(delay)

    async def get(
        self, request: Request, expected: type[Answer], *, deadline: float | None = None
    ) -> Answer:
        """Return an answer that has no body."""
        answer, _ = await self.ask(request, expected, deadline=deadline)
        return answer
