"""A topic as one DataFrame: `headrace.spark.table(spark, "shop/orders", path="./data")`.

Sealed rows are read by Spark's own Parquet scan, which prunes columns and skips row groups (but
not if there are floats: see `filtering`). The rest comes through the source. Both parts are of
the moment when the table was created and meet at the sealed end of each partition: no row is
missing or duplicated. A lease protects the files from deletion. If tasks cannot open them, the
source reads those rows, too, with a warning.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from headrace.errors import BadConfig, Busy
from headrace.model.projection import Projection
from headrace.spark.source.segment_scan import UNSEEN, scan, seen_formats
from headrace.spark.source_options import SourceOptions, parse, suggestion
from headrace.spark.topic_source import PLAN_TIMEOUT, TopicSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from headrace.client.read.lease import LeasedFile, LeasedPartition
    from headrace.client.sync_lease import Lease

LASTING: Final = "120s"  # how long the lease outlives a dead driver
_MEANT: Final = ("address", "path", "tokenFile", "minPartitions", "timeout")


@dataclass(frozen=True, slots=True)
class _Kept:
    """The resources of a table in use."""

    topic_source: TopicSource
    lease: "Lease"

    @property
    def is_over(self) -> bool:
        return self.lease.is_released

    def end(self) -> None:
        """Close the connection, and with it the lease. Idempotent."""
        self.topic_source.close()


_kept: list[_Kept] = []  # alive as long as needed: derived frames do not refer to it
_of_frame: "WeakKeyDictionary[DataFrame, _Kept]" = WeakKeyDictionary()


def table(
    spark: "SparkSession", topic: str, *, columns: Sequence[str] | None = None, **options: str
) -> "DataFrame":
    """Return all current rows of a topic, reading sealed ones by Spark's Parquet scan.

    `options` are those of the source: `address` or `path`, `tokenFile`, `minPartitions`,
    `timeout`. The files are kept until the session is stopped, the program ends, or `release`
    is called.
    """
    given = _options(topic, options)
    _sweep()
    topic_source = TopicSource(given, given.timeout or PLAN_TIMEOUT)
    try:
        chosen = Projection.of(
            topic_source.topic.schema, columns
        ).schema.names  # a wrong name fails here
        lease = _lease(spark, topic_source)
        frame, is_scan = _frame(spark, topic_source, lease, chosen)
    except BaseException:
        topic_source.close()  # and the lease with it
        raise
    kept = _Kept(topic_source, lease)
    if is_scan:
        _kept.append(kept)
        _of_frame[frame] = kept
    else:
        kept.end()
    return frame


def release(frame: "DataFrame") -> None:
    """Release the files of a table. Do not use it, or frames derived from it, afterwards.

    Without a lease, when all rows come through the source, this does nothing.
    """
    kept = _of_frame.pop(frame, None)
    if kept is not None:
        kept.end()
        _sweep()


def _sweep() -> None:
    """Close the connections of leases that have ended on their own."""
    over = [each for each in _kept if each.is_over]
    for each in over:
        _kept.remove(each)
        each.end()


def _options(topic: str, given: Mapping[str, object]) -> SourceOptions:
    known = {name.lower() for name in _MEANT}
    for name in given:
        if name.lower() not in known:
            near = suggestion(name)
            valid = f"Valid options: {', '.join(_MEANT)}"
            hint = f"Did you mean {near}?" if near in _MEANT else valid
            raise BadConfig(name, "is not a valid option of a table", hint=hint)
    if not given.keys() & {"address", "path"}:
        hint = 'Set the log: table(spark, topic, path="./data") or address="host:port"'
        raise BadConfig("address", "is required unless path is set", hint=hint)
    return parse({"topic": topic, **{name: str(value) for name, value in given.items()}})


def _lease(spark: "SparkSession", topic_source: TopicSource) -> "Lease":
    context = spark.sparkContext
    try:
        # A session that was stopped needs no files.
        return topic_source.topic.lease_files(LASTING, lambda: context._jsc is not None)
    except Busy as error:
        raise Busy(
            f"{Exception.__str__(error)}; release tables that are no longer needed with "
            "headrace.spark.release(frame)",
            error.retry_after_ms,
        ) from None


def _frame(
    spark: "SparkSession", topic_source: TopicSource, lease: "Lease", columns: Sequence[str]
) -> "tuple[DataFrame, bool]":
    """Join the two parts and return whether files are among them."""
    from headrace.spark.source.data_source import spark_schema

    whole = spark_schema(Projection.of(lease.view.schema, None).schema)
    narrow = spark_schema(Projection.of(lease.view.schema, columns).schema)
    formats = _files(spark, lease)
    is_scan = formats is not None
    starts = {
        each.partition: each.sealed_end if is_scan else each.first for each in lease.partitions
    }
    ends = {each.partition: each.end for each in lease.partitions}
    parts = []
    for form, found in sorted((formats or {}).items()):
        rows = _retained(scan(spark, found, form, whole), lease.partitions)
        parts.append(rows.select(*_quoted(columns)))
    if not is_scan or starts != ends:
        parts.append(_tail(spark, topic_source, narrow, starts, ends))
    return reduce(lambda one, other: one.union(other), parts), is_scan


def _retained(rows: "DataFrame", partitions: "Sequence[LeasedPartition]") -> "DataFrame":
    """Leave out the trimmed rows with which the first file of a partition may begin.

    The last one ends at the sealed end, which was checked with the lease.
    """
    for each in partitions:
        if each.files and each.files[0].start < each.first:
            is_other = rows["_partition"] != each.partition
            rows = rows.where(is_other | (rows["_offset"] >= each.first))
    return rows


def _tail(
    spark: "SparkSession",
    topic_source: TopicSource,
    schema: "StructType",
    starts: Mapping[int, int],
    ends: Mapping[int, int],
) -> "DataFrame":
    options = topic_source.options
    reader = (
        spark.read.format("headrace")
        .schema(schema)
        .option("topic", topic_source.topic.name)
        .option("topicCreated", topic_source.topic.created)
        .option("topicCluster", topic_source.topic.cluster)
        .option("address", topic_source.address)
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("minPartitions", options.partition_count_min)
    )
    if options.token_file is not None:
        reader = reader.option("tokenFile", options.token_file)
    return reader.load()


def _files(spark: "SparkSession", lease: "Lease") -> "dict[int, list[LeasedFile]] | None":
    """Return the files by format, once tasks have looked at them.

    Warns of the first flaw, and returns None then.
    """
    files = [file for each in lease.partitions for file in each.files]
    if not files:
        return None
    formats = seen_formats(spark, files, lease.view.schemas)
    if isinstance(formats, str):
        warnings.warn(UNSEEN.format(lease.view.name, formats), stacklevel=4)
        return None
    found: dict[int, list[LeasedFile]] = {}
    for file, form in formats.items():
        found.setdefault(form, []).append(file)
    return found


def _quoted(columns: Sequence[str]) -> list[str]:
    """Return names quoted for Spark."""
    return ["`" + name.replace("`", "``") + "`" for name in columns]
