"""For queries that the sink does not take: `foreachBatch(headrace.spark.writer(…))`.

A query with state in update mode gives a batch of rows that have changed; appended to a topic
they are its changes, in order. A batch that Spark repeats adds nothing: the writer is the
query, the version its batch. So one writer takes one frame of a batch; a second one is refused.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.errors import BadRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY: Final = "sql.streaming.queryId"
_RUN: Final = "spark.jobGroup.id"  # of a streaming query: another one at each start

# By writer, topic and log: the run of a query and its batch that this process wrote last.
_written: dict[tuple[str, ...], tuple[str, int]] = {}


def writer(
    topic: str, *, key: str | None = None, app_id: str | None = None, **options: str
) -> "Callable[[DataFrame, int], None]":
    """Return what `foreachBatch` calls: it appends each batch to `topic`, exactly once.

    `options` are those of the sink: `address` or `path`, `tokenFile`. The writer is the query's
    id, so a new checkpointLocation is a new writer; `app_id` gives another one.
    """
    said = {"topic": topic, **options} | ({} if key is None else {"key": key})
    places = sorted(value for name, value in options.items() if name in ("address", "path"))

    def append(rows: "DataFrame", batch_id: int) -> None:
        app = app_id or f"spark/{_query_of(rows)}"
        who, now = (app, topic, *places), _moment(rows, batch_id)
        if now is not None and _written.get(who) == now:
            raise BadRequest(
                f"batch {batch_id} was written to {topic} already: a second frame of it would "
                "be taken for a repeat, and its rows dropped",
                hint='Union the frames, or write each by a writer of its own: app_id="…"',
            )
        (
            rows.write.format("headrace")
            .mode("append")
            .options(**said)
            .option("txnAppId", app)
            .option("txnVersion", batch_id + 1)
            .save()
        )
        if now is not None:
            _written[who] = now

    return append


def _moment(rows: "DataFrame", batch_id: int) -> tuple[str, int] | None:
    """Tell the one time that a query plays a batch; None outside of queries."""
    if _property(rows, _QUERY) is None:
        return None
    return str(_property(rows, _RUN)), batch_id


def _property(rows: "DataFrame", name: str) -> str | None:
    found = rows.sparkSession.sparkContext.getLocalProperty(name)
    return None if found is None else str(found)


def _query_of(rows: "DataFrame") -> str:
    found = _property(rows, _QUERY)
    if found is None:
        raise BadRequest(
            "these rows are of no streaming query",
            hint='Use it in foreachBatch, or name the writer: writer(…, app_id="…")',
        )
    return found
