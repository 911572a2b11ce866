"""Converts user data to Arrow batches: tables, data frames, rows, columns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from itertools import chain
from typing import Any, Final, Protocol, TypeAlias, TypeGuard, runtime_checkable

import pyarrow as pa

from headrace.client.write.python_values import ColumnRule, fitted
from headrace.errors import BadBatch
from headrace.model.column_types import said
from headrace.model.column_values import Required, check_names, names_of, required_of
from headrace.model.schema import conform

PIECE_ROWS: Final = 8_192  # converted at once: their columns stay in the CPU cache
PIECE_SIZE: Final = 1024 * 1024  # their approximate bytes: far below what one array can hold

_NO_ROWS: Final = "Pass a table, a data frame, a list of dicts, or a dict of lists"
_NUMBER_SIZE: Final = 8
_NUMBERS: Final = (int, float, type(None))
_TEXTS: Final = (str, bytes, bytearray)
_LISTS: Final = (list, tuple)
_SINGLE: Final = frozenset(
    {int, float, bool, type(None)}
)  # types whose values have a fixed size
_SHOWN_MAX: Final = 100  # characters of a value that a message shows
_NESTING_MAX: Final = 32  # deeper values are not measured; no supported type is so deep


@runtime_checkable
class ArrowStream(Protocol):
    """Anything that exports an Arrow stream: Polars, DuckDB, Arrow itself."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


@runtime_checkable
class ArrowArray(Protocol):
    """Anything that exports one Arrow batch."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> object: ...


Row = Mapping[str, object]
# Row objects are pydantic models or dataclasses; a pandas data frame is an object too, and the
# Protocols cover the rest.
Data = (
    ArrowStream | ArrowArray | Sequence[Row] | Sequence[object] | Mapping[str, Sequence[object]]
)

Column: TypeAlias = Any  # a pa.Array, or a pa.ChunkedArray if one array cannot hold it


def batches_of(data: Data, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return `data` as batches of exactly `schema`. See Converter."""
    return Converter(schema).batches_of(data)


class Converter:
    """Converts user data to batches of one canonical schema.

    One rule holds: values are taken exactly, by `column_types.TAKES`, and nullable columns may
    be omitted. BadBatch names the column. `required` is what `required_of(schema)` returns, if
    the caller has it.
    """

    def __init__(self, schema: pa.Schema, required: Required | None = None) -> None:
        self.schema = schema
        self.required = required_of(schema) if required is None else required
        self._columns = [ColumnRule.of(field) for field in schema]
        self._is_flat = all(each.plain is not None for each in self._columns)
        row_size = _NUMBER_SIZE * (1 + len(schema))
        self._step = max(1, min(PIECE_ROWS, PIECE_SIZE // row_size))

    def batches_of(self, data: Data) -> Iterator[pa.RecordBatch]:
        """Return `data` as batches.

        A stream is validated as it is consumed; other data before the first batch.
        """
        if type(data) is list:  # the other checks take longer
            found: Iterable[pa.RecordBatch] = list(self.from_rows(rows_of(data)))
        else:
            found = self._arrow_batches(data)
        fitted = (self.conformed(batch) for batch in found if batch.num_rows)
        return iter(list(fitted)) if isinstance(found, list) else fitted

    def conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch of any schema to this schema."""
        return conform(_filled(batch, self.schema), self.schema, self.required)

    def _arrow_batches(self, data: Data) -> Iterable[pa.RecordBatch]:
        schema = self.schema
        if isinstance(data, pa.RecordBatch | pa.Table):
            return [data] if isinstance(data, pa.RecordBatch) else list(data.to_batches())
        if _is_pandas(data):
            return _frame_to_batches(data, schema)
        _check_holds_rows(data)
        if isinstance(data, ArrowArray):
            return [pa.record_batch(data)]
        if isinstance(data, ArrowStream):
            return _read(data)
        if isinstance(data, Mapping):
            return _from_columns(data, schema)
        if _is_text(data) or not isinstance(data, Sequence):
            raise BadBatch(f"{type(data).__name__} holds no rows", hint=_NO_ROWS)
        return list(self.from_rows(rows_of(data)))

    def from_rows(self, rows: Sequence[dict[str, object]]) -> Iterator[pa.RecordBatch]:
        """Convert rows to batches, without checking nulls. See `pieces`."""
        for start in range(0, len(rows), self._step):
            some = rows[start : start + self._step]
            columns = self._regular(some) if self._is_flat else None
            if columns is not None:
                yield from self._cut(columns)
                continue
            for piece, _ in pieces(some):
                yield from self._to_batches(self._irregular(piece))

    def _regular(self, rows: Sequence[dict[str, object]]) -> list[list[Any]] | None:
        """Return the columns of rows, or None unless each has exactly the schema's names."""
        if set(map(len, rows)) != {len(self._columns)}:
            return None
        try:
            found = [list(map(each.pick, rows)) for each in self._columns]
        except KeyError:
            return None
        return [each.fitted(values) for each, values in zip(self._columns, found, strict=True)]

    def _irregular(self, rows: Sequence[dict[str, object]]) -> list[list[Any]]:
        """Return the columns of any rows. A column missing from a row is null in it."""
        names = self.schema.names
        unknown = [
            name for name in dict.fromkeys(chain.from_iterable(rows)) if name not in names
        ]
        check_names([*names, *map(str, unknown)], names)
        return [each.fitted([row.get(each.name) for row in rows]) for each in self._columns]

    def _cut(self, columns: list[list[Any]]) -> Iterator[pa.RecordBatch]:
        """Convert columns to batches, halving them while they are too large."""
        count = len(columns[0])
        rules = zip(self._columns, columns, strict=True)
        if count > 1 and sum(rule.text_size(values) for rule, values in rules) > PIECE_SIZE:
            yield from self._cut([each[: count // 2] for each in columns])
            yield from self._cut([each[count // 2 :] for each in columns])
        else:
            yield from self._to_batches(columns)

    def _to_batches(self, columns: list[list[Any]]) -> list[pa.RecordBatch]:
        fields = zip(columns, self.schema, strict=True)
        arrays = [_array(values, field) for values, field in fields]
        found: list[pa.RecordBatch] = pa.Table.from_arrays(
            arrays, schema=self.schema
        ).to_batches()
        return found


def _check_holds_rows(data: object) -> None:
    """Refuse what is almost rows, with a hint how to convert it."""
    name = type(data).__name__
    if hasattr(data, "to_frame") or isinstance(data, pa.Array | pa.ChunkedArray):
        struct = isinstance(data, pa.Array) and pa.types.is_struct(data.type)
        if not struct:
            hint = "Name it: series.to_frame(name), or {name: values}"
            raise BadBatch(f"{name} is a single column, not rows", hint=hint)
    if hasattr(data, "collect") and hasattr(data, "lazy"):
        raise BadBatch(f"{name} holds no rows yet", hint="Collect it first: .collect()")
    if isinstance(data, Iterator) and not isinstance(data, ArrowStream):
        raise BadBatch(f"{name} is not a list of rows", hint="Pass list(rows)")


def _filled(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Add omitted nullable columns.

    Columns of Polars' Enum and Categorical become strings: Arrow cannot decode them itself.
    """
    if batch.schema.equals(schema):
        return batch
    names = names_of(batch.schema)
    for name in _with_absent(names, schema)[len(names) :]:
        field = schema.field(name)
        batch = batch.append_column(field, pa.nulls(batch.num_rows, field.type))
    for place, field in enumerate(batch.schema):
        if pa.types.is_dictionary(field.type) and field.type.value_type == pa.string_view():
            column = batch.column(place)
            words = column.dictionary.cast(pa.string())
            plain = pa.DictionaryArray.from_arrays(column.indices, words)
            batch = batch.set_column(place, field.name, plain)
    return batch


def infer_schema(data: Data | Mapping[str, object]) -> pa.Schema:
    """Return the schema of `data` as it is; the caller converts it to supported types."""
    if _is_pandas(data):
        return pa.Schema.from_pandas(data, preserve_index=False).remove_metadata()
    if isinstance(data, pa.RecordBatch | pa.Table):
        return data.schema
    if isinstance(data, ArrowStream):
        return pa.RecordBatchReader.from_stream(data).schema
    if isinstance(data, ArrowArray):
        return pa.record_batch(data).schema
    try:
        if isinstance(data, Mapping):
            _check_columns(data)
            return pa.table(dict(data)).schema
        if _is_text(data) or not isinstance(data, Sequence):
            raise TypeError(f"{type(data).__name__} holds no rows")
        return pa.Table.from_pylist(rows_of(data)).schema
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        flaw = f"cannot infer a schema: {said(error)}"
        raise BadBatch(flaw, hint=_NO_ROWS) from error


def row_of(item: object) -> dict[str, object]:
    """Return one row as a new dict, from a dict, a pydantic model, or a dataclass."""
    if type(item) is dict:
        return item.copy()
    if isinstance(item, Mapping):
        return dict(item)
    dump = getattr(item, "model_dump", None)
    if callable(dump) and not isinstance(item, type):
        found = dump()
        assert isinstance(found, dict)
        return found
    if is_dataclass(item) and not isinstance(item, type):
        return asdict(item)
    raise BadBatch(f"{type(item).__name__} is not a row", hint="Pass each row as a dict")


def rows_of(data: Sequence[object]) -> list[dict[str, object]]:
    """Return rows as dicts; existing dicts are not copied."""
    if set(map(type, data)) == {dict}:
        return list(data)  # type: ignore[arg-type]  # each is a dict
    return [row_of(each) for each in data]


def row_size(row: Mapping[str, object]) -> int:
    """Return the approximate bytes of a row."""
    size = _NUMBER_SIZE
    for value in row.values():
        kind = type(value)
        if kind is str:
            size += len(value) + _NUMBER_SIZE  # type: ignore[arg-type]
        else:
            size += _NUMBER_SIZE if kind in _SINGLE else size_of(value, 1)
    return size


def size_of(value: object, depth: int = 0) -> int:
    """Return the approximate bytes of a value, with its content."""
    if isinstance(value, _NUMBERS):
        return _NUMBER_SIZE
    if isinstance(value, _TEXTS):
        return len(value) + _NUMBER_SIZE
    if depth < _NESTING_MAX:
        if isinstance(value, Mapping):
            return sum([size_of(each, depth + 1) for each in value.values()], _NUMBER_SIZE)
        if isinstance(value, _LISTS):
            return sum([size_of(each, depth + 1) for each in value], _NUMBER_SIZE)
    size = getattr(value, "nbytes", _NUMBER_SIZE)  # of an array, or a memoryview
    return size if isinstance(size, int) else _NUMBER_SIZE


def pieces(
    rows: Sequence[dict[str, object]],
) -> Iterator[tuple[list[dict[str, object]], int]]:
    """Yield rows in pieces that always fit into one Arrow array, each with its size."""
    held: list[dict[str, object]] = []
    held_size = 0
    for row in rows:
        size = row_size(row)
        if held and (len(held) >= PIECE_ROWS or held_size + size > PIECE_SIZE):
            yield held, held_size
            held, held_size = [], 0
        held.append(row)
        held_size += size
    if held:
        yield held, held_size


def _from_columns(columns: Mapping[str, Any], schema: pa.Schema) -> list[pa.RecordBatch]:
    _check_columns(columns)
    names = [*map(str, columns)]
    required = [each.name for each in schema if not each.nullable]
    check_names(_with_absent(names, schema), schema.names, required=required)
    given = [field for field in schema if field.name in columns]
    found = [_as_column(columns[field.name], field) for field in given]
    for field, column in zip(given, found, strict=True):
        if len(column) != len(found[0]):
            flaw = f"has {len(column)} values, {given[0].name!r} has {len(found[0])}"
            raise BadBatch(flaw, column=field.name, hint="Use columns of equal length")
    return list(pa.Table.from_arrays(found, names=[each.name for each in given]).to_batches())


def _check_columns(columns: Mapping[str, object]) -> None:
    """Refuse single values: Arrow would split a string, or bytes, into its elements."""
    single = [name for name, each in columns.items() if not _is_column(each)]
    if single and len(single) == len(columns):
        raise BadBatch("a dict of single values is one row", hint="Pass it in a list: [row]")
    for name in single:
        flaw = f"{repr(columns[name])[:_SHOWN_MAX]} is a single value, not a column"
        raise BadBatch(flaw, column=str(name), hint="Pass a list of values")


def _with_absent(names: list[str], schema: pa.Schema) -> list[str]:
    """Add the names of omitted nullable columns, which are null in every row."""
    absent = [each.name for each in schema if each.nullable and each.name not in names]
    return [*names, *absent]


def _is_column(value: object) -> bool:
    if isinstance(value, (*_TEXTS, memoryview, Mapping)):
        return False
    return hasattr(value, "__len__") or hasattr(value, "__iter__")


def _as_column(values: Any, field: pa.Field) -> Column:  # noqa: ANN401
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if (dimensions := getattr(values, "ndim", 1)) != 1:
        flaw = f"has {dimensions} dimensions, a column has one"
        raise BadBatch(flaw, column=field.name, hint="Pass a list of arrays: list(values)")
    is_objects = str(getattr(values, "dtype", "")) == "object"
    if is_objects or isinstance(values, list | tuple):
        return _column(list(values), field)
    return _converted(lambda: pa.array(values), field.name)


def _column(values: list[object], field: pa.Field) -> Column:
    return _array(fitted(values, field.type, field.name), field)


def _array(values: list[Any], field: pa.Field) -> Column:
    return _converted(lambda: pa.array(values, field.type), field.name)


def _frame_to_batches(frame: Any, schema: pa.Schema) -> list[pa.RecordBatch]:  # noqa: ANN401
    """Return a data frame's columns, and the index levels that the schema names."""
    series = {str(name): frame[name] for name in frame.columns}
    if len(series) < len(frame.columns):
        names = [str(name) for name in frame.columns]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadBatch("appears twice", column=twice, hint="Remove one")
    for level, name in enumerate(frame.index.names):
        if isinstance(name, str) and name in schema.names and name not in series:
            series[name] = frame.index.get_level_values(level)
    columns = [_from_pandas(values, name, schema) for name, values in series.items()]
    if not columns:
        return []
    return list(pa.Table.from_arrays(columns, names=[*series]).to_batches())


def _from_pandas(series: Any, name: str, schema: pa.Schema) -> Column:  # noqa: ANN401
    """Return one column in its own type. What pandas considers null, NaN too, becomes null."""
    if str(series.dtype).startswith("Sparse"):
        raise BadBatch("is sparse", column=name, hint="Pass series.sparse.to_dense()")
    place = schema.get_field_index(name)
    if place >= 0 and str(series.dtype) == "object":
        values = zip(series.tolist(), series.isna().tolist(), strict=True)
        return _column(
            [None if is_null else each for each, is_null in values], schema.field(place)
        )
    return _converted(lambda: pa.array(series, from_pandas=True), name)


def _converted(make: Any, name: str) -> Column:  # noqa: ANN401
    try:
        return make()
    except OverflowError as error:
        hint = "Change the value, or use a column type that can hold it"
        raise BadBatch("a number is out of range", column=name, hint=hint) from error
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        flaw = said(str(error).splitlines()[0] if str(error) else error)
        raise BadBatch(flaw, column=name, hint="Use values of the column's type") from error


def _is_text(data: object) -> bool:
    return isinstance(data, _TEXTS)


def _is_pandas(data: object) -> TypeGuard[Any]:
    kind = type(data)
    return kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame"


def _read(data: ArrowStream) -> Iterator[pa.RecordBatch]:
    try:
        with pa.RecordBatchReader.from_stream(data) as reader:
            yield from reader
    except pa.ArrowInvalid as error:
        # An error from a Python stream includes its whole traceback.
        flaw = str(error).strip().partition("\n")[0]
        raise BadBatch(
            f"the stream failed: {said(flaw)}", hint="Check the source of the rows"
        ) from error
