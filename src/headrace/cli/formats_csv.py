"""CSV into batches, as RFC 4180 has it: a head line with the columns' names, then rows.

A field without quotes and without letters is null; `""` is empty text. Lists, maps and structs
are JSON in a field, binaries are base64.
"""

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from headrace.cli.formats import Source
from headrace.cli.formats_fields import field_of
from headrace.cli.formats_lines import (
    BOM,
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

_QUOTE: Final = b'"'
# Fields, each up to a comma or the end of its line: all in quotes, or not beginning with one.
_WELL_QUOTED: Final = r'(?s)\A(?:(?:"(?:[^"]|"")*"|[^",\n][^,\n]*|)[,\n])*\z'


@dataclass(frozen=True, slots=True)
class Csv:
    """A CSV whose head was read: the columns it has, and the records that follow."""

    name: str
    columns: list[str]
    chunks: Iterator[Chunk]


def open_csv(source: Source) -> Csv:
    """Read the head. An empty file has no columns."""
    chunks = _records(source)
    for chunk in chunks:
        places = [n for n, record in enumerate(chunk.records) if record.strip()]
        if places:
            head = places[0]
            columns = _head(source.name, chunk.records[head], chunk.lines[head])
            rest = Chunk(chunk.records[head + 1 :], chunk.lines[head + 1 :])
            rows = _rows(chain([rest], chunks), keeps_blank=len(columns) == 1)
            return Csv(source.name, columns, rows)
    return Csv(source.name, [], iter(()))


def csv_batches(opened: Csv, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Give rows of exactly `schema`, which is canonical. A column that is lacking is null."""
    for name in opened.columns:
        if name not in schema.names:
            flaw = unknown_column(name, schema.names)
            raise BadLine(opened.name, 1, flaw, hint=flaw.hint)
    yield from fitted(opened.name, opened.chunks, converter(opened.columns, schema))


def converter(columns: list[str], schema: pa.Schema) -> Callable[[list[bytes]], pa.RecordBatch]:
    """Return what makes records rows of `schema`."""
    required = required_of(schema)

    def convert(records: list[bytes]) -> pa.RecordBatch:
        texts = text_columns(columns, records)
        made = [
            field_of(texts[field.name], field.type, field.name)
            if field.name in texts
            else pa.nulls(len(records), field.type)
            for field in schema
        ]
        return conformed(pa.RecordBatch.from_arrays(made, schema=schema), schema, required)

    return convert


def text_columns(columns: list[str], records: list[bytes]) -> dict[str, pa.Array]:
    """Return the fields of records, as text or null."""
    data = b"\n".join([*records, b""])
    _check_quotes(data, records[0])
    names = [str(place) for place in range(len(columns))]
    try:
        table = pyarrow.csv.read_csv(
            io.BytesIO(BOM + data),  # it takes one away
            pyarrow.csv.ReadOptions(
                column_names=names, use_threads=False, block_size=LINE_SIZE_MAX * 2
            ),
            pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
            ),
        )
    except pa.ArrowInvalid:
        raise _no_record(columns, records) from None
    if table.num_rows != len(records):
        raise Unfit("its quotes are not those of one row", hint='A quote within is ""')
    found = [each.combine_chunks() for each in table.columns]
    return dict(zip(columns, found, strict=True))


def _check_quotes(data: bytes, first: bytes) -> None:
    """Refuse letters behind a closing quote, which Arrow would add to what is in quotes."""
    if _QUOTE not in data:
        return
    whole = pa.array([data], pa.binary())
    if not pc.match_substring_regex(whole, pattern=_WELL_QUOTED)[0].as_py():
        flaw = f"letters follow a closing quote: {shown(text_of(first))}"
        raise Unfit(flaw, hint='A quote within a field is ""')


def _no_record(columns: list[str], records: list[bytes]) -> Unfit:
    text = text_of(records[0])
    try:
        records[0].decode()
    except UnicodeDecodeError:
        return Unfit(f"it is not UTF-8: {shown(text)}")
    found = len(next(csv.reader(io.StringIO(records[0].decode(), newline="")), []))
    return Unfit(f"expected {len(columns)} fields, found {found}: {shown(text)}")


def _head(name: str, record: bytes, line: int) -> list[str]:
    try:
        _check_quotes(record + b"\n", record)
    except Unfit as flaw:
        raise BadLine(name, line, flaw, hint=flaw.hint) from None
    try:
        table = pyarrow.csv.read_csv(
            io.BytesIO(BOM + record + b"\n"),
            pyarrow.csv.ReadOptions(use_threads=False, block_size=LINE_SIZE_MAX * 2),
            pyarrow.csv.ParseOptions(newlines_in_values=True),
        )
        columns = [str(each).strip() for each in table.column_names]
    except (pa.ArrowInvalid, UnicodeDecodeError):
        flaw = Unfit(f"it is no line of names: {shown(text_of(record))}")
        raise BadLine(name, line, flaw) from None
    for column in columns:
        if not column or columns.count(column) > 1:
            what = "a column has no name" if not column else f"{column!r} is there twice"
            raise BadLine(name, line, Unfit(what), hint="Give each column a name of its own")
    return columns


def _rows(chunks: Iterator[Chunk], *, keeps_blank: bool) -> Iterator[Chunk]:
    """Leave out blank lines, unless one is a row: of one column, and null."""
    for chunk in chunks:
        if keeps_blank:
            yield chunk
            continue
        kept = [n for n, record in enumerate(chunk.records) if record.strip()]
        yield Chunk([chunk.records[n] for n in kept], [chunk.lines[n] for n in kept])


def _records(source: Source) -> Iterator[Chunk]:
    """Join lines that one quoted field spans. A record ends where all quotes are closed."""
    held: list[bytes] = []
    start, number, size = 1, 0, 0
    for lines in whole_lines(source):
        chunk = Chunk()
        for line in lines:
            number += 1
            if not held and line.count(_QUOTE) % 2 == 0:
                chunk.records.append(line.removesuffix(b"\r"))
                chunk.lines.append(number)
                continue
            start = start if held else number
            held.append(line)
            size += len(line)
            if len(held) > 1 and line.count(_QUOTE) % 2 == 1:
                chunk.records.append(b"\n".join(held).removesuffix(b"\r"))
                chunk.lines.append(start)
                held, size = [], 0
        yield chunk
        if size > LINE_SIZE_MAX:
            break
    if held:
        flaw = Unfit(f"a quote is opened and not closed: {shown(text_of(held[0]))}")
        raise BadLine(source.name, start, flaw, hint='A quote within a field is ""')
