"""Writes a segment: batches of any size become row groups, hashed on their way to the disk."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.errors import (
    BadSchema,
    DiskFull,
    HeadraceError,
    SealFailed,
    StorageFailed,
    first_line,
)
from headrace.model.row_digest import RowDigest
from headrace.model.schema import (
    NO_NAN_KEY,
    SEGMENT_FORMAT,
    SEGMENT_FORMAT_FIRST,
    SYSTEM_FIELDS,
    has_integer_decimals,
    parquet_schema,
    stored_schema,
)
from headrace.partition.segments.segment import (
    OFFSET,
    ROW_DIGEST_KEY,
    SCHEMA_KEY,
    Digests,
    SegmentInfo,
    columns_text,
    encode_stored,
    identity,
    is_dense,
    retyped,
    segment_schema,
)
from headrace.storage.seam import Storage, is_full
from headrace.storage.stream import WriteStream

# A reader holds one row group in memory; the first limit that is reached ends it. Groups of
# 16 MiB are read through a node a quarter faster than those of 64, and scanned 5% slower.
ROW_GROUP_ROWS_MAX: Final = 64 * 1024
ROW_GROUP_SIZE_MAX: Final = 16 * 1024 * 1024  # of Arrow buffers, before encoding

COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL: Final = 1  # level 3 halves the speed and saves next to nothing
# A dictionary of values that do not repeat takes longer to build and to read than the values.
# Of 10,000 random numbers, one in twenty of a sample of 1,024 occurs twice; and Parquet gives a
# dictionary up at 1 MiB, so long values need fewer.
SAMPLE_SIZE: Final = 256 * 1024
SAMPLE_COUNT: Final = 1024  # of short values: fewer than twice as many are taken
SAMPLE_COUNT_MIN: Final = 16  # fewer prove nothing about the rest
UNREPEATED_SHARE: Final = 0.98
# Offsets count up and timestamps nearly so: their differences are a few bits each.
DELTA_ENCODED: Final = slice(1, 3)  # of the system's columns


def write_segment(
    storage: Storage,
    info: SegmentInfo,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    form: int = SEGMENT_FORMAT,
) -> Digests:
    """Write the rows [first, end) into the empty file `storage`, unsynced; return its digests.

    `schema` names the user's columns; `batches` have the system's in front, with the names that
    readers see; `form` is the file's format. After any error the file is garbage. SealFailed:
    the rows do not match `info`, or Parquet cannot hold them; DiskFull and StorageFailed: the
    disk. Named errors of `batches` and MemoryError pass through unchanged.
    """
    assert storage.size() == 0
    sink = WriteStream(storage)
    try:
        rows = _write(sink, info, segment_schema(schema), batches, form)
        sink.flush()
    except pa.ArrowMemoryError:
        raise  # temporary, and not the fault of the rows
    except (pa.ArrowException, OSError, BadSchema) as error:
        raise _named(storage.path, sink, error) from error
    finally:
        sink.abandon()
    return Digests(rows, sink.digest(), sink.byte_count)


def writer_settings(
    schema: pa.Schema, plain: Collection[str] = (), form: int = SEGMENT_FORMAT
) -> dict[str, Any]:
    """Return the writer options of a segment; the leaves in `plain` have no dictionary.

    `schema` has the columns as stored.
    """
    delta = dict.fromkeys(schema.names[DELTA_ENCODED], "DELTA_BINARY_PACKED")
    return {
        "compression": COMPRESSION,
        "compression_level": COMPRESSION_LEVEL,
        "use_dictionary": [
            path for path in leaves(schema) if path not in delta and path not in plain
        ],
        "column_encoding": delta,
        "write_page_checksum": True,
        # Arrow would store the IDs a second time, in a text of three times the size.
        "store_schema": form == SEGMENT_FORMAT_FIRST,
        "store_decimal_as_integer": has_integer_decimals(form),
    }


def unrepeated(first: pa.RecordBatch) -> set[str]:
    """Return the user's columns whose values hardly repeat, by the first row group.

    None that has inner columns.
    """
    users = list(zip(first.schema, first.columns, strict=True))[len(SYSTEM_FIELDS) :]
    return {
        field.name
        for field, column in users
        if not pa.types.is_nested(field.type) and not _repeats(column)
    }


def _repeats(column: pa.Array) -> bool:
    """Whether values repeat, by a sample from all over the column."""
    wanted = SAMPLE_SIZE // max(1, column.nbytes // len(column))
    step = max(1, len(column) // min(max(wanted, SAMPLE_COUNT_MIN), SAMPLE_COUNT))
    sample = column.take(pa.arange(0, len(column), step)).drop_null()
    if len(sample) < SAMPLE_COUNT_MIN:
        return True
    return bool(pc.count_distinct(sample).as_py() < len(sample) * UNREPEATED_SHARE)


def row_groups(
    batches: Iterable[pa.RecordBatch], rows_max: int, size_max: int
) -> Iterator[list[pa.RecordBatch]]:
    """Gather `batches` into groups within both limits; split only a batch that exceeds them.

    A row that alone exceeds `size_max` has a group to itself.
    """
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for whole in batches:
        batch, batch_size = whole, whole.nbytes
        if group and (rows + batch.num_rows > rows_max or size + batch_size > size_max):
            yield group
            group, rows, size = [], 0, 0
        while batch.num_rows > rows_max or (batch_size > size_max and batch.num_rows > 1):
            count = max(1, _fitting(batch, rows_max, size_max))
            yield [batch.slice(0, count)]
            batch = batch.slice(count)
            batch_size = batch.nbytes
        if batch.num_rows:
            group.append(batch)
            rows += batch.num_rows
            size += batch_size
    if group:
        yield group


def _fitting(batch: pa.RecordBatch, rows_left: int, size_left: int) -> int:
    """Return how many of the first rows are within both limits."""
    rows: int = min(batch.num_rows, rows_left)
    if batch.slice(0, rows).nbytes <= size_left:
        return rows
    return (
        bisect_right(range(rows), size_left, lo=1, key=lambda n: batch.slice(0, n).nbytes) - 1
    )


def _write(
    sink: WriteStream,
    info: SegmentInfo,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    form: int,
) -> bytes:
    """Write the file and return the digest of its rows."""
    groups = _checked(sink.storage.path, info, schema, batches)
    first = next(groups)
    file = pa.PythonFile(sink, mode="w")
    stored = stored_schema(schema, form)
    writer = pq.ParquetWriter(file, stored, **writer_settings(stored, unrepeated(first), form))
    digest = RowDigest(schema)  # of the names that readers see: equal in every format
    try:
        for batch in chain([first], groups):
            digest.update(batch)
            renamed = batch.rename_columns(stored.names)
            writer.write_batch(renamed, row_group_size=batch.num_rows)
        rows = digest.digest()
        writer.add_key_value_metadata(
            {**identity(info, form), ROW_DIGEST_KEY: rows.hex(), **_said(digest, schema, form)}
        )
        writer.close()
    except BaseException:
        sink.abandon()
        with suppress(pa.ArrowException, OSError):
            writer.close()
        raise
    return rows


def _said(digest: RowDigest, schema: pa.Schema, form: int) -> dict[str, str]:
    """Return what a footer says of its columns from format 2 on."""
    if form == SEGMENT_FORMAT_FIRST:
        return {}
    leaves_text = ",".join(map(str, digest.leaves_without_nan()))
    return {NO_NAN_KEY: leaves_text, SCHEMA_KEY: encode_stored(schema, form)}


def _checked(
    path: str, info: SegmentInfo, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield one batch per row group, with exactly the offsets from first to end."""
    offset = int(info.first)
    alike = _alike(path, schema, batches)
    for group in row_groups(alike, ROW_GROUP_ROWS_MAX, ROW_GROUP_SIZE_MAX):
        batch = group[0] if len(group) == 1 else pa.concat_batches(group)
        if not is_dense(batch.column(OFFSET), offset):
            raise SealFailed(path, f"its offsets are not consecutive from {offset}")
        offset += batch.num_rows
        if offset > info.end:
            break
        yield batch
    if offset != info.end:
        more = "more" if offset > info.end else offset - info.first
        raise SealFailed(path, f"expected {info.row_count} rows, found {more}")


def _alike(
    path: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if not batch.schema.equals(schema):
            raise SealFailed(
                path, f"a batch has unexpected columns: {columns_text(batch.schema)}"
            )
        strictly = batch.schema.equals(schema, check_metadata=True)
        yield batch if strictly else retyped(batch, schema)


@lru_cache(maxsize=64)  # a child writes many segments of few schemas
def leaves(schema: pa.Schema) -> list[str]:
    """Return the Parquet paths of all columns, such as `items.list.element.price`.

    Arrow names encoded columns by these paths.
    """
    columns = parquet_schema(schema, SEGMENT_FORMAT_FIRST)  # as it is
    return [columns.column(index).path for index in range(len(columns))]


def _named(path: str, sink: WriteStream, error: Exception) -> HeadraceError:
    if isinstance(error, OSError) and error is sink.failure:
        return (
            DiskFull(path, "write") if is_full(error) else StorageFailed(path, "write", error)
        )
    return SealFailed(path, first_line(error))
