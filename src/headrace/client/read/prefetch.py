"""Answers ahead of the reader: each is requested as soon as its start is known.

The head of an answer comes before its body and says where the next one starts: the node reads
one answer while another is in transit and a third is being decoded.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from headrace.client.read.feed import Feed, Slab
from headrace.wire.msgpack import Buffer
from headrace.wire.read_messages import FetchReply

ANSWERS_MAX: Final = 2  # requested and not yet decoded

Found = TypeVar("Found")


async def bounded(feed: Feed) -> AsyncGenerator[Slab, None]:
    """Yield the rows of one partition up to the feed's end."""
    ahead = Prefetch(feed)
    try:
        while not ahead.is_done:
            for slab in await ahead.next():
                yield slab
    finally:
        await ahead.close()


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    start: int
    answer: asyncio.Task[tuple[FetchReply, Buffer]]


class Prefetch:
    """The answers of one bounded feed, in order."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._asked: deque[_Asked] = deque()
        self._next: int | None = (
            feed.position
        )  # where the next request starts; None: unknown yet
        self._ask()

    @property
    def is_done(self) -> bool:
        return not self._asked

    async def next(self) -> list[Slab]:
        """Return the next rows."""
        asked = self._asked[0]
        fetched, body = await asked.answer
        self._asked.popleft()
        if self._asked and self._asked[0].start != fetched.next:
            # The connection was lost between head and body, and the new answer differs.
            await self.close()
        if not self._asked:
            self._next = fetched.next
        rows = self._feed.slabs(fetched, body, asked.start)
        self._ask()
        return rows

    async def close(self) -> None:
        """Cancel the pending requests."""
        asked = list(self._asked)
        self._asked.clear()
        await cancel(each.answer for each in asked)

    def _ask(self) -> None:
        start = self._next
        assert self._feed.end is not None
        if start is None or start >= self._feed.end or len(self._asked) >= ANSWERS_MAX:
            return
        self._next = None

        def on_head(fetched: FetchReply) -> None:
            # Only the newest request, and only its first answer, says something new.
            if self._asked and self._asked[-1] is asked and self._next is None:
                self._next = fetched.next
                self._ask()

        fetching = self._feed.fetch(start, on_head, behind=len(self._asked))
        asked = _Asked(start, started(fetching))
        self._asked.append(asked)


def started(work: Coroutine[Any, Any, Found]) -> asyncio.Task[Found]:
    """Start a task whose outcome may never be retrieved."""
    task = asyncio.create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended."""
    ended = list(tasks)
    for task in ended:
        task.cancel()
    await asyncio.gather(*ended, return_exceptions=True)
