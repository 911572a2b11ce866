"""Checks Python values for one column by the rule for Arrow columns, before Arrow gets them.

Arrow itself accepts more and silently changes it: True to 1.0, a number to a timestamp, a
timestamp with nanoseconds to one without. The rule is `column_types.TAKES`; docs/python.md
has it in words.
"""

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from numbers import Integral
from operator import itemgetter
from types import NoneType
from typing import Any, Final, NamedTuple

import pyarrow as pa

from headrace.errors import BadBatch
from headrace.model.column_types import TAKES, family, inside, said
from headrace.model.column_values import check_names, other_type, unfit

# Values of exactly these types are always valid.
_PLAIN: Final[dict[str, frozenset[type]]] = {
    "bool": frozenset({bool, NoneType}),
    "int": frozenset({int, NoneType}),
    "float": frozenset({float, int, NoneType}),
    "decimal": frozenset({Decimal, int, NoneType}),
    "string": frozenset({str, NoneType}),
    "binary": frozenset({bytes, NoneType}),
    "date": frozenset({date, NoneType}),
    "timestamp": frozenset({NoneType}),
}
# The first match counts: in Python a bool is an int, and a datetime a date.
_FAMILIES: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (bool, "bool"),
    (Integral, "int"),
    (float, "float"),
    (Decimal, "decimal"),
    (str, "string"),
    ((bytes, bytearray, memoryview), "binary"),
    (datetime, "timestamp"),
    (date, "date"),
)
_DAY_OR_MOMENT: Final = {
    "timestamp": ("the time of day would be lost", "Pass a date: moment.date()"),
    "date": ("a date is not a timestamp", "Pass a datetime with a time zone"),
}
_FLOAT32_MAX: Final = 3.4028235677973362e38  # plus half a step: smaller values round down to it
_EXACT_MAX: Final = 2**53  # integers up to this are exact floats


class ColumnRule(NamedTuple):
    """What is computed once per column and needed for all its values."""

    name: str
    kind: pa.DataType
    plain: frozenset[type] | None  # types of values that need no check; None: a nested column
    has_text: bool
    pick: "itemgetter[Any]"  # returns a row's value

    @classmethod
    def of(cls, field: pa.Field) -> "ColumnRule":
        name = family(field.type)
        return cls(
            field.name,
            field.type,
            _plain_of(field.type, name) if name else None,
            name in ("string", "binary"),
            itemgetter(field.name),
        )

    def fitted(self, values: list[Any]) -> list[Any]:
        """Return the values as the column accepts them. See `fitted`."""
        if self.plain is not None and set(map(type, values)) <= self.plain:
            return values
        return fitted(values, self.kind, self.name)

    def text_size(self, values: list[Any]) -> int:
        """Return the length of fitted values, 0 if they have none."""
        return sum(map(len, filter(None, values))) if self.has_text else 0


def fitted(values: list[Any], kind: pa.DataType, path: str) -> list[Any]:
    """Return values for a column of `kind`; the same list if nothing changes.

    BadBatch names the column of a value that `kind` does not take exactly.
    """
    if name := family(kind):
        plain = _plain_of(kind, name)
        if set(map(type, values)) <= plain:
            return values
        return [each if type(each) in plain else _leaf(each, kind, path) for each in values]
    if pa.types.is_struct(kind):
        return _structs(values, kind, path)
    if pa.types.is_map(kind):
        return _maps(values, kind, path)
    return _lists(values, kind, path)


def _plain_of(kind: pa.DataType, name: str) -> frozenset[type]:
    return _PLAIN["timestamp"] if pa.types.is_float32(kind) else _PLAIN[name]


def _leaf(value: Any, kind: pa.DataType, path: str) -> Any:  # noqa: ANN401
    if type(value) is datetime and pa.types.is_timestamp(
        kind
    ):  # the most common case, done fast
        return _moment(value, kind, path)
    value = _unwrapped(value)
    if value is None:
        return None
    wanted, found = family(kind), _family_of(value)
    if found in TAKES[wanted]:
        return _as_wanted(value, kind, path)
    if {wanted, found} == {"date", "timestamp"}:
        flaw, hint = _DAY_OR_MOMENT[found]
        raise BadBatch(flaw, column=path, hint=hint)
    raise other_type(f"{type(value).__name__} ({said(repr(value))})", kind, path)


def _as_wanted(value: Any, kind: pa.DataType, path: str) -> Any:  # noqa: ANN401
    match family(kind):
        case "int":
            if isinstance(value, float) and not value.is_integer():
                raise unfit(kind, f"{value} is not an integer", path)
            return int(value)
        case "float" if pa.types.is_float32(kind):
            return _float32(value, kind, path)
        case "binary":
            return bytes(value)
        case "timestamp":
            return _moment(value, kind, path)
        case _:
            return value


def _unwrapped(value: Any) -> Any:  # noqa: ANN401
    """Convert a NumPy scalar to Python, and a null of pandas to None."""
    room = type(value).__module__.partition(".")[0]
    if room == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    if room == "pandas" and type(value).__name__ in ("NAType", "NaTType"):
        return None
    return value


def _family_of(value: object) -> str:
    return next((name for kind, name in _FAMILIES if isinstance(value, kind)), "")


def _float32(value: float, kind: pa.DataType, path: str) -> float:
    if isinstance(value, int) and abs(value) > _EXACT_MAX:
        raise unfit(kind, f"a float cannot hold {value} exactly", path)
    number = float(value)
    if _FLOAT32_MAX <= abs(number) < float("inf"):
        raise unfit(kind, f"{value} is out of range", path)
    return number


def _moment(value: datetime, kind: pa.DataType, path: str) -> datetime:
    if value.tzinfo is None:
        flaw = f"{value.isoformat()} has no time zone"
        raise BadBatch(flaw, column=path, hint="Add one: datetime.now(UTC)")
    if getattr(value, "nanosecond", 0):  # of a pandas.Timestamp
        raise unfit(kind, f"{value.isoformat()} has nanoseconds", path)
    return value


def _structs(values: list[Any], kind: pa.DataType, path: str) -> list[Any]:
    rows = [each for each in values if isinstance(each, Mapping)]
    names = [child.name for child in kind]
    for row in rows:
        unknown = [str(name) for name in row if kind.get_field_index(str(name)) < 0]
        check_names([*names, *unknown], names, path)
    columns = []
    is_same = True
    for child in kind:
        given = [row.get(child.name) for row in rows]
        columns.append(fitted(given, child.type, inside(path, child.name)))
        is_same = is_same and columns[-1] is given
    if is_same:
        return values
    made = iter([dict(zip(names, parts, strict=True)) for parts in zip(*columns, strict=True)])
    return [next(made) if isinstance(each, Mapping) else each for each in values]


def _lists(values: list[Any], kind: pa.DataType, path: str) -> list[Any]:
    return _within([_elements(each) for each in values], kind.value_type, f"{path}[]")


def _maps(values: list[Any], kind: pa.DataType, path: str) -> list[Any]:
    pairs = [
        list(each.items()) if isinstance(each, Mapping) else _elements(each) for each in values
    ]
    sides = []
    for place, child, said_as in (
        (0, kind.key_type, f"{path}{{key}}"),
        (1, kind.item_type, f"{path}{{value}}"),
    ):
        given = [
            [_side(one, place, path) for one in each] if isinstance(each, list) else each
            for each in pairs
        ]
        sides.append(_within(given, child, said_as))
    return [
        list(zip(keys, items, strict=True)) if isinstance(keys, list) else keys
        for keys, items in zip(*sides, strict=True)
    ]


def _side(pair: Any, place: int, path: str) -> Any:  # noqa: ANN401
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
        flaw = f"{said(repr(pair))} is not a pair of a key and a value"
        raise BadBatch(flaw, column=path, hint="Pass a map as a dict")
    return pair[place]


def _elements(value: Any) -> Any:  # noqa: ANN401
    """Return a list's elements as a list; Arrow refuses anything else later."""
    value = _unwrapped(value)
    if isinstance(value, tuple):
        return list(value)
    return value.tolist() if hasattr(value, "tolist") else value


def _within(opened: list[Any], kind: pa.DataType, path: str) -> list[Any]:
    """Check the elements of all lists at once."""
    lists = [each for each in opened if isinstance(each, list)]
    flat: list[Any] = list(chain.from_iterable(lists))
    found = fitted(flat, kind, path)
    if found is flat:
        return opened
    rest = iter(found)
    return [[next(rest) for _ in each] if isinstance(each, list) else each for each in opened]
