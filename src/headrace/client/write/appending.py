"""One append in progress: parcels into their lanes, offsets back."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from headrace.client.connect.retry import Caller
from headrace.client.values.answers import Appended, Range, merged
from headrace.client.values.topic_view import View
from headrace.client.write.sender import Sender
from headrace.errors import HeadraceError
from headrace.model.partition_keys import check_key
from headrace.model.split import BODY_SIZE, Parcel, bodies_of, by_key, gathered
from headrace.wire.topic_messages import PartitionInfo


def parcels(
    view: View,
    batches: Iterable[pa.RecordBatch],
    partition: int | None,
    turns: Iterator[int],
    *,
    limit: int,
    size: int = BODY_SIZE,
) -> Iterator[Parcel]:
    """Yield batches of the topic's newest schema as parcels, each with its partition.

    That is `partition`, or the key's, or, without a key, the next round-robin. Thread-safe:
    uses no loop.
    """
    count, key = len(view.info.partitions), view.key
    if partition is not None:
        view.partition(partition)
    elif key is not None:
        check_key(view.schema, key)
    for batch in gathered(batches, size):
        if partition is not None or key is None:
            places = [(partition, batch)]
        else:
            places = list(by_key(batch, key, count))
        for place, rows in places:
            for row_count, body in bodies_of(rows, limit, size, view.layout):
                number = next(turns) % count if place is None else place
                yield Parcel(number, view.version, row_count, body)


class Appending:
    """The parcels of one append, and their outcomes."""

    def __init__(self, caller: Caller, writer: Sender, view: View) -> None:
        self._caller = caller
        self._writer = writer
        self._view = view
        self._open: deque[asyncio.Future[Range]] = deque()
        self._ranges: list[Range] = []
        self._error: BaseException | None = None

    async def put(self, parcel: Parcel) -> None:
        """Send another parcel. Raises the error of an earlier one that failed."""
        self._collect()
        if self._error is not None:
            raise self._error
        try:
            done = await self._writer.put(parcel, self._info(parcel), self._caller.deadline())
        except asyncio.CancelledError:
            self.abandon()
            raise
        self._open.append(done)

    def begin(self, parcel: Parcel, tell: Callable[[asyncio.Future[Range]], object]) -> None:
        """Send the only parcel, without a task if there is room; `tell` gets its future.

        Raises what `put` would, if known at once.
        """
        done = self._writer.put_now(parcel, self._info(parcel), self._caller.deadline())
        if done is None:
            done = asyncio.ensure_future(self._only(parcel))
        self._open.append(done)
        done.add_done_callback(tell)

    async def _only(self, parcel: Parcel) -> Range:
        done = await self._writer.put(parcel, self._info(parcel), self._caller.deadline())
        return await done

    async def finish(self, parcel: Parcel | None = None) -> Appended:
        """Wait for all, and raise the first error. Its notes list what was appended.

        `parcel` is the last one, not sent yet.
        """
        if parcel is not None:
            await self.put(parcel)
        if len(self._open) == 1 and not self._ranges and self._error is None:
            return Appended((await self._open.popleft(),))
        if self._open:
            try:
                await asyncio.wait(self._open)
            except asyncio.CancelledError:
                self.abandon()
                raise
        self._collect()
        if self._error is not None:
            raise self._error
        return Appended(merged(self._ranges))

    async def fail(self, error: HeadraceError, parcel: Parcel | None = None) -> None:
        """Wait for all, and raise `error`, with a note of what was appended before it.

        `parcel` precedes the error, and is not sent yet.
        """
        try:
            if parcel is not None:
                await self.put(parcel)
        except HeadraceError as earlier:
            error = earlier
        self._error = error
        await self.finish()

    def abandon(self) -> None:
        """Cancel what is not sent yet: the caller no longer waits."""
        for done in self._open:
            done.cancel()

    def _info(self, parcel: Parcel) -> PartitionInfo:
        return self._view.info.partitions[parcel.partition]

    def _collect(self) -> None:
        while self._open and self._open[0].done():
            done = self._open.popleft()
            if done.cancelled():
                continue
            error = done.exception()
            if error is None:
                self._ranges.append(done.result())
            elif self._error is None:
                self._error = error
        if len(self._ranges) > 1:
            self._ranges = list(merged(self._ranges))
        if self._error is not None and not self._open:
            self._note()

    def _note(self) -> None:
        appended = Appended(merged(self._ranges))
        if self._error is not None and appended.row_count:
            self._error.add_note(f"{appended.row_count} rows were appended: {appended.ranges}")
            self._ranges = []
