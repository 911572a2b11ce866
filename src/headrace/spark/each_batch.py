"""For queries that the sink does not take: `foreachBatch(headrace.spark.writer(…))`.

A query with state in update mode gives a batch of rows that have changed; appended to a topic
they are its changes, in order. A batch that Spark repeats adds nothing: the writer is the
query, the version its batch. So one writer takes one frame of a batch; a second one is refused.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import BadRequest
from headrace.model.names import parse_topic
from headrace.spark.options import parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY: Final = "sql.streaming.queryId"

# By writer, topic and log: the run of a query and its batch that this process wrote last.
_written: dict[tuple[str, str, str], tuple[str, int]] = {}


def writer(
    topic: str, *, key: str | None = None, app_id: str | None = None, **options: str
) -> "Callable[[DataFrame, int], None]":
    """Return what `foreachBatch` calls: it appends each batch to `topic`, exactly once.

    `options` are those of the sink: `address` or `path`, `tokenFile`. The writer is the query's
    id, so a new checkpointLocation is a new writer; `app_id` gives another one.
    """
    said = {"topic": topic, **options} | ({} if key is None else {"key": key})

    def append(rows: "DataFrame", batch_id: int) -> None:
        app = app_id or f"spark/{_query_of(rows)}"
        who, now = (app, *_target(said)), _moment(rows, batch_id)
        if now is not None and _written.get(who) == now:
            raise BadRequest(
                f"batch {batch_id} was written to {topic} already: a second frame of it would "
                "be taken for a repeat, and its rows dropped",
                hint='Union the frames, or write each by a writer of its own: app_id="…"',
            )
        before = _written.get(who)
        if now is not None:
            _written[who] = now
        try:
            (
                rows.write.format("headrace")
                .mode("append")
                .options(**said)
                .option("txnAppId", app)
                .option("txnVersion", batch_id + 1)
                .save()
            )
        except BaseException:
            if before is not None:
                _written[who] = before
            else:
                _written.pop(who, None)
            raise

    return append


def _target(said: Mapping[str, str]) -> tuple[str, str]:
    """Return the topic and the log, each in one spelling."""
    found = parse(said)
    where = found.address or str(Path(found.path or "").absolute())
    return str(parse_topic(found.topic)), where


def _moment(rows: "DataFrame", batch_id: int) -> tuple[str, int] | None:
    """Tell the one time that a query plays a batch; None outside of queries."""
    query = _property(rows)
    if query is None:
        return None
    running = rows.sparkSession.streams.get(query)
    return ("" if running is None else running.runId), batch_id


def _property(rows: "DataFrame") -> str | None:
    found = rows.sparkSession.sparkContext.getLocalProperty(_QUERY)
    return None if found is None else str(found)


def _query_of(rows: "DataFrame") -> str:
    found = _property(rows)
    if found is None:
        raise BadRequest(
            "these rows are of no streaming query",
            hint='Use it in foreachBatch, or name the writer: writer(…, app_id="…")',
        )
    return found
