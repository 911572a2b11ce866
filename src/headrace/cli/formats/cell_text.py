"""Formats values as text for JSON, CSV and tables; `headrace produce` reads it back.

Times are ISO 8601 in UTC, bytes are base64, decimals and numbers that JSON cannot express are
text. Nothing is rounded.
"""

import math
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ENCODER: Final = msgspec.json.Encoder(decimal_format="string")
_FLOAT_WORDS: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}


def encode_rows(batch: pa.RecordBatch) -> bytes:
    """Return rows as NDJSON."""
    names = batch.schema.names
    columns = [json_values(column) for column in batch.columns]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return _ENCODER.encode_lines(rows)


def json_values(column: pa.Array) -> list[Any]:
    """Return a column as values that the JSON encoder writes exactly."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return moments(column)
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_nested(kind):
        return [_plain(each, kind) for each in column.to_pylist()]
    return list(column.to_pylist())


def moments(column: pa.Array) -> list[datetime | str | None]:
    """Return timestamps; those after the year 9999 or before the year 1 as text."""
    values = column.cast(pa.int64()).to_pylist()
    known: dict[int | None, datetime | None] = {None: None}  # rows of a batch share timestamps
    try:
        return [
            known[each] if each in known else known.setdefault(each, _moment(each))
            for each in values
        ]
    except OverflowError:
        return list(pc.strftime(column, format="%Y-%m-%dT%H:%M:%SZ").to_pylist())


def text_column(column: pa.Array) -> pa.Array:
    """Return a column for CSV and tables: as text where Arrow's own text does not do."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        known = column.dictionary_encode()  # rows of a batch share timestamps
        texts = [_iso(each) for each in moments(known.dictionary)]
        return pa.array(texts, pa.string()).take(known.indices)
    if pa.types.is_binary(kind):
        found = [None if each is None else _base64(each) for each in column.to_pylist()]
        return pa.array(found, pa.string())
    if pa.types.is_nested(kind):
        found = [None if each is None else _encoded(each) for each in json_values(column)]
        return pa.array(found, pa.string())
    if pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return column.cast(pa.string())
    return column


def csv_lines(batch: pa.RecordBatch) -> memoryview:
    """Return rows as lines of CSV: text quoted, null empty, floats with a decimal point."""
    *fields, last = [_csv_field(column) for column in batch.columns]
    null_is = {"null_handling": "replace", "null_replacement": ""}
    ended = pc.binary_join_element_wise(last, "\n", "", **null_is)
    lines = pc.binary_join_element_wise(*fields, ended, ",", **null_is)
    size = pc.sum(pc.binary_length(lines)).as_py() or 0
    return memoryview(lines.buffers()[2] or b"")[:size]  # the lines are contiguous


def _csv_field(column: pa.Array) -> pa.Array:
    shown = text_column(column)
    if pa.types.is_string(shown.type):
        doubled = pc.replace_substring(shown, pattern='"', replacement='""')
        return pc.binary_join_element_wise('"', doubled, '"', "")
    texts = shown.cast(pa.string())
    if not pa.types.is_floating(shown.type) or not _any_whole(shown):
        return texts
    # Type inference would read 3 as an integer.
    return pc.replace_substring_regex(texts, pattern=r"^(-?[0-9]+)$", replacement=r"\1.0")


def _any_whole(column: pa.Array) -> bool:
    return bool(pc.any(pc.equal(pc.floor(column), column)).as_py())


def _moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def _iso(moment: datetime | str | None) -> str | None:
    if isinstance(moment, datetime):
        return moment.isoformat().replace("+00:00", "Z")
    return moment


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _encoded(value: object) -> str:
    return _ENCODER.encode(value).decode()


def _floats(column: pa.Array) -> list[float | str | None]:
    values = list(column.to_pylist())
    if pc.all(pc.is_finite(column)).as_py() is not False:
        return values
    return [_float(each) for each in values]


def _float(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return _FLOAT_WORDS.get(value, "NaN")


def _plain(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401
    """Convert a value within a list, map or struct to what the encoder accepts."""
    if value is None:
        return None
    for is_one, convert in _NESTED:
        if is_one(kind):
            return convert(value, kind)
    return value


def _plain_map(value: Any, kind: pa.DataType) -> Any:  # noqa: ANN401
    pairs = [(_plain(k, kind.key_type), _plain(v, kind.item_type)) for k, v in value]
    keys = {key for key, _ in pairs if isinstance(key, str)}
    return dict(pairs) if len(keys) == len(pairs) else [list(pair) for pair in pairs]


_NESTED: Final[
    tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType], Any]], ...]
] = (
    (pa.types.is_floating, lambda value, _: _float(value)),
    (pa.types.is_list, lambda value, kind: [_plain(each, kind.value_type) for each in value]),
    (pa.types.is_map, _plain_map),
    (
        pa.types.is_struct,
        lambda value, kind: {each.name: _plain(value[each.name], each.type) for each in kind},
    ),
)
