"""File statistics by which readers of a Delta table skip files: row and null counts, min, max.

A bound may be wider than the values but never narrower, for every reader:

    timestamp   in whole milliseconds, as in Delta: the minimum rounded down, the maximum up;
                with a Z if it has a time zone
    date        as is; none outside the years 1 to 9999
    string      the first 32 characters; a truncated maximum ends with U+10FFFF, which sorts
                after everything it stands for
    float       none if there is a NaN, which readers order differently, and no infinity,
                which JSON lacks; a zero is -0.0 as the minimum and 0.0 as the maximum
    decimal     every digit
    boolean     as is
    binary, list, map       none, as in Delta

The fields of a struct have their own bounds, in an object of the struct's name; it may be
empty.

If one column of a file has values but lacks a bound, the file gets no bounds at all:
deltalake's dataset, which pandas, DuckDB and polars read through, would compare the column with
null and skip the file.
"""

import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

STRING_SIZE: Final = 32  # characters of a string, as Delta's own writer keeps
_LAST: Final = "\U0010ffff"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US_IN_MS: Final = 1000

Bound = Any  # a JSON value, or a Decimal; None for none
_ToBound = Callable[[Any], Bound]


class Statistics:
    """Statistics of one file, collected while its rows are written."""

    def __init__(self) -> None:
        self.row_count = 0
        self._columns = _Fields()

    def add(self, table: pa.Table) -> None:
        self.row_count += table.num_rows
        self._columns.add_all(table.schema, table.columns)

    def told(self) -> str:
        """Return the statistics as Delta's JSON."""
        found: dict[str, Bound] = {"numRecords": self.row_count}
        if not self._columns.lacks_a_bound:
            found["minValues"] = self._columns.told("low")
            found["maxValues"] = self._columns.told("high")
        found["nullCount"] = self._columns.told("null_count")
        return _json(found)


class _Fields:
    """The columns of a table, or the fields of a struct."""

    def __init__(self) -> None:
        self._each: dict[str, _Fields | _Values] = {}

    def add(self, column: pa.ChunkedArray) -> None:
        self.add_all(column.type, column.flatten())  # fields of a null struct are null in it

    def add_all(self, fields: Sequence[pa.Field], columns: Sequence[pa.ChunkedArray]) -> None:
        for field, column in zip(fields, columns, strict=True):
            if field.name not in self._each:
                is_struct = pa.types.is_struct(field.type)
                self._each[field.name] = _Fields() if is_struct else _Values(field.type)
            self._each[field.name].add(column)

    def told(self, what: str) -> dict[str, Bound]:
        found = {name: each.told(what) for name, each in self._each.items()}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def lacks_a_bound(self) -> bool:
        return any(each.lacks_a_bound for each in self._each.values())


class _Values:
    """One column of plain values, or of lists or maps, of which only nulls are counted."""

    def __init__(self, kind: pa.DataType) -> None:
        self.null_count = 0
        self._compared, *self._bounds = _kind(kind)
        self._low: Any = None  # exact, in `_compared`
        self._high: Any = None
        self._is_unordered = False

    def add(self, column: pa.ChunkedArray) -> None:
        self.null_count += column.null_count
        if self._compared is None or column.null_count == len(column):
            return
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            self._is_unordered = True
            return
        found = pc.min_max(column.cast(self._compared))
        low, high = found["min"].as_py(), found["max"].as_py()
        self._low = low if self._low is None else min(low, self._low)
        self._high = high if self._high is None else max(high, self._high)

    def told(self, what: str) -> Bound:
        if what == "null_count":
            return self.null_count
        if self._low is None or self._is_unordered:
            return None
        low, high = self._bounds
        return low(self._low) if what == "low" else high(self._high)

    @property
    def lacks_a_bound(self) -> bool:
        """Whether there are comparable values but a bound is missing."""
        is_compared = self._low is not None or self._is_unordered
        return is_compared and None in (self.told("low"), self.told("high"))


def _kind(kind: pa.DataType) -> tuple[pa.DataType | None, _ToBound, _ToBound]:
    """Return the type for comparison, and the conversions of minimum and maximum to bounds."""
    types = pa.types
    if types.is_integer(kind) or types.is_decimal(kind) or types.is_boolean(kind):
        return kind, _itself, _itself
    if types.is_floating(kind):
        return pa.float64(), lambda low: _finite(low or -0.0), lambda high: _finite(high or 0.0)
    if types.is_date32(kind):
        return pa.int32(), _day, _day
    if types.is_timestamp(kind) and kind.unit == "us":
        zone = "" if kind.tz is None else "Z"
        return pa.int64(), lambda us: _moment(us // _US_IN_MS, zone), _next_moment(zone)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return pa.large_binary(), _prefix, _prefix_end  # Spark's strings may not be UTF-8
    return None, _itself, _itself


def _itself(value: Bound) -> Bound:
    return value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _day(days: int) -> str | None:
    try:
        return (_EPOCH + timedelta(days=days)).date().isoformat()
    except OverflowError:
        return None


def _moment(milliseconds: int, zone: str) -> str | None:
    try:
        found = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    return f"{found.replace(tzinfo=None).isoformat(timespec='milliseconds')}{zone}"


def _next_moment(zone: str) -> _ToBound:
    return lambda us: _moment(-(-us // _US_IN_MS), zone)


def _prefix(value: bytes) -> str | None:
    text = _text(value)
    return None if text is None else text[:STRING_SIZE]


def _prefix_end(value: bytes) -> str | None:
    text = _text(value)
    if text is None or len(text) <= STRING_SIZE:
        return text
    end = STRING_SIZE
    while text[end : end + 1] == _LAST:  # a cut here would sort before it
        end += 1
    return text if end >= len(text) else text[:end] + _LAST


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _json(value: Bound) -> str:
    """Return JSON with every digit of a decimal, which the `json` module cannot write."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{_plain(key)}:{_json(one)}' for key, one in value.items())}}}"
    return format(value, "f") if isinstance(value, Decimal) else _plain(value)


def _plain(value: object) -> str:
    # Unescaped: deltalake decodes the escaped U+10FFFF to a different character.
    return json.dumps(value, ensure_ascii=False)
