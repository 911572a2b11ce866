"""Values in a `--where`, as values of the column that they are compared with."""

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.cli.read_words import BadWhere, Kind, Word
from headrace.cli.times import moment_of
from headrace.cli.topic_schema import type_word
from headrace.errors import BadRequest

_WHOLE_MAX = 2**63


@dataclass(frozen=True, slots=True)
class Value:
    """A value as it was typed."""

    kind: Kind
    text: str
    position: int


def value_of(word: Word) -> Value | None:
    """Return the value that a word is, or None."""
    if word.kind in (Kind.STRING, Kind.NUMBER, Kind.TIME) or word.says("true", "false", "null"):
        return Value(word.kind, word.text, word.position)
    return None


def scalar_for(value: Value, kind: pa.DataType, text: str) -> pa.Scalar:
    """Return `value` as one that a column of `kind` is compared with."""
    if value.kind is Kind.KEYWORD and value.text == "null":
        raise BadWhere(
            text, value.position, "nothing equals null", hint="Write is null, or is not null"
        )
    try:
        found = _scalar(value, kind)
    except BadRequest as error:
        flaw = Exception.__str__(error)
        raise BadWhere(text, value.position, flaw, hint=error.hint) from None
    except (ValueError, ArithmeticError, pa.ArrowException):
        found = None
    if found is None:
        hint = "Put text into quotes" if pa.types.is_string(kind) else ""
        flaw = f"expected {type_word(kind)}, found {value.text!r}"
        raise BadWhere(text, value.position, flaw, hint=hint)
    return found


def _scalar(value: Value, kind: pa.DataType) -> pa.Scalar | None:
    if value.kind is Kind.NUMBER:
        return _number(value.text, kind)
    if value.kind is Kind.KEYWORD:
        return pa.scalar(value.text == "true") if pa.types.is_boolean(kind) else None
    if pa.types.is_timestamp(kind):
        return pa.scalar(moment_of(value.text), kind)
    if pa.types.is_date(kind):
        return pa.scalar(date.fromisoformat(value.text), kind)
    if pa.types.is_string(kind) and value.kind is Kind.STRING:
        return pa.scalar(value.text)
    return None


def _number(text: str, kind: pa.DataType) -> Any:  # noqa: ANN401
    is_whole = text.lstrip("-").isdigit()
    if pa.types.is_decimal(kind):
        return pa.scalar(Decimal(text))
    if pa.types.is_integer(kind) and is_whole and -_WHOLE_MAX <= int(text) < _WHOLE_MAX:
        return pa.scalar(int(text), pa.int64())
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return pa.scalar(float(text))
    return None
