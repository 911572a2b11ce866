"""Text as values of a column, exactly or not at all: what a field of CSV says.

Binaries are base64; lists, maps and structs are JSON.
"""

from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.cli.formats_lines import Unfit
from headrace.cli.formats_names import name_twice
from headrace.cli.formats_values import column_of
from headrace.client.schemas import type_word
from headrace.model.types import said

_INFINITE: Final = ("inf", "infinity", "+inf", "+infinity", "-inf", "-infinity")
_WHOLE: Final = "^-?[0-9]+$"
# Up to here a float has every whole number, and beyond it only some.
_EXACT_MAX: Final = {pa.float32(): 2.0**24, pa.float64(): 2.0**53}


def field_of(texts: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """Return text as a column of `kind`. Unfit if one is none of it."""
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
            word = "timestamp as ISO 8601 with its zone, to microseconds"
        raise Unfit.value(path, word, value)
    return found


def _decoded(texts: list[str | None], kind: pa.DataType, path: str) -> list[object]:
    values = [_json(each, kind, path) for each in texts]
    name = name_twice([(each or "null").encode() for each in texts], values)
    if name is not None:
        raise Unfit(f"the name {said(name)!r} is there twice", column=path)
    return values


def _json(text: str | None, kind: pa.DataType, path: str) -> object:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise Unfit.value(path, f"{type_word(kind)} as JSON", text) from None


def _is_changed(texts: pa.Array, found: pa.Array) -> bool:
    """Say whether Arrow made something of a text that it does not say."""
    if pa.types.is_integer(found.type):  # 0x10 is sixteen to Arrow
        return pc.all(pc.match_substring_regex(texts, pattern=_WHOLE)).as_py() is False
    if pa.types.is_floating(found.type):
        return _overflows(texts, found) or _loses_digits(texts, found)
    return False


def _overflows(texts: pa.Array, found: pa.Array) -> bool:
    """Say whether a number became infinite that was not."""
    infinite = pc.is_inf(found)
    if not pc.any(infinite).as_py():
        return False
    words = pc.utf8_lower(texts.filter(infinite))
    return not pc.all(pc.is_in(words, pa.array(_INFINITE))).as_py()


def _loses_digits(texts: pa.Array, found: pa.Array) -> bool:
    """Say whether a whole number became another one."""
    large = pc.greater_equal(pc.abs(found), pa.scalar(_EXACT_MAX[found.type], found.type))
    if not pc.any(large).as_py():
        return False
    whole = pc.and_(large, pc.match_substring_regex(texts, pattern=_WHOLE))
    pairs = zip(texts.filter(whole).to_pylist(), found.filter(whole).to_pylist(), strict=True)
    return any(int(text) != int(number) for text, number in pairs)
