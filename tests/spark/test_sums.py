"""Rows that a worker takes are those that were sent, with xxhash on the executor or without."""

import pyarrow as pa
import pytest
from tests.spark.conftest import SCHEMA, rows
from tests.spark.test_worker import a_span, a_target
from xxhash import xxh3_128_digest

import headrace
from headrace.errors import BadFrame, HeadraceError
from headrace.model.results import FetchedPiece
from headrace.spark.worker import link, sums
from headrace.spark.worker.read import read
from headrace.spark.worker.write import Deed, stage_all
from headrace.wire.frames import Frame, FrameReader, decode_message, encode_frame
from headrace.wire.greeting import Pong
from headrace.wire.read_messages import FetchReply
from headrace.wire.write_messages import StageRequest

ONE, TWO = b"a" * 100, b"b" * 64
SUM_OF_ONE, SUM_OF_TWO = xxh3_128_digest(ONE), xxh3_128_digest(TWO)


def a_frame(message, body, *, has_crc) -> Frame:
    """Send a message to ourselves."""
    reader = FrameReader()
    data = b"".join(encode_frame(message, 1, body, has_crc=has_crc))
    reader.get_buffer(0)[: len(data)] = data
    (frame,) = reader.received(len(data))
    return frame


def two_pieces(one=SUM_OF_ONE, two=SUM_OF_TWO) -> FetchReply:
    return FetchReply(
        next=5,
        first=0,
        end=5,
        pieces=(
            FetchedPiece(True, 0, 3, 1, 1, len(ONE), one),
            FetchedPiece(False, 3, 2, 0, 1, len(TWO), two),
        ),
    )


def checked(message, body=(ONE, bytes(28), TWO), *, has_crc=False) -> None:
    frame = a_frame(message, body, has_crc=has_crc)
    sums.check(frame, decode_message(frame))


def test_rows_are_compared_with_the_checksums_of_their_pieces():
    checked(two_pieces())
    checked(two_pieces(b"", b""), has_crc=True)
    checked(FetchReply(0, 0, 0, ()), ())
    for place in (0, 99, 128, 191):  # the first and last byte of each piece
        data = bytearray(ONE + bytes(28) + TWO)
        data[place] ^= 1
        with pytest.raises(BadFrame, match="not what was sent"):
            checked(two_pieces(), (data,))


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (two_pieces(two=b""), (ONE, bytes(28), TWO)),
        (two_pieces(), (ONE, bytes(28), TWO[:-1])),
        (Pong(), (ONE,)),
    ],
    ids=["a piece without", "cut short", "not rows"],
)
def test_what_no_checksum_covers_is_refused(message, body):
    with pytest.raises(BadFrame):
        checked(message, body)
    checked(message, body, has_crc=True)


def test_without_xxhash_nothing_is_taken_that_has_no_crc(monkeypatch):
    monkeypatch.setattr(sums, "_digest", None)
    with pytest.raises(BadFrame, match="without its CRC-32"):
        checked(two_pieces())
    checked(two_pieces(), has_crc=True)


@pytest.mark.parametrize("has_xxhash", [True, False])
def test_a_node_computes_a_crc_of_rows_only_for_who_needs_it(node, monkeypatch, has_xxhash):
    came = []

    def check(frame, message):
        sums.check(frame, message)
        if isinstance(message, FetchReply):
            came.append(frame.body_crc)

    monkeypatch.setattr(link, "check", check)
    if not has_xxhash:
        monkeypatch.setattr(sums, "_digest", None)
        monkeypatch.setattr(link, "NEEDS_CRC", True)
    with headrace.connect(node.address) as log:
        topic = log.create_topic("orders", SCHEMA)
        topic.append(rows(0, 50))
        span = a_span(log, topic, 0, 0, 50, node.address)
    assert sum(each.num_rows for each in read(span)) == 50
    assert [crc is None for crc in came] == [has_xxhash]


@pytest.mark.parametrize("has_xxhash", [True, False])
def test_staged_rows_have_one_checksum_which_the_node_compares(node, monkeypatch, has_xxhash):
    sent = []

    def encode(message, request_id, body=(), deadline_ms=0, *, has_crc=True):
        if isinstance(message, StageRequest):
            sent.append((message.checksum, has_crc))
        return encode_frame(message, request_id, body, deadline_ms, has_crc=has_crc)

    monkeypatch.setattr(link, "encode_frame", encode)
    if not has_xxhash:
        monkeypatch.setattr(sums, "_digest", None)
    with headrace.connect(node.address) as log:
        topic = log.create_topic("orders", SCHEMA)
        batch = pa.RecordBatch.from_pylist(rows(0, 100), topic.schema)
        target = a_target(topic, node.address)
        (receipt,) = stage_all(target, Deed("job", 1), [batch], 0)
        assert receipt.row_count == 100
        ((checksum, has_crc),) = sent
        assert (len(checksum), has_crc) == ((16, False) if has_xxhash else (0, True))
        if has_xxhash:
            monkeypatch.setattr(sums, "_digest", lambda body: xxh3_128_digest(b"others"))
            with pytest.raises(HeadraceError, match="body checksum: expected"):
                stage_all(target, Deed("job", 2), [batch], 0)
