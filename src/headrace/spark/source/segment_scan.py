"""Reads segments under a lease by Spark's own Parquet scan, once tasks have looked at them.

A file that is not as the log says, or that a task cannot open, is not scanned: the node reads
its rows, or names the damage.
"""

import math
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from headrace.client.read.lease import LeasedFile
from headrace.model.schema import stored_name
from headrace.spark.source.delta_scan import filtering
from headrace.spark.worker.probe import Expected, checked, probing

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_PROBES: Final = 2  # per task slot, so that every executor gets some
_TASK_SIZE: Final = 128 * 1024 * 1024  # of files that justify a task where one would do
_MARK: Final = "headrace.mark"
_REPORT: Final = "host string, flaw string, formats map<int, int>"  # of a probe
UNSEEN: Final = (
    "Spark's tasks cannot read the segments of {} directly, so all rows come through the "
    "node: {}"
)

# No session setting may make a scan skip rows.
_SCAN: Final = {
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",  # read times as they were appended
    "recursiveFileLookup": "true",  # a directory named a=1 is not a partition column
    "__globPaths__": "false",  # nor is one named [a] a pattern
}


def scan(
    spark: "SparkSession",
    files: Sequence[LeasedFile],
    form: int,
    schema: "StructType",
    mark: str = "",
) -> "DataFrame":
    """Read segments of one format. A column that is missing by its name would read as null.

    In a plan `is_scan` recognizes the scan by its mark.
    """
    from pyspark.sql.types import StructField, StructType

    stored = {field.name: stored_name(field.name, form) for field in schema}
    fields = [StructField(stored[one.name], one.dataType, one.nullable) for one in schema]
    reader = spark.read.schema(StructType(fields)).options(**_SCAN, **filtering(schema))
    paths = (f"file://{file.path}" for file in files)
    return reader.option(_MARK, mark).parquet(*paths).toDF(*stored)


def is_scan(leaf: Any, mark: str) -> bool:  # noqa: ANN401 - an object of the JVM
    """Whether a leaf of a plan is a scan with this mark."""
    if leaf.getClass().getSimpleName() != "LogicalRelation":
        return False
    relation = leaf.relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return False
    found = relation.options().get(_MARK)
    return bool(found.isDefined() and found.get() == mark)


def seen_formats(
    spark: "SparkSession",
    files: Sequence[LeasedFile],
    schemas: "Mapping[int, pa.Schema]",
    *,
    is_whole: bool = False,
) -> dict[LeasedFile, int] | str:
    """Have tasks look at files, and return the format of each, or the first flaw.

    `schemas` are the user's columns of each version. With `is_whole` all bytes are compared
    with what was sealed, which takes about a second for 4 GiB; otherwise the footers.
    """
    expected = [_expected(file, is_whole=is_whole) for file in files]
    unseen = checked(expected, {}, ())  # the driver lists the files that tasks open
    if isinstance(unseen, str):
        return f"{unseen} (on {socket.gethostname()})"
    task_count = _PROBES * spark.sparkContext.defaultParallelism
    if (spark.sparkContext.master or "").startswith("local"):
        # One machine: what one task sees, all see.
        size = sum(file.size for file in files)
        task_count = min(task_count, math.ceil(size / _TASK_SIZE))
    known = {version: each.serialize().to_pybytes() for version, each in schemas.items()}
    numbers = spark.range(0, task_count, 1, task_count)
    found = _reported(numbers.mapInArrow(probing(expected, known, task_count), _REPORT))
    if isinstance(found, str):
        return found
    return {file: found[place] for place, file in enumerate(files)}


def _expected(file: LeasedFile, *, is_whole: bool) -> Expected:
    return Expected(
        file.path,
        file.start,
        file.end,
        file.version,
        file.size,
        file.row_digest,
        file.digest if is_whole else None,
    )


def _reported(told: "DataFrame") -> dict[int, int] | str:
    """Return the format of each file, by place, or the first flaw."""
    from pyspark.errors import PySparkException

    try:
        reports = told.collect()
    except PySparkException as error:  # a corrupt footer may kill a worker: the node names it
        return f"a task that checked them failed: {str(error).splitlines()[0]}"
    flaws = [f"{each.flaw} (on {each.host})" for each in reports if each.flaw]
    if flaws:
        return flaws[0]
    return {place: form for each in reports for place, form in each.formats.items()}
