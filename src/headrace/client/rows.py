"""Reading: rows of a range, in bounded memory, or rows as they come."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.client.feed import Feed, Slab
from headrace.client.values import Range

if TYPE_CHECKING:
    import polars as pl

FETCHES_MAX: Final = 64  # questions about rows to come that are open at once


class AsyncRows:
    """The rows of some ranges, read as they are taken. May be read as often as you like."""

    def __init__(
        self, schema: pa.Schema, ranges: tuple[Range, ...], feed: Callable[[Range], Feed]
    ) -> None:
        self.schema = schema
        self.ranges = ranges
        self._feed = feed

    @property
    def row_count(self) -> int:
        return sum(each.row_count for each in self.ranges)

    def __repr__(self) -> str:
        return f"<rows: {self.row_count} of {len(self.ranges)} partitions>"

    async def __aiter__(self) -> AsyncGenerator[pa.RecordBatch, None]:
        async with aclosing(self.slabs()) as slabs:
            async for slab in slabs:
                yield slab.rows

    async def slabs(self) -> AsyncGenerator[Slab, None]:
        """Give the rows by partition and offset."""
        for each in self.ranges:
            async with aclosing(bounded(self._feed(each))) as slabs:
                async for slab in slabs:
                    yield slab

    async def to_table(self) -> pa.Table:
        """Read everything into one table."""
        return pa.Table.from_batches([each async for each in self], schema=self.schema)

    async def to_pandas(self) -> Any:  # noqa: ANN401  # pandas has no types of its own
        return (await self.to_table()).to_pandas()

    async def to_polars(self) -> "pl.DataFrame":
        import polars as pl

        return pl.DataFrame(await self.to_table())


async def bounded(feed: Feed) -> AsyncGenerator[Slab, None]:
    """Give the rows of one partition to the feed's end, one fetch ahead."""
    if feed.is_done:
        return
    ahead = asyncio.create_task(feed.next())
    try:
        is_last = False
        while not is_last:
            slabs = await ahead
            is_last = feed.is_done
            if not is_last:
                ahead = asyncio.create_task(feed.next())
            for slab in slabs:
                yield slab
    finally:
        await _cancel([ahead])


async def endless(feeds: Sequence[Feed]) -> AsyncGenerator[Slab, None]:
    """Give the rows of all partitions as they come, for ever."""
    turns = asyncio.Semaphore(FETCHES_MAX)

    async def fetch(feed: Feed) -> tuple[Feed, list[Slab]]:
        async with turns:
            return feed, await feed.next()

    tasks = {asyncio.create_task(fetch(feed)) for feed in feeds}
    try:
        while tasks:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            ready = [task.result() for task in done]
            tasks |= {asyncio.create_task(fetch(feed)) for feed, _ in ready}
            for _, slabs in ready:
                for slab in slabs:
                    yield slab
    finally:
        await _cancel(list(tasks))


async def _cancel(tasks: "Sequence[asyncio.Task[object]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
