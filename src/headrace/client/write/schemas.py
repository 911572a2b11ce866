"""Converts whatever a user passes as a schema to a canonical Arrow schema.

    type   := name [not null]
    name   := bool | int8 | int16 | int32 | int64 | float32 | float64 | string | binary
            | date | timestamp | decimal(digits, places)
            | list<type> | map<type, type> | struct<name: type, …>

`int`, `long`, `float`, `double`, `str` and `bytes` are accepted with their usual meaning.
"""

import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from inspect import get_annotations
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from headrace.client.write.convert import Data, infer_schema
from headrace.errors import BadSchema
from headrace.model.column_types import TIMESTAMP, inside, list_of, map_of, said
from headrace.model.schema import canonical

# Also a pa.Schema, which has no static type.
SchemaLike = type | Mapping[str, object] | Data

_NAMES: Final[dict[str, pa.DataType]] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "string": pa.string(),
    "str": pa.string(),
    "binary": pa.binary(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
}
_PLAIN: Final[dict[object, pa.DataType]] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    date: pa.date32(),
    datetime: TIMESTAMP,
}
_TOKEN: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*|[0-9]+|[<>(),:])")
_NESTING_MAX: Final = 32  # supported types allow less, with an error that names the column


def schema_of(given: SchemaLike | pa.Schema) -> pa.Schema:
    """Return the canonical schema. BadSchema names an unsupported column."""
    try:
        return _schema_of(given)
    except UnicodeEncodeError as error:
        hint = "Remove the lone surrogate"
        raise BadSchema(
            ascii(error.object)[1:-1], "the name cannot be encoded as UTF-8", hint=hint
        ) from None


def _schema_of(given: SchemaLike | pa.Schema) -> pa.Schema:
    if isinstance(given, pa.Schema):
        return canonical(given)
    if isinstance(given, type):
        return canonical(pa.schema(_fields_of(given, "", 0)))
    if isinstance(given, Mapping) and given and not _has_values(given):
        return canonical(pa.schema([_field(name, kind) for name, kind in given.items()]))
    return canonical(infer_schema(given))


def _has_values(given: Mapping[str, object]) -> bool:
    """Say whether the mapping holds columns of values rather than names of types."""
    kinds = str | type | pa.DataType | pa.Field
    return not any(isinstance(each, kinds) or get_origin(each) for each in given.values())


def _field(name: str, kind: object) -> pa.Field:
    if isinstance(kind, pa.Field):
        return kind.with_name(name)
    if isinstance(kind, pa.DataType):
        return pa.field(name, kind)
    if isinstance(kind, str):
        found, nullable = _Words(kind, name).all()
        return pa.field(name, found, nullable)
    found, nullable = _annotated(kind, name, 0)
    return pa.field(name, found, nullable=nullable or isinstance(kind, type))


@dataclass(slots=True)
class _Words:
    """Parses one type from text."""

    text: str
    column: str
    position: int = 0

    def all(self) -> tuple[pa.DataType, bool]:
        found = self._type(0)
        if self.text[self.position :].strip():
            raise self._flaw()
        return found

    def _type(self, depth: int) -> tuple[pa.DataType, bool]:
        if depth > _NESTING_MAX:
            raise self._flaw()
        name = self._next().lower()
        if name == "decimal":
            kind = self._decimal()
        elif name in ("list", "map", "struct"):
            self._expect("<")
            kind = self._nested(name, depth + 1)
            self._expect(">")
        elif name in _NAMES:
            kind = _NAMES[name]
            if name == "timestamp" and self._peek() == "[":
                raise self._flaw("Use timestamp: it is always in microseconds, UTC")
        else:
            raise self._flaw()
        return kind, not self._not_null()

    def _nested(self, name: str, depth: int) -> pa.DataType:
        if name == "list":
            element, nullable = self._type(depth)
            return list_of(element, nullable=nullable)
        if name == "map":
            key, _ = self._type(depth)
            self._expect(",")
            value, nullable = self._type(depth)
            return map_of(key, value, nullable=nullable)
        fields = [self._struct_field(depth)]
        while self._peek() == ",":
            self._expect(",")
            fields.append(self._struct_field(depth))
        return pa.struct(fields)

    def _struct_field(self, depth: int) -> pa.Field:
        name = self._next()
        self._expect(":")
        kind, nullable = self._type(depth)
        return pa.field(name, kind, nullable)

    def _decimal(self) -> pa.DataType:
        self._expect("(")
        digits = self._number()
        places = 0
        if self._peek() == ",":
            self._expect(",")
            places = self._number()
        self._expect(")")
        return _decimal_of(digits, places, self.column)

    def _number(self) -> int:
        token = self._next()
        if not token.isdigit() or len(token) > 3:
            raise self._flaw()
        return int(token)

    def _not_null(self) -> bool:
        match = re.compile(r"\s+not\s+null\b", re.IGNORECASE).match(self.text, self.position)
        if match is None:
            return False
        self.position = match.end()
        return True

    def _peek(self) -> str:
        return self.text[self.position :].lstrip()[:1]

    def _next(self) -> str:
        match = _TOKEN.match(self.text, self.position)
        if match is None:
            raise self._flaw()
        self.position = match.end()
        return match[1]

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise self._flaw()

    def _flaw(self, hint: str = "") -> BadSchema:
        names = "string, int64, float64, bool, timestamp, date, decimal(10, 2), list<string>"
        flaw = f"{said(self.text)!r} is not a valid type"
        return BadSchema(self.column, flaw, hint=hint or f"Use a type such as {names}")


def _fields_of(given: type, path: str, depth: int) -> list[pa.Field]:
    """Return the fields of a pydantic model, a dataclass, or a TypedDict."""
    if depth > _NESTING_MAX:
        raise BadSchema(
            path, "the model contains itself", hint="Flatten it, or store it as string"
        )
    models = getattr(given, "model_fields", None)
    if isinstance(models, Mapping):
        hints = {name: _rich(info) for name, info in models.items()}
    else:
        try:
            hints = get_type_hints(given, include_extras=True)
        except (NameError, TypeError) as error:
            raise BadSchema(path, f"{given.__name__}: {error}") from error
    if not hints:
        hint = "Pass a model with annotated fields, a pa.Schema, or a dict of types"
        raise BadSchema(path, f"{given.__name__} has no fields", hint=hint)
    fields = []
    for name, annotation in hints.items():
        kind, nullable = _annotated(annotation, inside(path, name), depth)
        fields.append(pa.field(name, kind, nullable))
    return fields


def _rich(info: Any) -> object:  # noqa: ANN401
    """Return a pydantic field's annotation with its constraints, which decimals need."""
    metadata = tuple(getattr(info, "metadata", ()))
    return Annotated[info.annotation, *metadata] if metadata else info.annotation


def _annotated(
    annotation: object, path: str, depth: int, metadata: Sequence[object] = ()
) -> tuple[pa.DataType, bool]:
    """Return the type of an annotation, and whether it allows None."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _annotated(arguments[0], path, depth, (*arguments[1:], *metadata))
    if origin in (Union, types.UnionType):
        given = [each for each in arguments if each is not types.NoneType]
        if len(given) == 1 and len(arguments) == 2:
            return _annotated(given[0], path, depth, metadata)[0], True
        raise _no_column(annotation, path, "Use one type, plus None if it is optional")
    if origin is Literal and len(found := {type(each) for each in arguments}) == 1:
        return _annotated(found.pop(), path, depth)
    if annotation is Decimal:
        return _constrained_decimal(path, metadata), False
    return _PLAIN.get(annotation) or _nested(annotation, path, depth), False


def _nested(annotation: object, path: str, depth: int) -> pa.DataType:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (list, tuple, Sequence) and arguments and arguments[1:] in ((), (...,)):
        element, nullable = _annotated(arguments[0], f"{path}[]", depth + 1)
        return list_of(element, nullable=nullable)
    if origin in (dict, Mapping) and len(arguments) == 2:
        key, _ = _annotated(arguments[0], f"{path}{{key}}", depth + 1)
        value, nullable = _annotated(arguments[1], f"{path}{{value}}", depth + 1)
        return map_of(key, value, nullable=nullable)
    if isinstance(annotation, type) and (
        hasattr(annotation, "model_fields") or get_annotations(annotation)
    ):
        return pa.struct(_fields_of(annotation, path, depth + 1))
    raise _no_column(annotation, path, "Use str, int, float, bool, bytes, datetime, or lists")


def _constrained_decimal(path: str, metadata: Sequence[object]) -> pa.DataType:
    found: dict[str, int] = {}
    for each in metadata:
        for name in ("max_digits", "decimal_places"):
            value = getattr(each, name, None)
            if isinstance(value, int):
                found[name] = value
    if len(found) < 2:
        hint = "Use Field(max_digits=10, decimal_places=2) or decimal(10, 2)"
        raise BadSchema(path, "a decimal needs a precision and a scale", hint=hint)
    return _decimal_of(found["max_digits"], found["decimal_places"], path)


def _decimal_of(digits: int, places: int, path: str) -> pa.DataType:
    try:
        return pa.decimal128(digits, places)
    except ValueError as error:
        raise BadSchema(path, f"decimal({digits}, {places}): {error}") from error


def _no_column(annotation: object, path: str, hint: str) -> BadSchema:
    return BadSchema(path, f"{said(annotation)} is not a valid column type", hint=hint)


def type_word(kind: pa.DataType) -> str:
    """Format a supported type as `schema_of` parses it."""
    for is_one, written in _WRITTEN:
        if is_one(kind):
            return written(kind)
    return str(kind)


def field_word(field: pa.Field) -> str:
    """Format a column's type, with `not null` unless it is nullable."""
    return type_word(field.type) + ("" if field.nullable else " not null")


_WRITTEN: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]], ...]] = (
    (pa.types.is_decimal, lambda kind: f"decimal({kind.precision}, {kind.scale})"),
    (pa.types.is_timestamp, lambda _: "timestamp"),
    (pa.types.is_date, lambda _: "date"),
    (pa.types.is_floating, lambda kind: f"float{kind.bit_width}"),
    (
        pa.types.is_map,
        lambda kind: f"map<{type_word(kind.key_type)}, {field_word(kind.item_field)}>",
    ),
    (pa.types.is_list, lambda kind: f"list<{field_word(kind.value_field)}>"),
    (
        pa.types.is_struct,
        lambda kind: f"struct<{', '.join(f'{e.name}: {field_word(e)}' for e in kind)}>",
    ),
)
