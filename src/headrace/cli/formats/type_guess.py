"""Infers a schema for rows without one, from about their first megabyte.

Text becomes a date or a timestamp only if every value is one, with a time zone; numbers with
leading zeros, such as postcodes, stay text.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.cli.formats.cells import column_of, field_of
from headrace.cli.formats.csv_rows import Csv, text_columns
from headrace.cli.formats.lines import Unfit
from headrace.cli.formats.ndjson_rows import decoded
from headrace.client.write.schemas import schema_of
from headrace.errors import BadBatch
from headrace.model.column_types import TIMESTAMP, said

_HINT: Final = "Give the schema: headrace topic create NAME --schema id:int64,…"
_WHOLE: Final = re.compile(r"-?(0|[1-9][0-9]*)", re.ASCII)
_NUMBER: Final = re.compile(
    r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?|nan|-?inf", re.ASCII
)
_WORDS: Final = frozenset({"true", "false"})


def guess_ndjson(lines: Sequence[bytes]) -> pa.Schema:
    """Infer a schema from these lines. Raises Unfit if one is not a JSON object."""
    rows = decoded(list(lines))
    return _kept([_field(name, [row.get(name) for row in rows]) for name in names_in(lines)])


def names_in(lines: Sequence[bytes]) -> list[str]:
    """Return the names in the lines, in order of first appearance."""
    return list(dict.fromkeys(name for row in decoded(list(lines)) for name in row))


def guess_csv(csv: Csv, records: Sequence[bytes]) -> pa.Schema:
    """Infer a schema from these records."""
    texts = text_columns(csv.columns, list(records), csv.delimiter) if records else {}
    return _kept([pa.field(name, _text_kind(texts.get(name), name)) for name in csv.columns])


def _kept(fields: list[pa.Field]) -> pa.Schema:
    if not fields:
        raise BadBatch("there are no rows to infer a schema from", hint=_HINT)
    return schema_of(pa.schema(fields))


def _field(name: str, values: list[Any]) -> pa.Field:
    given = [each for each in values if each is not None]
    if not given:
        raise BadBatch("it is null in all sampled rows", column=name, hint=_HINT)
    if all(type(each) is str for each in given):
        return pa.field(name, _json_text_kind(given, name))
    try:
        return pa.field(name, pa.array(given).type)
    except OverflowError:
        found = next((each for each in given if type(each) is int and _is_large(each)), None)
        flaw = f"{'a number' if found is None else found} is too large for int64"
        hint = f"Give the schema: headrace topic create NAME --schema '{name}:decimal(38, 0),…'"
        raise BadBatch(flaw, column=name, hint=hint) from None
    except (pa.ArrowException, ValueError) as error:
        flaw = f"its values have several types: {said(str(error).splitlines()[0])}"
        raise BadBatch(flaw, column=name, hint=_HINT) from None


def _is_large(value: int) -> bool:
    return not -(2**63) <= value < 2**63


def _json_text_kind(values: list[object], name: str) -> pa.DataType:
    for kind in (pa.date32(), TIMESTAMP):
        try:
            column_of(values, kind, name)
        except Unfit:
            continue
        return kind
    return pa.string()


def _text_kind(texts: pa.Array | None, name: str) -> pa.DataType:
    values = [] if texts is None else [each for each in texts.to_pylist() if each is not None]
    if not values:
        raise BadBatch("it is empty in all sampled rows", column=name, hint=_HINT)
    if all(each.lower() in _WORDS for each in values):
        return pa.bool_()
    candidates = [pa.date32(), TIMESTAMP]
    if all(_WHOLE.fullmatch(each) for each in values):
        candidates = [pa.int64()]
    elif all(_NUMBER.fullmatch(each) for each in values):
        candidates = [pa.float64()]
    for kind in candidates:
        try:
            field_of(pa.array(values), kind, name)
        except Unfit:
            continue
        return kind
    return pa.string()
