"""Revisions compare in one place, and two histories never look like one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.revisions import (
    COUNTER_MAX,
    STAMP_BITS,
    Order,
    compare,
    counter_of,
    is_past,
    is_within,
    newest,
    shown,
    stamp,
)

OLD = 2**STAMP_BITS - 1  # the highest that is no stamp
checksums = st.binary(min_size=16, max_size=16)
counters = st.integers(1, COUNTER_MAX)
revisions = st.integers(0, OLD) | st.builds(stamp, st.integers(1, 4), checksums)


def test_a_stamp_is_a_count_and_the_first_bits_of_a_checksum():
    assert stamp(1, bytes(16)) == 1 << 20
    assert stamp(3, b"\xab\xcd\xef" + bytes(13)) == 3 << 20 | 0xABCDE
    assert stamp(COUNTER_MAX, b"\xff" * 16) == 2**52 - 1


@given(counters, checksums)
def test_the_count_of_a_stamp_is_read_back_and_shown(counter, checksum):
    assert counter_of(stamp(counter, checksum)) == counter == shown(stamp(counter, checksum))


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        (3, 3, Order.SAME),
        (3, 4, Order.BEFORE),
        (4, 3, Order.AFTER),
        (OLD, stamp(1, bytes(16)), Order.BEFORE),
        (stamp(2, b"a" * 16), stamp(2, b"a" * 16), Order.SAME),
        (stamp(2, b"a" * 16), stamp(2, b"b" * 16), Order.BRANCHED),
        (stamp(2, b"b" * 16), stamp(2, b"a" * 16), Order.BRANCHED),
        (stamp(3, b"a" * 16), stamp(2, b"b" * 16), Order.AFTER),
    ],
)
def test_revisions_compare_by_their_history(first, second, order):
    assert compare(first, second) is order


@given(revisions, revisions)
def test_two_revisions_compare_alike_from_both_sides(first, second):
    order, back = compare(first, second), compare(second, first)
    mirror = {Order.BEFORE: Order.AFTER, Order.AFTER: Order.BEFORE}
    assert back is mirror.get(order, order)
    assert is_past(first, second) == (order is Order.AFTER)
    assert is_within(first, second) == (order in (Order.BEFORE, Order.SAME))
    assert newest(first, second) in (first, second)
    assert not is_past(second, newest(first, second))


@given(st.integers(0, OLD), st.integers(0, OLD))
def test_numbers_of_before_stamps_are_plain_numbers(first, second):
    assert compare(first, second) is not Order.BRANCHED
    assert is_within(first, second) == (first <= second)
    assert shown(first) == first
