"""A namespace keeps three ids apart, in order, within 64 bits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.namespace import Namespace, NamespaceLayout, PartitionId, StreamId, TopicId

LAYOUT = NamespaceLayout(16, 24, 24)


@st.composite
def layouts(draw):
    stream_bits = draw(st.integers(1, 62))
    topic_bits = draw(st.integers(1, 63 - stream_bits))
    return NamespaceLayout(
        stream_bits, topic_bits, draw(st.integers(1, 64 - stream_bits - topic_bits))
    )


@st.composite
def keys(draw, layout):
    maxima = (layout.stream_id_max, layout.topic_id_max, layout.partition_id_max)
    return tuple(draw(st.integers(0, maximum)) for maximum in maxima)


@given(st.data())
def test_unpack_gives_back_what_was_packed(data):
    layout = data.draw(layouts())
    key = data.draw(keys(layout))
    namespace = layout.pack(*key)
    assert layout.holds(namespace)
    assert layout.unpack(namespace) == key


@given(st.data())
def test_namespaces_sort_as_their_ids_do(data):
    layout = data.draw(layouts())
    one, other = data.draw(keys(layout)), data.draw(keys(layout))
    assert (layout.pack(*one) < layout.pack(*other)) == (one < other)


@given(st.data())
def test_every_number_a_layout_holds_is_a_namespace(data):
    layout = data.draw(layouts())
    number = data.draw(st.integers(0, 2**layout.bits - 1))
    assert layout.pack(*layout.unpack(Namespace(number))) == number


def test_the_bits_lie_as_the_format_says():
    namespace = LAYOUT.pack(StreamId(1), TopicId(2), PartitionId(3))
    assert namespace == 0x0001_000002_000003


def test_the_highest_ids_fill_64_bits():
    assert LAYOUT.stream_id_max == 2**16 - 1
    assert LAYOUT.topic_id_max == 2**24 - 1
    assert LAYOUT.partition_id_max == 2**24 - 1
    highest = LAYOUT.pack(LAYOUT.stream_id_max, LAYOUT.topic_id_max, LAYOUT.partition_id_max)
    assert highest == 2**64 - 1


@pytest.mark.parametrize("bits", [(16, 24, 25), (0, 1, 1), (1, 0, 1), (1, 1, 0), (-1, 32, 32)])
def test_a_layout_fits_64_bits_and_has_room_for_each_id(bits):
    with pytest.raises(AssertionError):
        NamespaceLayout(*bits)


@pytest.mark.parametrize("key", [(4, 0, 0), (0, 4, 0), (0, 0, 8), (-1, 0, 0), (0, 0, -1)])
def test_an_id_that_does_not_fit_is_never_packed_into_its_neighbour(key):
    with pytest.raises(AssertionError):
        NamespaceLayout(2, 2, 3).pack(*key)


def test_a_number_with_other_bits_is_no_namespace():
    layout = NamespaceLayout(2, 2, 3)
    assert layout.holds(127)
    assert not layout.holds(128)
    assert not layout.holds(-1)
    with pytest.raises(AssertionError):
        layout.unpack(Namespace(128))
