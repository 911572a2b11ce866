"""`spark.read` and `spark.readStream` `.format("headrace")`.

Spark creates these objects in its own processes and copies them to executors, so they hold
plain values and connect on first use. Constructors raise nothing, because Spark would hide it.
"""

import io
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructField, StructType

from headrace import __version__
from headrace.spark.batch_ranges import next_ends, next_version
from headrace.spark.query_offsets import Offsets, from_json
from headrace.spark.sink.data_sink import BatchWriter, StreamWriter
from headrace.spark.source.progress_reporter import ProgressReporter
from headrace.spark.source_options import PIN, Use, parse
from headrace.spark.topic_source import PLAN_TIMEOUT, SchemaChanged, TopicSource
from headrace.spark.worker.plain import plain_rows, plainly, refuse_other_release
from headrace.spark.worker.read import Span, introduce, read

NAME: Final = "headrace"
RUN_TIMEOUT: Final = "120s"  # while a query runs: an error ends it, and a node may restart
_QUERY: Final = "sql.streaming.queryId"
_GROUP: Final = "spark-"  # plus the query's id: the consumer group of a query without groupId
POLL_SECONDS: Final = 0.02  # an idle query polls every 10 ms; answers are cached this long


class HeadraceSource(DataSource):
    """The data source that Spark finds by its name."""

    @classmethod
    def name(cls) -> str:
        return NAME

    @plainly
    def schema(self) -> StructType:
        options = parse(self.options, Use.READ)
        topic_source = TopicSource(options, options.timeout or PLAN_TIMEOUT)
        try:
            return spark_schema(topic_source.schema())
        finally:
            topic_source.close()

    @plainly
    def reader(self, schema: StructType) -> "BatchReader":
        return BatchReader(dict(self.options), schema)

    @plainly
    def streamReader(self, schema: StructType) -> "StreamReader":
        return StreamReader(dict(self.options), schema)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(dict(self.options), overwrite=overwrite)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(dict(self.options), overwrite=overwrite)


class Task(InputPartition):
    """The input of one task. With a generation, the task reports its query's name."""

    def __init__(
        self, span: Span, generation: int | None = None, *, hold: bool = False
    ) -> None:
        super().__init__(span)
        self.span = span
        self.generation = generation
        self.hold = hold


class _Reader:
    """The common part of both readers."""

    timeout = PLAN_TIMEOUT
    use = Use.BATCH

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._given = options
        self._schema = schema
        self._release = __version__  # of the driver
        self._found: TopicSource | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Drop the connection: another process opens its own."""
        return {**self.__dict__, "_found": None}

    @property
    def _topic_source(self) -> TopicSource:
        if self._found is None:
            options = parse(self._given, self.use)
            self._found = TopicSource(options, options.timeout or self.timeout)
        return self._found

    @property
    def _exact(self) -> pa.Schema:
        return to_arrow_schema(self._schema, timezone="UTC")

    @plainly
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task, on an executor."""
        refuse_other_release(self._release, __version__)
        if not isinstance(partition, Task):
            return iter(())  # Spark passes an empty one where none is planned
        context = TaskContext.get()
        if partition.generation is not None and context is not None:
            query = context.getLocalProperty(_QUERY)
            if query is not None:
                group, hold = f"{_GROUP}{query}", partition.hold
                introduce(partition.span, group, partition.generation, hold=hold)
        return plain_rows(read(partition.span))


class BatchReader(_Reader, DataSourceReader):
    """Reads a range that is fixed when the query is planned."""

    @plainly
    def partitions(self) -> list[InputPartition]:
        topic_source, exact = self._topic_source, self._exact
        topic_source.check_life()
        spans = topic_source.spans(topic_source.ranges(), exact, topic_source.version_of(exact))
        return [Task(span) for span in spans]


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads rows as they are committed. It lives in one process of the driver."""

    timeout = RUN_TIMEOUT
    use = Use.STREAM

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._version: int | None = None  # of the schema that the query has
        self._until: dict[int, int] | None = None  # where an availableNow run ends
        self._asked: tuple[float, str, dict[str, Any]] | None = None
        self._planned_at: float | None = None  # when a batch last got rows
        self._teller: ProgressReporter | None = None
        self._ends: dict[int, int] | None = None  # of the log, as last seen

    @plainly
    def initialOffset(self) -> dict[str, Any]:
        starts = self._topic_source.starts()
        return self._topic_source.offsets(starts, starts).to_json()

    @plainly
    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._topic_source.options
        if options.row_count_max is not None:
            return ReadMaxRows(options.row_count_max)
        if options.size_max is not None:
            return ReadMaxBytes(options.size_max)
        if options.row_count_min > 1:
            return ReadMinRows(options.row_count_min)
        return ReadAllAvailable()

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        self._until = {number: each.end for number, each in self._topic_source.bounds().items()}

    @plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        key = f"{start}{limit}"
        if self._asked is not None:
            when, asked, answer = self._asked
            if asked == key and time.monotonic() - when < POLL_SECONDS:
                return answer
        answer = self._latest(from_json(start), limit).to_json()
        self._asked = (time.monotonic(), key, answer)
        return answer

    def _latest(self, start: Offsets, limit: ReadLimit) -> Offsets:
        topic_source, options = self._topic_source, self._topic_source.options
        is_whole = isinstance(limit, ReadAllAvailable)
        places = topic_source.check(start)
        backlogs = topic_source.backlogs(places)
        is_caught_up = not any(each.row_count for each in backlogs.values())
        self._ends = {number: each.end for number, each in backlogs.items()}
        self._tell(places, at_once=is_caught_up)
        if self._until is not None:
            backlogs = {
                number: each.up_to(self._until.get(number, each.start))
                for number, each in backlogs.items()
            }
        elif not is_whole and self._is_early(sum(one.row_count for one in backlogs.values())):
            return start
        self._check_version(next_version(backlogs))
        limits = (None, None) if is_whole else (options.row_count_max, options.size_max)
        ends = next_ends(backlogs, *limits)
        if start.is_start:
            return topic_source.offsets(ends, places)
        return start if ends == start.partitions else topic_source.offsets(ends)

    @plainly
    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end of the log, for the query's progress. None: not known yet."""
        return None if self._ends is None else self._topic_source.offsets(self._ends).to_json()

    def _is_early(self, row_count: int) -> bool:
        """Whether a batch must wait for more rows. The first one of a run never waits."""
        options, now = self._topic_source.options, time.monotonic()
        is_small = 0 < row_count < options.row_count_min
        planned_at = self._planned_at
        if is_small and planned_at is not None and now - planned_at < options.delay_seconds:
            return True
        if row_count:
            self._planned_at = now
        return False

    def _check_version(self, version: int | None) -> None:
        """Raise SchemaChanged at the first rows that the query's schema cannot hold."""
        known = self._query_version
        if (
            version is None
            or version <= known
            or self._topic_source.options.schema_change == PIN
        ):
            return
        name = self._topic_source.topic.name
        raise SchemaChanged(
            f"the schema of {name} has version {version} from here on, but this query has "
            f"version {known}",
            hint="Nothing is lost: restart the query to continue with the new columns, "
            'or set .option("schemaChange", "pin") to continue without them',
        )

    @property
    def _query_version(self) -> int:
        """The schema version of the query's columns, from when it began."""
        if self._version is None:
            self._version = self._topic_source.version_of(self._exact)
        return self._version

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        topic_source, stored = self._topic_source, from_json(end)
        begin = from_json(start)
        if begin.is_start:  # Spark may have asked again: the start stored with the end counts
            begin = replace(stored, partitions=stored.starts or begin.partitions)
        starts, ends = topic_source.check(begin), stored.partitions
        ranges = {number: (starts.get(number, 0), place) for number, place in ends.items()}
        spans = topic_source.spans(ranges, self._exact, self._query_version)
        self._tell(starts, at_once=False)
        teller = self._told_by
        generation = teller.generation if teller.group is None else None
        firsts: dict[int, int] = {}  # only the first task of a partition reports its position
        for span in spans:
            firsts[span.partition] = min(span.start, firsts.get(span.partition, span.start))
        return [
            Task(
                span,
                generation if span.start == firsts[span.partition] else None,
                hold=topic_source.options.hold,
            )
            for span in spans
        ]

    def _tell(self, places: dict[int, int], *, at_once: bool) -> None:
        """Report the position to the log; the first time before any row is read."""
        self._told_by.tell(places, at_once=at_once or self._told_by.is_new)

    @property
    def _told_by(self) -> ProgressReporter:
        if self._teller is None:
            self._teller = ProgressReporter(self._topic_source)
        return self._teller

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_teller": None}

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpointLocation is the truth, and this call comes late."""

    def stop(self) -> None:
        """End quietly: Spark closes the pipe, and its own code prints that as a traceback."""
        if isinstance(sys.exception(), EOFError):
            sys.stderr = io.StringIO()  # the process ends here


def spark_schema(schema: pa.Schema) -> StructType:
    """Return a schema as Spark's. All fields are nullable: Spark does not enforce more."""
    found = from_arrow_schema(schema)
    return StructType([StructField(each.name, each.dataType) for each in found])
