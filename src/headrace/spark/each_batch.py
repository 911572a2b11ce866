"""For queries that the sink does not take: `foreachBatch(headrace.spark.writer(…))`.

A query with state in update mode gives a batch of rows that have changed; appended to a topic
they are its changes, in order. A batch that Spark repeats adds nothing: the writer is the
query, the version its batch.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.errors import BadRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY: Final = "sql.streaming.queryId"


def writer(
    topic: str, *, key: str | None = None, app_id: str | None = None, **options: str
) -> "Callable[[DataFrame, int], None]":
    """Return what `foreachBatch` calls: it appends each batch to `topic`, exactly once.

    `options` are those of the sink: `address` or `path`, `tokenFile`. The writer is the query's
    id, so a new checkpointLocation is a new writer; `app_id` gives another one.
    """
    said = {"topic": topic, **options} | ({} if key is None else {"key": key})

    def append(rows: "DataFrame", batch_id: int) -> None:
        (
            rows.write.format("headrace")
            .mode("append")
            .options(**said)
            .option("txnAppId", app_id or f"spark/{_query_of(rows)}")
            .option("txnVersion", batch_id + 1)
            .save()
        )

    return append


def _query_of(rows: "DataFrame") -> str:
    found = rows.sparkSession.sparkContext.getLocalProperty(_QUERY)
    if found is None:
        raise BadRequest(
            "these rows are of no streaming query",
            hint='Use it in foreachBatch, or name the writer: writer(…, app_id="…")',
        )
    return str(found)
