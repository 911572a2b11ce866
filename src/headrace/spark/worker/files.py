"""Data files of a table, written by tasks on executors.

Each attempt of a task takes a random name. Only files that a successful task returned are
committed; others are no part of the table, and are cleaned up later.
"""

import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.spark.worker.plain import plain_rows

FILE_SIZE: Final = 128 * 1024 * 1024  # of rows in Arrow, about, in one file
PREFIX: Final = "part-"
# What a task returns for each file, as Spark's DDL.
WRITTEN: Final = "path string, size bigint, row_count bigint, stats string"
_SCHEMA: Final = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("row_count", pa.int64()),
        ("stats", pa.string()),
    ]
)


def writer(
    root: str, schema: bytes
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow` that writes batches into files below `root`."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        exact = pa.ipc.read_schema(pa.py_buffer(schema))
        return plain_rows(_files(Path(root), exact, batches))

    return write


def _files(
    root: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch.cast(schema))
            size += batch.nbytes
        if size >= FILE_SIZE:
            yield _told(write_file(root, pa.Table.from_batches(held, schema)))
            held, size = [], 0
    if held:
        yield _told(write_file(root, pa.Table.from_batches(held, schema)))


def _told(file: tuple[str, int, int, str]) -> pa.RecordBatch:
    columns = [
        pa.array([value], field.type) for value, field in zip(file, _SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def write_file(root: Path, table: pa.Table) -> tuple[str, int, int, str]:
    """Write one file, durably, and tell its name, size, rows and statistics."""
    name = f"{PREFIX}{secrets.token_hex(16)}.parquet"
    path = root / name
    with open(path, "xb") as file:
        pq.write_table(
            table,
            file,
            compression="zstd",
            coerce_timestamps="us",
            use_deprecated_int96_timestamps=False,
            write_page_checksum=True,
        )
        file.flush()
        os.fsync(file.fileno())
    sync_directory(root)
    return name, path.stat().st_size, table.num_rows, json.dumps(_stats(table))


def _stats(table: pa.Table) -> dict[str, Any]:
    """Return what readers skip files by: counts, and bounds of whole numbers.

    Nested columns are left out: Delta counts their fields, and takes no number for the whole.
    """
    lows, highs, nulls = {}, {}, {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        if pa.types.is_integer(column.type) and column.null_count < len(column):
            found = pc.min_max(column)
            lows[name], highs[name] = found["min"].as_py(), found["max"].as_py()
    return {
        "numRecords": table.num_rows,
        "minValues": lows,
        "maxValues": highs,
        "nullCount": nulls,
    }


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
