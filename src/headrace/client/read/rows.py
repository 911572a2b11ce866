"""Reading: rows of a range in bounded memory, or rows as they arrive."""

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.client.read.feed import WAIT_MS, Feed, Slab
from headrace.client.read.prefetch import bounded, cancel, started
from headrace.client.values.answers import Range
from headrace.client.where.grammar import RowCondition as Condition
from headrace.errors import BadRequest, Unavailable
from headrace.model.column_types import said

if TYPE_CHECKING:
    import polars as pl

FETCHES_MAX: Final = 64  # concurrent fetches that wait for new rows
TURN_MS: Final = 50  # how long each waits if there are more and they take turns
LOOK_EVERY: Final = 1.0  # seconds between checks for new partitions

More = Callable[[], Awaitable[list[Feed]]]


class AsyncRows:
    """The rows of some ranges, fetched lazily. Can be read any number of times.

    With a condition, only the rows that match.
    """

    def __init__(
        self,
        schema: pa.Schema,
        ranges: tuple[Range, ...],
        feed: Callable[[Range], Feed],
        where: Condition | None = None,
    ) -> None:
        self.schema = schema
        self.ranges = ranges
        self._feed = feed
        self._where = where

    @property
    def row_count(self) -> int:
        """The number of rows. With a condition it is unknown until they are read."""
        if self._where is not None:
            raise BadRequest(
                f"the number of rows matching {said(self._where.text)!r} is unknown until read",
                hint="Count them: rows.to_table().num_rows",
            )
        return self._range_size

    def __len__(self) -> int:
        if self._where is not None:  # list() calls this too, and accepts TypeError
            raise TypeError("rows with a condition have no length: use len(rows.to_table())")
        return self._range_size

    def __bool__(self) -> bool:
        return True  # a read is true even if it is empty

    @property
    def _range_size(self) -> int:
        return sum(each.row_count for each in self.ranges)

    def __repr__(self) -> str:
        which = "" if self._where is None else f", where {said(self._where.text)}"
        return f"<rows: {self._range_size} of {len(self.ranges)} partitions{which}>"

    async def __aiter__(self) -> AsyncGenerator[pa.RecordBatch, None]:
        async with aclosing(self.slabs()) as slabs:
            async for slab in slabs:
                if self._where is None:
                    yield slab.rows
                    continue
                # Off the loop: it may be a node's own.
                for kept in await asyncio.to_thread(self._where.kept, slab.rows):
                    shown = kept.select(self.schema.names)
                    yield pa.RecordBatch.from_arrays(shown.columns, schema=self.schema)

    async def slabs(self) -> AsyncGenerator[Slab, None]:
        """Yield the rows by partition and offset."""
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


async def endless(
    feeds: Sequence[Feed], more: More | None = None
) -> AsyncGenerator[Slab, None]:
    """Yield the rows of all partitions as they arrive, forever.

    `more` is called about once a second for feeds of new partitions.
    """
    turns = asyncio.Semaphore(FETCHES_MAX)
    fetches: dict[asyncio.Task[list[Slab]], Feed] = {}
    looking = None if more is None else started(_look(more))

    async def fetch(feed: Feed) -> list[Slab]:
        async with turns:
            return await feed.next()

    def begin(fresh: Iterable[Feed]) -> None:
        fetches.update({started(fetch(feed)): feed for feed in fresh})
        wait_ms = WAIT_MS if len(fetches) <= FETCHES_MAX else TURN_MS
        for feed in fetches.values():
            feed.wait_ms = wait_ms

    try:
        begin(feeds)
        while fetches:
            tasks = [*fetches] if looking is None else [*fetches, looking]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if looking is not None and more is not None and looking.done():
                begin(looking.result())
                looking = started(_look(more))
            ready = {task: task.result() for task in fetches if task.done()}
            begin([fetches.pop(task) for task in ready])
            for slabs in ready.values():
                for slab in slabs:
                    yield slab
    finally:
        await cancel([*fetches, *([] if looking is None else [looking])])


async def _look(more: More) -> list[Feed]:
    await asyncio.sleep(LOOK_EVERY)
    try:
        return await more()
    except Unavailable:
        return []  # the feeds notice if the node is unreachable
