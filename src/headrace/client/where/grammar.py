"""Parses a condition on rows into an expression that Arrow evaluates.

    either  := both ("or" both)*
    both    := negated ("and" negated)*
    negated := "not" negated | "(" either ")" | test
    test    := operand sign operand | column ["not"] "in" "(" value, … ")"
             | column "is" ["not"] "null" | column        of type bool
    operand := column | value

As in SQL, a comparison with null is neither true nor false, and the row is left out. No typed
text is executed: only what this grammar knows becomes an expression.
"""

from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.where.values import ConditionValue, Expression, among, compared, value_of
from headrace.client.where.words import BadWhere, TokenKind, Word, words_of
from headrace.client.write.schemas import type_word
from headrace.model.column_types import said

NESTING_MAX: Final = 64  # nested parentheses
_SIGNS: Final = {
    "=": "equal",
    "==": "equal",
    "!=": "not_equal",
    "<>": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_MIRRORED: Final = {
    "less": "greater",
    "less_equal": "greater_equal",
    "greater": "less",
    "greater_equal": "less_equal",
}


@dataclass(frozen=True, slots=True)
class RowCondition:
    """A condition and the columns that it reads."""

    text: str
    expression: Expression
    columns: tuple[str, ...]

    def kept(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return the rows for which it is true, in order. BadWhere if evaluation fails."""
        from pyarrow import acero  # takes half a second to load

        rows = acero.TableSourceNodeOptions(pa.Table.from_batches([batch]))
        steps = [
            acero.Declaration("table_source", rows),
            acero.Declaration("filter", acero.FilterNodeOptions(self.expression)),
        ]
        try:
            found = acero.Declaration.from_sequence(steps).to_table(use_threads=False)
        except pa.ArrowException as error:
            flaw = f"cannot be evaluated: {said(error)}"
            raise BadWhere(self.text, 0, flaw) from None
        return [each for each in found.to_batches() if each.num_rows]


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    kind: pa.DataType
    expression: Expression
    position: int


def parse_where(text: str, schema: pa.Schema) -> RowCondition:
    """Parse `text` as a condition on rows of `schema`. BadWhere shows the place."""
    parser = _Parser(text, schema, words_of(text))
    expression = parser.either(0)
    parser.expect_end()
    where = RowCondition(text, expression, tuple(parser.columns))
    where.kept(pa.RecordBatch.from_pylist([], schema=schema))
    return where


@dataclass(slots=True)
class _Parser:
    text: str
    schema: pa.Schema
    words: list[Word]
    place: int = 0
    columns: dict[str, None] = field(default_factory=dict)  # in order

    @property
    def word(self) -> Word:
        return self.words[self.place]

    def either(self, depth: int) -> Expression:
        found = self._both(depth)
        while self._takes("or"):
            found = found | self._both(depth)
        return found

    def expect_end(self) -> None:
        if self.word.kind is not TokenKind.END:
            raise self._flaw(f"expected and, or, or the end, found {self.word.shown}")

    def _both(self, depth: int) -> Expression:
        found = self._negated(depth)
        while self._takes("and"):
            found = found & self._negated(depth)
        return found

    def _negated(self, depth: int) -> Expression:
        is_negated = False
        while self._takes("not"):
            is_negated = not is_negated
        found = self._bracketed(depth) if self.word.says("(") else self._test()
        return ~found if is_negated else found

    def _bracketed(self, depth: int) -> Expression:
        if depth >= NESTING_MAX:
            raise self._flaw(f"parentheses are nested more than {NESTING_MAX} levels deep")
        self._expect("(")
        found = self.either(depth + 1)
        self._expect(")")
        return found

    def _test(self) -> Expression:
        left = self._operand()
        if self.word.text in _SIGNS and self.word.kind is TokenKind.SIGN:
            sign = _SIGNS[self._next().text]
            return self._compared(left, sign, self._operand())
        if isinstance(left, ConditionValue):
            raise self._flaw(f"expected a comparison, found {self.word.shown}")
        if self._takes("is"):
            return self._null_test(left)
        if self.word.says("in") or (self.word.says("not") and self._peek().says("in")):
            is_negated = self._takes("not")
            self._expect("in")
            found = self._in(left)
            return ~found if is_negated else found
        if pa.types.is_boolean(left.kind):
            return left.expression
        hint = f"{left.name!r} is {type_word(left.kind)}: compare it with a value"
        raise self._flaw(f"expected a comparison, found {self.word.shown}", hint=hint)

    def _null_test(self, column: _Column) -> Expression:
        is_negated = self._takes("not")
        self._expect("null")
        return column.expression.is_valid() if is_negated else column.expression.is_null()

    def _in(self, column: _Column) -> Expression:
        self._expect("(")
        values = [self._in_value()]
        while self._takes(","):
            values.append(self._in_value())
        self._expect(")")
        return among(column.expression, column.kind, values, self.text)

    def _in_value(self) -> ConditionValue:
        operand = self._operand()
        if not isinstance(operand, ConditionValue):
            raise BadWhere(self.text, operand.position, "expected a value, found a column")
        return operand

    def _compared(
        self, left: "_Column | ConditionValue", sign: str, right: "_Column | ConditionValue"
    ) -> Expression:
        if isinstance(left, _Column) and isinstance(right, _Column):
            one, other = _alike(left, right)
            return getattr(pc, sign)(one, other)
        if isinstance(left, _Column) and isinstance(right, ConditionValue):
            return compared(left.expression, left.kind, sign, right, self.text)
        if isinstance(left, ConditionValue) and isinstance(right, _Column):
            mirrored = _MIRRORED.get(sign, sign)
            return compared(right.expression, right.kind, mirrored, left, self.text)
        hint = f"The columns are {said(', '.join(self.schema.names))}"
        raise BadWhere(self.text, left.position, "neither side is a column", hint=hint)

    def _operand(self) -> "_Column | ConditionValue":
        word = self.word
        if word.kind is TokenKind.NAME:
            self._next()
            return self._column(word)
        value = value_of(word)
        if value is None:
            raise self._flaw(f"expected a column or a value, found {word.shown}")
        self._next()
        return value

    def _column(self, word: Word) -> _Column:
        name, *rest = [word.text] if word.text in self.schema.names else word.text.split(".")
        if name not in self.schema.names:
            near = get_close_matches(name, self.schema.names, 1)
            names = said(", ".join(self.schema.names))
            hint = (
                f"Did you mean {near[0]!r}?"
                if near
                else f"Put text in quotes; the columns are {names}"
            )
            raise BadWhere(self.text, word.position, f"there is no column {name!r}", hint=hint)
        kind = self.schema.field(name).type
        for part in rest:
            if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
                flaw = f"{type_word(kind)} has no field {part!r}"
                raise BadWhere(self.text, word.position, flaw)
            kind = kind.field(part).type
        self.columns[name] = None
        return _Column(word.text, kind, pc.field(name, *rest), word.position)

    def _peek(self) -> Word:
        return self.words[min(self.place + 1, len(self.words) - 1)]

    def _next(self) -> Word:
        word = self.word
        self.place += 1
        return word

    def _takes(self, text: str) -> bool:
        if not self.word.says(text):
            return False
        self.place += 1
        return True

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            raise self._flaw(f"expected {text!r}, found {self.word.shown}")

    def _flaw(self, flaw: str, *, hint: str = "") -> BadWhere:
        return BadWhere(self.text, self.word.position, flaw, hint=hint)


def _alike(left: _Column, right: _Column) -> tuple[Expression, Expression]:
    """Return two comparable columns. Integers compared with floats become floats, as in SQL."""
    pair = (left, right)
    if not any(pa.types.is_floating(each.kind) for each in pair):
        return left.expression, right.expression
    one, other = (
        each.expression.cast(pa.float64(), safe=False)
        if pa.types.is_integer(each.kind)
        else each.expression
        for each in pair
    )
    return one, other
