"""Writers of rows: NDJSON, CSV, Arrow IPC and Parquet, a batch at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.cli.formats.cell_text import csv_lines, encode_rows
from headrace.cli.formats.formats import Format
from headrace.errors import BadRequest

ROW_GROUP_SIZE: Final = 16 * 1024 * 1024  # bytes of Arrow data in one row group, about
PIECE_ROWS: Final = 4_096  # that are made into text at once


class RowWriter(Protocol):
    """Takes batches of one schema."""

    def write(self, batch: pa.RecordBatch) -> None: ...


@contextmanager
def writing(file: BinaryIO, kind: Format, schema: pa.Schema) -> Iterator[RowWriter]:
    """Give what writes rows into `file`. At the end of the block what it wrote is whole."""
    match kind:
        case Format.NDJSON:
            yield NdjsonWriter(file)
        case Format.CSV:
            yield CsvWriter(file, schema)
        case Format.ARROW:
            with pa.ipc.new_stream(file, schema) as stream:
                file.flush()
                yield ArrowWriter(file, schema, stream)
        case Format.PARQUET:
            with pq.ParquetWriter(file, schema, compression="zstd") as parquet:
                writer = ParquetWriter(schema, parquet)
                yield writer
                writer.finish()


class NdjsonWriter:
    """One JSON object on each line. A newer schema has more names."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, batch: pa.RecordBatch) -> None:
        for piece in pieces(batch):
            self._file.write(encode_rows(piece))
        self._file.flush()


class CsvWriter:
    """A head line, then rows. Null is a field without letters, text is in quotes."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._file = file
        self._schema = schema
        names = [pa.array([name]) for name in schema.names]
        self._file.write(csv_lines(pa.RecordBatch.from_arrays(names, names=schema.names)))
        self._file.flush()

    def write(self, batch: pa.RecordBatch) -> None:
        check_schema(batch, self._schema)
        for piece in pieces(batch):
            self._file.write(csv_lines(piece))
        self._file.flush()


class ArrowWriter:
    """An Arrow IPC stream; a batch can be read as soon as it is written."""

    def __init__(
        self, file: BinaryIO, schema: pa.Schema, stream: pa.ipc.RecordBatchStreamWriter
    ) -> None:
        self._file = file
        self._schema = schema
        self._stream = stream

    def write(self, batch: pa.RecordBatch) -> None:
        check_schema(batch, self._schema)
        self._stream.write_batch(batch)
        self._file.flush()


class ParquetWriter:
    """Parquet with zstd. Small batches wait for others: each write is a row group."""

    def __init__(self, schema: pa.Schema, parquet: pq.ParquetWriter) -> None:
        self._schema = schema
        self._parquet = parquet
        self._held: list[pa.RecordBatch] = []
        self._size = 0

    def write(self, batch: pa.RecordBatch) -> None:
        check_schema(batch, self._schema)
        self._held.append(batch)
        self._size += batch.nbytes
        if self._size >= ROW_GROUP_SIZE:
            self.finish()

    def finish(self) -> None:
        """Write what is held."""
        if self._held:
            self._parquet.write_table(pa.Table.from_batches(self._held, self._schema))
        self._held, self._size = [], 0


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Give a batch in pieces: as text, rows take many times their size."""
    for start in range(0, batch.num_rows, PIECE_ROWS):
        yield batch.slice(start, PIECE_ROWS)


def check_schema(batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Raise BadRequest if rows came in a newer schema than the one that was begun with."""
    if not batch.schema.equals(schema):
        raise BadRequest(
            "the topic has a newer schema, and this format cannot change within a file",
            hint="Begin another one from here, or use --format ndjson",
        )
