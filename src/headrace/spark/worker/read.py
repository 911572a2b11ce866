"""Rows of one range, read by a task on an executor.

The same range is always the same rows, whoever reads it, and how often.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from headrace.errors import BadFrame, BadRequest, HeadraceError
from headrace.model.projection import Projection, RowPlace, cut, read_entry
from headrace.model.results import CursorStored, FetchedPiece
from headrace.model.split import joined
from headrace.spark.worker.link import Link
from headrace.spark.worker.settle import settle
from headrace.spark.worker.sums import pieces_of
from headrace.wire.read_messages import Fetch, FetchReply, StoreCursorRequest

FETCH_SIZE: Final = 8 * 1024 * 1024  # of one answer
# Spark takes batches as they come. Around 10,000 rows were the fastest; wide ones are cut.
ROWS: Final = 10_000
SIZE: Final = 16 * 1024 * 1024
ALONE_SIZE: Final = 2 * 1024 * 1024  # one this large goes on its own: joining it would copy it
INTRODUCE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class LogAddress:
    """How to reach the log."""

    address: str
    token_file: str | None
    release: str
    cluster: str  # the log's id

    def link(self) -> Link:
        return Link(self.address, self.token_file, self.release, self.cluster)


@dataclass(frozen=True, slots=True)
class Span:
    """Rows `start` to before `end` of one partition, and how they are shown."""

    where: LogAddress
    topic: str
    partition: int
    namespace: int
    created: int
    start: int
    end: int
    version: int  # of the schema in which rows are shown
    schemas: tuple[tuple[int, bytes], ...]  # every version that may come, as Arrow writes it
    exact: bytes  # the schema that Spark expects, as Arrow writes it

    @property
    def row_count(self) -> int:
        return self.end - self.start


def read(span: Span) -> Iterator[pa.RecordBatch]:
    """Give the rows of a span, in order, as batches of about `ROWS`."""
    schemas = {version: _schema(data) for version, data in span.schemas}
    exact = _schema(span.exact)
    shape = Projection.of(schemas[span.version], exact.names)
    for batch in gathered(_entries(span, schemas, shape)):
        yield conformed(batch, exact)
    settle()


def conformed(batch: pa.RecordBatch, exact: pa.Schema) -> pa.RecordBatch:
    """Return a batch in Spark's very types; they differ in which values may be missing."""
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, exact, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=exact)


def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def introduce(span: Span, group: str, generation: int, *, hold: bool) -> None:
    """Store where a query is under its name, so that its driver learns it. It may fail.

    `hold`: what it reads stays until it has read it.
    """
    request = StoreCursorRequest(
        namespace=span.namespace,
        created=span.created,
        group=group,
        next=span.start,
        generation=generation,
        hold=hold,
    )
    with suppress(HeadraceError), span.where.link() as link:
        link.ask(request, CursorStored, seconds=INTRODUCE_SECONDS)


def _entries(
    span: Span, schemas: dict[int, pa.Schema], shape: Projection
) -> Iterator[pa.RecordBatch]:
    start, columns = span.start, _asked_for(schemas[span.version], shape)
    with span.where.link() as link:
        while start < span.end:
            fetched, body = link.ask(_request(span, start, columns), FetchReply)
            if not start < fetched.next <= span.end:
                raise BadFrame(f"rows from {start} on were asked for, to {fetched.next} came")
            if fetched.next < span.end:
                link.ask_ahead(_request(span, fetched.next, columns))
            for piece, data in pieces_of(fetched, body):
                rows = _rows(span, piece, data, schemas, shape)
                rows = cut(rows, piece.first, start, fetched.next)
                if rows.num_rows:
                    yield rows
                start += rows.num_rows
            if start != fetched.next:
                raise BadFrame(f"rows to {fetched.next} were promised, to {start} came")


def _request(span: Span, start: int, columns: tuple[str, ...] | None) -> Fetch:
    return Fetch(
        namespace=span.namespace,
        created=span.created,
        start=start,
        end=span.end,
        size_max=FETCH_SIZE,
        wait_ms=0,
        columns=columns,
        version=span.version,
    )


def _asked_for(user: pa.Schema, shape: Projection) -> tuple[str, ...] | None:
    """Return which columns to ask for; None for all: a node sends entries as they are then."""
    names = shape.schema.names
    return None if names == Projection.of(user, None).schema.names else tuple(names)


def _rows(
    span: Span,
    piece: FetchedPiece,
    data: memoryview,
    schemas: dict[int, pa.Schema],
    shape: Projection,
) -> pa.RecordBatch:
    if not piece.is_entry:
        return pa.ipc.read_record_batch(pa.py_buffer(data), shape.schema)
    schema = schemas.get(piece.schema_id)
    if schema is None:
        raise BadFrame(f"rows came in schema version {piece.schema_id}, which nobody knows")
    if piece.schema_id > span.version:
        raise BadRequest(
            f"{span.topic}: rows from {piece.first} on have schema version {piece.schema_id}, "
            f"which this frame with version {span.version} cannot show",
            hint="The schema has changed since it was made: load it again",
        )
    place = RowPlace(span.partition, piece.first, piece.timestamp)
    return read_entry(data, schema, piece.row_count, place, shape)


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put small batches together and cut large ones."""
    held: list[pa.RecordBatch] = []
    row_count = size = 0
    for batch in batches:
        for part in _parts(batch):
            # One that is large enough goes alone: to join it would copy all of it.
            more = SIZE if part.nbytes >= ALONE_SIZE else part.nbytes
            if held and (row_count + part.num_rows > ROWS or size + more > SIZE):
                yield joined(held)
                held, row_count, size = [], 0, 0
            held.append(part)
            row_count += part.num_rows
            size += more
    if held:
        yield joined(held)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    wide = max(1, -(-batch.nbytes // SIZE))
    step = min(ROWS, -(-batch.num_rows // wide))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)
