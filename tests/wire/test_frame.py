"""Frames come out as they went in, however their bytes are cut; bad ones end the reader."""

import socket
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.values import a_fetch, a_fetched, a_piece, an_append, messages

from headrace.errors import BadFrame, BodyTooLarge
from headrace.wire.codec import encode
from headrace.wire.frames import (
    BODY_BUFFER_SIZE,
    BODY_SIZE_MAX,
    DEADLINE_MS_MAX,
    HEADER_SIZE,
    MAGIC,
    META_SIZE_MAX,
    OWN_BUFFER_SIZE,
    RECEIVE_SIZE,
    Frame,
    FrameReader,
    check_body,
    decode_message,
    encode_frame,
)
from headrace.wire.greeting import Ping, Pong, StatusReply

HEADER = struct.Struct("<4sHHQIIIIII")
EDGE_SIZES = [
    0,
    1,
    OWN_BUFFER_SIZE - 1,
    OWN_BUFFER_SIZE,
    OWN_BUFFER_SIZE + 1,
    RECEIVE_SIZE - HEADER_SIZE,
    RECEIVE_SIZE,
    RECEIVE_SIZE + 1,
    3 * RECEIVE_SIZE,
]


def a_frame(
    message=None, request_id: int = 1, body: bytes = b"", deadline_ms: int = 0
) -> bytes:
    return b"".join(encode_frame(message or an_append(), request_id, (body,), deadline_ms))


def a_body(size: int) -> bytes:
    return bytes(range(256)) * (size // 256) + bytes(size % 256)


def a_header(meta: bytes = b"\x90", **changes) -> bytes:
    """Make a header with a right CRC, whatever else is wrong in it."""
    words = {
        "magic": MAGIC,
        "kind": Ping.kind,
        "flags": 0,
        "id": 1,
        "deadline_ms": 0,
        "meta_size": len(meta),
        "body_size": 0,
        "body_crc": 0,
        "zeros": 0,
    } | changes
    head = struct.pack("<4sHHQIIIII", *words.values())
    return head + struct.pack("<I", zlib.crc32(head + meta))


def feed(reader: FrameReader, data: bytes, sizes=None) -> list[Frame]:
    """Let `data` come in pieces of these sizes, again and again; in the largest if none."""
    frames, at, turn = [], 0, 0
    while at < len(data):
        place = reader.get_buffer(-1)
        assert len(place) > 0
        size = min(
            len(place), len(data) - at, sizes[turn % len(sizes)] if sizes else len(place)
        )
        place[:size] = data[at : at + size]
        frames += reader.received(size)
        at, turn = at + size, turn + 1
    return frames


def test_the_layout_of_a_frame():
    append, body = an_append(), (b"abc", bytearray(b"de"), memoryview(b"fg"))
    first, *rest = encode_frame(append, 2**63 + 5, body, 1500)
    meta = encode(append)
    assert [id(piece) for piece in rest] == [id(piece) for piece in body]
    assert first[HEADER_SIZE:] == meta
    head_crc = zlib.crc32(first[:36] + meta)
    assert HEADER.unpack(first[:HEADER_SIZE]) == (
        *(b"HRW1", 48, 0, 2**63 + 5, 1500, len(meta), 7),
        *(zlib.crc32(b"abcdefg"), 0, head_crc),
    )


def test_an_empty_body_has_crc_0():
    (frame,) = feed(FrameReader(), a_frame())
    assert (frame.body, frame.body_crc) == (b"", 0)
    check_body(frame)


def test_a_view_of_wider_items_counts_in_bytes():
    numbers = memoryview(struct.pack("<4q", 1, 2, 3, 4)).cast("q")
    pieces = encode_frame(Ping(), 1, (numbers,))
    (frame,) = feed(FrameReader(), b"".join(bytes(piece) for piece in pieces))
    assert len(frame.body) == 32
    check_body(frame)


def test_a_deadline_too_long_for_its_field_is_the_longest():
    (frame,) = feed(FrameReader(), a_frame(deadline_ms=2**40))
    assert frame.deadline_ms == DEADLINE_MS_MAX


def test_what_no_reader_would_take_is_not_written():
    with pytest.raises(BodyTooLarge):
        encode_frame(Ping(), 1, [bytes(2**20)] * 65)
    with pytest.raises(BadFrame, match="StatusReply of 16777225 bytes is over the limit"):
        encode_frame(StatusReply("x" * (META_SIZE_MAX + 3)), 1)
    assert len(encode_frame(Ping(), 1, [bytes(2**16)] * (BODY_SIZE_MAX // 2**16))) == 1026


@given(messages, st.integers(0, 2**64 - 1), st.binary(max_size=100), st.integers(0, 2**32 - 1))
def test_a_frame_comes_back(message, request_id, body, deadline_ms):
    reader = FrameReader()
    (frame,) = feed(reader, a_frame(message, request_id, body, deadline_ms))
    assert decode_message(frame) == message
    check_body(frame)
    assert (frame.kind, frame.id, frame.deadline_ms) == (message.kind, request_id, deadline_ms)
    assert frame.body == body
    assert reader.is_idle


sent = st.lists(
    st.tuples(messages, st.integers(0, 2**64 - 1), st.binary(max_size=300)), max_size=8
)


@given(sent, st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_frames_are_the_same_whatever_the_cuts(frames, sizes):
    data = b"".join(a_frame(*each) for each in frames)
    whole = feed(FrameReader(), data)
    assert [(decode_message(each), each.id, each.body) for each in whole] == frames
    assert feed(FrameReader(), data, sizes) == whole
    assert feed(FrameReader(), data, [1]) == whole


big = st.tuples(
    st.sampled_from([1, 1000, RECEIVE_SIZE, 3 * RECEIVE_SIZE]), st.sampled_from(EDGE_SIZES)
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(big, min_size=1, max_size=6),
    st.lists(st.integers(1, 300_000), min_size=1, max_size=8).filter(lambda s: sum(s) > 5000),
)
def test_large_frames_are_the_same_whatever_the_cuts(frames, sizes):
    data = b"".join(
        a_frame(StatusReply("x" * text), number, a_body(size))
        for number, (text, size) in enumerate(frames)
    )
    reader = FrameReader()
    found = feed(reader, data, sizes)
    assert reader.is_idle
    assert reader.held_size == RECEIVE_SIZE
    for number, (frame, (text, size)) in enumerate(zip(found, frames, strict=True)):
        assert frame.id == number
        assert decode_message(frame) == StatusReply("x" * text)
        assert frame.body == a_body(size)
        check_body(frame)


def test_one_receive_may_complete_many_frames():
    reader = FrameReader()
    data = b"".join(a_frame(request_id=number) for number in range(1000))
    assert len(data) < RECEIVE_SIZE
    reader.get_buffer(-1)[: len(data)] = data
    assert [frame.id for frame in reader.received(len(data))] == list(range(1000))


@pytest.mark.parametrize("size", [100, OWN_BUFFER_SIZE + 1, 4 * RECEIVE_SIZE])
def test_a_frame_keeps_its_bytes_when_others_come(size):
    reader = FrameReader()
    body = a_body(size)
    (frame,) = feed(reader, a_frame(body=body))
    feed(reader, a_frame(a_fetch(), 2, bytes(2 * RECEIVE_SIZE)) * 3)
    assert decode_message(frame) == an_append()
    assert frame.body == body


@pytest.mark.parametrize("size", [OWN_BUFFER_SIZE + 1, 2 * RECEIVE_SIZE])
def test_a_large_body_is_received_straight_into_its_own_buffer(size):
    reader = FrameReader()
    data = a_frame(body=a_body(size))
    head_size = len(data) - size
    feed(reader, data[: head_size + 7])
    place = reader.get_buffer(-1)
    assert len(place) == size - 7  # no byte of another frame can come into it
    (frame,) = feed(reader, data[head_size + 7 :])
    assert place.obj is frame.body.obj
    assert len(frame.body) == size


def test_the_head_of_a_large_body_is_given_before_the_body_and_once():
    reader = FrameReader()
    data = a_frame(body=a_body(300_000))
    assert reader.take_head() is None
    feed(reader, data[:30])
    assert reader.take_head() is None  # not checked yet
    feed(reader, data[30:1000])
    head = reader.take_head()
    assert (head.id, head.body) == (1, b"")
    assert decode_message(head) == an_append()
    assert reader.take_head() is None
    (frame,) = feed(reader, data[1000:])
    assert (frame.meta, frame.id) == (head.meta, head.id)
    assert reader.take_head() is None
    feed(reader, a_frame(body=a_body(300_000))[:1000])
    assert reader.take_head() is not None


def test_a_reader_that_knows_what_comes_reserves_it_at_once():
    sizes = []

    def reserve(size):
        sizes.append(size)
        return memoryview(bytearray(size))

    reader = FrameReader(reserved_size=BODY_SIZE_MAX, reserve=reserve)
    (frame,) = feed(reader, a_frame(body=a_body(3_000_000)))
    assert frame.body == a_body(3_000_000)
    assert sizes == [3_000_000]


def test_a_small_body_waits_in_the_buffer_that_all_share():
    reader = FrameReader()
    data = a_frame(body=a_body(OWN_BUFFER_SIZE))
    feed(reader, data[:-1])
    assert reader.held_size == RECEIVE_SIZE + len(encode(an_append()))
    (frame,) = feed(reader, data[-1:])
    assert frame.body == a_body(OWN_BUFFER_SIZE)


def test_nothing_is_allocated_for_a_body_before_its_head_is_checked():
    reader = FrameReader()
    header = a_header(body_size=BODY_SIZE_MAX)
    feed(reader, header)  # the meta is missing
    assert reader.held_size == RECEIVE_SIZE
    with pytest.raises(BadFrame, match="head"):
        feed(reader, b"\x91")
    assert reader.held_size < RECEIVE_SIZE


def test_the_place_for_a_meta_grows_only_as_its_bytes_come():
    reader = FrameReader()
    feed(reader, a_header(meta_size=META_SIZE_MAX))
    assert reader.held_size == RECEIVE_SIZE
    came = 0
    while came < META_SIZE_MAX - RECEIVE_SIZE:
        came += 100_000
        assert feed(reader, bytes(100_000)) == []
        assert reader.held_size <= max(2 * came, RECEIVE_SIZE)
        assert reader.held_size <= META_SIZE_MAX


def test_the_place_for_a_body_grows_only_as_its_bytes_come():
    reader = FrameReader()
    data = a_frame(body=bytes(10 * 1024 * 1024))
    head_size = len(data) - 10 * 1024 * 1024
    feed(reader, data[:head_size])
    came = 0
    while came < 10 * 1024 * 1024 - 100_000:
        first = 1024 * 1024 + 64 * 1024  # what a batch of ordinary size needs
        assert reader.held_size <= max(4 * came, first) + RECEIVE_SIZE + head_size
        came += 100_000
        assert feed(reader, bytes(100_000)) == []
    (frame,) = feed(reader, data[head_size + came :])
    assert len(frame.body) == 10 * 1024 * 1024
    check_body(frame)


def test_it_says_how_much_room_a_body_needs_before_it_takes_it():
    reader = FrameReader()
    size = 3 * BODY_BUFFER_SIZE
    data = a_frame(body=bytes(size))
    head_size = len(data) - size
    full = head_size + BODY_BUFFER_SIZE
    place, found, held = 0, [], []
    for end in (HEADER_SIZE, head_size + 1, full - 1, full, full + 1, len(data) - 1, len(data)):
        feed(reader, data[place:end])
        place = end
        found.append(reader.room_size)
        held.append(reader.held_size > size)
    assert found == [0, BODY_BUFFER_SIZE, BODY_BUFFER_SIZE, size, size, size, 0]
    assert held == [False, False, False, False, True, True, False]


def test_it_is_idle_only_between_frames():
    reader = FrameReader()
    assert reader.is_idle
    data = a_frame(body=b"rows")
    for number, byte in enumerate(data, 1):
        frames = feed(reader, bytes((byte,)))
        assert reader.is_idle is (number == len(data))
        assert len(frames) == (number == len(data))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"G", "expected b'HRW1' first, found b'G'"),
        (b"GET / HTTP/1.1\r\n\r\n", "found b'GET '"),
        (b"HRW2", "found b'HRW2'"),
        (a_header(magic=b"HRW2"), "found b'HRW2'"),
        (a_header(flags=2), "reserved bits"),
        (a_header(flags=1, body_crc=5), "reserved bits"),
        (a_header(zeros=1), "reserved bits"),
        (a_header(meta_size=META_SIZE_MAX + 1), "a meta of 16777217 bytes"),
        (a_header(body_size=BODY_SIZE_MAX + 1), "a body of 67174401 bytes"),
        (a_header(b"\x91") + b"\x90", "head: expected CRC-32"),
    ],
)
def test_a_head_that_is_wrong_is_refused_at_once(data, text):
    with pytest.raises(BadFrame) as caught:
        feed(FrameReader(), data)
    assert text in str(caught.value)


def test_limits_may_be_lower_and_be_raised_later():
    reader = FrameReader(meta_size_max=1000, body_size_max=0)
    assert len(feed(reader, a_frame(StatusReply("x" * 900)))) == 1
    with pytest.raises(BadFrame, match="is over the limit of 1000"):
        feed(FrameReader(meta_size_max=1000), a_frame(StatusReply("x" * 1000)))
    with pytest.raises(BadFrame, match="is over the limit of 0"):
        feed(FrameReader(body_size_max=0), a_frame(body=b"x"))
    reader.meta_size_max, reader.body_size_max = 2000, 10
    assert len(feed(reader, a_frame(StatusReply("x" * 1000), body=b"x"))) == 1


def test_after_bad_bytes_everything_is_refused():
    reader = FrameReader()
    with pytest.raises(BadFrame):
        feed(reader, a_frame() + a_header(b"\x91") + b"\x90")
    assert reader.is_idle
    for _ in range(3):
        with pytest.raises(BadFrame, match="after a protocol error"):
            feed(reader, a_frame())


@given(st.integers(0, 6), st.integers(1, 255))
def test_a_changed_byte_of_a_body_is_found_when_the_body_is_checked(at, change):
    data = bytearray(a_frame(body=b"content"))
    data[at - 7] ^= change
    (frame,) = feed(FrameReader(), data)
    with pytest.raises(BadFrame, match="CRC-32"):
        check_body(frame)


def test_a_changed_byte_of_a_head_is_never_taken():
    data = a_frame(a_fetched(a_piece()), 5, b"rows", 100)
    for at in range(len(data) - len(b"rows")):
        changed = bytearray(data)
        changed[at] ^= 0x41
        reader = FrameReader()
        try:
            frames = feed(reader, changed)
        except BadFrame:
            continue
        assert frames == []  # a size grew: what it claims has not come
        assert not reader.is_idle


LIMITS = {"meta_size_max": 4096, "body_size_max": 4 * OWN_BUFFER_SIZE}


def bombard(data: bytes, sizes: list[int]) -> None:
    """Feed anything: frames or BadFrame come of it, and memory stays bounded."""
    reader = FrameReader(**LIMITS)
    held_max = RECEIVE_SIZE + sum(LIMITS.values())
    at = turn = 0
    while at < len(data):
        place = reader.get_buffer(-1)
        assert len(place) > 0
        size = min(len(place), len(data) - at, sizes[turn % len(sizes)])
        place[:size] = data[at : at + size]
        at, turn = at + size, turn + 1
        try:
            frames = reader.received(size)
            for frame in frames:
                decode_message(frame)
                check_body(frame)
        except BadFrame:
            return
        finally:
            assert reader.held_size <= held_max


cuts = st.lists(st.integers(1, 200), min_size=1, max_size=5)


@given(sent, st.data(), cuts)
def test_mutated_frames_give_frames_or_are_refused(frames, data, sizes):
    changed = bytearray(b"".join(a_frame(*each) for each in frames) + a_frame(Pong()))
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    bombard(changed, sizes)


words = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.integers(0, 2**16 - 1) | st.integers(0, 90),
        "id": st.integers(0, 2**64 - 1),
        "meta_size": st.integers(0, 2**32 - 1) | st.integers(0, 5000),
        "body_size": st.integers(0, 2**32 - 1) | st.integers(0, 4 * OWN_BUFFER_SIZE),
        "body_crc": st.integers(0, 2**32 - 1),
        "flags": st.integers(0, 1),
    },
)


@given(words, st.binary(max_size=100), cuts)
def test_heads_with_a_right_crc_and_any_words_give_frames_or_are_refused(changes, meta, sizes):
    bombard(a_header(meta, **changes) + meta + bytes(1000), sizes)


@given(st.binary(max_size=300), st.booleans(), cuts)
def test_any_bytes_give_frames_or_are_refused(data, is_ours, sizes):
    bombard(MAGIC + data if is_ours else data, sizes)


def test_it_reads_from_a_plain_socket():
    reader, frames = FrameReader(), []
    bodies = [a_body(size) for size in EDGE_SIZES]
    here, there = socket.socketpair()
    with here, there:
        for number, body in enumerate(bodies):
            data = a_frame(request_id=number, body=body)
            here.setblocking(False)
            at = 0
            while at < len(data) or not reader.is_idle:
                at += here.send(data[at : at + 50_000]) if at < len(data) else 0
                frames += reader.received(there.recv_into(reader.get_buffer(-1)))
    assert [frame.id for frame in frames] == list(range(len(bodies)))
    assert [frame.body for frame in frames] == bodies


def test_a_body_without_a_crc_says_so_and_is_taken_by_those_who_know_another_checksum():
    pieces = encode_frame(an_append(), 3, [b"rows"], has_crc=False)
    (frame,) = feed(FrameReader(), b"".join(pieces))
    assert frame.body == b"rows"
    assert frame.body_crc is None
    with pytest.raises(BadFrame, match="has no CRC-32"):
        check_body(frame)
