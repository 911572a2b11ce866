"""`write` and `writeStream` `.format("headrace")`: exactly once, whatever is retried.

Each task stages its rows and lists its stages in its message. `commit` publishes exactly these,
as one version of one writer: Spark's query id and batch id. What a crash after each step leaves
in the log, and what happens next:

    stage      rows without offsets             they expire; the batch is staged again
    publish    all rows and the version, in     the version exists: Spark repeats the batch
               one operation                    until it has marked it as done
    compare    nothing new                      it is compared again

A batch that Spark repeats is the same version and adds nothing. A checkpointLocation that was
restored from an old backup produces the same version with different rows. So the rows of an
existing version are compared with the published ones, which are in the log (`repeats.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from headrace import __version__
from headrace.errors import BadConfig, BadRequest, Refused
from headrace.model.results import DiscardResult, PublishResult, Receipt
from headrace.spark.sink.repeats import check_repeat, superseded
from headrace.spark.source_options import Use, parse
from headrace.spark.topic_source import PLAN_TIMEOUT, TopicSource
from headrace.spark.worker.content import Content
from headrace.spark.worker.plain import plainly, refuse_other_release
from headrace.spark.worker.write import Deed, StageTarget, published_meanwhile, stage_all
from headrace.wire.write_messages import SUPERSEDED, DiscardRequest, PublishRequest

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"


@dataclass(frozen=True)
class CommitMessage(WriterCommitMessage):
    """The result of one task."""

    deed: Deed
    receipts: tuple[Receipt, ...]
    content: Content | None = None  # of rows not staged because their version exists


class _Writer:
    """The common part of both writers. The driver looks `target` up before copying it."""

    use = Use.SINK

    def __init__(self, options: dict[str, str], *, overwrite: bool) -> None:
        self._options = options
        self._release = __version__  # of the driver
        if overwrite:
            raise BadRequest(
                "a log is append-only and cannot be overwritten",
                hint='Use mode("append"), or outputMode("append") for a stream',
            )
        self._target = target_of(options, self.use)

    def _stage(self, deed: Deed, batches: Iterator[pa.RecordBatch]) -> CommitMessage:
        refuse_other_release(self._release, __version__)
        context = TaskContext.get()
        turn = 0 if context is None else context.partitionId()
        found = stage_all(self._target, deed, batches, turn)
        if isinstance(found, Content):
            return CommitMessage(deed, (), found)
        return CommitMessage(deed, found)

    def _publish(self, messages: list[Any], batch: int | None = None) -> None:
        found = [each for each in messages if isinstance(each, CommitMessage)]
        if not found:
            return
        deed = found[0].deed
        namespace, _ = self._target.partitions[0]
        stages = tuple(receipt for each in found for receipt in each.receipts)
        request = PublishRequest(
            namespace=namespace,
            created=self._target.created,
            writer=deed.writer,
            version=deed.version,
            stages=stages,
        )
        try:
            with self._target.where.link() as link:
                answer, _ = link.ask(request, PublishResult)
        except Refused as error:
            if error.code != SUPERSEDED:
                raise
            if stages:  # another driver has since published this version and the next one
                raise published_meanwhile(self._target, deed) from error
            raise superseded(self._target, deed, error, batch) from error
        if not answer.repeated or not parse(self._options, self.use).fail_on_other_rows:
            return
        if stages:
            if answer.same:
                return
            # They were staged before another driver published, and are deleted.
            raise published_meanwhile(self._target, deed)
        # The log compares the names of stages. Nothing is staged for an existing version, so
        # the log cannot tell any rows from those of a version without stages.
        content = sum((one.content for one in found if one.content), start=Content())
        check_repeat(self._options, self._target, deed, answer.ranges, content, batch)

    def _discard(self, messages: list[Any]) -> None:
        """Discard the staged rows. They would also expire on their own."""
        found = [each for each in messages if isinstance(each, CommitMessage)]
        stage_ids = tuple(receipt.stage_id for each in found for receipt in each.receipts)
        if not stage_ids:
            return
        namespace, _ = self._target.partitions[0]
        writer = found[0].deed.writer
        with self._target.where.link() as link:
            request = DiscardRequest(namespace, self._target.created, writer, stage_ids)
            link.ask(request, DiscardResult, seconds=10.0)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The sink of a streaming query: the writer is its query id, the version its batch id."""

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        assert query is not None
        assert batch is not None
        return self._stage(Deed(f"spark/{query}", int(batch) + 1), iterator)

    @plainly
    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self._publish(messages, batchId)

    @plainly
    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self._discard(messages)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """The sink of one write. With `txnAppId` and `txnVersion`, repeating it adds nothing."""

    use = Use.WRITE

    def __init__(self, options: dict[str, str], *, overwrite: bool) -> None:
        super().__init__(options, overwrite=overwrite)
        said = parse(options, self.use)
        if (said.app_id is None) != (said.app_version is None):
            missing = "txnVersion" if said.app_version is None else "txnAppId"
            hint = "Set both txnAppId and txnVersion, or neither"
            raise BadConfig(missing, "is missing", hint=hint)
        self._deed = Deed.nameless()
        if said.app_id is not None and said.app_version is not None:
            self._deed = Deed(said.app_id, said.app_version)

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        return self._stage(self._deed, iterator)

    @plainly
    def commit(self, messages: list[Any]) -> None:
        self._publish(messages)

    @plainly
    def abort(self, messages: list[Any]) -> None:
        self._discard(messages)


def target_of(options: dict[str, str], use: Use) -> StageTarget:
    """Look up the topic."""
    found = parse(options, use)
    topic_source = TopicSource(found, found.timeout or PLAN_TIMEOUT)
    try:
        view = topic_source.topic.core.view
        key = found.key or topic_source.topic.key
        if key is not None and key not in topic_source.topic.schema.names:
            raise BadConfig("key", f"{topic_source.topic.name} has no column {key!r}")
        return StageTarget(
            where=topic_source.where,
            topic=topic_source.topic.name,
            created=topic_source.topic.created,
            partitions=tuple((each.namespace, each.created) for each in view.info.partitions),
            version=view.version,
            schema=topic_source.topic.schema.serialize().to_pybytes(),
            key=key,
        )
    finally:
        topic_source.close()
