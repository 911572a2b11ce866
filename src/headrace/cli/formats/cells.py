"""Converts JSON values to a column, exactly or not at all.

JSON has no times, bytes or exact decimals: those are text, as `headrace read` writes them.

    timestamp  "2026-11-15T10:00:00.5Z", with a time zone    binary   base64
    date       "2026-11-15"                                  decimal  "12.50", or a number
    float      a number, "NaN", "Infinity" or "-Infinity"    map      an object, or pairs
"""

import binascii
import math
import re
from base64 import b64decode
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from types import NoneType
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cli.formats.lines import Unfit
from headrace.cli.formats.ndjson_names import name_twice
from headrace.client.write.schemas import type_word
from headrace.model.column_types import inside, said

_INFINITE: Final = ("inf", "infinity", "+inf", "+infinity", "-inf", "-infinity")
_WHOLE: Final = "^-?[0-9]+$"
_TIMESTAMP_FORM: Final = "timestamp as ISO 8601 with a time zone, to microseconds"
# A float represents every integer up to here, and only some beyond.
_EXACT_MAX: Final = {pa.float32(): 2.0**24, pa.float64(): 2.0**53}


def field_of(texts: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Convert text to a column of `kind`. Raises Unfit if a value does not fit."""
    if pa.types.is_string(kind):
        return texts
    if pa.types.is_binary(kind):
        return column_of(texts.to_pylist(), kind, path)
    if pa.types.is_nested(kind):
        return column_of(_decoded(texts.to_pylist(), kind, path), kind, path)
    try:
        found = texts.cast(kind)
    except pa.ArrowInvalid:
        found = None
    if found is None or _is_changed(texts, found):
        value = texts[0].as_py() if len(texts) else None
        word = type_word(kind)
        if pa.types.is_timestamp(kind):
            word = _TIMESTAMP_FORM
        raise Unfit.value(path, word, value)
    return found


def _decoded(texts: list[str | None], kind: pa.DataType, path: str) -> list[object]:
    values = [_json(each, kind, path) for each in texts]
    name = name_twice([(each or "null").encode() for each in texts], values)
    if name is not None:
        raise Unfit(f"the name {said(name)!r} appears twice", column=path)
    return values


def _json(text: str | None, kind: pa.DataType, path: str) -> object:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise Unfit.value(path, f"{type_word(kind)} as JSON", text) from None


def _is_changed(texts: pa.Array, found: pa.Array) -> bool:
    """Return whether Arrow read a text as something it does not say."""
    if pa.types.is_integer(found.type):  # Arrow reads 0x10 as sixteen
        return pc.all(pc.match_substring_regex(texts, pattern=_WHOLE)).as_py() is False
    if pa.types.is_floating(found.type):
        return _overflows(texts, found) or _loses_digits(texts, found)
    return False


def _overflows(texts: pa.Array, found: pa.Array) -> bool:
    """Return whether a finite number became infinite."""
    infinite = pc.is_inf(found)
    if not pc.any(infinite).as_py():
        return False
    words = pc.utf8_lower(texts.filter(infinite))
    return not pc.all(pc.is_in(words, pa.array(_INFINITE))).as_py()


def _loses_digits(texts: pa.Array, found: pa.Array) -> bool:
    """Return whether an integer became a different one."""
    large = pc.greater_equal(pc.abs(found), pa.scalar(_EXACT_MAX[found.type], found.type))
    if not pc.any(large).as_py():
        return False
    whole = pc.and_(large, pc.match_substring_regex(texts, pattern=_WHOLE))
    pairs = zip(texts.filter(whole).to_pylist(), found.filter(whole).to_pylist(), strict=True)
    return any(int(text) != int(number) for text, number in pairs)


_FLOAT_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TOO_FINE: Final = re.compile(r"[.,][0-9]{7}")  # digits below a microsecond would be lost

# The JSON values of a type that need no conversion.
_AS_THEY_ARE: Final[tuple[tuple[Callable[[pa.DataType], bool], frozenset[type]], ...]] = (
    (pa.types.is_integer, frozenset({int, NoneType})),
    (pa.types.is_floating, frozenset({float, int, NoneType})),
    (pa.types.is_string, frozenset({str, NoneType})),
    (pa.types.is_boolean, frozenset({bool, NoneType})),
)


def column_of(values: list[object], kind: pa.DataType, path: str) -> pa.Array:
    """Convert JSON values to a column of `kind`. Unfit names a value that does not fit."""
    for is_one, types in _AS_THEY_ARE:
        if is_one(kind) and types.issuperset(map(type, values)):
            break
    else:
        values = [value_of(each, kind, path) for each in values]
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, ValueError, UnicodeError) as error:
        found = next((each for each in values if not _is_taken(each, kind)), None)
        raise Unfit.value(path, type_word(kind), found) from error


def value_of(value: object, kind: pa.DataType, path: str) -> object:
    """Convert one JSON value to what Arrow accepts for `kind`."""
    if value is None:
        return None
    for is_one, convert in _CONVERTERS:
        if is_one(kind):
            return convert(value, kind, path)
    for is_one, types in _AS_THEY_ARE:
        if is_one(kind) and type(value) in types:
            return value
    raise Unfit.value(path, type_word(kind), value)


def has_decimals(kind: pa.DataType) -> bool:
    """Return whether numbers for a column of `kind` must not pass through floats."""
    if pa.types.is_map(kind):
        return has_decimals(kind.key_type) or has_decimals(kind.item_type)
    if pa.types.is_list(kind):
        return has_decimals(kind.value_type)
    if pa.types.is_struct(kind):
        return any(has_decimals(child.type) for child in kind)
    return bool(pa.types.is_decimal(kind))


def _is_taken(value: object, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, OverflowError, ValueError, UnicodeError):
        return False
    return True


def _float(value: object, kind: pa.DataType, path: str) -> object:
    if isinstance(value, Decimal):
        value = float(value)
    if type(value) in (float, int):
        return value
    if isinstance(value, str) and value in _FLOAT_WORDS:
        return _FLOAT_WORDS[value]
    raise Unfit.value(path, type_word(kind), value)


def _timestamp(value: object, kind: pa.DataType, path: str) -> datetime:
    try:
        if isinstance(value, str) and not _TOO_FINE.search(value):
            found = datetime.fromisoformat(value)
            if found.tzinfo is not None:
                return found
    except ValueError:
        pass
    raise Unfit.value(path, _TIMESTAMP_FORM, value)


def _date(value: object, kind: pa.DataType, path: str) -> date:
    try:
        if isinstance(value, str):
            return date.fromisoformat(value)
    except ValueError:
        pass
    raise Unfit.value(path, "date as 2026-11-15", value)


def _binary(value: object, kind: pa.DataType, path: str) -> bytes:
    try:
        if isinstance(value, str):
            return b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise Unfit.value(path, "binary as base64", value)


def _decimal(value: object, kind: pa.DataType, path: str) -> Decimal:
    try:
        if isinstance(value, str | int | Decimal) and not isinstance(value, bool):
            found = Decimal(value)
            if found.is_finite() and _is_taken(found, kind):
                return found
    except InvalidOperation:
        pass
    raise Unfit.value(path, type_word(kind), value)


def _list(value: object, kind: pa.DataType, path: str) -> list[object]:
    if not isinstance(value, list):
        raise Unfit.value(path, type_word(kind), value)
    return [value_of(each, kind.value_type, f"{path}[]") for each in value]


def _struct(value: object, kind: pa.DataType, path: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise Unfit.value(path, type_word(kind), value)
    for name in value:
        if kind.get_field_index(name) < 0:
            raise Unfit("the schema has no such column", column=inside(path, name))
    return {
        child.name: value_of(value.get(child.name), child.type, inside(path, child.name))
        for child in kind
    }


def _map(value: object, kind: pa.DataType, path: str) -> list[tuple[object, object]]:
    if isinstance(value, dict):
        pairs = [[key, each] for key, each in value.items()]
    elif isinstance(value, list) and all(isinstance(e, list) and len(e) == 2 for e in value):
        pairs = value
    else:
        raise Unfit.value(path, type_word(kind), value)
    return [
        (
            value_of(key, kind.key_type, f"{path}{{key}}"),
            value_of(each, kind.item_type, f"{path}{{value}}"),
        )
        for key, each in pairs
    ]


_Converter = Callable[[object, pa.DataType, str], object]
_CONVERTERS: Final[tuple[tuple[Callable[[pa.DataType], bool], _Converter], ...]] = (
    (pa.types.is_floating, _float),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_date, _date),
    (pa.types.is_binary, _binary),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_map, _map),
    (pa.types.is_list, _list),
    (pa.types.is_struct, _struct),
)
