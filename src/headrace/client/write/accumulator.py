"""Rows that a producer was given and has not sent yet. Any thread may put some in."""

import threading
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from typing import Any, Final

import pyarrow as pa

from headrace.client.write.convert import (
    Data,
    batches_of,
    pieces,
    row_of,
    rows_to_batches,
    size_of,
)
from headrace.errors import BadRequest
from headrace.model.column_values import Required, required_of
from headrace.model.schema import conform
from headrace.model.split import about_size

SIZE_MIN: Final = 1024 * 1024  # that a basket takes, however small its batches are


class Signal(Enum):
    """What its owner should do after something was put in."""

    NOTHING = auto()
    LINGER = auto()  # the basket was empty: send it soon
    SEND = auto()  # it has enough for a batch
    FULL = auto()  # nothing was put in


Item = Any  # a list of rows, or a pa.RecordBatch that fits the schema


class Accumulator:
    """Rows and batches, in the order in which they came."""

    def __init__(self, batch_rows: int, batch_size: int, rows_max: int) -> None:
        self._batch_rows = batch_rows
        self._batch_size = batch_size
        self._rows_max = rows_max
        self._size_max = max(SIZE_MIN, batch_size * max(1, rows_max // batch_rows))
        self._lock = threading.Lock()
        self._items: list[Item] = []
        self._row_count = 0
        self._size = 0  # bytes; of rows, about
        self.is_closed = False

    def put(self, item: Item) -> Signal:
        """Take rows, or a batch. Whatever it is, an empty basket takes it.

        Raise BadRequest once it is closed: nobody would take out what is put in.
        """
        rows = None if isinstance(item, pa.RecordBatch) else item
        count = item.num_rows if rows is None else len(rows)
        size = about_size(item) if rows is None else sum(map(size_of, rows))
        with self._lock:
            self.check()
            if self._row_count and not self._has_room(count, size):
                return Signal.FULL
            was_empty, had_enough = not self._row_count, self._has_enough()
            self._row_count += count
            self._size += size
            if rows is None:
                self._items.append(item)
            elif self._items and isinstance(self._items[-1], list):
                self._items[-1].extend(rows)
            else:
                self._items.append(list(rows))
            if self._has_enough() and not had_enough:
                return Signal.SEND
            return Signal.LINGER if was_empty and count else Signal.NOTHING

    def check(self) -> None:
        """Raise BadRequest if it is closed."""
        if self.is_closed:
            raise BadRequest("the producer is closed", hint="Make a new one")

    def close(self) -> None:
        """Take no more. What is in it may be taken out."""
        with self._lock:
            self.is_closed = True

    def take(self) -> list[Item]:
        """Give everything, and be empty."""
        with self._lock:
            items, self._items = self._items, []
            self._row_count = self._size = 0
            return items

    def _has_room(self, count: int, size: int) -> bool:
        return self._row_count + count <= self._rows_max and self._size + size <= self._size_max

    def _has_enough(self) -> bool:
        return self._row_count >= self._batch_rows or self._size >= self._batch_size


def items_of(
    data: Data | Any,  # noqa: ANN401
    schema: pa.Schema,
    required: Required | None = None,
) -> Iterable[Item]:
    """Return what was sent as items: one row, rows, or batches that fit the schema already.

    Many rows are several items: a basket can take them one after another.
    """
    if isinstance(data, dict) or hasattr(data, "model_dump"):
        return [[row_of(data)]]
    if isinstance(data, list | tuple):
        return pieces([row_of(each) for each in data])
    return batches_of(data, schema, required)


def batches_in(
    items: Iterable[Item], schema: pa.Schema, required: Required | None = None
) -> Iterator[pa.RecordBatch]:
    """Give what a basket had as batches, none of which is large because it has many rows."""
    known = required_of(schema) if required is None else required
    for item in items:
        if isinstance(item, pa.RecordBatch):
            # It fitted the schema when it was put in; that may have changed.
            is_fit = item.schema.equals(schema, check_metadata=True)
            yield item if is_fit else conform(item, schema, known)
        else:
            for batch in rows_to_batches(item, schema):
                yield conform(batch, schema, known)
