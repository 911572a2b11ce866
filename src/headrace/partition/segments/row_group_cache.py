"""Caches decoded row groups for readers that have not consumed all of their rows yet.

An answer to a fetch has a few MiB, a row group up to 16 MiB: without the cache, a group read in
four answers would be decoded four times. A group is kept only for a reader that was stopped in
the middle of it by a full answer, and is dropped when the reader comes back, or after a while.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

# Of one shard, in Arrow buffers: eight of the largest groups. If more readers are in the middle
# of one at a time, some decode theirs again.
SIZE_MAX: Final = 128 * 1024 * 1024
WAIT_SECONDS: Final = 5.0  # for a reader that may never come back

Key = tuple[bytes, int, tuple[str, ...]]  # digest of the file, number of the group, columns


@dataclass(slots=True)
class RowGroupCache:
    """The newest row groups. Any thread may use it: the rows never change."""

    size: int = 0  # of all kept groups
    clock: float = 0.0  # from the last call of `expire`
    _kept: OrderedDict[Key, tuple[float, list[pa.RecordBatch]]] = field(
        default_factory=OrderedDict
    )  # each since when
    # A collector may end a reader, who keeps his rows then, within any of these calls.
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def take(self, key: Key) -> list[pa.RecordBatch] | None:
        """Return the rows of a group, if they are here, and drop them."""
        with self._lock:
            return self._pop(key)

    def keep(self, key: Key, rows: list[pa.RecordBatch]) -> None:
        """Keep rows for the next answer, and drop the oldest."""
        with self._lock:
            self._pop(key)
            self._kept[key] = self.clock, rows
            self.size += _size(rows)
            while self.size > SIZE_MAX:
                self._pop(next(iter(self._kept)))

    def expire(self, clock: float) -> None:
        """Drop groups whose reader has not come back. `clock` is in seconds."""
        with self._lock:
            self.clock = clock
            while self._kept:
                key, (since, _) = next(iter(self._kept.items()))
                if clock - since < WAIT_SECONDS:
                    return
                self._pop(key)

    def forget(self, file: bytes) -> None:
        """Drop all groups of the file with this digest."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == file]:
                self._pop(key)

    def _pop(self, key: Key) -> list[pa.RecordBatch] | None:
        found = self._kept.pop(key, None)
        if found is None:
            return None
        _, rows = found
        self.size -= _size(rows)
        return rows


def _size(rows: list[pa.RecordBatch]) -> int:
    return sum(batch.nbytes for batch in rows)
