"""Converts CSV to batches, as in RFC 4180: a header row with the column names, then rows.

An empty unquoted field is null; `""` is empty text. Lists, maps and structs are JSON in a
field, binaries are base64.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from headrace.cli.formats.cells import field_of
from headrace.cli.formats.formats import InputFile
from headrace.cli.formats.lines import (
    BOM,
    LINE_SIZE_MAX,
    BadLine,
    LineChunk,
    Unfit,
    ends_in_cr,
    fitted,
    shown,
    whole_lines,
)
from headrace.cli.formats.ndjson_rows import conformed, text_of, unknown_column
from headrace.errors import BadRequest
from headrace.model.column_values import required_of

COMMA: Final = ","
QUOTE: Final = b'"'
_SEPARATORS: Final = {";": "';'", "\t": "tab", "|": "'|'"}  # other common ones, as typed
# Fields, each up to a delimiter or line end: fully quoted, or starting without a quote.
_WELL_QUOTED: Final = r'(?s)\A(?:(?:"(?:[^"]|"")*"|[^"D\n][^D\n]*|)[D\n])*\z'
_ONE_QUOTED: Final = re.compile(rb'\s*"(?:[^"]|"")*"\s*')
_QUOTED: Final = re.compile(rb'"[^"]*"')


def delimiter_of(text: str) -> str:
    """Parse a typed delimiter: one character, or `tab`."""
    found = "\t" if text in ("tab", r"\t") else text
    is_plain = len(found) == 1 and found.isascii() and (found == "\t" or found.isprintable())
    if not is_plain or found == '"':
        hint = "Give one, as in --delimiter ';', or --delimiter tab"
        flaw = f"--delimiter: {shown(text)} is not a single ASCII character"
        raise BadRequest(flaw, hint=hint)
    return found


def names_in_head(record: bytes, delimiter: str | None) -> list[str]:
    """Return the column names. The delimiter is a comma by default."""
    if b"\r" in _QUOTED.sub(b"", record):
        raise ends_in_cr()
    if delimiter is None:
        _check_separator(record)
    try:
        found = _read(record + b"\n", delimiter or COMMA, None).column_names
        return [str(each).strip() for each in found]
    except (pa.ArrowInvalid, UnicodeDecodeError):
        raise Unfit(f"it is not a row of names: {shown(text_of(record))}") from None


def text_columns(
    columns: list[str], records: list[bytes], delimiter: str
) -> dict[str, pa.Array]:
    """Return the fields of records, as text or null."""
    names = [str(place) for place in range(len(columns))]
    try:
        table = _read(b"\n".join([*records, b""]), delimiter, names)
    except pa.ArrowInvalid:
        raise _no_record(columns, records[0], delimiter) from None
    if table.num_rows != len(records):
        raise _no_record(columns, records[0], delimiter)
    found = [each.combine_chunks() for each in table.columns]
    return dict(zip(columns, found, strict=True))


def _read(data: bytes, delimiter: str, names: list[str] | None) -> pa.Table:
    """Return fields as text. Without `names`, the first line has them."""
    _check_quotes(data, delimiter)
    return pyarrow.csv.read_csv(
        io.BytesIO(BOM + data),  # Arrow strips one BOM
        pyarrow.csv.ReadOptions(
            column_names=names, use_threads=False, block_size=LINE_SIZE_MAX * 2
        ),
        pyarrow.csv.ParseOptions(
            delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=names is None
        ),
        pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names or (), pa.string()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        ),
    )


def _check_quotes(data: bytes, delimiter: str) -> None:
    """Refuse characters after a closing quote, which Arrow would append to the quoted text."""
    if QUOTE not in data:
        return
    pattern = _WELL_QUOTED.replace("D", f"\\x{ord(delimiter):02x}")
    whole = pa.array([data], pa.binary())
    if not pc.match_substring_regex(whole, pattern=pattern)[0].as_py():
        flaw = f"characters follow a closing quote: {shown(text_of(data.rstrip()))}"
        raise Unfit(flaw, hint='Write a quote within a field as ""')


def _check_separator(record: bytes) -> None:
    """Refuse a single name that looks like several."""
    text = text_of(record)
    if COMMA in text or _ONE_QUOTED.fullmatch(record):
        return
    for separator, typed in _SEPARATORS.items():
        if separator in text:
            hint = f"Add --delimiter {typed}; or --delimiter , if it is one column"
            raise Unfit(
                f"its names are separated by {typed}, not a comma: {shown(text)}", hint=hint
            )


def _no_record(columns: list[str], record: bytes, delimiter: str) -> Unfit:
    text = text_of(record)
    try:
        whole = record.decode()
    except UnicodeDecodeError:
        return Unfit(f"it is not UTF-8: {shown(text)}")
    if b"\r" in _QUOTED.sub(b"", record):
        return Unfit(f"it contains a CR: {shown(text)}", hint="Quote that field")
    found = len(next(csv.reader(io.StringIO(whole, newline=""), delimiter=delimiter), []))
    if found == len(columns):
        hint = 'Write a quote within a field as ""'
        return Unfit("its quotes do not delimit one row", hint=hint)
    return Unfit(f"expected {len(columns)} fields, found {found}: {shown(text)}")


@dataclass(frozen=True, slots=True)
class Csv:
    """A CSV whose header was read: its columns, and the records that follow."""

    name: str
    columns: list[str]
    chunks: Iterator[LineChunk]
    delimiter: str = COMMA


def open_csv(source: InputFile, delimiter: str | None = None) -> Csv:
    """Read the header. An empty file has no columns."""
    between = delimiter or COMMA
    chunks = _records(source)
    for chunk in chunks:
        places = [n for n, record in enumerate(chunk.records) if not _is_blank(record, between)]
        if places:
            head = places[0]
            columns = _head(source.name, chunk.records[head], chunk.lines[head], delimiter)
            rest = LineChunk(chunk.records[head + 1 :], chunk.lines[head + 1 :])
            rows: Iterator[LineChunk] = chain([rest], chunks)
            if len(columns) > 1:
                rows = _without_blank(rows, between)
            return Csv(source.name, columns, rows, between)
    return Csv(source.name, [], iter(()))


def csv_batches(opened: Csv, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows of exactly `schema`, which is canonical. Missing columns are null."""
    for name in opened.columns:
        if name not in schema.names:
            flaw = unknown_column(name, schema.names)
            raise BadLine(opened.name, 1, flaw, hint=flaw.hint)
    yield from fitted(opened.name, opened.chunks, converter(opened, schema))


def converter(opened: Csv, schema: pa.Schema) -> Callable[[list[bytes]], pa.RecordBatch]:
    """Return the function that converts records to rows of `schema`."""
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
            what = "a column has no name" if not column else f"{column!r} appears twice"
            raise BadLine(name, line, Unfit(what), hint="Give each column a unique name")
    return columns


def _without_blank(chunks: Iterator[LineChunk], delimiter: str) -> Iterator[LineChunk]:
    """Skip blank lines. With a single column, a blank line is a row with null."""
    for chunk in chunks:
        records = chunk.records
        kept = [n for n, record in enumerate(records) if not _is_blank(record, delimiter)]
        yield LineChunk([records[n] for n in kept], [chunk.lines[n] for n in kept])


def _is_blank(record: bytes, delimiter: str) -> bool:
    return not record.strip() and delimiter.encode() not in record


def _records(source: InputFile) -> Iterator[LineChunk]:
    """Join the lines of a quoted field. A record ends where all quotes are closed."""
    held: list[bytes] = []
    start, number, size = 1, 0, 0
    for lines in whole_lines(source):
        chunk = LineChunk()
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
        flaw = Unfit(f"a quote is not closed: {shown(text_of(held[0]))}")
        raise BadLine(source.name, start, flaw, hint='Write a quote within a field as ""')
