"""Reads a Delta table with plain Spark, without a jar: its file list and Spark's scan."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import BadRequest, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from headrace.spark.stores.location import Location

# Everything in a Parquet file by which a scan may skip rows that a filter excludes.
_SKIPPING: Final = ("stats", "dictionary", "columnindex", "bloom")
_CHECKED: Final = {"parquet.page.verify-checksum.enabled": "true"}


def read_table(
    spark: "SparkSession", path: "str | Location", version: int | None = None
) -> "DataFrame":
    """Return the rows of the Delta table at a path or URL, now or at `version`.

    The list of files is read once: a later vacuum of the table may remove them.
    """
    with deltalake_needed():
        from headrace.spark.tables.table_features import strange_features
        from headrace.spark.tables.table_record import at, table_at
    location = at(path)
    table = table_at(location, version)
    strange = strange_features(table)
    if strange:
        raise BadRequest(
            f"the table at {location.url} has {', '.join(strange)}, which Spark's own Parquet "
            "scan does not support",
            hint="Read it with deltalake, or with Spark and Delta's jar",
        )
    return scan(spark, location, table)


def scan(spark: "SparkSession", location: "Location", table: Any) -> "DataFrame":  # noqa: ANN401
    """Return the rows of a table that was opened, with page checksums verified."""
    from headrace.spark.tables.data_files import full_path, live_files

    schema, files = columns_of(table), live_files(table)
    if not files:
        return spark.createDataFrame([], schema)
    if not location.is_path:
        return _fetched(spark, location, table, [one.name for one in files])
    reader = spark.read.schema(schema).option("basePath", location.url)
    found = [full_path(location, one.name) for one in files]
    return reader.options(**_CHECKED, **filtering(schema)).parquet(*found)


def _fetched(
    spark: "SparkSession",
    location: "Location",
    table: Any,  # noqa: ANN401 - deltalake may be absent
    paths: list[str],
) -> "DataFrame":
    """Have tasks read the files: Spark's own scan needs a jar for each kind of store."""
    import pyarrow as pa

    from headrace.spark.worker.scan import scanner

    exact = pa.schema(table.schema().to_arrow()).serialize().to_pybytes()
    tasks = spark.range(0, len(paths), 1, len(paths))
    return tasks.mapInArrow(scanner(location, tuple(paths), exact), columns_of(table))


@contextmanager
def deltalake_needed() -> Iterator[None]:
    """Turn a failed import into an error that says what to install."""
    try:
        yield
    except ImportError:
        raise Unavailable(
            "deltalake is not installed", hint="Install it: pip install 'headrace[delta]'"
        ) from None


def filtering(schema: "DataType") -> dict[str, str]:
    """Return the scan options with which filters find all matching rows.

    The minimum and maximum of a column ignore NaN, which Spark orders above any number, and a
    dictionary holds -0.0, which Spark treats as 0.0. So nothing is skipped if there are floats.
    """
    if not _has_floats(schema):
        return {}
    return {f"parquet.filter.{what}.enabled": "false" for what in _SKIPPING}


def _has_floats(kind: "DataType") -> bool:
    from pyspark.sql.types import ArrayType, DoubleType, FloatType, MapType, StructType

    if isinstance(kind, StructType):
        return any(_has_floats(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return _has_floats(kind.elementType)
    if isinstance(kind, MapType):
        return _has_floats(kind.keyType) or _has_floats(kind.valueType)
    return isinstance(kind, FloatType | DoubleType)


def columns_of(table: Any) -> "StructType":  # noqa: ANN401
    """Return the columns of a table: Delta stores a schema in Spark's format."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(table.schema().to_json()))
