"""Requests that arrived before their partition existed: parked within bounds, up to a deadline.

Each parked request leaves in exactly one way, and is then answered by the caller: taken to be
served, dropped because its life is over, or expired.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from headrace.errors import Busy
from headrace.partition.reader import Key

Item = TypeVar("Item")

COUNT_MAX: Final = 128  # per partition: more would only time out in the queue
SIZE_MAX: Final = 4 * 1024 * 1024  # per partition: one busy topic leaves room for others
TOTAL_SIZE_MAX: Final = 16 * 1024 * 1024  # per shard
CHARGE_MIN: Final = 4 * 1024  # overhead of the smallest request
RETRY_AFTER_MS: Final = 1_000  # about a tick of the reconciler


@dataclass(frozen=True, slots=True)
class _Parked(Generic[Item]):
    item: Item
    charge: int
    deadline_ms: int


@dataclass(slots=True)
class Parking(Generic[Item]):
    """The parked requests of one shard, by the life that they wait for, in order of arrival."""

    parked_count: int = 0  # these count since the start
    served_count: int = 0
    dropped_count: int = 0
    expired_count: int = 0
    _lots: dict[Key, list[_Parked[Item]]] = field(default_factory=dict)
    _size: int = 0

    def __len__(self) -> int:
        """Return how many requests are parked now."""
        return sum(map(len, self._lots.values()))

    @property
    def keys(self) -> AbstractSet[Key]:
        """The lives with waiting requests."""
        return self._lots.keys()

    @property
    def deadline_ms(self) -> int | None:
        """The earliest deadline."""
        every = (each.deadline_ms for lot in self._lots.values() for each in lot)
        return min(every, default=None)

    def park(self, key: Key, item: Item, size: int, deadline_ms: int) -> None:
        """Park one request of `size` bytes, or raise Busy."""
        assert size >= 0
        charge = max(size, CHARGE_MIN)
        lot = self._lots.get(key, [])
        if len(lot) >= COUNT_MAX:
            raise Busy(f"{COUNT_MAX} requests already wait for partition {key}", RETRY_AFTER_MS)
        if charge + sum(each.charge for each in lot) > SIZE_MAX:
            raise Busy(f"{SIZE_MAX} bytes of requests wait for partition {key}", RETRY_AFTER_MS)
        if charge + self._size > TOTAL_SIZE_MAX:
            raise Busy(
                f"{TOTAL_SIZE_MAX} bytes of requests wait for partitions", RETRY_AFTER_MS
            )
        self._lots.setdefault(key, lot).append(_Parked(item, charge, deadline_ms))
        self._size += charge
        self.parked_count += 1

    def take(self, key: Key) -> list[Item]:
        """Remove and return the requests of a life that exists now, to be served in order."""
        items = self._release(key)
        self.served_count += len(items)
        return items

    def drop(self, key: Key) -> list[Item]:
        """Remove and return the requests of a life that is over, to be refused."""
        items = self._release(key)
        self.dropped_count += len(items)
        return items

    def expire(self, now_ms: int) -> list[Item]:
        """Remove and return the requests whose deadline has passed, to time out."""
        gone: list[Item] = []
        for key, lot in list(self._lots.items()):
            late = [each for each in lot if each.deadline_ms <= now_ms]
            if not late:
                continue
            self._keep(key, [each for each in lot if each.deadline_ms > now_ms])
            self._size -= sum(each.charge for each in late)
            gone += [each.item for each in late]
        self.expired_count += len(gone)
        return gone

    def _keep(self, key: Key, lot: list[_Parked[Item]]) -> None:
        if lot:
            self._lots[key] = lot
        else:
            del self._lots[key]

    def _release(self, key: Key) -> list[Item]:
        lot = self._lots.pop(key, [])
        self._size -= sum(each.charge for each in lot)
        assert self._size >= 0
        return [each.item for each in lot]
