"""Converts values in a condition to the type of the column they are compared with.

An integer column compares exactly with any number: `id > 1.5` means `id > 1`, and a number
outside the column's range makes the comparison true, or false, for every row.
"""

from dataclasses import dataclass
from datetime import date
from decimal import ROUND_FLOOR, Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.values.parse import moment_of
from headrace.client.where.words import BadWhere, TokenKind, Word
from headrace.client.write.schemas import type_word
from headrace.errors import BadRequest

Expression = Any  # a pc.Expression, which has no types
_WHOLE_MAX: Final = 2**63
# A comparison with a fraction becomes this comparison with its floor.
_WITH_FLOOR: Final = {"less": "less_equal", "greater_equal": "greater"}
_TRUE_BELOW: Final = frozenset({"less", "less_equal", "not_equal"})
_TRUE_ABOVE: Final = frozenset({"greater", "greater_equal", "not_equal"})


@dataclass(frozen=True, slots=True)
class ConditionValue:
    """A value as it was typed."""

    kind: TokenKind
    text: str
    position: int


def value_of(word: Word) -> ConditionValue | None:
    """Return the value of a word, or None."""
    if word.kind in (TokenKind.STRING, TokenKind.NUMBER, TokenKind.TIME) or word.says(
        "true", "false", "null"
    ):
        return ConditionValue(word.kind, word.text, word.position)
    return None


def compared(
    column: Expression, kind: pa.DataType, sign: str, value: ConditionValue, text: str
) -> Expression:
    """Compare a column of `kind` with a value. BadWhere if they are not comparable."""
    found = scalar_for(value, kind, text)
    if pa.types.is_integer(kind):
        return _whole_compared(column, sign, found)
    return getattr(pc, sign)(column, found)


def among(
    column: Expression, kind: pa.DataType, values: list[ConditionValue], text: str
) -> Expression:
    """Test whether a column has one of the values. Impossible values are left out."""
    found = [scalar_for(each, kind, text) for each in values]
    wanted = [each for each in found if _is_one_of(each, kind)]
    return _unless_null(column, column.isin(pa.array(map(_plain, wanted), kind)))


def scalar_for(value: ConditionValue, kind: pa.DataType, text: str) -> "pa.Scalar | Decimal":
    """Return `value` for comparison with a column of `kind`."""
    if value.kind is TokenKind.KEYWORD and value.text == "null":
        raise BadWhere(
            text, value.position, "nothing equals null", hint="Use is null or is not null"
        )
    try:
        found = _scalar(value, kind)
    except BadRequest as error:
        flaw = Exception.__str__(error)
        raise BadWhere(text, value.position, flaw, hint=error.hint) from None
    except (ValueError, ArithmeticError, pa.ArrowException):
        found = None
    if found is None:
        hint = "Put text in quotes" if pa.types.is_string(kind) else ""
        flaw = f"expected {type_word(kind)}, found {value.text!r}"
        raise BadWhere(text, value.position, flaw, hint=hint)
    return found


def _scalar(value: ConditionValue, kind: pa.DataType) -> "pa.Scalar | Decimal | None":
    if value.kind is TokenKind.NUMBER:
        return _number(value.text, kind)
    if value.kind is TokenKind.KEYWORD:
        return pa.scalar(value.text == "true") if pa.types.is_boolean(kind) else None
    if pa.types.is_timestamp(kind):
        return pa.scalar(moment_of(value.text), kind)
    if pa.types.is_date(kind):
        return pa.scalar(date.fromisoformat(value.text), kind)
    if pa.types.is_string(kind) and value.kind is TokenKind.STRING:
        return pa.scalar(value.text)
    return None


def _number(text: str, kind: pa.DataType) -> "pa.Scalar | Decimal | None":
    if pa.types.is_integer(kind):
        return Decimal(text)
    if pa.types.is_decimal(kind):
        return pa.scalar(Decimal(text))
    if pa.types.is_floating(kind):
        return pa.scalar(float(text), kind)
    return None


def _whole_compared(column: Expression, sign: str, number: Decimal) -> Expression:
    floor = number.to_integral_value(ROUND_FLOOR)
    if floor != number:
        if sign in ("equal", "not_equal"):
            return _unless_null(column, pa.scalar(sign == "not_equal"))
        sign = _WITH_FLOOR.get(sign, sign)
    if floor < -_WHOLE_MAX:
        return _unless_null(column, pa.scalar(sign in _TRUE_ABOVE))
    if floor >= _WHOLE_MAX:
        return _unless_null(column, pa.scalar(sign in _TRUE_BELOW))
    return getattr(pc, sign)(column, pa.scalar(int(floor), pa.int64()))


def _unless_null(column: Expression, answer: Any) -> Expression:  # noqa: ANN401
    """Return `answer`, or null where the column is null: neither equal to a value nor not."""
    return pc.if_else(column.is_null(), pa.scalar(None, pa.bool_()), answer)


def _is_one_of(value: "pa.Scalar | Decimal", kind: pa.DataType) -> bool:
    try:
        pa.scalar(_plain(value), kind)
    except (pa.ArrowException, OverflowError, TypeError):
        return False
    return True


def _plain(value: "pa.Scalar | Decimal") -> object:
    if not isinstance(value, Decimal):
        return value.as_py()
    is_whole = -_WHOLE_MAX <= value < _WHOLE_MAX and value == value.to_integral_value()
    return int(value) if is_whole else value
