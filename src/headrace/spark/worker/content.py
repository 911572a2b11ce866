"""A digest of the rows of a batch that does not depend on their order or their tasks.

    content := the sum, modulo 2^128, of BLAKE2b-128 over each row's values

A batch that is recomputed after a crash has the same rows, perhaps in another order and in
other tasks. Only batches that were already published are digested: it costs microseconds a row.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import pyarrow as pa

_SIZE: Final = 16  # bytes of a digest


@dataclass(frozen=True, slots=True)
class Content:
    """An unordered set of rows, as count and digest. Those of several tasks add up."""

    row_count: int = 0
    sum: int = 0

    def __add__(self, other: "Content") -> "Content":
        total = (self.sum + other.sum) % (1 << 8 * _SIZE)
        return Content(self.row_count + other.row_count, total)


def content_of(rows: pa.RecordBatch) -> Content:
    """Digest rows: their values, in the order of the columns."""
    columns = [column.cast(_plain(column.type)).to_pylist() for column in rows.columns]
    total = 0
    for row in zip(*columns, strict=True):
        total += int.from_bytes(blake2b(repr(row).encode(), digest_size=_SIZE).digest(), "big")
    return Content(rows.num_rows, total % (1 << 8 * _SIZE))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type with the same `repr` everywhere: times and dates as numbers."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return kind
