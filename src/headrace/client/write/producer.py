"""A producer: buffers rows, one or many at a time, and appends them in batches."""

import asyncio
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from headrace.client.values.answers import Appended, Range, merged
from headrace.client.write.accumulator import Accumulator, Item, Signal, batches_in, items_of
from headrace.client.write.appending import parcels
from headrace.client.write.convert import Data
from headrace.client.write.ledger import Ledger
from headrace.client.write.sender import Sender
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.topic import AsyncTopic

BATCH_ROWS: Final = 10_000  # enough to fill a batch, few enough to convert in milliseconds
BUFFERED: Final = 4  # batches that may wait: one is converted while others fill
_NOTHING: Final[tuple[Signal, ...]] = ()
RANGES_MAX: Final = 65_536  # that `flush` tells of; older ones are in the ledger, if anywhere


class AsyncProducer:
    """Made by `AsyncLog.producer`. Rows of one key, and of one partition, keep their order."""

    def __init__(
        self,
        topic: "AsyncTopic",
        *,
        linger: float,
        batch_rows: int,
        batch_size: int,
        partition: int | None = None,
        ledger: Ledger | None,
    ) -> None:
        self.topic = topic
        self._partition = partition  # None: by key, or in turns
        self._linger = linger
        self._batch_size = batch_size
        self._basket = Accumulator(batch_rows, batch_size, BUFFERED * batch_rows)
        self._ledger = ledger
        self._writer = Sender(topic.caller, topic.name, ledger)
        self._turns = itertools.count()
        self._sending = asyncio.Lock()  # one sends at a time, so that rows keep their order
        self._open: set[asyncio.Future[Range]] = set()
        self._ranges: deque[Range] = deque(maxlen=RANGES_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._next: asyncio.Task[None] | None = None  # a push that has taken nothing yet
        self._timer: asyncio.TimerHandle | None = None
        self.is_closed = False
        self.failure: BaseException | None = None  # of rows sent before; told once

    def __repr__(self) -> str:
        return f"<producer of {self.topic.name!r}>"

    async def __aenter__(self) -> "AsyncProducer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, data: Data | object) -> None:
        """Buffer a row, a list of rows or a table. Blocks while the buffer is full.

        Raises the error of an earlier batch that failed.
        """
        for signal in self.put(data):
            if signal is Signal.FULL:
                await self.push()
            else:
                self.on_signal(signal)

    def put(self, data: Data | object) -> Iterable[Signal]:
        """Put what was sent into the basket, and give what is to be done meanwhile.

        Any thread may do it, and tells the loop the signals. After FULL it goes on.
        """
        if self.failure is not None:
            self._basket.check()
            self._tell()
        if type(data) is dict and (signal := self._basket.put_row(data)) is not Signal.FULL:
            return _NOTHING if signal is Signal.NOTHING else (signal,)
        return self._put_all(data)

    def _put_all(self, data: Data | object) -> Iterator[Signal]:
        self._basket.check()
        topic = self.topic
        for item, size in items_of(data, topic.converter(topic.view)):
            while (signal := self._basket.put(item, size)) is Signal.FULL:
                yield signal
            yield signal

    def _tell(self) -> None:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    def on_signal(self, signal: Signal) -> None:
        """Do what a basket asks for. Runs on the loop."""
        if signal is Signal.SEND:
            self._begin_push()
        elif signal is Signal.LINGER and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._linger, self._begin_push)

    async def flush(self) -> Appended:
        """Wait until all rows sent are on disk. Returns the offsets since the last flush.

        Returns at most the last 65,536 batches.
        """
        self._basket.check()
        await self._settle()
        ranges, self._ranges = self._ranges, deque(maxlen=RANGES_MAX)
        return Appended(merged(ranges))

    async def close(self) -> None:
        """Flush, then close. Later sends are refused."""
        if self.is_closed:
            return
        self._basket.close()
        try:
            await self._settle()
        finally:
            self.is_closed = True
            if self._timer is not None:
                self._timer.cancel()
            await self._writer.close()
            if self._tasks:  # a closed writer refuses what they still have
                await asyncio.wait(set(self._tasks))
            ledger, self._ledger = self._ledger, None
            if ledger is not None:
                ledger.close()

    async def _settle(self) -> None:
        """Wait until all rows sent are on disk; raise if some are not."""
        await self.push()
        while self._open:
            await asyncio.wait(set(self._open))
        self._tell()

    async def push(self) -> None:
        """Send what is in the basket. What goes wrong is told by the next call.

        Who stops waiting stops nothing: rows that were taken are sent.
        """
        await asyncio.wait({self._begin_push()})

    def _begin_push(self) -> asyncio.Task[None]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._next is None:
            self._next = asyncio.create_task(self._push())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._pushed)
        return self._next

    def _pushed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._next is task:
            self._next = None
        if not task.cancelled():
            self.failure = self.failure or task.exception()

    async def _push(self) -> None:
        async with self._sending:
            self._next = None
            items = self._basket.take()
            if not items:
                return
            try:
                await self._send(items)
            except HeadraceError as error:
                self.failure = self.failure or error

    async def _send(self, items: list[Item]) -> None:
        topic = self.topic
        view = topic.view
        # All are judged before the first is sent.
        batches = list(batches_in(items, topic.converter(view)))
        limit = topic.caller.channel.body_size_max
        for parcel in parcels(
            view, batches, self._partition, self._turns, limit=limit, size=self._batch_size
        ):
            info = view.info.partitions[parcel.partition]
            done = await self._writer.put(parcel, info, topic.caller.deadline())
            self._open.add(done)
            done.add_done_callback(self._landed)

    def _landed(self, done: asyncio.Future[Range]) -> None:
        self._open.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._ranges.append(done.result())
        else:
            self.failure = self.failure or error
