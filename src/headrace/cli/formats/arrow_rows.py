"""Parquet and Arrow IPC into batches of a topic's schema, with the row that does not fit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.cli.formats.formats import ARROW_FILE, Format, InputFile, seekable
from headrace.cli.formats.lines import good_count
from headrace.cli.formats.ndjson_rows import unknown_column
from headrace.client.write.convert import batches_of
from headrace.errors import BadBatch, BadRequest, Rejected
from headrace.model.column_types import said
from headrace.model.column_values import names_of

BATCH_ROWS: Final = 16_384  # of a Parquet file that are decoded at once
# A length that is not true may ask for more memory than there is.
_BROKEN: Final = (pa.ArrowException, OSError, ValueError, MemoryError)


class BadRow(Rejected):
    """A row of a file that is none of the schema; the rows before it were given."""


@contextmanager
def arrow_file(
    source: InputFile, kind: Format
) -> Iterator[tuple[pa.Schema, Iterator[pa.Table]]]:
    """Give what schema a Parquet or Arrow file has, and its batches."""
    if kind is Format.ARROW and not source.peek().startswith(ARROW_FILE):
        reader = _opened(source, lambda: pa.ipc.open_stream(source.file))
        yield reader.schema, _each(source, _checked(iter(reader)))
        return
    with seekable(source) as file:
        if kind is Format.ARROW:
            opened = _opened(source, lambda: pa.ipc.open_file(file))
            batches = (opened.get_batch(n) for n in range(opened.num_record_batches))
            yield opened.schema, _each(source, _checked(batches))
        else:
            parquet = _opened(source, lambda: pq.ParquetFile(file))
            yield parquet.schema_arrow, _each(source, parquet.iter_batches(BATCH_ROWS))


def arrow_batches(
    name: str, batches: Iterator[pa.RecordBatch], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Give rows of exactly `schema`, which is canonical. A column that is lacking is null."""
    row = 0  # of the file, from 0
    for batch in batches:
        whole = filled(batch, schema, name)
        try:
            yield from batches_of(whole, schema)
        except BadBatch as error:
            good = good_count(whole, lambda rows: list(batches_of(rows, schema)), BadBatch)
            if good:
                yield from batches_of(whole.slice(0, good), schema)
            raise _bad_row(name, row + good, whole.slice(good, 1), error) from error
        row += batch.num_rows


def filled(batch: pa.RecordBatch, schema: pa.Schema, name: str) -> pa.RecordBatch:
    """Return `batch` with nulls in columns that it lacks. One that is not known is refused."""
    for column in batch.schema.names:
        if column not in schema.names:
            flaw = unknown_column(column, schema.names)
            raise BadRow(f"{name}: {Exception.__str__(flaw)}", hint=flaw.hint)
    for field in schema:
        if field.name not in batch.schema.names:
            batch = batch.append_column(field, pa.nulls(batch.num_rows, field.type))
    return batch


def _bad_row(name: str, row: int, batch: pa.RecordBatch, error: BadBatch) -> BadRow:
    found = ""
    if error.column in batch.schema.names:
        found = f", found {said(repr(batch.column(error.column)[0].as_py()))}"
    text = f"{name} row {row + 1}: {Exception.__str__(error)}{found}"
    return BadRow(text, hint=error.hint)


def _each(source: InputFile, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            batch = next(batches, None)
        except _BROKEN as error:
            raise BadRequest(f"{source.name} is damaged or cut off: {_cause(error)}") from error
        if batch is None:
            return
        yield batch


def _checked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Look into every buffer: Arrow itself trusts what an IPC file says, and may crash."""
    for batch in batches:
        batch.validate(full=True)
        yield batch


def _opened(source: InputFile, opens: Callable[[], Any]) -> Any:  # noqa: ANN401  # Arrow has no types
    try:
        found = opens()
        names_of(found.schema_arrow if isinstance(found, pq.ParquetFile) else found.schema)
        return found
    except (*_BROKEN, Rejected) as error:
        raise BadRequest(f"{source.name} cannot be read as it is: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    return said(error) or type(error).__name__
