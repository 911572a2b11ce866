"""From appended batches to rows as readers see them.

`_partition`, `_offset` and `_timestamp` precede the user's columns; rows of an older schema
version are shown in the newer one, and only requested columns are returned.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Final

import pyarrow as pa

from headrace.errors import BadRequest
from headrace.model.batch import Body, Layout, decode
from headrace.model.column_types import said
from headrace.model.schema import SYSTEM_FIELDS, upgrade

_PARTITION, _OFFSET, _TIMESTAMP = SYSTEM_FIELDS
# Sources of the system columns.
_FROM_PARTITION: Final = -1
_FROM_OFFSET: Final = -2
_FROM_TIMESTAMP: Final = -3
_SYSTEM_SOURCES: Final = {
    _PARTITION.name: _FROM_PARTITION,
    _OFFSET.name: _FROM_OFFSET,
    _TIMESTAMP.name: _FROM_TIMESTAMP,
}


@dataclass(frozen=True, slots=True)
class Projection:
    """The columns in which rows are returned."""

    user: pa.Schema  # all columns of the target version
    schema: pa.Schema  # of the answer
    sources: tuple[int, ...]  # per column: the index of a user column, or a system source

    @classmethod
    def of(cls, user: pa.Schema, columns: Sequence[str] | None) -> "Projection":
        """Return a projection on all columns, the system's first, or on those requested."""
        whole = pa.schema([*SYSTEM_FIELDS, *user])
        if columns is None:
            return cls(user, whole, _sources(user, whole))
        if not columns or len(set(columns)) < len(columns):
            raise BadRequest(
                "no columns" if not columns else "a column is listed twice",
                hint="List each column once, or omit columns to get all",
            )
        for name in columns:
            if name not in whole.names:
                near = get_close_matches(name, whole.names, 1)
                hint = (
                    f"Did you mean {near[0]!r}?"
                    if near
                    else f"The columns are {said(', '.join(whole.names))}"
                )
                raise BadRequest(f"there is no column {said(name)!r}", hint=hint)
        chosen = pa.schema([whole.field(name) for name in columns])
        return cls(user, chosen, _sources(user, chosen))


def _sources(user: pa.Schema, chosen: pa.Schema) -> tuple[int, ...]:
    return tuple(
        _SYSTEM_SOURCES[name] if name in _SYSTEM_SOURCES else user.get_field_index(name)
        for name in chosen.names
    )


@dataclass(frozen=True, slots=True)
class RowPlace:
    """The place of an entry's rows in their partition."""

    partition_id: int
    first: int
    timestamp: int  # microseconds


def placed(rows: pa.RecordBatch, place: RowPlace, shape: Projection) -> pa.RecordBatch:
    """Return the user's rows, already of the shape's version, in that shape."""
    count = rows.num_rows
    columns = [
        rows.column(source) if source >= 0 else _system(source, place, count)
        for source in shape.sources
    ]
    return pa.RecordBatch.from_arrays(columns, schema=shape.schema)


def read_entry(
    body: Body,
    schema: pa.Schema,
    row_count: int,
    place: RowPlace,
    shape: Projection,
    known: Layout | None = None,
) -> pa.RecordBatch:
    """Return the rows of one entry with `schema`. BadBatch if the bytes do not match it.

    `known` is the layout of `schema`, if the caller has it.
    """
    return placed(upgrade(decode(body, schema, row_count, known), shape.user), place, shape)


def cut(rows: pa.RecordBatch, first: int, start: int, end: int | None) -> pa.RecordBatch:
    """Return the rows from `start` to `end` (exclusive); `first` is the first row's offset."""
    last = first + rows.num_rows
    start, end = max(start, first), last if end is None else min(end, last)
    if (start, end) == (first, last):
        return rows
    return rows.slice(start - first, max(0, end - start))


def _system(source: int, place: RowPlace, count: int) -> pa.Array:
    if source == _FROM_OFFSET:
        return pa.arange(place.first, place.first + count)
    if source == _FROM_PARTITION:
        return _partition(place.partition_id, 1 << count.bit_length())[:count]
    assert source == _FROM_TIMESTAMP
    return _constant(_TIMESTAMP, place.timestamp, count)


@lru_cache(maxsize=4)
def _partition(partition_id: int, count: int) -> pa.Array:
    return _constant(_PARTITION, partition_id, count)


def _constant(field: pa.Field, value: int, count: int) -> pa.Array:
    """Return a column that repeats one value."""
    width = field.type.bit_width // 8
    data = value.to_bytes(width, "little", signed=True) * count
    return pa.Array.from_buffers(field.type, count, [None, pa.py_buffer(data)])
