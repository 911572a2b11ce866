"""A frame belongs to one place in one life of one file, or is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.journal.entry import BODY_SIZE_MAX, HEADER_SIZE, Flaw
from headrace.journal.frame import (
    ALIGNMENT,
    FILE_ID_AT,
    FRAME_SIZE_MAX,
    PREFIX_SIZE,
    FrameKind,
    Prefix,
    aligned,
    decode_prefix,
    encode_prefix,
    entry_frame_size,
    padding,
)
from headrace.model.ids import Op

u64 = st.integers(0, 2**64 - 1)
POSITION = 8192


def a_prefix(
    kind=FrameKind.ENTRY, size=400, file_id=7, durable=4, commit=3, op=5, tip=bytes(16)
):
    return Prefix(kind, size, file_id, Op(durable), Op(commit), Op(op), tip)


@given(u64, u64, u64, u64, st.binary(min_size=16, max_size=16), u64)
def test_an_entry_prefix_comes_back(file_id, durable, commit, op, tip, position):
    prefix = a_prefix(FrameKind.ENTRY, 320, file_id, durable, commit, op, tip)
    assert decode_prefix(encode_prefix(prefix, position), file_id, position) == prefix


@pytest.mark.parametrize("kind", [FrameKind.MARK, FrameKind.END])
def test_a_mark_and_an_end_are_bare_prefixes(kind):
    prefix = a_prefix(kind, PREFIX_SIZE)
    assert decode_prefix(encode_prefix(prefix, POSITION), 7, POSITION) == prefix


@given(st.binary(max_size=200), u64, u64)
def test_arbitrary_bytes_are_a_flaw(data, file_id, position):
    assert isinstance(decode_prefix(data, file_id, position), Flaw)


@given(st.integers(0, PREFIX_SIZE - 1), st.integers(1, 255))
def test_no_single_byte_can_change_unnoticed(at, change):
    data = bytearray(encode_prefix(a_prefix(), POSITION))
    data[at] ^= change
    assert isinstance(decode_prefix(bytes(data), 7, POSITION), Flaw)


def test_a_frame_of_another_life_is_a_flaw_even_if_it_is_whole():
    data = encode_prefix(a_prefix(file_id=7), POSITION)
    assert decode_prefix(data, 8, POSITION) == Flaw("file id", f"{8:016x}", f"{7:016x}")


def test_a_frame_in_another_place_is_a_flaw_even_if_it_is_whole():
    data = encode_prefix(a_prefix(), POSITION)
    found = decode_prefix(data, 7, POSITION + ALIGNMENT)
    assert isinstance(found, Flaw)
    assert found.what == "frame prefix checksum"


def test_the_file_id_stands_in_clear():
    data = encode_prefix(a_prefix(file_id=0x1122334455667788), POSITION)
    assert data[FILE_ID_AT : FILE_ID_AT + 8] == bytes.fromhex("8877665544332211")


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (FrameKind.ENTRY, PREFIX_SIZE + HEADER_SIZE - 1),
        (FrameKind.MARK, PREFIX_SIZE + 1),
        (FrameKind.END, FRAME_SIZE_MAX),
    ],
)
def test_a_size_that_its_kind_cannot_have_is_a_flaw(kind, size):
    found = decode_prefix(encode_prefix(a_prefix(kind, size), POSITION), 7, POSITION)
    assert isinstance(found, Flaw)
    assert found.what == "frame size"


def test_the_largest_body_has_the_largest_frame():
    assert entry_frame_size(BODY_SIZE_MAX) == FRAME_SIZE_MAX


@given(st.integers(0, 10_000))
def test_padding_ends_where_the_next_frame_may_begin(size):
    assert size + len(padding(size)) == aligned(size)
    assert aligned(size) % ALIGNMENT == 0
    assert aligned(size) - size < ALIGNMENT
    assert not any(padding(size))
