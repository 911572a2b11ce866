"""Data files of a table, written by tasks on executors.

A file is named after the pipeline and the number of its newest commit, which only the next one
may follow: once another commit has taken that number, the file can no longer enter the table.
Each attempt of a task uses a random name. Only files returned by a successful task are
committed; leftovers are not part of the table and are cleaned up later.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENOENT
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import StorageFailed
from headrace.spark.stores.location import Location
from headrace.spark.stores.store import store_of
from headrace.spark.worker.plain import plain_rows
from headrace.spark.worker.settle import settle
from headrace.spark.worker.statistics import Statistics

FILE_SIZE: Final = 128 * 1024 * 1024  # Arrow bytes of the rows in one file, approximate
PREFIX: Final = "part-"
# Matches our files only: those of Spark and deltalake have the same prefix. Before there were
# pipelines and numbers in names, a file had neither.
OURS: Final = re.compile(
    rf"{PREFIX}(?:(?P<pipeline>[\w.-]+)-(?P<base>\d+)-)?[0-9a-f]{{32}}\.parquet", re.ASCII
)
COPY_KEY: Final = "headrace.copy_of"  # in a footer: rows as they are, of this life of a topic
_AGAIN: Final = (
    "Nothing was committed. Free some space or fix the cause, then restart the pipeline or "
    "query: it resumes with the same rows"
)
_NOT_SEEN: Final = "No such file or directory"
# What a task returns for each file, as Spark's DDL.
WRITTEN: Final = "path string, size bigint, row_count bigint, stats string"
WRITTEN_SCHEMA: Final = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("row_count", pa.int64()),
        ("stats", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Writing:
    """Where and as what tasks write the files of one commit. Holds no secret and no handle."""

    location: Location  # of the table
    pipeline: str
    base: int  # number of the pipeline's newest commit; that of these files is the next one
    schema: bytes  # of the files, as Arrow IPC
    life: str = ""  # of the topic whose rows are written as they are; empty: they are not

    @classmethod
    def of(cls, location: Location, pipeline: str, base: int, schema: pa.Schema) -> "Writing":
        return cls(location, pipeline, base, schema.serialize().to_pybytes())

    @property
    def columns(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))

    def name(self) -> str:
        """Return a new name for a file."""
        return f"{PREFIX}{self.pipeline}-{self.base}-{secrets.token_hex(16)}.parquet"


def writer(
    writing: Writing,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow` that writes batches into files.

    The columns of a batch match those of the schema by position, not by name.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return plain_rows(files(writing, batches))

    return write


def files(writing: Writing, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write batches into files, and return what `WRITTEN` says of each."""
    schema = writing.columns
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(_named(batch, schema))
            size += batch.nbytes
        if size >= FILE_SIZE:
            yield _file(writing, schema, held)
            held, size = [], 0
    if held:
        yield _file(writing, schema, held)
    settle()


def _named(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _file(writing: Writing, schema: pa.Schema, rows: list[pa.RecordBatch]) -> pa.RecordBatch:
    return as_written(write_file(writing, [pa.Table.from_batches(rows, schema)]))


def as_written(file: tuple[str, int, int, str]) -> pa.RecordBatch:
    """Return what a task says of a file, as in `WRITTEN`."""
    columns = [
        pa.array([value], field.type) for value, field in zip(file, WRITTEN_SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=WRITTEN_SCHEMA)


def write_file(writing: Writing, tables: Iterable[pa.Table]) -> tuple[str, int, int, str]:
    """Write one file durably and return its name, size, row count and statistics.

    A failure leaves nothing behind.
    """
    name, counted = writing.name(), Statistics()
    with new_file(writing, name) as file:
        rows = pq.ParquetWriter(
            file,
            writing.columns,
            compression="zstd",
            coerce_timestamps="us",
            use_deprecated_int96_timestamps=False,
            write_page_checksum=True,
        )
        with rows:
            for table in tables:
                rows.write_table(table)
                counted.add(table)
            if writing.life:
                rows.add_key_value_metadata({COPY_KEY: writing.life})
        size = file.tell()
    return name, size, counted.row_count, counted.told()


@contextmanager
def new_file(writing: Writing, name: str) -> Iterator[BinaryIO]:
    """Write a new file of a table in a `with` block: it is whole, or absent.

    The table was created by the driver: without its directory, this is another disk.
    """
    location = writing.location
    try:
        if location.is_path and not Path(location.url).is_dir():
            raise StorageFailed(location.url, "a new data file", OSError(ENOENT, _NOT_SEEN))
        with store_of(location).write(name) as file:
            yield file
    except StorageFailed as error:
        if type(error) is not StorageFailed:
            raise  # it has a next step of its own
        stage, cause = "a new data file", error.cause
        raise StorageFailed(location.url, stage, cause, hint=_AGAIN) from error
