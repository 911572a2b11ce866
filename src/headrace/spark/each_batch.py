"""For queries that the sink does not take: `foreachBatch(headrace.spark.writer(…))`.

A query with state in update mode gives a batch of rows that have changed; appended to a topic
they are its changes, in order. A batch that Spark repeats adds nothing: the writer is the
query, the version its batch. So one writer takes one frame of a batch; a second one is refused.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import BadRequest
from headrace.model.names import parse_topic
from headrace.spark.options import Use, parse
from headrace.spark.running import moment_of, only_frame, query_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def writer(
    topic: str, *, key: str | None = None, app_id: str | None = None, **options: str
) -> "Callable[[DataFrame, int], None]":
    """Return what `foreachBatch` calls: it appends each batch to `topic`, exactly once.

    `options` are those of the sink: `address` or `path`, `tokenFile`. The writer is the query's
    id, so a new checkpointLocation is a new writer; `app_id` gives another one.
    """
    said = {"topic": topic, **options} | ({} if key is None else {"key": key})
    hint = 'Union the frames, or write each by a writer of its own: app_id="…"'

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
    """Return the topic and the log, each in one spelling."""
    found = parse(said, Use.WRITE)
    where = found.address or str(Path(found.path or "").absolute())
    return str(parse_topic(found.topic)), where


def _query_of(rows: "DataFrame") -> str:
    found = query_of(rows)
    if found is None:
        raise BadRequest(
            "these rows are of no streaming query",
            hint='Use it in foreachBatch, or name the writer: writer(…, app_id="…")',
        )
    return found
