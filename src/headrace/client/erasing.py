"""Waits until no file of a log holds rows of deleted topics."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import count
from typing import Final

from headrace.client.connect.retry import Caller, now
from headrace.client.values.answers import Unerased
from headrace.client.values.parse import duration
from headrace.errors import BadRequest, NotErased
from headrace.model.backoff import ExponentialBackoff
from headrace.wire.erase_messages import EraseDeleted, Erasing

ERASE_TIMEOUT: Final = "10m"  # the longest lease without renewal
# Two checkpoints of a small or idle log take about the first delay.
_DELAYS: Final = ExponentialBackoff(0.05, 2.0)
_SHOWN_MAX: Final = 10  # files that an error names

Told = Callable[[Sequence[Unerased]], None]


def _nobody(left: Sequence[Unerased]) -> None:
    return


def erase_seconds(timeout: str | float | timedelta) -> float:
    """Return how long to wait for erasure. Checked before a topic is deleted, not after."""
    seconds = duration(timeout, "erase_timeout").seconds
    if not seconds:
        raise BadRequest(
            "erase_timeout: must be longer than 0", hint="Use 10m or 30s, for example"
        )
    return seconds


async def wait_for_erasure(caller: Caller, seconds: float, told: Told | None = None) -> None:
    """Have the rows of topics deleted so far erased; `told` reports what is left."""
    end = now() + seconds
    tell = told or _nobody
    revision = 0
    for number in count(1):
        delay = _DELAYS.after(number)
        request = EraseDeleted(revision)
        answer = await caller.get(request, Erasing)
        left = tuple(Unerased(one.path, one.why) for one in answer.left)
        tell(left)
        if not answer.left_count:
            return
        revision = answer.revision
        if now() + delay > end:
            raise NotErased(
                f"rows of deleted topics are not erased yet after {seconds:g} s: "
                f"{_shown(left, answer.left_count)}",
                hint="Resolve these, then wait again",
            )
        await asyncio.sleep(delay)


def _shown(left: Sequence[Unerased], count: int) -> str:
    lines = [f"{one.path}: {one.why}" for one in left[:_SHOWN_MAX]]
    more = count - len(lines)
    return "; ".join([*lines, f"and {more} more"] if more else lines)
