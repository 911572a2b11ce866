"""Rows from a node that says anything: whole and right, or an error."""

import pyarrow as pa
import pytest
from tests.client import jumping

from headrace.client.connect.retry import Caller
from headrace.client.read.feed import FETCH_SIZE, Feed
from headrace.client.read.rows import AsyncRows
from headrace.client.values.answers import Range
from headrace.client.values.topic_view import View
from headrace.errors import BadFrame, BadRequest
from headrace.model.batch import encode
from headrace.model.projection import Projection
from headrace.model.results import FetchedPiece
from headrace.model.schema import encode_schema
from headrace.wire.read_messages import FetchReply
from headrace.wire.topic_messages import PartitionInfo, SchemaInfo, TopicInfo

SCHEMA = pa.schema([("id", pa.int64())])
VIEW = View.of(
    TopicInfo(
        topic="default/orders",
        created=1,
        created_at=0,
        shard=1,
        revision=1,
        retention_age_ms=None,
        retention_size=None,
        options=(),
        schemas=(SchemaInfo(1, encode_schema(SCHEMA)),),
        partitions=(PartitionInfo(7, 1),),
    )
)


def an_entry(first, count, schema_id=1, timestamp=1_000_000, checksum=b""):
    body = bytes(encode(pa.record_batch({"id": list(range(first, first + count))})))
    piece = FetchedPiece(True, first, count, timestamp, schema_id, len(body), checksum)
    return piece, body + bytes(-len(body) % 64)


class Answering:
    address, body_size_max = "test", 1024

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def call(self, request, body=(), *, timeout, on_head=None):  # noqa: ASYNC109
        self.asked.append((request.start, request.end))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def fetched(next_offset, *entries):
    pieces = tuple(piece for piece, _ in entries)
    return FetchReply(next_offset, 0, 100, pieces), b"".join(body for _, body in entries)


async def same():
    return VIEW


def read(start, end, *answers):
    channel = Answering(*answers)

    def feed(each):
        return Feed(Caller(channel, 1.0), VIEW, 0, each.start, each.end, None, same)

    shape = Projection.of(SCHEMA, None)
    rows = AsyncRows(shape.schema, (Range(0, start, end),), feed)
    return jumping.run(rows.to_table())["id"].to_pylist(), channel.asked


def test_entries_are_cut_to_the_range_and_put_together():
    first, second = fetched(7, an_entry(0, 5), an_entry(5, 2)), fetched(9, an_entry(7, 9))
    found, asked = read(3, 9, first, second)
    assert found == [3, 4, 5, 6, 7, 8]
    assert asked == [(3, 9), (7, 9)]


def test_an_answer_has_room_for_four_batches_of_a_mebibyte():
    rows = pa.record_batch({"id": range(1024 * 1024 // 8)})
    assert rows.nbytes == 1024 * 1024
    assert 4 * len(encode(rows)) <= FETCH_SIZE < 5 * len(encode(rows))


def test_rows_that_were_compressed_are_weighed_as_they_are():
    def entry(first):
        rows = pa.record_batch({"id": pa.array([7] * 20_000, pa.int64())})
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
            writer.write(rows)
        reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
        message = [reader.read_next_message(), reader.read_next_message()][1]
        body = message.serialize().to_pybytes()
        assert len(body) < 8_192
        piece = FetchedPiece(True, first, 20_000, 1_000_000, 1, len(body), b"")
        return piece, body + bytes(-len(body) % 64)

    channel = Answering(fetched(40_000, entry(0), entry(20_000)))
    feed = Feed(Caller(channel, 1.0), VIEW, 0, 0, 40_000, None, same)
    slabs = jumping.run(feed.next())
    assert [slab.rows.num_rows for slab in slabs] == [20_000, 20_000]


def test_a_range_without_rows_asks_nothing():
    assert read(3, 3) == ([], [])


@pytest.mark.parametrize(
    "answer",
    [
        fetched(0),  # no progress
        fetched(5, an_entry(0, 4)),  # less than was promised
        fetched(5, an_entry(1, 4)),  # begins too late
        (fetched(5, an_entry(0, 5))[0], b"short"),
        (fetched(5, an_entry(0, 5))[0], b"x" * 1_024),
        fetched(5, an_entry(0, 5, schema_id=0)),
        fetched(5, an_entry(0, 5, schema_id=-3)),
        fetched(5, an_entry(0, 2), an_entry(0, 3)),  # the same offsets twice
        fetched(4, an_entry(0, 2), an_entry(3, 2)),  # one is left out
        fetched(5, an_entry(0, 5, timestamp=2**64 - 1)),
        fetched(5, an_entry(0, 5, checksum=b"x" * 16)),  # not what the producer sent
    ],
)
def test_what_is_not_the_rows_that_were_asked_for_is_refused(answer):
    with pytest.raises(BadFrame):
        read(0, 5, answer)


def test_rows_of_a_newer_schema_than_the_reads_are_told():
    with pytest.raises(BadRequest, match="read again"):
        read(0, 5, fetched(5, an_entry(0, 5, schema_id=2)))


def test_a_schema_that_is_on_its_way_to_the_partition_is_waited_for():
    lag = BadRequest("there is no schema version 1")
    found, asked = read(0, 5, lag, lag, fetched(5, an_entry(0, 5)))
    assert found == [0, 1, 2, 3, 4]
    assert len(asked) == 3
    with pytest.raises(BadRequest, match="no schema version"):
        read(0, 5, *[lag] * 1_000)
