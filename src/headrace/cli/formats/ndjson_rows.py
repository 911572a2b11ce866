"""Converts NDJSON to batches: one JSON object per line, one column per name."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from difflib import get_close_matches
from itertools import chain
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.cli.formats.cells import column_of, has_decimals
from headrace.cli.formats.formats import ARRAY_HINT, InputFile
from headrace.cli.formats.lines import LineChunk, Unfit, ends_in_cr, fitted, line_chunks, shown
from headrace.cli.formats.ndjson_names import name_twice
from headrace.errors import BadBatch
from headrace.model.column_types import said
from headrace.model.column_values import required_of
from headrace.model.schema import RESERVED, conform

_ANY: Final = msgspec.json.Decoder()
_EXACT: Final = msgspec.json.Decoder(float_hook=Decimal)


def ndjson_batches(
    source: InputFile, schema: pa.Schema, chunks: Iterator[LineChunk] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield rows of exactly `schema`, which is canonical. A column missing in a row is null."""
    found = line_chunks(source) if chunks is None else chunks
    return fitted(source.name, found, converter(schema))


def converter(schema: pa.Schema) -> Callable[[list[bytes]], pa.RecordBatch]:
    """Return the function that converts lines to rows of `schema`."""
    names, required = frozenset(schema.names), required_of(schema)
    decoder = _EXACT if any(has_decimals(field.type) for field in schema) else _ANY

    def convert(lines: list[bytes]) -> pa.RecordBatch:
        rows = decoded(lines, decoder)
        if not names.issuperset(found := set(chain.from_iterable(rows))):
            raise unknown_column(min(found - names), schema.names)
        columns = [
            column_of([row.get(field.name) for row in rows], field.type, field.name)
            for field in schema
        ]
        return conformed(pa.RecordBatch.from_arrays(columns, schema=schema), schema, required)

    return convert


def decoded(lines: list[bytes], decoder: msgspec.json.Decoder[Any] = _ANY) -> list[Any]:
    """Decode lines as JSON objects. Refuses duplicate names."""
    try:
        rows = decoder.decode_lines(b"\n".join(lines))
        _check_objects(rows, lines)
        name = name_twice(lines, rows)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        if len(lines) == 1:
            flaw = f"it is not valid JSON: {error}, in {shown(text_of(lines[0]))}"
            raise Unfit(flaw, hint=_instead(lines[0])) from None
        raise Unfit(f"it is not valid JSON: {error}") from None
    if name is not None:
        hint = "Give each value a unique name"
        raise Unfit(f"the name {said(name)!r} appears twice", hint=hint)
    return rows


def _check_objects(rows: list[Any], lines: list[bytes]) -> None:
    for row in rows:
        if not isinstance(row, dict):
            hint = ARRAY_HINT if isinstance(row, list) else 'Write {"name": value}'
            raise Unfit(f"expected an object, found {shown(row)}", hint=hint)
    if len(rows) != len(lines):
        if b"\r" in lines[0].rstrip():
            raise ends_in_cr()
        raise Unfit("it is more than one JSON value", hint="Write one object per line")


def _instead(line: bytes) -> str:
    """Return a hint for a line that begins something longer."""
    text = line.strip()
    if text.startswith(b"["):
        return ARRAY_HINT
    is_object = text.startswith(b"{") and not text.endswith(b"}")
    return "Put each object on one line, with jq -c ." if is_object else ""


def conformed(batch: pa.RecordBatch, schema: pa.Schema, required: Any) -> pa.RecordBatch:  # noqa: ANN401
    """Return `batch` in `schema`. Raises Unfit if a required value is null."""
    try:
        return conform(batch, schema, required)
    except BadBatch as error:
        flaw = "expected a value, found null" if batch.num_rows == 1 else error.args[0]
        raise Unfit(flaw, column=error.column) from None


def unknown_column(name: str, known: list[str]) -> Unfit:
    """Return the error for an unknown column, with a suggestion."""
    if name.startswith(RESERVED):
        hint = "Names that begin with _ are reserved: remove them, as --no-system does"
    else:
        near = get_close_matches(name, known, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"It has {said(', '.join(known))}"
    return Unfit("the schema has no such column", column=name, hint=hint)


def text_of(line: bytes) -> str:
    """Return the beginning of a line as text, whatever bytes it holds."""
    return line[:200].decode(errors="replace")
