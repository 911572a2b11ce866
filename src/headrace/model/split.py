"""Splits rows into partitions by key, and into batches by size."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BodyTooLarge
from headrace.model import batch as bodies
from headrace.model.partition_keys import partitions_of

# Smaller batches may be sized by their whole buffers: 32 of them fill a body. Columns may
# share a buffer, so the total of many columns says little.
_SMALL_SIZE: Final = 128 * 1024
_FEW_COLUMNS: Final = 32
BODY_SIZE: Final = 4 * 1024 * 1024  # of one batch, about: large enough to fill a disk's queue


@dataclass(frozen=True, slots=True)
class Parcel:
    """One batch as it is sent."""

    partition: int
    schema_id: int
    row_count: int
    body: memoryview


def by_key(batch: pa.RecordBatch, key: str, count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each partition, in the order of `batch`."""
    if count == 1:
        yield 0, batch
        return
    partitions = partitions_of(batch.column(key), count, key)
    counts = {each["values"]: each["counts"] for each in partitions.value_counts().to_pylist()}
    if len(counts) == 1:
        yield next(iter(counts)), batch
        return
    grouped = batch.take(pc.array_sort_indices(partitions))  # a stable sort
    start = 0
    for partition in sorted(counts):
        yield partition, grouped.slice(start, counts[partition])
        start += counts[partition]


def gathered(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Merge small batches up to about `size` bytes; large ones stay as they are."""
    held: list[pa.RecordBatch] = []
    held_size = 0
    for batch in batches:
        batch_size = about_size(batch)
        if held and batch_size >= size:
            yield joined(held)
            held, held_size = [], 0
        held.append(batch)
        held_size += batch_size
        if held_size >= size:
            yield joined(held)
            held, held_size = [], 0
    if held:
        yield joined(held)


def about_size(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch; for a small one, those of its whole buffers.

    Arrow recounts the bytes of the rows alone each time, which is slower than hashing them.
    """
    size = int(batch.get_total_buffer_size())
    is_small = size <= _SMALL_SIZE and batch.num_columns <= _FEW_COLUMNS
    return size if is_small else int(batch.nbytes)


def bodies_of(
    batch: pa.RecordBatch,
    limit: int,
    size: int = BODY_SIZE,
    known: bodies.Layout | None = None,
) -> Iterator[tuple[int, memoryview]]:
    """Yield a batch as bodies of about `size` bytes, each with its number of rows.

    Raise BodyTooLarge for a single row over `limit`.
    """
    known = known or bodies.layout(batch.schema)
    size, found = min(size, limit), batch.nbytes
    if found <= size and batch.num_rows <= bodies.ROW_COUNT_MAX:  # most are one body
        yield from _cut(batch, limit, known, found)
        return
    row_count = max(1, batch.num_rows * size // max(found, size))
    row_count = min(row_count, bodies.ROW_COUNT_MAX)
    for start in range(0, batch.num_rows, row_count):
        piece = batch.slice(start, row_count)
        yield from _cut(piece, limit, known, piece.nbytes)


def _cut(
    batch: pa.RecordBatch, limit: int, known: bodies.Layout, size: int
) -> Iterator[tuple[int, memoryview]]:
    """Halve a batch of `size` until it fits: rows may differ greatly in size."""
    half = batch.num_rows // 2
    if not half or size <= limit:
        body = memoryview(bodies.encode(batch, known, size))
        if body.nbytes <= limit:
            yield batch.num_rows, body
            return
        if not half:
            raise BodyTooLarge(body.nbytes, limit, row_count=1)
    for part in (batch.slice(0, half), batch.slice(half)):
        yield from _cut(part, limit, known, part.nbytes)


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches of one schema as one."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
