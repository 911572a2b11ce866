"""The rows of one partition, fetched answer by answer."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from xxhash import xxh3_128_digest

from headrace.client.connect.retry import Backoff, Caller, now
from headrace.client.values.topic_view import View
from headrace.errors import BadBatch, BadFrame, BadRequest
from headrace.model.batch import decode
from headrace.model.projection import Projection, RowPlace, cut, read_entry
from headrace.model.results import FetchedPiece
from headrace.wire.msgpack import Buffer
from headrace.wire.read_messages import Fetch, FetchReply
from headrace.wire.topic_messages import PartitionInfo

# Size of an answer: four batches of 1 MiB of rows with their Arrow metadata. With exactly 4 MiB
# only three fit, and each answer costs both sides a fixed amount.
FETCH_SIZE: Final = 4 * 1024 * 1024 + 64 * 1024
WAIT_MS: Final = 5_000  # how long a node holds a fetch for rows that are not there yet
LAG_MAX: Final = 5.0  # seconds that a partition may lag behind the topic's newest schema
_ALIGNMENT: Final = 64
_TIMESTAMP_END: Final = 2**63
_SMALL: Final = 64 * 1024  # smaller batches are merged


@dataclass(frozen=True, slots=True)
class Slab:
    """One batch of rows of one partition, from `start` to `next` (exclusive)."""

    partition: int
    start: int
    next: int
    rows: pa.RecordBatch


@dataclass(slots=True)
class Feed:
    """A position in one partition that advances with each fetch."""

    caller: Caller
    view: View
    partition: int
    position: int  # where `next` continues
    end: int | None  # None: unbounded, and answers may be empty
    columns: tuple[str, ...] | None
    refresh: Callable[[], Awaitable[View]]
    wait_ms: int = WAIT_MS
    version: int = field(init=False)
    shape: Projection = field(init=False)

    def __post_init__(self) -> None:
        self._show(self.view)

    @property
    def is_done(self) -> bool:
        return self.end is not None and self.position >= self.end

    async def next(self) -> list[Slab]:
        """Fetch the next rows. An unbounded feed waits a while, and may return nothing."""
        while True:
            start = self.position
            fetched, body = await self.fetch(start)
            newest = _newest(fetched)
            if newest <= self.version:
                break
            if not await self._has_newer() or newest > self.version:
                raise self._too_new(newest)
        slabs = self.slabs(fetched, body, start)
        self.position = fetched.next
        return slabs

    def slabs(self, fetched: FetchReply, body: Buffer, start: int) -> list[Slab]:
        """Decode an answer with the rows from `start` on."""
        if (newest := _newest(fetched)) > self.version:
            raise self._too_new(newest)
        if self.end is not None and fetched.next <= start:
            raise BadFrame(f"requested rows from {start} on, received none")
        batches = self._batches(fetched, body, start)
        return self._slabs(_together(batches, len(body)), start)

    async def fetch(
        self, start: int, on_head: Callable[[FetchReply], None] | None = None, behind: int = 0
    ) -> tuple[FetchReply, Buffer]:
        """Request rows from `start` on. `on_head`: see Channel.call.

        `behind` answers come before this one, each of which may take its time.
        """
        wait_ms = 0 if self.end is not None else self.wait_ms
        backoff, lag_end = Backoff(), now() + LAG_MAX
        while True:
            request = Fetch(
                namespace=self._info.namespace,
                created=self._info.created,
                start=start,
                end=self.end,
                size_max=FETCH_SIZE,
                wait_ms=wait_ms,
                columns=self.columns,
                version=self.version,
            )
            timeout = (1 + behind) * self.caller.timeout + wait_ms / 1_000
            deadline = self.caller.deadline(timeout)
            try:
                return await self.caller.ask(
                    request, FetchReply, deadline=deadline, on_head=on_head
                )
            except BadRequest:
                if await self._has_newer():
                    if self.end is not None:
                        raise  # rows have a newer schema than this read
                elif now() >= lag_end:
                    raise
                # Everything else was checked before the request: the schema has not reached the
                # partition yet.
                await asyncio.sleep(backoff.next())

    @property
    def _info(self) -> PartitionInfo:
        return self.view.partition(self.partition)

    async def _has_newer(self) -> bool:
        """Check whether the topic has a newer schema, and use it from now on."""
        view = await self.refresh()
        is_newer = view.version > self.version
        if is_newer and self.end is None:
            self._show(view)
        return is_newer

    def _too_new(self, newest: int) -> BadRequest:
        return BadRequest(
            f"received rows of schema version {newest}, which version {self.version} "
            "cannot show",
            hint="The schema has changed in the meantime; read again",
        )

    def _show(self, view: View) -> None:
        self.view, self.version = view, view.version
        self.shape = Projection.of(view.schema, self.columns)

    def _batches(self, fetched: FetchReply, body: Buffer, start: int) -> list[pa.RecordBatch]:
        """Return the rows from `start` to `next` (exclusive), each once, or raise BadFrame."""
        offset, batches = start, []
        # All bytes are checked first: decoding then finds them in the CPU cache.
        for piece, data in zip(fetched.pieces, _checked(fetched, body), strict=True):
            if piece.first > offset or piece.first + piece.row_count <= offset:
                raise BadFrame(f"received rows from {piece.first} on, expected {offset} next")
            if not 0 <= piece.timestamp < _TIMESTAMP_END:
                raise BadFrame(f"rows from {piece.first} on have an invalid timestamp")
            try:
                rows = cut(self._rows(piece, data), piece.first, offset, fetched.next)
            except BadBatch as error:
                raise BadFrame(f"rows from {piece.first} on cannot be read: {error}") from error
            batches.append(rows)
            offset += rows.num_rows
        if offset != fetched.next:
            raise BadFrame(
                f"expected rows from {start} to {fetched.next}, received up to {offset}"
            )
        return batches

    def _slabs(self, batches: list[pa.RecordBatch], start: int) -> list[Slab]:
        slabs = []
        for rows in batches:
            slabs.append(Slab(self.partition, start, start + rows.num_rows, rows))
            start += rows.num_rows
        return slabs

    def _rows(self, piece: FetchedPiece, data: memoryview) -> pa.RecordBatch:
        if not piece.is_entry:
            return decode(data, self.shape.schema, piece.row_count)
        place = RowPlace(self.partition, piece.first, piece.timestamp)
        schema = self.view.schemas.get(piece.schema_id)
        if schema is None:
            raise BadFrame(f"received rows of unknown schema version {piece.schema_id}")
        known = self.view.layouts[piece.schema_id]
        return read_entry(data, schema, piece.row_count, place, self.shape, known)


def _checked(fetched: FetchReply, body: Buffer) -> list[memoryview]:
    """Return the bytes of each piece, with verified checksums, or raise BadFrame."""
    view = memoryview(body)
    position, found = 0, []
    for piece in fetched.pieces:
        data = view[position : position + piece.size]
        if data.nbytes != piece.size:
            raise BadFrame(f"expected {piece.size} bytes of rows, received {data.nbytes}")
        if piece.checksum and xxh3_128_digest(data) != piece.checksum:
            raise BadFrame(f"rows from {piece.first} on are not what their producer sent")
        position += -(-piece.size // _ALIGNMENT) * _ALIGNMENT
        found.append(data)
    return found


def _newest(fetched: FetchReply) -> int:
    return max((each.schema_id for each in fetched.pieces), default=0)


def _together(batches: list[pa.RecordBatch], size: int) -> list[pa.RecordBatch]:
    """Merge many small batches: a log of small appends reads as fast as any other.

    `size` is that of their bodies. These may be compressed, so the rows are measured too.
    """
    count = len(batches)
    if count < 2 or size / count >= _SMALL:
        return batches
    if sum(each.nbytes for each in batches) / count >= _SMALL:
        return batches
    return [pa.concat_batches(batches)]
