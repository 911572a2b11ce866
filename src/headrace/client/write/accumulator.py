"""The buffer of a producer: rows that are not sent yet. Thread-safe."""

import threading
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Any, Final

import pyarrow as pa

from headrace.client.write.convert import Converter, Data, pieces, row_of, row_size
from headrace.errors import BadRequest
from headrace.model.split import about_size

SIZE_MIN: Final = 1024 * 1024  # that a buffer accepts, however small its batches are


class Signal(Enum):
    """What the owner should do after a put."""

    NOTHING = auto()
    LINGER = auto()  # the buffer was empty: send it soon
    SEND = auto()  # it has enough for a batch
    FULL = auto()  # nothing was added


Item = Any  # a list of dicts, or a pa.RecordBatch that fits the schema


class Accumulator:
    """Buffered rows and batches, in order of arrival."""

    def __init__(self, batch_rows: int, batch_size: int, rows_max: int) -> None:
        self._batch_rows = batch_rows
        self._batch_size = batch_size
        self._rows_max = rows_max
        self._size_max = max(SIZE_MIN, batch_size * max(1, rows_max // batch_rows))
        self._lock = threading.Lock()
        self._items: list[Item] = []
        self._rows: list[dict[str, object]] = []  # the last item, if it can take more rows
        self._row_count = 0
        self._size = 0  # bytes; approximate for rows
        # Below these, one more row needs no signal.
        self._count_mark, self._size_mark = batch_rows, batch_size
        self.is_closed = False

    def put_row(self, row: dict[str, object]) -> Signal:
        """Add a copy of a row. See `put`, which takes any item."""
        size = row_size(row)
        with self._lock:
            count, total = self._row_count + 1, self._size + size
            if not self._rows or count >= self._count_mark or total >= self._size_mark:
                return self._put([row.copy()], 1, size)
            self._rows.append(row.copy())
            self._row_count, self._size = count, total
            return Signal.NOTHING

    def put(self, item: Item, size: int) -> Signal:
        """Add rows, or a batch, of about `size` bytes. An empty buffer accepts any size.

        Raise BadRequest once it is closed: nothing would be sent any more.
        """
        with self._lock:
            return self._put(item, len(item), size)

    def _put(self, item: Item, count: int, size: int) -> Signal:
        self.check()
        if self._row_count and not self._has_room(count, size):
            return Signal.FULL
        was_empty, had_enough = not self._row_count, self._has_enough()
        self._row_count += count
        self._size += size
        if isinstance(item, pa.RecordBatch):
            self._items.append(item)
            self._rows = []
        elif self._rows:
            self._rows.extend(item)
        else:
            self._rows = list(item)
            self._items.append(self._rows)
        if self._has_enough():
            self._count_mark, self._size_mark = self._rows_max + 1, self._size_max + 1
            return Signal.NOTHING if had_enough else Signal.SEND
        return Signal.LINGER if was_empty and count else Signal.NOTHING

    def check(self) -> None:
        """Raise BadRequest if it is closed."""
        if self.is_closed:
            raise BadRequest("the producer is closed", hint="Create a new one")

    def close(self) -> None:
        """Refuse further rows. Those in it can still be taken."""
        with self._lock:
            self.is_closed = True
            self._rows = []  # so that the next row is checked

    def take(self) -> list[Item]:
        """Return everything and empty the buffer."""
        with self._lock:
            items, self._items, self._rows = self._items, [], []
            self._row_count = self._size = 0
            self._count_mark, self._size_mark = self._batch_rows, self._batch_size
            return items

    def _has_room(self, count: int, size: int) -> bool:
        return self._row_count + count <= self._rows_max and self._size + size <= self._size_max

    def _has_enough(self) -> bool:
        return self._row_count >= self._batch_rows or self._size >= self._batch_size


def items_of(
    data: Data | Any,  # noqa: ANN401
    converter: Converter,
) -> Iterable[tuple[Item, int]]:
    """Return data as items with their sizes: rows, or batches that fit the schema.

    Many rows become several items, which a buffer can take one by one.
    """
    if isinstance(data, dict) or hasattr(data, "model_dump"):
        row = row_of(data)
        return [([row], row_size(row))]
    if isinstance(data, list | tuple):
        return pieces([row_of(each) for each in data])
    return ((batch, about_size(batch)) for batch in converter.batches_of(data))


def batches_in(items: Iterable[Item], converter: Converter) -> Iterator[pa.RecordBatch]:
    """Yield buffered items as batches of a limited number of rows."""
    for item in items:
        if isinstance(item, pa.RecordBatch):
            # It fit the schema when it was added; the schema may have changed.
            yield converter.conformed(item)
        else:
            yield from converter.batches_of(item)
