"""Row groups that were decoded for a reader who has not taken all of their rows yet.

An answer to a fetch has a few MiB, a row group up to 16 MiB of them: without this, one that is
read in four answers would be decoded four times. A group is kept only for a reader who was
stopped in the middle of it, by an answer that is full, and is let go when he has come back, or
has not for a while.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

# Of one shard, in Arrow buffers: eight of the largest groups. More readers than that, each in
# the middle of one at a time, decode theirs again.
SIZE_MAX: Final = 128 * 1024 * 1024
WAIT_SECONDS: Final = 5.0  # for a reader who may never come back

Key = tuple[bytes, int, tuple[str, ...]]  # digest of the file, number of the group, columns


@dataclass(slots=True)
class RowGroupCache:
    """The newest ones. Any thread may use it: nobody changes the rows."""

    size: int = 0  # of all that is kept
    clock: float = 0.0  # as `expire` was told last
    _kept: OrderedDict[Key, tuple[float, list[pa.RecordBatch]]] = field(
        default_factory=OrderedDict
    )  # each since when
    # A collector may end a reader, who keeps his rows then, within any of these calls.
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def take(self, key: Key) -> list[pa.RecordBatch] | None:
        """Return the rows of a group, if they are here, and let them go."""
        with self._lock:
            return self._pop(key)

    def keep(self, key: Key, rows: list[pa.RecordBatch]) -> None:
        """Keep rows for the next answer, and let the oldest go."""
        with self._lock:
            self._pop(key)
            self._kept[key] = self.clock, rows
            self.size += _size(rows)
            while self.size > SIZE_MAX:
                self._pop(next(iter(self._kept)))

    def expire(self, clock: float) -> None:
        """Let those go whose reader has not come back. `clock` is in seconds."""
        with self._lock:
            self.clock = clock
            while self._kept:
                key, (since, _) = next(iter(self._kept.items()))
                if clock - since < WAIT_SECONDS:
                    return
                self._pop(key)

    def forget(self, file: bytes) -> None:
        """Let all groups of a file go, which has this digest."""
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
