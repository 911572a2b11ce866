"""Known rows in a server under attack: appended, read back and compared, again and again."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import pyarrow as pa
from xxhash import xxh3_128_digest

from headrace.errors import HeadraceError, Unavailable
from headrace.model import batch
from headrace.model.results import AppendResult
from headrace.model.schema import SYSTEM_FIELDS, canonical, encode_schema
from headrace.partition.segments.segment import segment_schema
from headrace.wire import read_messages, topic_messages, write_messages
from headrace_lab.hostile.peer import Peer
from headrace_lab.hostile.server import Gone

GOOD_TOPIC: Final = "kept/good"
GOOD_SCHEMA: Final = canonical(pa.schema([("id", pa.int64()), ("name", pa.string())]))
SYSTEM_SCHEMA: Final = pa.schema(SYSTEM_FIELDS)
ROWS_PER_APPEND: Final = 20
ROWS_OF_A_LARGE_APPEND: Final = 60_000  # over a MiB
FETCH_SIZE: Final = 4 * 1024 * 1024
MAKING_SECONDS: Final = 30.0  # of a partition, after its topic


class Wrong(Exception):
    """Rows that were acknowledged are not there, or are others."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A batch that a server has said it took."""

    where: topic_messages.PartitionInfo
    schema: pa.Schema
    start: int
    row_count: int
    body: bytes
    version: int = 1  # of the schema in which it is read back; a later one has more columns

    def rows(self) -> pa.Table:
        """Return its rows as Arrow reads them here. Wrong if it finds them not valid."""
        try:
            rows = pa.ipc.read_record_batch(pa.py_buffer(self.body), self.schema)
            rows.validate(full=True)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise Wrong(f"a batch was taken that Arrow does not read: {error}") from error
        if rows.num_rows != self.row_count:
            raise Wrong(f"{rows.num_rows} rows were taken for {self.row_count}")
        return pa.Table.from_batches([rows], self.schema)


def make_topic(
    peer: Peer, name: str, schema: pa.Schema, partitions: int = 1
) -> topic_messages.TopicInfo:
    """Make a topic, and wait until its partitions are there."""
    request = topic_messages.CreateTopicRequest(
        name, encode_schema(schema), partitions, None, None, ()
    )
    info, _ = peer.ask(request)
    assert isinstance(info, topic_messages.TopicInfo)
    end = time.monotonic() + MAKING_SECONDS
    while True:
        try:
            peer.ask(read_messages.GetBounds(info.partitions))
        except Unavailable:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return info


def append_to(
    where: topic_messages.PartitionInfo,
    row_count: int,
    *,
    writer: bytes = b"",
    version: int = 1,
) -> write_messages.AppendRequest:
    """Return an Append without a checksum, of a new writer unless one is given."""
    return write_messages.AppendRequest(
        where.namespace,
        where.created,
        writer or secrets.token_bytes(16),
        version,
        1,
        row_count,
        b"",
    )


def read_rows(
    peer: Peer,
    where: topic_messages.PartitionInfo,
    schema: pa.Schema,
    start: int,
    end: int,
    version: int = 1,
) -> pa.Table:
    """Read the rows `start` to before `end`, the columns of `schema`."""
    found: list[pa.RecordBatch] = []
    columns = None if version == 1 else (*SYSTEM_SCHEMA.names, *schema.names)
    offset = start
    while offset < end:
        request = read_messages.Fetch(
            where.namespace, where.created, offset, end, FETCH_SIZE, 0, columns, version
        )
        reply, body = peer.ask(request)
        assert isinstance(reply, read_messages.FetchReply)
        if reply.next <= offset:
            raise Wrong(f"a fetch from {offset} goes on at {reply.next}")
        found += _pieces(reply, memoryview(body), schema, offset, end)
        offset = reply.next
    return pa.Table.from_batches(found, schema)


def _pieces(
    reply: read_messages.FetchReply, body: memoryview, schema: pa.Schema, start: int, end: int
) -> Sequence[pa.RecordBatch]:
    found = []
    position = 0
    for piece in reply.pieces:
        shown = schema if piece.is_entry else segment_schema(schema)
        data = body[position : position + piece.size]
        position += piece.size + -piece.size % 64
        if piece.is_entry and piece.checksum and piece.checksum != xxh3_128_digest(data):
            raise Wrong(f"the rows from {piece.first} on have another checksum")
        rows = batch.decode(data, shown, piece.row_count).select(schema.names)
        first = max(start - piece.first, 0)
        found.append(rows.slice(first, min(end - piece.first, rows.num_rows) - first))
    return found


def check_accepted(peer: Peer, accepted: Accepted) -> None:
    """Read rows back, and compare every value."""
    wanted = accepted.rows()
    end = accepted.start + accepted.row_count
    try:
        found = read_rows(
            peer, accepted.where, accepted.schema, accepted.start, end, accepted.version
        )
    except HeadraceError as error:
        raise Wrong(f"rows {accepted.start} to {end} cannot be read: {error!r}") from error
    if not same(found, wanted):
        raise Wrong(f"rows {accepted.start} to {end} read back as others")


def same(found: pa.Table, wanted: pa.Table) -> bool:
    """Compare tables of floats, too: the same bits are the same value."""
    if found.equals(wanted):
        return True
    return found.num_rows == wanted.num_rows and str(found.to_pylist()) == str(
        wanted.to_pylist()
    )


@dataclass(slots=True)
class GoodClient:
    """A client that does nothing wrong, and must never notice what others do."""

    port: int
    where: topic_messages.PartitionInfo
    row_count: int = 0  # acknowledged
    append_count: int = 0
    check_count: int = 0
    slowest: float = 0.0  # seconds of one append
    version: int = 0
    writer: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    _peer: Peer | None = None

    @property
    def peer(self) -> Peer:
        if self._peer is None:
            self._peer = Peer(self.port).greet()
        return self._peer

    def move(self, port: int) -> None:
        """Go on with a server that was started again."""
        self.close()
        self.port = port

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def work(self) -> None:
        """Append known rows, and read the newest ones back. Wrong or Gone if that fails."""
        began = time.monotonic()
        self.append(1)
        self.slowest = max(self.slowest, time.monotonic() - began)
        self.check(max(0, self.row_count - 5 * ROWS_PER_APPEND), self.row_count)

    def append(self, count: int, row_count: int = ROWS_PER_APPEND) -> None:
        """Append `count` batches, all of them in flight at once."""
        try:
            ids = [self._send(place, row_count) for place in range(count)]
            self._hear(ids, row_count)
        except HeadraceError as error:
            raise Wrong(f"a good append failed: {error!r}") from error

    def check(self, start: int, end: int) -> None:
        """Read rows back and compare them with what was appended."""
        try:
            found = read_rows(self.peer, self.where, GOOD_SCHEMA, start, end)
        except HeadraceError as error:
            raise Wrong(f"a good read of {start} to {end} failed: {error!r}") from error
        wanted = pa.Table.from_batches([good_rows(start, end - start)])
        if not found.equals(wanted):
            raise Wrong(f"good rows {start} to {end} read back as others")
        self.check_count += 1

    def _send(self, place: int, row_count: int) -> tuple[int, int]:
        start = self.row_count + place * row_count
        body = memoryview(batch.encode(good_rows(start, row_count)))
        self.version += 1
        request = append_to(self.where, row_count, writer=self.writer, version=self.version)
        return self.peer.send_request(request, [body]), start

    def _hear(self, ids: list[tuple[int, int]], row_count: int) -> None:
        waiting = dict(ids)
        while waiting:
            said = self.peer.next_answer()
            start = waiting.pop(said.id, None)
            if start is None:
                raise Gone(f"an answer to nothing that was asked: {said.message}")
            if not isinstance(said.message, AppendResult):
                raise Wrong(f"a good append was answered by {said.message}")
            if (said.message.start, said.message.end) != (start, start + row_count):
                raise Wrong(f"a good append of {start} got the offsets of {said.message}")
        self.row_count += len(ids) * row_count
        self.append_count += len(ids)


def good_rows(start: int, count: int) -> pa.RecordBatch:
    """Make the rows that belong at these offsets."""
    numbers = range(start, start + count)
    columns = [
        pa.array(numbers, pa.int64()),
        pa.array([f"row {each}" for each in numbers], pa.string()),
    ]
    return pa.record_batch(columns, schema=GOOD_SCHEMA)


def check_order(accepted: Sequence[Accepted]) -> list[str]:
    """Say which rows were given the same offsets: none may be."""
    placed = sorted(
        (one.where.namespace, one.where.created, one.start, one.row_count) for one in accepted
    )
    return [
        f"offsets from {after[2]} on were given twice"
        for before, after in pairwise(placed)
        if before[:2] == after[:2] and before[2] + before[3] > after[2]
    ]
