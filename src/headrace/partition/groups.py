"""Row groups that were decoded for a reader who has not taken all of their rows yet.

An answer to a fetch has a few MiB, a row group up to 64 MiB of them: without this, one that is
read in eight answers would be decoded eight times. A group is let go as soon as a reader has
come to its end, or when others are wanted more.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

COUNT_MAX: Final = 4  # of one shard: as many readers as may be in the middle of one at a time

Key = tuple[bytes, int, tuple[str, ...]]  # digest of the file, number of the group, columns


@dataclass(slots=True)
class Groups:
    """The newest ones. Any thread may use it: nobody changes the rows."""

    _kept: OrderedDict[Key, list[pa.RecordBatch]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, key: Key) -> list[pa.RecordBatch] | None:
        """Return the rows of a group, if they are here."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def keep(self, key: Key, rows: list[pa.RecordBatch]) -> None:
        """Keep rows for the next reader, and let the oldest go."""
        with self._lock:
            self._kept[key] = rows
            while len(self._kept) > COUNT_MAX:
                self._kept.popitem(last=False)

    def drop(self, key: Key) -> None:
        """Let a group go: a reader has come to its end."""
        with self._lock:
            self._kept.pop(key, None)
