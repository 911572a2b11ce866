"""Checks that rows fit the columns of a Delta table: a file of another type breaks its readers.

Types are compared as Delta types: a large string is a string, and names inside a list do not
matter. A non-nullable column fits a nullable one, but not the other way round.
"""

from collections.abc import Iterator

import pyarrow as pa
from deltalake import DeltaTable, Schema
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from headrace.errors import BadConfig
from headrace.spark.topic_source import SchemaChanged


def new_columns(table: DeltaTable, schema: pa.Schema) -> pa.Schema:
    """Return the columns that the table lacks, as nullable.

    Raises SchemaChanged for a column whose type in the table does not fit the rows, and for a
    non-nullable column of the table that the rows lack.
    """
    have = pa.schema(table.schema().to_arrow())
    for field in have:
        if not field.nullable and field.name not in schema.names:
            raise SchemaChanged(
                f"column {field.name} is {_words(field)} in the table, but the next rows do "
                "not have it",
                hint="Have the transform add it, or write the rows to a new table",
            )
    _refuse_other_case(have, schema)
    for field in as_delta(schema):
        place = have.get_field_index(field.name)
        if place >= 0 and not _fits(have.field(place), field):
            raise SchemaChanged(
                f"column {field.name} is {_words(have.field(place))} in the table, "
                f"but {_words(field)} in the next rows",
                hint=f"Have the transform cast it to {_words(have.field(place))}, "
                "or write the rows to a new table",
            )
    return pa.schema(
        [field.with_nullable(True) for field in schema if field.name not in have.names]
    )


def _refuse_other_case(have: pa.Schema, schema: pa.Schema) -> None:
    """Raise SchemaChanged for a column that differs from one of the table in case only."""
    known = {name.lower(): name for name in have.names}
    for name in schema.names:
        theirs = known.get(name.lower(), name)
        if theirs != name:
            raise SchemaChanged(
                f"column {name} is called {theirs} in the table, whose column names are not "
                "case-sensitive",
                hint=f"Have the transform call it {theirs}, or write the rows to a new table",
            )


def file_columns(frame: StructType, key: str) -> pa.Schema:
    """Return the columns of the files that a frame is written to.

    Raises BadConfig, for the setting `key`, for a column of a type that Delta does not support.
    """
    for field in frame:
        if not _is_known(field):
            raise BadConfig(
                key,
                f"column {field.name} is {field.dataType.simpleString()}, "
                "which Delta tables do not support",
                hint="Convert it to a number or a string, or leave it out",
            )
    return loosened(to_arrow_schema(frame, timezone="UTC"))


def refuse_twins(frame: StructType, key: str) -> None:
    """Raise BadConfig, for the setting `key`, for names that are the same in a table."""
    if twice := sorted(set(_twins("", frame))):
        raise BadConfig(
            key,
            f"it produces {', '.join(twice)} more than once",
            hint="Rename them: names of columns, and of fields of a struct, are not "
            "case-sensitive in a table",
        )


def _twins(path: str, kind: DataType) -> Iterator[str]:
    """Yield the columns, or fields of structs at any depth, that occur twice."""
    if isinstance(kind, StructType):
        names = [f"{path}{field.name.lower()}" for field in kind]
        yield from (name for name in names if names.count(name) > 1)
        for name, field in zip(names, kind, strict=True):
            yield from _twins(f"{name}.", field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _twins(path, kind.elementType)
    elif isinstance(kind, MapType):
        yield from _twins(path, kind.keyType)
        yield from _twins(path, kind.valueType)


def _is_known(field: StructField) -> bool:
    try:
        found = to_arrow_schema(StructType([field]), timezone="UTC")
    except PySparkException:  # not even Arrow supports it
        return False
    return not any(_is_strange(each.type) for each in found)


def _is_strange(kind: pa.DataType) -> bool:
    """Whether a type, or one inside it, has no equivalent in Delta."""
    if inner := _inner(kind):
        return any(_is_strange(field.type) for field in inner)
    return bool(pa.types.is_duration(kind) or pa.types.is_time(kind))


def loosened(schema: pa.Schema) -> pa.Schema:
    """Return the same columns with all inner fields nullable.

    A null struct has no fields, even if they are non-nullable: Arrow, Parquet and Spark each
    write that differently, and a table that enforces it rejects those rows.
    """
    return pa.schema([field.with_type(_loose(field.type)) for field in schema])


def _loose(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_loose_field(field) for field in _inner(kind)])
    if pa.types.is_list(kind):
        return pa.list_(_loose_field(kind.value_field))
    if pa.types.is_map(kind):
        key = kind.key_field
        return pa.map_(key.with_type(_loose(key.type)), _loose_field(kind.item_field))
    return kind


def _loose_field(field: pa.Field) -> pa.Field:
    return field.with_type(_loose(field.type)).with_nullable(True)


def as_delta(schema: pa.Schema) -> pa.Schema:
    """Return the same columns with the types of a Delta table."""
    return pa.schema(Schema.from_arrow(schema).to_arrow())


def _fits(wanted: pa.Field, found: pa.Field) -> bool:
    """Whether every value of `found` is valid in `wanted`."""
    if found.nullable and not wanted.nullable:
        return False
    inner, other = _inner(wanted.type), _inner(found.type)
    if not inner or wanted.type.id != found.type.id:
        return bool(wanted.type.equals(found.type))
    return [one.name for one in inner] == [one.name for one in other] and all(
        _fits(one, two) for one, two in zip(inner, other, strict=True)
    )


def _inner(kind: pa.DataType) -> list[pa.Field]:
    if not pa.types.is_nested(kind):
        return []
    return [kind.field(place) for place in range(kind.num_fields)]


def _words(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"
