"""For queries that the sink does not support: `foreachBatch(headrace.spark.writer(…))`.

A stateful query in update mode gives batches of changed rows; appended to a topic they form a
changelog. A batch that Spark repeats adds nothing: the writer is the query, the version its
batch. So a writer accepts one frame per batch and refuses a second one.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import BadRequest
from headrace.model.namespace import parse_topic
from headrace.spark.source_options import Use, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_QUERY: Final = "sql.streaming.queryId"
_ENTRY_SIZE: Final = 8  # bytes of a digest: a table stores it as an integer

# By target: the batch that this process wrote there last.
_written: dict[Hashable, "Moment"] = {}


@dataclass(frozen=True, slots=True)
class Moment:
    """One execution of a batch by a query."""

    query: str  # Spark's id, stored in the checkpointLocation
    run: str  # new with each start
    batch: int


def query_of(rows: "DataFrame") -> str | None:
    """Return the id of the query of these rows; None if they belong to no query."""
    found = rows.sparkSession.sparkContext.getLocalProperty(_QUERY)
    return None if found is None else str(found)


def moment_of(rows: "DataFrame", batch: int) -> Moment | None:
    """Return the execution of these rows; None if they belong to no query."""
    query = query_of(rows)
    if query is None:
        return None
    running = _execution(rows, query)
    return Moment(query, "" if running is None else str(running.runId().toString()), batch)


def entry_of(rows: "DataFrame", now: Moment) -> int:
    """Return a digest of the checkpointLocation's entry for a batch.

    Spark writes the entry before it runs the batch and follows it in every repeat: the ranges
    of the sources, the watermark, and the time of planning.
    """
    text = _entry(rows, now)
    if text is None:
        raise BadRequest(
            f"query {now.query} is not running batch {now.batch}",
            hint="Call it inside foreachBatch, with the rows and the batch id that it passes",
        )
    digest = blake2b(text.encode(), digest_size=_ENTRY_SIZE).digest()
    return int.from_bytes(digest, "big") >> 1  # the stored integer is signed


@contextmanager
def only_frame(target: Hashable, now: Moment | None, *, name: str, hint: str) -> Iterator[None]:
    """Refuse a second frame of a batch for a target. A failed one may be retried."""
    before = _written.get(target)
    if now is None:
        yield
        return
    if before == now:
        raise BadRequest(
            f"batch {now.batch} was already written to {name}: a second frame of it would be "
            "taken for a repeat and its rows dropped",
            hint=hint,
        )
    _written[target] = now
    try:
        yield
    except BaseException:
        if before is not None:
            _written[target] = before
        else:
            _written.pop(target, None)
        raise


def _entry(rows: "DataFrame", now: Moment) -> str | None:
    spark: Any = rows.sparkSession
    jvm, running = spark._jvm, _execution(rows, now.query)
    if running is None:
        return None
    path = jvm.org.apache.hadoop.fs.Path(running.offsetLog().metadataPath(), str(now.batch))
    files = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
    if not files.exists(path):
        return None
    stream = files.open(path)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def _execution(rows: "DataFrame", query: str) -> Any:  # noqa: ANN401 - an object of the JVM
    """Return Spark's own object of a query. The session of the rows is a copy without it."""
    spark: Any = rows.sparkSession
    running = spark._jsparkSession.sharedState().activeStreamingQueries()
    return running.get(spark._jvm.java.util.UUID.fromString(query))


def writer(
    topic: str, *, key: str | None = None, app_id: str | None = None, **options: str
) -> "Callable[[DataFrame, int], None]":
    """Return a function for `foreachBatch` that appends each batch to `topic`, exactly once.

    `options` are those of the sink: `address` or `path`, `tokenFile`. By default the writer is
    the query's id, so a new checkpointLocation is a new writer; `app_id` sets it.
    """
    said = {"topic": topic, **options} | ({} if key is None else {"key": key})
    hint = 'Union the frames, or write each with its own writer: app_id="…"'

    def append(rows: "DataFrame", batch_id: int) -> None:
        app = app_id or f"spark/{_query_of(rows)}"
        target, now = (app, *_target(said)), moment_of(rows, batch_id)
        with only_frame(target, now, name=topic, hint=hint):
            (
                rows.write.format("headrace")
                .mode("append")
                .options(**said)
                .option("txnAppId", app)
                .option("txnVersion", batch_id + 1)
                .save()
            )

    return append


def _target(said: Mapping[str, str]) -> tuple[str, str]:
    """Return the topic and the log in canonical form."""
    found = parse(said, Use.WRITE)
    where = found.address or str(Path(found.path or "").absolute())
    return str(parse_topic(found.topic)), where


def _query_of(rows: "DataFrame") -> str:
    found = query_of(rows)
    if found is None:
        raise BadRequest(
            "these rows do not belong to a streaming query",
            hint='Call it inside foreachBatch, or name the writer: writer(…, app_id="…")',
        )
    return found
