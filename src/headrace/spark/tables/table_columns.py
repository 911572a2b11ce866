"""Do rows fit the columns of a Delta table? A file of another type would break its readers.

Types are compared as Delta has them: a large string is a string, the names inside a list do not
matter. A column that is never null fits one that may be, and not the other way round.
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
    """Return the columns that the table does not have, which may be null in its rows.

    SchemaChanged names a column that it has with a type that does not take the rows, or that
    is never null, and that the rows do not have.
    """
    have = pa.schema(table.schema().to_arrow())
    for field in have:
        if not field.nullable and field.name not in schema.names:
            raise SchemaChanged(
                f"column {field.name} is {_words(field)} in the table, and the rows that are "
                "next do not have it",
                hint="Have the transform make it, or bring the rows into a new table",
            )
    _refuse_other_case(have, schema)
    for field in as_delta(schema):
        place = have.get_field_index(field.name)
        if place >= 0 and not _fits(have.field(place), field):
            raise SchemaChanged(
                f"column {field.name} is {_words(have.field(place))} in the table, "
                f"and {_words(field)} in the rows that are next",
                hint=f"Have the transform make it {_words(have.field(place))}, "
                "or bring the rows into a new table",
            )
    return pa.schema(
        [field.with_nullable(True) for field in schema if field.name not in have.names]
    )


def _refuse_other_case(have: pa.Schema, schema: pa.Schema) -> None:
    """Raise SchemaChanged for a column that differs from one of the table in case alone."""
    known = {name.lower(): name for name in have.names}
    for name in schema.names:
        theirs = known.get(name.lower(), name)
        if theirs != name:
            raise SchemaChanged(
                f"column {name} is called {theirs} in the table, which tells columns apart by "
                "letters alone, not by case",
                hint=f"Have the transform call it {theirs}, or bring the rows into a new table",
            )


def file_columns(frame: StructType, key: str) -> pa.Schema:
    """Return the columns of the files that a frame becomes.

    BadConfig names one of a type that no Delta table has, as a flaw of the setting `key`.
    """
    for field in frame:
        if not _is_known(field):
            raise BadConfig(
                key,
                f"column {field.name} is {field.dataType.simpleString()}, "
                "which no Delta table has",
                hint="Have it made a number or a string, or leave it out",
            )
    return loosened(to_arrow_schema(frame, timezone="UTC"))


def refuse_twins(frame: StructType, key: str) -> None:
    """Raise BadConfig, a flaw of the setting `key`, for names that are one to a table."""
    if twice := sorted(set(_twins("", frame))):
        raise BadConfig(
            key,
            f"it makes {', '.join(twice)} more than once",
            hint="A table tells its columns, and the fields of a struct, apart by their "
            "letters alone, not by case",
        )


def _twins(path: str, kind: DataType) -> Iterator[str]:
    """Name the columns, or fields of structs, however deep, that are there twice."""
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
    except PySparkException:  # not even Arrow has it
        return False
    return not any(_is_strange(each.type) for each in found)


def _is_strange(kind: pa.DataType) -> bool:
    """Tell of a type that Spark gives whether Delta has none like it, inside it, too."""
    if inner := _inner(kind):
        return any(_is_strange(field.type) for field in inner)
    return bool(pa.types.is_duration(kind) or pa.types.is_time(kind))


def loosened(schema: pa.Schema) -> pa.Schema:
    """Return the same columns, whose inner fields may all be null.

    A struct that is null has nothing inside, whatever its fields promise: Arrow, Parquet and
    Spark each write that otherwise, and a table that takes the promise takes no such row.
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
    """Return the same columns as they come out of a Delta table."""
    return pa.schema(Schema.from_arrow(schema).to_arrow())


def _fits(wanted: pa.Field, found: pa.Field) -> bool:
    """Tell whether each value of one column may stand in the other."""
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
