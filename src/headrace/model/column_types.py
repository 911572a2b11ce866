"""Supported Arrow types of columns, conversions from other types, and valid column names.

The supported types are those that Spark takes without a cast and that round-trip through
Parquet. Another type is converted if its values always fit, or fit unless they carry more
than the supported type can (`date64` with hours, `timestamp[ns]`): then the values decide.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from headrace.errors import BadSchema

# Nested columns count too. Each takes some 60 bytes of a schema, which is in every image.
COLUMN_COUNT_MAX: Final = 2_000
COLUMN_NAME_SIZE_MAX: Final = 255  # bytes as UTF-8; the limit of table catalogs
# Nested types. Far below the limit of Arrow's own readers, and deep enough for any use.
NESTING_MAX: Final = 16
DECIMAL_PRECISION_MAX: Final = 38  # of a decimal128, and of Spark

TIMESTAMP: Final = pa.timestamp("us", "UTC")
# Parquet's names: with other names a schema would not round-trip.
_ELEMENT, _KEY, _VALUE = "element", "key", "value"

_KEPT = (
    pa.bool_(),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.float32(), pa.float64()),
    *(pa.string(), pa.binary(), pa.date32(), TIMESTAMP),
)
_BECOMES: dict[pa.DataType, pa.DataType] = {
    **{kept: kept for kept in _KEPT},
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
# Which families of values a column takes, exactly or not at all. The table applies to Python
# values and Arrow columns alike.
TAKES: Final[dict[str, frozenset[str]]] = {
    "bool": frozenset({"bool"}),
    "int": frozenset({"int", "float"}),  # a float that is a whole number
    "float": frozenset({"int", "float"}),
    "decimal": frozenset({"int", "decimal"}),
    "string": frozenset({"string"}),
    "binary": frozenset({"binary"}),
    "date": frozenset({"date"}),
    "timestamp": frozenset({"timestamp"}),  # with any time zone
}

_UTC = frozenset({"UTC", "Etc/UTC", "+00:00", "Z"})

# The first match gives the hint.
_INSTEAD: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_null, "Give the column a type, such as string"),
    (pa.types.is_time, "Use int64, with the unit in the column name"),
    (pa.types.is_duration, "Use int64, with the unit in the column name"),
    (pa.types.is_interval, "Use int64 columns, with the units in their names"),
    (
        pa.types.is_timestamp,
        "Use timestamp[us, tz=UTC]: convert other zones, and assign one if there is none",
    ),
    (
        pa.types.is_decimal,
        "Use decimal128 with precision 1 to 38 and a scale from 0 to the precision",
    ),
    (pa.types.is_union, "Use a struct with a nullable field for each type"),
    (pa.types.is_run_end_encoded, "Use the type of its values"),
    (pa.types.is_struct, "Give the struct a field, or omit the column"),
    (lambda kind: isinstance(kind, pa.BaseExtensionType), "Use its storage type"),
)
_NO_NAME = re.compile(
    r"[\x00-\x1f\x7f-\x9f]"
)  # a fixed set; "printable" changes between releases of Unicode
_SAID_MAX = 200  # characters of a name or type within a message


def list_of(element: pa.DataType, *, nullable: bool) -> pa.ListType:
    """Return the supported list type."""
    return pa.list_(pa.field(_ELEMENT, element, nullable))


def map_of(key: pa.DataType, value: pa.DataType, *, nullable: bool) -> pa.MapType:
    """Return the supported map type; `nullable` applies to the values."""
    return pa.map_(pa.field(_KEY, key, nullable=False), pa.field(_VALUE, value, nullable))


def is_any_list(kind: pa.DataType) -> bool:
    """Say whether the values are lists, in any layout."""
    tests = pa.types
    return bool(
        tests.is_list(kind)
        or tests.is_large_list(kind)
        or tests.is_fixed_size_list(kind)
        or tests.is_list_view(kind)
        or tests.is_large_list_view(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    tests = pa.types
    return bool(
        tests.is_string(kind) or tests.is_large_string(kind) or tests.is_string_view(kind)
    )


def _is_bytes(kind: pa.DataType) -> bool:
    tests = pa.types
    return bool(
        tests.is_binary(kind)
        or tests.is_large_binary(kind)
        or tests.is_binary_view(kind)
        or tests.is_fixed_size_binary(kind)
    )


_FAMILIES: Final[tuple[tuple[str, Callable[[pa.DataType], bool]], ...]] = (
    ("bool", pa.types.is_boolean),
    ("int", pa.types.is_integer),
    ("float", pa.types.is_floating),
    ("decimal", pa.types.is_decimal),
    ("string", _is_text),
    ("binary", _is_bytes),
    ("date", pa.types.is_date),
    ("timestamp", pa.types.is_timestamp),
)


def family(kind: pa.DataType) -> str:
    """Return the family of a type's values, a key of TAKES; "" for a nested type."""
    return next((name for name, is_one in _FAMILIES if is_one(kind)), "")


def said(thing: object) -> str:
    """Return a name or a type as messages show it: shortened if too long."""
    text = str(thing)
    return text if len(text) <= _SAID_MAX else f"{text[:_SAID_MAX]}..."


def inside(path: str, name: str) -> str:
    """Return the path of field `name` in the struct at `path`; an empty `path` is the top."""
    return f"{path}.{name}" if path else name


@dataclass(slots=True)
class Walk:
    """One walk through a schema, with the number of columns seen.

    `is_input`: the types are those of an incoming batch. Its times may have any zone, and a
    column or nested field may be of type null.
    """

    column_count: int = 0
    is_input: bool = False

    def fields(
        self, fields: Iterable[pa.Field], path: str = "", depth: int = 1
    ) -> list[pa.Field]:
        """Return fields of a schema, or of the struct at `path`, with supported types."""
        kept: dict[str, pa.Field] = {}
        for place, field in enumerate(fields):
            name = _checked_name(field, path, place)
            column = inside(path, name)
            if other := kept.get(_folded(name)):
                raise BadSchema(
                    column,
                    f"conflicts with {other.name!r}: Spark ignores case",
                    hint="Rename one of them",
                )
            kind = self.kind(field.type, column, depth)
            kept[_folded(name)] = pa.field(name, kind, field.nullable)
        return list(kept.values())

    def kind(self, kind: pa.DataType, path: str, depth: int = 1) -> pa.DataType:
        """Return the supported type for `kind`, or raise BadSchema."""
        self._meet(path, depth)
        if not kind.num_fields and (leaf := _BECOMES.get(kind)):
            return leaf
        if self.is_input and pa.types.is_null(kind):
            return kind
        for is_one, rule in _RULES:
            if is_one(kind) and (kept := rule(self, kind, path, depth)):
                return kept
        raise BadSchema(path, f"type {said(kind)} is not supported", hint=_instead(kind))

    def _meet(self, path: str, depth: int) -> None:
        self.column_count += 1
        if self.column_count > COLUMN_COUNT_MAX:
            raise BadSchema(
                said(path),
                f"more than {COLUMN_COUNT_MAX} columns, including nested ones",
                hint="Split them across several topics, or use a map",
            )
        if depth > NESTING_MAX:
            raise BadSchema(
                said(path),
                f"types are nested more than {NESTING_MAX} levels deep",
                hint="Flatten them, or store the inner part as string or binary",
            )

    def _timestamp(self, kind: pa.DataType, path: str, depth: int) -> pa.DataType | None:
        try:
            is_known = kind.tz in _UTC or (self.is_input and bool(kind.tz))
            return TIMESTAMP if is_known else None
        except UnicodeDecodeError:
            return None

    def _decimal(self, kind: pa.DataType, path: str, depth: int) -> pa.DataType | None:
        precision, scale = kind.precision, kind.scale
        if not 0 <= scale <= precision <= DECIMAL_PRECISION_MAX:
            return None
        return pa.decimal128(precision, scale)

    def _fixed_size_binary(self, kind: pa.DataType, path: str, depth: int) -> pa.DataType:
        return pa.binary()

    def _dictionary(self, kind: pa.DataType, path: str, depth: int) -> pa.DataType:
        return self.kind(kind.value_type, path, depth + 1)

    def _list(self, kind: pa.DataType, path: str, depth: int) -> pa.DataType:
        element = self.kind(kind.value_type, f"{path}[]", depth + 1)
        return list_of(element, nullable=kind.value_field.nullable)

    def _struct(self, kind: pa.DataType, path: str, depth: int) -> pa.DataType | None:
        return pa.struct(self.fields(kind, path, depth + 1)) if kind.num_fields else None

    def _map(self, kind: pa.DataType, path: str, depth: int) -> pa.DataType:
        key = self.kind(kind.key_type, f"{path}{{key}}", depth + 1)
        value = self.kind(kind.item_type, f"{path}{{value}}", depth + 1)
        return map_of(key, value, nullable=kind.item_field.nullable)


_Rule = Callable[[Walk, pa.DataType, str, int], pa.DataType | None]
_RULES: tuple[tuple[Callable[[pa.DataType], bool], _Rule], ...] = (
    (pa.types.is_timestamp, Walk._timestamp),
    (pa.types.is_decimal, Walk._decimal),
    (pa.types.is_fixed_size_binary, Walk._fixed_size_binary),
    (pa.types.is_dictionary, Walk._dictionary),
    (is_any_list, Walk._list),
    (pa.types.is_struct, Walk._struct),
    (pa.types.is_map, Walk._map),
)


def _instead(kind: pa.DataType) -> str:
    hints = (hint for is_one, hint in _INSTEAD if is_one(kind))
    return next(hints, "Use a type that Spark supports")


def _checked_name(field: pa.Field, path: str, place: int) -> str:
    here = inside(path, f"#{place}")
    try:
        name = str(field.name)
    except UnicodeDecodeError:
        raise BadSchema(here, "the name is not valid UTF-8", hint="Rename it") from None
    if not name:
        raise BadSchema(here, "the name is empty", hint="Give it a name")
    if len(name.encode()) > COLUMN_NAME_SIZE_MAX:
        flaw = f"the name is longer than {COLUMN_NAME_SIZE_MAX} bytes"
        raise BadSchema(inside(path, said(name)), flaw, hint="Use a shorter name")
    if _NO_NAME.search(name):
        flaw = "the name contains a control character"
        raise BadSchema(inside(path, name), flaw, hint="Rename it")
    return name


def _folded(name: str) -> str:
    """Return a key that is equal for names that Spark considers the same."""
    # Java compares each letter in upper case, then in lower: both Turkish i equal i.
    return name.replace("\u0130", "i").upper().casefold()
