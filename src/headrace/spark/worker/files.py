"""Data files of a table, written by tasks on executors.

Each attempt of a task uses a random name. Only files returned by a successful task are
committed; leftovers are not part of the table and are cleaned up later.
"""

import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import StorageFailed
from headrace.spark.worker.plain import plain_rows
from headrace.spark.worker.settle import settle
from headrace.spark.worker.statistics import Statistics

FILE_SIZE: Final = 128 * 1024 * 1024  # Arrow bytes of the rows in one file, approximate
PREFIX: Final = "part-"
# Matches our files only: those of Spark and deltalake have the same prefix.
OURS: Final = re.compile(rf"{re.escape(PREFIX)}[0-9a-f]{{32}}\.parquet")
# What a task returns for each file, as Spark's DDL.
WRITTEN: Final = "path string, size bigint, row_count bigint, stats string"
_AGAIN: Final = (
    "Nothing was committed. Free some space or fix the cause, then restart the pipeline or "
    "query: it resumes with the same rows"
)
WRITTEN_SCHEMA: Final = pa.schema(
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
    """Return a function for `mapInArrow` that writes batches into files below `root`.

    The columns of a batch match those of the schema by position, not by name.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        exact = pa.ipc.read_schema(pa.py_buffer(schema))
        return plain_rows(files(Path(root), exact, batches))

    return write


def files(
    root: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write batches into files below `root`, and return what `WRITTEN` says of each."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(_named(batch, schema))
            size += batch.nbytes
        if size >= FILE_SIZE:
            yield _file(root, schema, held)
            held, size = [], 0
    if held:
        yield _file(root, schema, held)
    settle()


def _named(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _file(root: Path, schema: pa.Schema, rows: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Write one file and return its row, as in `WRITTEN`."""
    try:
        file = write_file(root, schema, [pa.Table.from_batches(rows, schema)])
    except OSError as error:
        raise StorageFailed(str(root), "a new data file", error, hint=_AGAIN) from error
    columns = [
        pa.array([value], field.type) for value, field in zip(file, WRITTEN_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=WRITTEN_SCHEMA)


def write_file(
    root: Path, schema: pa.Schema, tables: Iterable[pa.Table]
) -> tuple[str, int, int, str]:
    """Write one file durably and return its name, size, row count and statistics.

    A failure leaves nothing behind.
    """
    name = f"{PREFIX}{secrets.token_hex(16)}.parquet"
    assert OURS.fullmatch(name)
    path = root / name
    counted = Statistics()
    try:
        with open(path, "xb") as file:
            with pq.ParquetWriter(
                file,
                schema,
                compression="zstd",
                coerce_timestamps="us",
                use_deprecated_int96_timestamps=False,
                write_page_checksum=True,
            ) as writing:
                for table in tables:
                    writing.write_table(table)
                    counted.add(table)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    sync_directory(root)
    return name, path.stat().st_size, counted.row_count, counted.told()


def sync_directory(path: Path) -> None:
    """Sync a directory, so that the names in it are durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
