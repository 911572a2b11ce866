"""The lanes of one handle or producer, and the limit on bytes in flight in all of them."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from xxhash import xxh3_128_digest

from headrace.client.connect.retry import Caller
from headrace.client.values.answers import Range
from headrace.client.write.in_flight import Draft
from headrace.client.write.ledger import Ledger
from headrace.client.write.partition_sender import (
    PartitionSender,
    SendTarget,
    closed,
    new_writer,
)
from headrace.errors import TimedOut
from headrace.model.split import Parcel
from headrace.wire.topic_messages import PartitionInfo

# Bytes of bodies over all partitions. Two bodies of the usual size keep a disk busy; more only
# take memory on both sides, and many producers could exceed a node's queue.
IN_FLIGHT_SIZE_MAX: Final = 8 * 1024 * 1024


class Budget:
    """Bytes that may be held at once, granted in order of arrival."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take_now(self, size: int) -> int | None:
        """Take what `take` would, if available at once; else return None."""
        wanted = min(size, self._size)
        if self._waiting or self._free < wanted:
            return None
        self._free -= wanted
        return wanted

    async def take(self, size: int) -> int:
        """Wait for `size` bytes, or for the whole budget if larger; return how many."""
        wanted = min(size, self._size)
        if self.take_now(size) is None:
            waiter = asyncio.get_running_loop().create_future()
            entry = (wanted, waiter)
            self._waiting.append(entry)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self.give(wanted)
                else:
                    with suppress(ValueError):
                        self._waiting.remove(entry)
                    self._serve()
                raise
        return wanted

    def give(self, size: int) -> None:
        """Return bytes to the budget."""
        self._free += size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._free >= self._waiting[0][0]:
            size, waiter = self._waiting.popleft()
            if not waiter.done():
                self._free -= size
                waiter.set_result(None)


class Sender:
    """One writer, with a lane per partition, created on demand."""

    def __init__(self, caller: Caller, topic: str, ledger: Ledger | None = None) -> None:
        self._caller = caller
        self._topic = topic
        self._ledger = ledger
        self._name = new_writer()
        self._lanes: dict[int, PartitionSender] = {}
        self._budget = Budget(IN_FLIGHT_SIZE_MAX)
        self._is_closed = False

    async def put(
        self, parcel: Parcel, info: PartitionInfo, deadline: float
    ) -> asyncio.Future[Range]:
        """Pass a batch to its partition's lane once there is room; returns its future."""
        done = self.put_now(parcel, info, deadline)
        if done is None:
            taken = await self._take(parcel.body.nbytes, deadline)
            done = self._put(parcel, info, deadline, taken)
        return done

    def put_now(
        self, parcel: Parcel, info: PartitionInfo, deadline: float
    ) -> asyncio.Future[Range] | None:
        """Do what `put` does if there is room at once; else return None."""
        taken = self._budget.take_now(parcel.body.nbytes)
        return None if taken is None else self._put(parcel, info, deadline, taken)

    def _put(
        self, parcel: Parcel, info: PartitionInfo, deadline: float, taken: int
    ) -> asyncio.Future[Range]:
        if self._is_closed:
            self._budget.give(taken)
            raise closed()
        done: asyncio.Future[Range] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda _: self._budget.give(taken))
        checksum = xxh3_128_digest(parcel.body)
        draft = Draft(parcel.body, parcel.row_count, parcel.schema_id, checksum, deadline, done)
        self._lane(parcel.partition, info).put(draft)
        return done

    async def _take(self, size: int, deadline: float) -> int:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._budget.take(size)
        except TimeoutError:
            raise TimedOut("the batches before this one took too long") from None

    async def close(self) -> None:
        """Give up what is under way, and accept nothing more."""
        self._is_closed = True
        await asyncio.gather(*(lane.stop() for lane in self._lanes.values()))

    def _lane(self, number: int, info: PartitionInfo) -> PartitionSender:
        lane = self._lanes.get(number)
        if lane is None:
            target = SendTarget(self._topic, number, info)
            lane = self._lanes[number] = PartitionSender(
                self._caller, target, self._name, self._ledger
            )
        return lane
