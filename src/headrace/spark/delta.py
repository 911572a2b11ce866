"""Reading a Delta table with Spark alone, without a jar: by its file list and Spark's scan."""

import json
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import BadRequest, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of a table's protocol: what changes how files are read. Tables of pipelines have none of it.
_STRANGE: Final = frozenset({"deletionVectors", "columnMapping"})


def read_table(spark: "SparkSession", path: str, version: int | None = None) -> "DataFrame":
    """Return the rows of the Delta table at `path`, as they are now or were at `version`.

    The files are those of this moment: a clean-up of the table may remove them later.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise Unavailable(
            "deltalake is not installed", hint="Install it: pip install 'headrace[delta]'"
        ) from None
    try:
        table = DeltaTable(path, version=version)
    except (DeltaError, OSError) as error:
        what = "" if version is None else f" with a version {version}"
        text = f"there is no Delta table{what} at {path}"
        raise BadRequest(f"{text}: {error}") from None
    _refuse_strange(table, path)
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(_fields(table))
    files = table.file_uris()
    reader = spark.read.schema(schema).option("basePath", path)
    return reader.parquet(*files) if files else spark.createDataFrame([], schema)


def _refuse_strange(table: Any, path: str) -> None:  # noqa: ANN401 - deltalake may be absent
    protocol = table.protocol()
    strange = _STRANGE & set(protocol.reader_features or ())
    if strange:
        raise BadRequest(
            f"the table at {path} has {', '.join(sorted(strange))}, which Spark's own Parquet "
            "scan does not know",
            hint="Read it with deltalake, or with Spark and Delta's jar",
        )


def _fields(table: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the columns: Delta writes a schema as Spark does."""
    found: dict[str, Any] = json.loads(table.schema().to_json())
    return found
