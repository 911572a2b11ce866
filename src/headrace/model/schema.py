"""Valid schemas of topics, conversion of batches to them, schema evolution, and stored columns.

schema := an Arrow IPC schema message, canonical: no metadata, supported types only
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from itertools import count
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import BadBatch, BadSchema
from headrace.model.column_types import TIMESTAMP, Walk, said
from headrace.model.column_values import (
    Required,
    cast,
    check_names,
    check_nulls,
    check_required,
    exact,
    names_of,
    required_of,
)

# They precede the user's columns in every segment and every answer.
SYSTEM_FIELDS: Final[tuple[pa.Field, ...]] = (
    pa.field("_partition", pa.int32(), nullable=False),
    pa.field("_offset", pa.int64(), nullable=False),
    pa.field("_timestamp", TIMESTAMP, nullable=False),
)
RESERVED: Final = "_"  # the prefix of names that Headrace uses, now and later

# Formats of a segment. The first has the names above in the file. The second prefixes them,
# since Iceberg reserves `_partition`, and numbers all columns: a table can take its files.
SEGMENT_FORMAT: Final = 2  # the newest
SEGMENT_FORMAT_FIRST: Final = 1
SEGMENT_FORMAT_KEY: Final = "headrace.format"  # in the footer
NO_NAN_KEY: Final = "headrace.no_nan"  # likewise, from format 2 on
_STORED_PREFIX: Final = "_hr"
_NUMBERS: Final = re.compile(rb"[0-9]{1,9}(,[0-9]{1,9})*")
_FIELD_ID: Final = b"PARQUET:field_id"  # Arrow's name for the ID of a Parquet column

SCHEMA_SIZE_MAX: Final = 256 * 1024  # the limit of the metadata machine

_WIDENING = (
    (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    (pa.float32(), pa.float64()),
)
_NEW_TOPIC = (
    "A topic may only gain nullable columns at its end and wider numbers; otherwise create "
    "a new one"
)


def canonical(schema: pa.Schema) -> pa.Schema:
    """Return `schema` as it is stored: no metadata, and only supported types.

    Raise BadSchema, with the column's path, for what is not supported.
    """
    if not len(schema):
        raise BadSchema("", "the schema has no columns", hint="Add at least one")
    fields = Walk().fields(schema)
    for field in fields:
        if field.name.startswith(RESERVED):
            flaw = f"names that start with {RESERVED!r} are reserved"
            raise BadSchema(field.name, flaw, hint="Rename it")
    return pa.schema(fields)


def conform(
    batch: pa.RecordBatch, schema: pa.Schema, required: Required | None = None
) -> pa.RecordBatch:
    """Return `batch` with exactly the columns and types of `schema`, which is canonical.

    The batch is validated already. Columns may have any order, and any type that converts to
    the schema's without changing a value; equal types are not copied. Raise BadBatch, with the
    column's path, for everything else. `required` is what `required_of(schema)` returns, if
    the caller has it.
    """
    fitted = batch if batch.schema.equals(schema) else _fitted(batch, schema)
    check_required(fitted, required_of(schema) if required is None else required)
    if fitted.schema.equals(schema, check_metadata=True):
        return fitted
    return pa.RecordBatch.from_arrays(fitted.columns, schema=schema)


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    names = names_of(batch.schema)
    required = [each.name for each in schema if not each.nullable]
    check_names(names, schema.names, required=required)
    columns = dict(zip(names, batch.columns, strict=True))
    return pa.RecordBatch.from_arrays(
        [exact(columns[field.name], field.type, field.name) for field in schema], schema=schema
    )


def check_evolution(old: pa.Schema, new: pa.Schema) -> None:
    """Raise BadSchema unless `old` may evolve to `new`. Both are canonical."""
    if new.equals(old):
        raise BadSchema("", "nothing changes", hint="The topic already has this schema")
    _check_places(old, new)
    for before, after in zip(old, new, strict=False):
        _check_change(before, after)
    for added in list(new)[len(old) :]:
        if not added.nullable:
            flaw = "new and not nullable, but existing rows have no value for it"
            raise BadSchema(added.name, flaw, hint=f"Make it nullable. {_NEW_TOPIC}")


def upgrade(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch of an older version of `schema` to `schema`.

    Missing columns become null, numbers are widened, and the rest is not copied.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    found = dict(zip(names_of(batch.schema), batch.columns, strict=True))
    check_names([*found, *(each for each in schema.names if each not in found)], schema.names)
    columns = [_upgraded(found.get(each.name), each, batch.num_rows) for each in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def encode_schema(schema: pa.Schema) -> bytes:
    """Return a canonical schema as bytes, always the same for the same schema."""
    _check_canonical(schema)
    data: bytes = schema.serialize().to_pybytes()
    if len(data) > SCHEMA_SIZE_MAX:
        flaw = f"the schema has {len(data)} bytes, the limit is {SCHEMA_SIZE_MAX}"
        raise BadSchema("", flaw, hint="Use fewer columns or shorter names")
    return data


def decode_schema(data: bytes) -> pa.Schema:
    """Return the schema that `encode_schema` encoded, or raise BadSchema."""
    if len(data) > SCHEMA_SIZE_MAX:
        raise BadSchema(
            "", f"{len(data)} bytes are too many for a schema, the limit is {SCHEMA_SIZE_MAX}"
        )
    reader = pa.BufferReader(data)
    try:
        schema = pa.ipc.read_schema(reader)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise BadSchema("", f"not a valid schema: {said(error)}") from error
    if (rest := len(data) - reader.tell()) != 0:
        raise BadSchema("", f"{rest} extra bytes follow the schema")
    _check_canonical(schema)
    return schema


def check_sealable(schema: pa.Schema) -> None:
    """Raise BadSchema unless rows of `schema` round-trip through Parquet.

    Tries no rows and a few rows, with values, nulls and empty lists wherever allowed.
    """
    samples = pa.table([_samples(field) for field in schema], schema=schema)
    for table in (samples.slice(0, 0), samples):
        if not (flaw := _parquet_flaw(table)):
            continue
        flaws = ((name, _parquet_flaw(table.select([name]))) for name in schema.names)
        column, flaw = next((each for each in flaws if each[1]), ("", flaw))
        raise BadSchema(column, flaw, hint="Use another type")


def stored_name(name: str, form: int) -> str:
    """Return the name in a segment of format `form` of a column that readers call `name`."""
    is_prefixed = form > SEGMENT_FORMAT_FIRST and name.startswith(RESERVED)
    return _STORED_PREFIX + name if is_prefixed else name


@lru_cache(maxsize=64)  # many segments have few schemas
def stored_schema(schema: pa.Schema, form: int) -> pa.Schema:
    """Return the columns in a segment, for all columns of its rows: with IDs from format 2 on.

    The numbers are those that Iceberg gives the columns of a new table, which readers of its
    tables believe before names.
    """
    if form == SEGMENT_FORMAT_FIRST:
        return schema
    named = [field.with_name(stored_name(field.name, form)) for field in schema]
    return pa.schema(_numbered(named, count(1)))


@lru_cache(maxsize=64)
def has_integer_decimals(form: int) -> bool:
    """Whether decimals of up to 18 digits are stored as integers, as Spark and Iceberg do.

    They are decoded in two thirds of the time.
    """
    return form > SEGMENT_FORMAT_FIRST


def parquet_schema(schema: pa.Schema, form: int) -> pq.ParquetSchema:
    """Return Parquet's own schema of a segment: only a written file reveals it."""
    sink = pa.BufferOutputStream()
    is_integer = has_integer_decimals(form)
    rows = stored_schema(schema, form).empty_table()
    pq.write_table(rows, sink, store_decimal_as_integer=is_integer)
    return pq.read_metadata(pa.BufferReader(sink.getvalue())).schema


def rows_schema(stored: pa.Schema, form: int) -> pa.Schema:
    """Return the columns of the rows in a segment, by the names in the file."""
    if form == SEGMENT_FORMAT_FIRST:
        return stored
    known = {stored_name(field.name, form): field.name for field in SYSTEM_FIELDS}
    # A system's name without the prefix gets one: it is not a name of this format.
    names = [known.get(name) or stored_name(name, form) for name in stored.names]
    return pa.schema([each.with_name(name) for each, name in zip(stored, names, strict=True)])


def leaves_without_nan(metadata: Mapping[bytes, bytes]) -> frozenset[int]:
    """Return which floating-point leaves of a segment have no NaN, by its footer's metadata.

    A leaf is counted from 0, as in a row group. One that is not named may have a NaN, which
    Parquet's statistics leave out.
    """
    text = metadata.get(NO_NAN_KEY.encode(), b"")
    if not _NUMBERS.fullmatch(text):  # no footer of ours
        return frozenset()
    return frozenset(map(int, text.split(b",")))


def _numbered(fields: Iterable[pa.Field], numbers: Iterator[int]) -> list[pa.Field]:
    """Number fields that are side by side, and then what is inside each."""
    own = [(field, next(numbers)) for field in fields]
    return [
        field.with_type(_numbered_inside(field.type, numbers)).with_metadata(
            {_FIELD_ID: b"%d" % number}
        )
        for field, number in own
    ]


def _numbered_inside(kind: pa.DataType, numbers: Iterator[int]) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct(_numbered(kind, numbers))
    if pa.types.is_list(kind):
        return pa.list_(*_numbered([kind.value_field], numbers))
    if pa.types.is_map(kind):
        return pa.map_(*_numbered([kind.key_field, kind.item_field], numbers))
    return kind


def _check_canonical(schema: pa.Schema) -> None:
    # Also catches names of list elements and byte order, which types do not show.
    if not canonical(schema).equals(schema, check_metadata=True):
        raise BadSchema("", "the schema is not canonical", hint="Make it canonical first")


def _check_places(old: pa.Schema, new: pa.Schema) -> None:
    names = frozenset(new.names)
    for name in old.names:
        if name not in names:
            raise BadSchema(name, "missing from the new schema", hint=_NEW_TOPIC)
    for before, after in zip(old.names, new.names, strict=False):
        if before != after:
            flaw = f"takes the place of {before!r}"
            raise BadSchema(after, flaw, hint=_NEW_TOPIC)


def _check_change(before: pa.Field, after: pa.Field) -> None:
    if before.type != after.type and not _is_widened(before.type, after.type):
        flaw = f"{said(before.type)} cannot become {said(after.type)}"
        raise BadSchema(before.name, flaw, hint=_NEW_TOPIC)
    if before.nullable and not after.nullable:
        raise BadSchema(before.name, "a nullable column must stay nullable", hint=_NEW_TOPIC)


def _is_widened(before: pa.DataType, after: pa.DataType) -> bool:
    if pa.types.is_decimal128(before) and pa.types.is_decimal128(after):
        return bool(before.scale == after.scale and before.precision < after.precision)
    return any(
        before in kinds and after in kinds and kinds.index(before) < kinds.index(after)
        for kinds in _WIDENING
    )


def _upgraded(column: pa.Array | None, field: pa.Field, row_count: int) -> pa.Array:
    if column is None:
        column = pa.nulls(row_count, field.type)
    elif column.type != field.type:
        if not _is_widened(column.type, field.type):
            flaw = f"{said(column.type)} does not widen to the schema's {field.type}"
            raise BadBatch(flaw, column=field.name)
        column = cast(column, field.type, field.name)
    check_nulls(column, field, field.name)
    return column


def _samples(field: pa.Field) -> pa.Array:
    """Return three values: a full one, a minimal one, and a null if allowed."""
    full = _full(field.type)
    last = None if field.nullable else full
    try:
        return pa.array([full, _least(field.type), last], field.type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise BadSchema(field.name, f"cannot create a sample value: {said(error)}") from error


def _full(kind: pa.DataType) -> object:
    if pa.types.is_struct(kind):
        return {child.name: _full(child.type) for child in kind}
    if pa.types.is_list(kind):
        return [_full(kind.value_type), *([None] if kind.value_field.nullable else [])]
    if pa.types.is_map(kind):
        return [(_full(kind.key_type), _full(kind.item_type))]
    if pa.types.is_decimal128(kind):
        return Decimal((1, (9,) * kind.precision, -kind.scale))
    return _FULL.get(kind, 1)


def _least(kind: pa.DataType) -> object:
    if pa.types.is_struct(kind):
        return {each.name: None if each.nullable else _least(each.type) for each in kind}
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return []
    return _full(kind)


# Leaf types for which 1 is not a valid value.
_FULL: dict[pa.DataType, object] = {
    pa.bool_(): True,
    pa.float32(): -0.5,
    pa.float64(): -0.5,
    pa.string(): "\N{SNOWMAN}\0",
    pa.binary(): b"\xff\0",
}


def _parquet_flaw(table: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    try:
        # Without Arrow's own schema: other readers see just this.
        pq.write_table(
            table, sink, compression="zstd", write_page_checksum=True, store_schema=False
        )
        source = pa.BufferReader(sink.getvalue())
        found = pq.ParquetFile(source, page_checksum_verification=True).read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        return f"Parquet cannot store it: {said(error)}"
    if not found.schema.equals(table.schema):
        return f"reads back from Parquet as {said(found.schema)}"
    return "" if found.equals(table) else "reads back from Parquet with different values"
