"""Every message comes back as it was; anything else is refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.values import MESSAGES, a_fetch, a_fetched, a_piece, an_append, messages

from headrace.errors import BadFrame
from headrace.model.results import FetchedPiece, Receipt, StoredCursor, TrimResult
from headrace.wire.codec import decode, encode
from headrace.wire.greeting import ErrorReply, Hello, Ping
from headrace.wire.msgpack import pack, unpack
from headrace.wire.read_messages import BoundsReply, GetBounds
from headrace.wire.topic_messages import AlterTopicRequest, CreateStreamRequest, PartitionInfo
from headrace.wire.write_messages import AppendRequest, PublishRequest


def test_each_kind_is_taken_once():
    kinds = [message.kind for message in MESSAGES]
    assert len(kinds) > 40
    assert len(set(kinds)) == len(kinds)


@given(messages)
def test_every_message_comes_back(message):
    assert decode(message.kind, encode(message)) == message


@given(messages)
def test_any_buffer_is_decoded_alike(message):
    data = encode(message)
    assert decode(message.kind, bytearray(data)) == message
    assert decode(message.kind, memoryview(b"x" + data + b"x")[1:-1]) == message


def test_a_message_is_the_array_of_its_fields():
    fetch = a_fetch()
    assert unpack(encode(fetch)) == (5, 7, 100, None, 1_048_576, 500, ("id", "größe"), 2)
    assert unpack(encode(a_fetched(a_piece()))) == (
        *(110, 0, 110),
        ((True, 100, 10, 1_700_000_000_000_000, 2, 64, b""),),
    )
    assert encode(Ping()) == b"\x90"


def refusal(kind: int, *values) -> str:
    with pytest.raises(BadFrame) as caught:
        decode(kind, pack(values))
    return str(caught.value.args[0])


APPEND = (5, 7, b"w", 1, 1, 10, b"")
FAILED = ("Busy", "text", "hint", (("a", 1), ("b", "x"), ("c", None)), 5)


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        (
            AppendRequest.kind,
            APPEND[:-1],
            "AppendRequest: expected array of 7, found array of 6",
        ),
        (
            AppendRequest.kind,
            (*APPEND, 1),
            "AppendRequest: expected array of 7, found array of 8",
        ),
        (
            AppendRequest.kind,
            (True, *APPEND[1:]),
            "AppendRequest.namespace: expected int, found bool",
        ),
        (
            AppendRequest.kind,
            (5, 7, "w", 1, 1, 10, b""),
            "AppendRequest.writer: expected bytes, found str 'w'",
        ),
        (
            AppendRequest.kind,
            (5, 7, b"w", None, 1, 10, b""),
            "AppendRequest.version: expected int, found nil",
        ),
        (
            TrimResult.kind,
            (0, (("g", 1), ("h",))),
            "TrimResult.holds[]: expected array of 2, found array of 1",
        ),
        (
            TrimResult.kind,
            (0, (("g", "h"),)),
            "TrimResult.holds[].next: expected int, found str 'h'",
        ),
        (
            BoundsReply.kind,
            (((0, 9, 64, 0, ((1, 0), (2,))),),),
            "BoundsReply.bounds[].versions[]: expected array of 2, found array of 1",
        ),
        (
            BoundsReply.kind,
            (((0, 9, 64, 0, ((1, "h"),)),),),
            "BoundsReply.bounds[].versions[][1]: expected int, found str 'h'",
        ),
        (TrimResult.kind, (0, 1), "TrimResult.holds: expected array, found int 1"),
        (
            PublishRequest.kind,
            (5, 7, b"w", 1, ((b"s", 1, b"x", b"d"),)),
            "PublishRequest.stages[].row_count: expected int, found bytes b'x'",
        ),
        (
            PublishRequest.kind,
            (5, 7, b"w", 1, ((b"s", 1),)),
            "PublishRequest.stages[]: expected array of 4, found array of 2",
        ),
        (
            AlterTopicRequest.kind,
            ("t", 1, (1, 2, 3), ()),
            "AlterTopicRequest.retention: expected array of 2, found array of 3",
        ),
        (
            AlterTopicRequest.kind,
            ("t", 1, (1, "x"), ()),
            "AlterTopicRequest.retention[1]: expected int or nil, found str 'x'",
        ),
        (
            ErrorReply.kind,
            (*FAILED[:3], (("a", b""),), None),
            "ErrorReply.fields[][1]: expected int or str or nil, found bytes b''",
        ),
        (
            ErrorReply.kind,
            (*FAILED[:3], (("a", True),), None),
            "ErrorReply.fields[][1]: expected int or str or nil, found bool True",
        ),
        (80, (5, 7, 0, 0, 0, 0, ("a", 1), 1), "Fetch.columns[]: expected str, found int 1"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_expected_and_found(kind, values, text):
    assert refusal(kind, *values).startswith(text)


def test_a_fields_own_long_value_is_shown_short():
    assert len(refusal(Hello.kind, "x" * 5000, 1, "", b"")) < 200


def test_a_kind_that_no_message_has_is_refused():
    with pytest.raises(BadFrame, match="unknown message kind 47"):
        decode(47, b"\x90")


@pytest.mark.parametrize("value", [None, 5, "text", b"bytes", True])
def test_a_message_that_is_no_array_is_refused(value):
    with pytest.raises(BadFrame, match="Ping: expected array of 0"):
        decode(Ping.kind, pack(value))


def test_bytes_that_are_no_value_are_refused_with_the_messages_name():
    with pytest.raises(BadFrame, match=r"^AppendRequest: an array of 7 values in 2 bytes"):
        decode(AppendRequest.kind, b"\x97\x01\x01")


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (an_append(version=True), "AppendRequest.version: expected int, found bool"),
        (an_append(version="1"), "AppendRequest.version: expected int, found str '1'"),
        (an_append(version=2**64), "AppendRequest.version: a number of 65 bits cannot be sent"),
        (an_append(writer=10**5000), "AppendRequest.writer: expected bytes, found int"),
        (
            an_append(writer=bytearray(2)),
            "AppendRequest.writer: expected bytes, found bytearray",
        ),
        (
            CreateStreamRequest("\ud800"),
            "CreateStreamRequest.name: text that is not valid Unicode",
        ),
        (GetBounds([PartitionInfo(1, 2)]), "GetBounds.partitions: expected array, found list"),
        (GetBounds(((1, 2),)), "GetBounds.partitions[]: expected PartitionInfo, found array"),
        (
            PublishRequest(5, 7, b"w", 1, (Receipt(b"s", 1, None, b"d"),)),
            "PublishRequest.stages[].row_count: expected int, found nil",
        ),
        (
            PublishRequest(5, 7, b"w", 1, (Receipt(b"s", 1, 2**70, b"d"),)),
            "PublishRequest.stages: a number of 71 bits cannot be sent",
        ),
        (a_fetch(columns=("a", 1)), "Fetch.columns[]: expected str, found int 1"),
        (StoredCursor("g", 1, 1, True), "StoredCursor is not a message"),
    ],
    ids=lambda value: value.partition(":")[0] if isinstance(value, str) else "",
)
def test_what_could_not_be_read_is_not_written_either(message, text):
    with pytest.raises(BadFrame) as caught:
        encode(message)
    assert str(caught.value.args[0]).startswith(text)
    assert caught.value.hint.startswith("Nothing was sent")


@given(messages, st.data())
def test_mutated_bytes_give_a_message_or_are_refused(message, data):
    changed = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode(message.kind, changed)
    except BadFrame:
        return
    assert decode(message.kind, encode(found)) == found


@given(st.sampled_from(MESSAGES), st.binary(max_size=50))
def test_any_bytes_give_a_message_or_are_refused(kind, data):
    try:
        found = decode(kind.kind, data)
    except BadFrame:
        return
    assert type(found) is kind


def test_values_within_messages_have_no_kind():
    assert not any(hasattr(value, "kind") for value in (FetchedPiece, Receipt, PartitionInfo))
