"""The msgpack subset agrees with msgspec byte for byte, and refuses everything else."""

import struct
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.values import ints, texts

from headrace.errors import BadFrame
from headrace.wire.msgpack import DEPTH_MAX, INT_MAX, INT_MIN, pack, unpack

scalars = st.none() | st.booleans() | ints | texts | st.binary(max_size=300)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=20).map(tuple), max_leaves=40
).filter(lambda value: depth_of(value) <= DEPTH_MAX)

EDGES = sorted({
    sign * (2**bits + step)
    for bits in (0, 5, 7, 8, 15, 16, 31, 32, 63)
    for step in (-1, 0, 1)
    for sign in (1, -1)
    if INT_MIN <= sign * (2**bits + step) <= INT_MAX
} | {INT_MAX, INT_MIN})  # fmt: skip


def depth_of(value) -> int:
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, tuple) else 0


def tuples(value):
    """Turn the lists that msgspec reads into tuples."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def nested(depth: int):
    value = ()
    for _ in range(depth - 1):
        value = (value,)
    return value


@given(values)
def test_what_is_written_is_what_msgspec_writes(value):
    assert pack(value) == msgspec.msgpack.encode(value)


@given(values)
def test_what_msgspec_writes_is_read_as_it_was_meant(value):
    data = msgspec.msgpack.encode(value)
    found = unpack(data)
    assert found == value
    assert pack(found) == data  # True and 1 are equal, their bytes are not
    assert tuples(msgspec.msgpack.decode(pack(value))) == value


@pytest.mark.parametrize("number", EDGES)
def test_numbers_at_every_edge_of_width(number):
    assert pack(number) == msgspec.msgpack.encode(number)
    assert unpack(pack(number)) == number


@pytest.mark.parametrize("size", [0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536])
def test_sizes_at_every_edge_of_width(size):
    for value in ("x" * size, bytes(size), (None,) * size):
        assert pack(value) == msgspec.msgpack.encode(value)
        assert unpack(pack(value)) == value


def test_lists_are_written_as_arrays_are():
    assert pack([1, ["a"]]) == pack((1, ("a",)))


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\xcc\x05", 5),
        (b"\xd3" + struct.pack(">q", 5), 5),
        (b"\xdb\0\0\0\1a", "a"),
        (b"\xc6\0\0\0\1a", b"a"),
        (b"\xdd\0\0\0\1\5", (5,)),
    ],
)
def test_longer_forms_of_other_writers_are_read(data, value):
    assert unpack(data) == value


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_is_read_and_gives_values_of_its_own(buffer):
    found = unpack(buffer(pack((b"abc", "x"))))
    assert found == (b"abc", "x")
    assert type(found[0]) is bytes


@pytest.mark.parametrize(
    "data",
    [
        *[bytes((first, 0, 0, 0, 0, 0, 0, 0, 0)) for first in range(0x80, 0x90)],  # maps
        *[bytes((first, *bytes(20))) for first in (0xC1, *range(0xC7, 0xCC))],
        *[bytes((first, *bytes(20))) for first in (*range(0xD4, 0xD9), 0xDE, 0xDF)],
    ],
)
def test_types_outside_the_subset_are_refused_though_msgpack_has_them(data):
    with pytest.raises(BadFrame, match="which no message uses"):
        unpack(data)


@given(values, st.binary(min_size=1, max_size=4))
def test_trailing_bytes_are_refused(value, more):
    with pytest.raises(BadFrame, match="follow the value"):
        unpack(pack(value) + more)


@given(values)
def test_every_cut_is_refused(value):
    data = pack(value)
    for end in range(min(len(data), 60)):
        with pytest.raises(BadFrame):
            unpack(data[:end])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "ends after the 0 bytes"),
        (b"\xcf\0\0", "ends after the 3 bytes"),
        (b"\xa5abc", "text of 5 bytes in 3"),
        (b"\xd9\x05abc", "text of 5 bytes in 3"),
        (b"\xc4\x05abc", "5 bytes in 3"),
        (b"\xc5\0\x05abc", "5 bytes in 3"),
        (b"\x92\1", "an array of 2 values in 1 bytes"),
    ],
)
def test_a_cut_is_told_by_what_was_cut(data, text):
    with pytest.raises(BadFrame, match=text):
        unpack(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    try:
        value = unpack(data)
    except BadFrame:
        return
    assert unpack(pack(value)) == value


def test_nesting_has_a_limit_both_ways():
    assert unpack(pack(nested(DEPTH_MAX))) == nested(DEPTH_MAX)
    with pytest.raises(BadFrame, match="deeper than 8"):
        pack(nested(DEPTH_MAX + 1))
    with pytest.raises(BadFrame, match="deeper than 8"):
        unpack(b"\x91" * DEPTH_MAX + b"\x90")
    with pytest.raises(BadFrame, match="deeper than 8"):
        unpack(b"\x91" * 1_000_000)


@pytest.mark.parametrize("head", [b"\xdd", b"\xdb", b"\xc6"])
def test_nothing_is_allocated_by_a_size_that_is_only_claimed(head):
    data = head + b"\xff\xff\xff\xff" + bytes(100)
    tracemalloc.start()
    try:
        with pytest.raises(BadFrame):
            unpack(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize("data", [b"\xa1\xff", b"\xa2\xc0\x80", b"\xa3\xed\xa0\x80"])
def test_text_that_is_not_utf8_is_refused(data):
    with pytest.raises(BadFrame, match="UTF-8"):
        unpack(data)


@pytest.mark.parametrize(
    "value",
    [1.5, {}, {1}, 2**64, -(2**63) - 1, 1 << 20_000, "\ud800", object(), bytearray(b"x")],
    ids=lambda value: type(value).__name__,
)
def test_values_outside_the_subset_are_not_written(value):
    with pytest.raises(BadFrame, match="cannot be sent"):
        pack(value)
    with pytest.raises(BadFrame, match="cannot be sent"):
        pack((1, (value,)))


def test_a_list_in_itself_is_not_followed_forever():
    knot: list = []
    knot.append(knot)
    with pytest.raises(BadFrame, match="deeper than 8"):
        pack(knot)
