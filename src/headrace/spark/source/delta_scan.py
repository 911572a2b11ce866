"""Reads a Delta table with plain Spark, without a jar: its file list and Spark's scan."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import BadRequest, CorruptFile, Unavailable, first_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

# Protocol features that change how files are read. Tables of pipelines have none of them.
_STRANGE: Final = frozenset({"deletionVectors", "columnMapping"})
_MAPPING: Final = "delta.columnMapping.mode"  # applies in older protocols, too

_LOG: Final = "_delta_log"
_DIGITS: Final = 20  # of an entry's version, in its name

# Everything in a Parquet file by which a scan may skip rows that a filter excludes.
_SKIPPING: Final = ("stats", "dictionary", "columnindex", "bloom")


def read_table(spark: "SparkSession", path: str, version: int | None = None) -> "DataFrame":
    """Return the rows of the Delta table at `path`, now or at `version`.

    The list of files is read once: a later vacuum of the table may remove them.
    """
    with deltalake_needed():
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        from headrace.spark.tables.table_record import data_paths
    try:
        table = DeltaTable(path, version=version)
    except (DeltaError, OSError) as error:
        if flawed := _flawed_entry(Path(path)):
            raise flawed from error
        what = "" if version is None else f" with version {version}"
        text = f"there is no Delta table{what} at {path}"
        raise BadRequest(f"{text}: {first_line(error)}") from error
    _refuse_strange(table, path)
    schema = columns_of(table)
    files = data_paths(table)
    reader = spark.read.schema(schema).option("basePath", path).options(**filtering(schema))
    return reader.parquet(*files) if files else spark.createDataFrame([], schema)


def log_damage(path: str, error: Exception) -> CorruptFile:
    """Return an error that names the unreadable entry of a table's log; deltalake does not."""
    text = f"the table's log cannot be read: {first_line(error)}"
    whole = CorruptFile(text, path=str(Path(path, _LOG)), hint="Restore it from a backup")
    return _flawed_entry(Path(path)) or whole


def _flawed_entry(table: Path) -> CorruptFile | None:
    """Return the error of the first entry that is not JSON, or is missing between others."""
    entries = sorted(table.glob(f"{_LOG}/{'[0-9]' * _DIGITS}.json"))
    for one, other in pairwise(entries):
        if int(other.stem) != int(one.stem) + 1:
            missing = one.with_stem(f"{int(one.stem) + 1:0{_DIGITS}}")
            text = "an entry of the table's log is missing, but later ones exist"
            return CorruptFile(text, path=str(missing), hint="Restore it from a backup")
    for entry in entries:
        try:
            for line in filter(bytes.strip, entry.read_bytes().splitlines()):
                json.loads(line)
        except (OSError, ValueError) as error:
            newest = (
                ". It is the newest entry: if its commit was interrupted, move it away, and "
                "the pipeline writes its rows again"
            )
            return CorruptFile(
                f"an entry of the table's log is torn: {error}",
                path=str(entry),
                hint=f"Restore it from a backup{newest if entry == entries[-1] else ''}",
            )
    return None


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


def _refuse_strange(table: Any, path: str) -> None:  # noqa: ANN401 - deltalake may be absent
    strange = strange_features(table)
    if strange:
        raise BadRequest(
            f"the table at {path} has {', '.join(strange)}, which Spark's own Parquet "
            "scan does not support",
            hint="Read it with deltalake, or with Spark and Delta's jar",
        )


def strange_features(table: Any) -> list[str]:  # noqa: ANN401
    """Return the features of a table with which its files alone do not tell its rows."""
    found = _STRANGE & set(table.protocol().reader_features or ())
    if table.metadata().configuration.get(_MAPPING, "none") != "none":
        found |= {"columnMapping"}
    return sorted(found)


def columns_of(table: Any) -> "StructType":  # noqa: ANN401
    """Return the columns of a table: Delta stores a schema in Spark's format."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(table.schema().to_json()))
