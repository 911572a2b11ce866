"""Writers of rows in NDJSON, CSV, Arrow IPC and Parquet, one batch at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.cli.formats.cell_text import csv_lines, encode_rows
from headrace.cli.formats.formats import Format
from headrace.errors import BadRequest

ROW_GROUP_SIZE: Final = 16 * 1024 * 1024  # approximate bytes of Arrow data per row group
PIECE_ROWS: Final = 4_096  # that are converted to text at once


class RowWriter(Protocol):
    """Takes batches of one schema."""

    def write(self, batch: pa.RecordBatch) -> None: ...


@contextmanager
def writing(file: BinaryIO, kind: Format, schema: pa.Schema) -> Iterator[RowWriter]:
    """Yield a writer of rows to `file`. At the end of the block its output is complete."""
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
    """One JSON object per line. Rows of a newer schema have more names."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, batch: pa.RecordBatch) -> None:
        for piece in pieces(batch):
            self._file.write(encode_rows(piece))
        self._file.flush()


class CsvWriter:
    """A header row, then rows. Null is an empty unquoted field, text is quoted."""

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
    """An Arrow IPC stream; each batch can be read as soon as it is written."""

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
    """Parquet with zstd. Small batches are buffered, since each write makes a row group."""

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
        """Write the buffered batches."""
        if self._held:
            self._parquet.write_table(pa.Table.from_batches(self._held, self._schema))
        self._held, self._size = [], 0


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch: as text, rows take many times their size."""
    for start in range(0, batch.num_rows, PIECE_ROWS):
        yield batch.slice(start, PIECE_ROWS)


def check_schema(batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Raise BadRequest if a batch has a newer schema than the first one."""
    if not batch.schema.equals(schema):
        raise BadRequest(
            "the topic has a newer schema, which this format cannot switch to within a file",
            hint="Start another file from here, or use --format ndjson",
        )
