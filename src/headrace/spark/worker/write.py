"""Stages the rows of a task on an executor.

A stage has a random id, so a task that runs twice, or continues after it was given up, creates
another stage. Only stages named in a task's message are published; the rest expire.
"""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import pyarrow as pa

from headrace.errors import Refused, Unavailable
from headrace.model.batch import layout
from headrace.model.ids import WRITER_SIZE
from headrace.model.results import Receipt, StageResult
from headrace.model.schema import conform
from headrace.model.split import bodies_of, by_key, gathered
from headrace.spark.worker.content import Content, content_of
from headrace.spark.worker.link import Link
from headrace.spark.worker.read import LogAddress
from headrace.spark.worker.settle import settle
from headrace.spark.worker.sums import checksum_of
from headrace.wire.write_messages import (
    STAGE_ID_SIZE,
    SUPERSEDED,
    StageRequest,
    once,
    writer_of,
)

BODY_SIZE: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StageTarget:
    """The topic to write to, as it was when the query was planned."""

    where: LogAddress
    topic: str
    created: int
    partitions: tuple[tuple[int, int], ...]  # namespace and creating revision of each
    version: int  # of the schema
    schema: bytes  # as Arrow IPC
    key: str | None


@dataclass(frozen=True, slots=True)
class Deed:
    """The identity of a write: one version of one writer, published once.

    Without an app id it cannot be repeated, and the log forgets its writer after a day.
    """

    app_id: str  # or a description if there is none
    version: int
    only: bytes = b""  # the random writer of a deed without an app id

    @property
    def writer(self) -> bytes:
        return self.only or writer_of(self.app_id)

    @classmethod
    def nameless(cls) -> "Deed":
        return cls("a write without txnAppId", 1, once(secrets.token_bytes(WRITER_SIZE)))


@dataclass(slots=True)
class _OpenTarget:
    stage_id: bytes = field(default_factory=lambda: secrets.token_bytes(STAGE_ID_SIZE))
    receipt: Receipt | None = None  # of everything in it

    @property
    def number(self) -> int:
        return 0 if self.receipt is None else self.receipt.op_count


def stage_all(
    target: StageTarget, deed: Deed, batches: Iterable[pa.RecordBatch], turn: int
) -> tuple[Receipt, ...] | Content:
    """Stage rows and return the receipts. `turn`: first partition of batches without a key.

    If the version is already published, nothing is staged. The rows are digested instead, for
    the driver to compare with the published ones.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(target.schema))
    given, turns = _fitting(batches, schema), count(turn)
    stages: dict[int, _OpenTarget] = {}
    with target.where.link() as link:
        for batch in given:
            try:
                for partition, rows in _parted(target, batch, turns):
                    stage = stages.setdefault(partition, _OpenTarget())
                    _put(link, target, deed, partition, stage, rows)
            except Refused as error:
                if error.code != SUPERSEDED:
                    raise
                _refuse_if_staged(target, deed, stages)
                return sum(map(content_of, given), start=content_of(batch))
    settle()
    return tuple(each.receipt for each in stages.values() if each.receipt is not None)


def _refuse_if_staged(target: StageTarget, deed: Deed, stages: dict[int, _OpenTarget]) -> None:
    """Raise Unavailable if rows were already staged and so cannot be digested any more."""
    if any(each.receipt is not None for each in stages.values()):
        raise published_meanwhile(target, deed)


def published_meanwhile(target: StageTarget, deed: Deed) -> Unavailable:
    """Return the error for a version that another driver of the query or job published."""
    return Unavailable(
        f"version {deed.version} of {deed.app_id} was published to {target.topic} by another "
        "driver while this one staged its rows",
        hint="Run one driver at a time, and restart this one: its rows are compared with the "
        "published ones, and none is added twice",
    )


def _fitting(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    filled = (conform(batch, schema) for batch in batches if batch.num_rows)
    yield from gathered(filled, BODY_SIZE)


def _parted(
    target: StageTarget, batch: pa.RecordBatch, turns: Iterator[int]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    partition_count = len(target.partitions)
    if target.key is not None:
        yield from by_key(batch, target.key, partition_count)
    else:
        yield next(turns) % partition_count, batch


def _put(
    link: Link,
    target: StageTarget,
    deed: Deed,
    partition: int,
    stage: _OpenTarget,
    rows: pa.RecordBatch,
) -> None:
    namespace, created = target.partitions[partition]
    limit = link.body_size_max or BODY_SIZE
    for row_count, body in bodies_of(rows, limit, BODY_SIZE, layout(rows.schema)):
        request = StageRequest(
            namespace=namespace,
            created=created,
            writer=deed.writer,
            version=deed.version,
            schema_id=target.version,
            row_count=row_count,
            stage_id=stage.stage_id,
            number=stage.number,
            checksum=checksum_of(body),
        )
        staged, _ = link.ask(request, StageResult, (body,))
        stage.receipt = staged.receipt
