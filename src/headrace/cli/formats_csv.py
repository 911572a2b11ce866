"""CSV into batches, as RFC 4180 has it: a head line with the columns' names, then rows.

A field without quotes and without letters is null; `""` is empty text. Lists, maps and structs
are JSON in a field, binaries are base64.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from headrace.cli.formats import Source
from headrace.cli.formats_csv_text import COMMA, QUOTE, names_in_head, text_columns
from headrace.cli.formats_fields import field_of
from headrace.cli.formats_lines import (
    LINE_SIZE_MAX,
    BadLine,
    Chunk,
    Unfit,
    fitted,
    shown,
    whole_lines,
)
from headrace.cli.formats_ndjson import conformed, text_of, unknown_column
from headrace.model.values import required_of


@dataclass(frozen=True, slots=True)
class Csv:
    """A CSV whose head was read: the columns it has, and the records that follow."""

    name: str
    columns: list[str]
    chunks: Iterator[Chunk]
    delimiter: str = COMMA


def open_csv(source: Source, delimiter: str | None = None) -> Csv:
    """Read the head. An empty file has no columns."""
    between = delimiter or COMMA
    chunks = _records(source)
    for chunk in chunks:
        places = [n for n, record in enumerate(chunk.records) if not _is_blank(record, between)]
        if places:
            head = places[0]
            columns = _head(source.name, chunk.records[head], chunk.lines[head], delimiter)
            rest = Chunk(chunk.records[head + 1 :], chunk.lines[head + 1 :])
            rows: Iterator[Chunk] = chain([rest], chunks)
            if len(columns) > 1:
                rows = _without_blank(rows, between)
            return Csv(source.name, columns, rows, between)
    return Csv(source.name, [], iter(()))


def csv_batches(opened: Csv, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Give rows of exactly `schema`, which is canonical. A column that is lacking is null."""
    for name in opened.columns:
        if name not in schema.names:
            flaw = unknown_column(name, schema.names)
            raise BadLine(opened.name, 1, flaw, hint=flaw.hint)
    yield from fitted(opened.name, opened.chunks, converter(opened, schema))


def converter(opened: Csv, schema: pa.Schema) -> Callable[[list[bytes]], pa.RecordBatch]:
    """Return what makes records rows of `schema`."""
    required = required_of(schema)

    def convert(records: list[bytes]) -> pa.RecordBatch:
        texts = text_columns(opened.columns, records, opened.delimiter)
        made = [
            field_of(texts[field.name], field.type, field.name)
            if field.name in texts
            else pa.nulls(len(records), field.type)
            for field in schema
        ]
        return conformed(pa.RecordBatch.from_arrays(made, schema=schema), schema, required)

    return convert


def _head(name: str, record: bytes, line: int, delimiter: str | None) -> list[str]:
    try:
        columns = names_in_head(record, delimiter)
    except Unfit as flaw:
        raise BadLine(name, line, flaw, hint=flaw.hint) from None
    for column in columns:
        if not column or columns.count(column) > 1:
            what = "a column has no name" if not column else f"{column!r} is there twice"
            raise BadLine(name, line, Unfit(what), hint="Give each column a name of its own")
    return columns


def _without_blank(chunks: Iterator[Chunk], delimiter: str) -> Iterator[Chunk]:
    """Leave out blank lines. Of one column, a blank line is a row, which is null."""
    for chunk in chunks:
        records = chunk.records
        kept = [n for n, record in enumerate(records) if not _is_blank(record, delimiter)]
        yield Chunk([records[n] for n in kept], [chunk.lines[n] for n in kept])


def _is_blank(record: bytes, delimiter: str) -> bool:
    return not record.strip() and delimiter.encode() not in record


def _records(source: Source) -> Iterator[Chunk]:
    """Join lines that one quoted field spans. A record ends where all quotes are closed."""
    held: list[bytes] = []
    start, number, size = 1, 0, 0
    for lines in whole_lines(source):
        chunk = Chunk()
        for line in lines:
            number += 1
            if not held and line.count(QUOTE) % 2 == 0:
                chunk.records.append(line.removesuffix(b"\r"))
                chunk.lines.append(number)
                continue
            start = start if held else number
            held.append(line)
            size += len(line)
            if len(held) > 1 and line.count(QUOTE) % 2 == 1:
                chunk.records.append(b"\n".join(held).removesuffix(b"\r"))
                chunk.lines.append(start)
                held, size = [], 0
        yield chunk
        if size > LINE_SIZE_MAX:
            break
    if held:
        flaw = Unfit(f"a quote is opened and not closed: {shown(text_of(held[0]))}")
        raise BadLine(source.name, start, flaw, hint='A quote within a field is ""')
