"""The rows that benches of partitions append: like service records, half compressible."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

KIB = 1024
ROW_SIZE = KIB

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("amount", pa.float64()),
        pa.field("text", pa.string()),
    ]
)
_FIXED_SIZE = 3 * 8 + 4  # three numbers, and the offset of a string
_TEXT_SIZE = ROW_SIZE - _FIXED_SIZE
_DISTINCT = 16  # batches, taken in turn: more than a compressor's window can remember


@dataclass(frozen=True, slots=True)
class Rows:
    """Distinct batches of one size."""

    batches: Sequence[pa.RecordBatch]

    @classmethod
    def of(cls, size: int) -> "Rows":
        """Make batches of about `size` bytes each."""
        return cls([_batch(number, size // ROW_SIZE) for number in range(_DISTINCT)])

    def __getitem__(self, number: int) -> pa.RecordBatch:
        return self.batches[number % len(self.batches)]


def _batch(number: int, row_count: int) -> pa.RecordBatch:
    first = number * row_count
    # Text of hexadecimal digits: eight bits that hold four, as records often are.
    digits = os.urandom(row_count * _TEXT_SIZE // 2 + row_count).hex()
    texts = [digits[row * _TEXT_SIZE : (row + 1) * _TEXT_SIZE] for row in range(row_count)]
    return pa.record_batch(
        [
            pa.array(range(first, first + row_count), pa.int64()),
            pa.array([1_700_000_000_000_000 + 1_000 * row for row in range(row_count)]).cast(
                pa.timestamp("us", "UTC")
            ),
            pa.array([row * 0.01 for row in range(row_count)]),
            pa.array(texts),
        ],
        schema=SCHEMA,
    )
