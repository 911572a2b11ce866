"""Reads the rows of one range in a task on an executor.

A range always gives the same rows, however often it is read.
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
from headrace.wire.ticket import Ticket

FETCH_SIZE: Final = 8 * 1024 * 1024  # of one response
# Spark takes batches of any size. Around 10,000 rows are the fastest; wide rows get fewer.
ROWS: Final = 10_000
SIZE: Final = 16 * 1024 * 1024
ALONE_SIZE: Final = (
    2 * 1024 * 1024
)  # a batch this large is passed on alone: joining would copy it
INTRODUCE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class LogAddress:
    """How to connect to the log."""

    address: str
    token_file: str | None
    release: str
    cluster: str  # the log's id
    ticket: Ticket | None = None  # for executors that do not have the token

    def link(self) -> Link:
        return Link(self.address, self.token_file, self.release, self.cluster, self.ticket)


@dataclass(frozen=True, slots=True)
class Span:
    """Rows `start` up to but not including `end` of one partition, and their schema."""

    where: LogAddress
    topic: str
    partition: int
    namespace: int
    created: int
    start: int
    end: int
    version: int  # of the schema that rows are converted to
    schemas: tuple[tuple[int, bytes], ...]  # every version that may occur, as Arrow IPC
    exact: bytes  # the schema that Spark expects, as Arrow IPC

    @property
    def row_count(self) -> int:
        return self.end - self.start


def read(span: Span) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a span in order, in batches of about `ROWS`."""
    exact = _schema(span.exact)
    for batch in gathered(rows_of(span)):
        yield conformed(batch, exact)
    settle()


def rows_of(span: Span) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a span in order, in batches of any size."""
    schemas = {version: _schema(data) for version, data in span.schemas}
    shape = Projection.of(schemas[span.version], _schema(span.exact).names)
    return _entries(span, schemas, shape)


def conformed(batch: pa.RecordBatch, exact: pa.Schema) -> pa.RecordBatch:
    """Cast a batch to Spark's exact types, which differ in nullability only."""
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, exact, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=exact)


def _schema(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def introduce(span: Span, group: str, generation: int, *, hold: bool) -> None:
    """Store the position of a query under its name, so that its driver learns the name.

    Errors are ignored. `hold`: retention keeps rows until the query has read them.
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
                raise BadFrame(f"asked for rows from {start} on, got rows up to {fetched.next}")
            if fetched.next < span.end:
                link.ask_ahead(_request(span, fetched.next, columns))
            for piece, data in pieces_of(fetched, body):
                rows = _rows(span, piece, data, schemas, shape)
                rows = cut(rows, piece.first, start, fetched.next)
                if rows.num_rows:
                    yield rows
                start += rows.num_rows
            if start != fetched.next:
                raise BadFrame(f"expected rows up to {fetched.next}, got rows up to {start}")


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
    """Return the columns to request; None for all: the node then sends entries as they are."""
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
        raise BadFrame(f"received rows of the unknown schema version {piece.schema_id}")
    if piece.schema_id > span.version:
        raise BadRequest(
            f"{span.topic}: rows from {piece.first} on have schema version {piece.schema_id}, "
            f"newer than version {span.version} of this frame",
            hint="The schema has changed since the frame was created: load it again",
        )
    place = RowPlace(span.partition, piece.first, piece.timestamp)
    return read_entry(data, schema, piece.row_count, place, shape)


def gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches and split large ones."""
    held: list[pa.RecordBatch] = []
    row_count = size = 0
    for batch in batches:
        for part in _parts(batch):
            # A large one is passed on alone: joining would copy all of it.
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
