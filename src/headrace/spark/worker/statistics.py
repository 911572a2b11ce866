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
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

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
        return _said(self.row_count, self._columns)


def _said(row_count: int, columns: "_Fields") -> str:
    found: dict[str, Bound] = {"numRecords": row_count}
    if not columns.lacks_a_bound:
        found["minValues"] = columns.told("low")
        found["maxValues"] = columns.told("high")
    found["nullCount"] = columns.told("null_count")
    return _json(found)


def footer_statistics(
    footer: pq.FileMetaData,
    columns: pa.Schema,
    no_nan: Collection[int],
    names: Collection[str],
) -> str:
    """Return the statistics of a Parquet file from its footer, without reading its rows.

    `columns` are those of the file, in its order, of which the table has `names`. `no_nan` are
    the leaves in which each value is a number: a footer leaves NaN out of its bounds. Nulls of
    lists and maps are not counted.
    """
    fields, leaf = _Fields(), 0
    for field in columns:
        if field.name in names:
            fields.put(field.name, _told_by(footer, field.type, leaf, no_nan))
        leaf += _leaf_count(field.type)
    return _said(footer.num_rows, fields)


def _leaf_count(kind: pa.DataType) -> int:
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaf_count(kind.field(place).type) for place in range(kind.num_fields))


def _told_by(
    footer: pq.FileMetaData, kind: pa.DataType, leaf: int, no_nan: Collection[int]
) -> "_Fields | _Values":
    """Return what a footer tells of a column whose first leaf is `leaf`."""
    if pa.types.is_struct(kind):
        found = _Fields()
        for place in range(kind.num_fields):
            field = kind.field(place)
            found.put(field.name, _told_by(footer, field.type, leaf, no_nan))
            leaf += _leaf_count(field.type)
        return found
    values = _Values(kind)
    if pa.types.is_nested(kind):
        values.null_count = None
        return values
    for number in range(footer.num_row_groups):
        chunk = footer.row_group(number).column(leaf)
        values.add_chunk(chunk, has_nan=leaf not in no_nan)
    return values


class _Fields:
    """The columns of a table, or the fields of a struct."""

    def __init__(self) -> None:
        self._each: dict[str, _Fields | _Values] = {}

    def put(self, name: str, told: "_Fields | _Values") -> None:
        self._each[name] = told

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
        self.null_count: int | None = 0  # None: unknown
        self._kind = kind
        self._compared, *self._bounds = _kind(kind)
        self._low: Any = None  # exact, in `_compared`
        self._high: Any = None
        self._is_unordered = False

    def add(self, column: pa.ChunkedArray) -> None:
        assert self.null_count is not None
        self.null_count += column.null_count
        if self._compared is None or column.null_count == len(column):
            return
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            self._is_unordered = True
            return
        found = pc.min_max(column.cast(self._compared))
        self._widen(found["min"].as_py(), found["max"].as_py())

    def add_chunk(self, chunk: pq.ColumnChunkMetaData, *, has_nan: bool) -> None:
        """Add what a footer says of a column's part in a row group."""
        found = chunk.statistics if chunk.is_stats_set else None
        if found is None or not found.has_null_count:
            self.null_count, self._is_unordered = None, True
            return
        if self.null_count is not None:
            self.null_count += found.null_count
        if self._compared is None or not found.num_values:
            return
        if not found.has_min_max or (has_nan and pa.types.is_floating(self._kind)):
            self._is_unordered = True
            return
        self._widen(*(_exact(each, self._kind) for each in (found.min_raw, found.max_raw)))

    def _widen(self, low: Bound, high: Bound) -> None:
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


def _exact(raw: Bound, kind: pa.DataType) -> Bound:
    """Return a bound as a footer stores it as a value that compares like the column's."""
    if not pa.types.is_decimal(kind):
        return raw
    unscaled = int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -kind.scale))


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
