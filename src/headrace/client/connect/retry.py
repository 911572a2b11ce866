"""Backoff between attempts, and requests with retries until a deadline.

A producer uses only `Backoff`: `write/in_flight` decides whether to retry.
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
    """Exponential backoff with jitter, so that many clients do not retry in step."""

    failure_count: int = 0

    def next(self, error: HeadraceError | None = None) -> float:
        """Return how long to wait; a busy node has named the delay itself."""
        if isinstance(error, Busy):
            return max(error.retry_after_ms / 1_000, DELAY_MIN)
        self.failure_count += 1
        return _DELAYS.after(self.failure_count) * random.uniform(0.5, 1.0)


def now() -> float:
    """Return the loop's time, the clock of all the client's deadlines."""
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
    """Sends requests with retries until an answer, a refusal or the deadline."""

    channel: Channel
    timeout: float
    # Called when a partition is unknown: raises if it is permanently deleted.
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
        """Return the answer, of type `expected`, and its body. See Channel.call."""
        end = self.deadline() if deadline is None else deadline
        backoff, doubtful = Backoff(), False
        before: HeadraceError | None = None  # the error of the last try

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
                    final = _final(error, request, before, doubtful=doubtful)
                    raise final from error.__cause__
                before = error
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
        """Return an answer without a body."""
        answer, _ = await self.ask(request, expected, deadline=deadline)
        return answer


def _final(
    error: HeadraceError, request: Request, before: HeadraceError | None, *, doubtful: bool
) -> HeadraceError:
    """Return the error of a request that is not tried again, after another one or none."""
    if doubtful and isinstance(error, Unavailable):
        return Unknown(f"{error}; an earlier {word_of(request)} may have taken effect")
    if isinstance(error, TimedOut) and isinstance(before, Unavailable):
        return before  # why the time was not enough
    return error
