"""What waits for a partition is bounded, keeps its order, and always ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Busy
from headrace.model.ids import Revision
from headrace.model.namespace import Namespace
from headrace.node.shard.parking import (
    CHARGE_MIN,
    COUNT_MAX,
    RETRY_AFTER_MS,
    SIZE_MAX,
    TOTAL_SIZE_MAX,
    Parking,
)
from headrace.partition.reader import Key

MIB = 1024 * 1024


def a_key(namespace: int = 0, created: int = 1) -> Key:
    return Key(Namespace(namespace), Revision(created))


KEY = a_key()


def test_what_is_taken_comes_in_the_order_of_arrival_and_is_gone():
    parking: Parking[str] = Parking()
    for item in ("a", "b", "c"):
        parking.park(KEY, item, 10, 1_000)
    parking.park(a_key(1), "other", 10, 1_000)
    assert parking.take(KEY) == ["a", "b", "c"]
    assert parking.take(KEY) == []
    assert parking.keys == {a_key(1)}
    assert (parking.parked_count, parking.served_count) == (4, 3)


def test_one_life_is_not_another():
    parking: Parking[str] = Parking()
    parking.park(a_key(created=1), "old", 10, 1_000)
    parking.park(a_key(created=2), "new", 10, 1_000)
    assert parking.take(a_key(created=2)) == ["new"]
    assert parking.drop(a_key(created=1)) == ["old"]
    assert (parking.served_count, parking.dropped_count) == (1, 1)


def test_so_many_wait_for_one_partition_and_no_more():
    parking: Parking[int] = Parking()
    for number in range(COUNT_MAX):
        parking.park(KEY, number, 0, 1_000)
    with pytest.raises(Busy) as caught:
        parking.park(KEY, COUNT_MAX, 0, 1_000)
    assert caught.value.retry_after_ms == RETRY_AFTER_MS
    parking.park(a_key(1), 0, 0, 1_000)
    assert len(parking) == COUNT_MAX + 1


def test_so_many_bytes_wait_for_one_partition_and_no_more():
    parking: Parking[str] = Parking()
    parking.park(KEY, "big", SIZE_MAX - CHARGE_MIN, 1_000)
    parking.park(KEY, "small", 1, 1_000)  # charged more than it has
    with pytest.raises(Busy):
        parking.park(KEY, "smallest", 0, 1_000)
    assert parking.take(KEY) == ["big", "small"]
    parking.park(KEY, "whole", SIZE_MAX, 1_000)


def test_one_that_is_too_large_leaves_no_trace():
    parking: Parking[str] = Parking()
    with pytest.raises(Busy):
        parking.park(KEY, "huge", SIZE_MAX + 1, 1_000)
    assert parking.keys == set()
    assert len(parking) == parking.parked_count == 0


def test_so_many_bytes_wait_in_one_shard_and_no_more():
    parking: Parking[int] = Parking()
    for number in range(TOTAL_SIZE_MAX // SIZE_MAX):
        parking.park(a_key(number), number, SIZE_MAX, 1_000 + number)
    with pytest.raises(Busy):
        parking.park(a_key(99), 99, 0, 1_000)
    assert parking.expire(1_000) == [0]
    parking.park(a_key(99), 99, SIZE_MAX, 1_000)
    parking.drop(a_key(1))
    parking.park(a_key(98), 98, SIZE_MAX, 1_000)


def test_the_late_are_returned_at_their_deadline_and_the_others_stay():
    parking: Parking[str] = Parking()
    assert parking.deadline_ms is None
    parking.park(KEY, "soon", 10, 1_000)
    parking.park(KEY, "later", 10, 2_000)
    parking.park(a_key(1), "soon, too", 10, 1_000)
    assert parking.deadline_ms == 1_000
    assert parking.expire(999) == []
    assert parking.expire(1_000) == ["soon", "soon, too"]
    assert parking.keys == {KEY}
    assert parking.deadline_ms == 2_000
    assert parking.take(KEY) == ["later"]
    assert parking.expired_count == 2


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["park", "take", "drop", "expire"]),
            st.integers(0, 2),
            st.sampled_from([0, 5_000, MIB, 3 * MIB]),
            st.integers(0, 5),
        ),
        max_size=60,
    )
)
def test_each_one_that_is_parked_leaves_exactly_once(steps):
    parking: Parking[int] = Parking()
    kept: list[int] = []
    gone: list[int] = []
    for number, (act, namespace, size, deadline_ms) in enumerate(steps):
        if act == "park":
            try:
                parking.park(a_key(namespace), number, size, deadline_ms)
            except Busy:
                continue
            kept.append(number)
        elif act == "expire":
            gone += parking.expire(deadline_ms)
        else:
            gone += getattr(parking, act)(a_key(namespace))
        assert len(parking) == len(kept) - len(gone)
        assert parking._size >= CHARGE_MIN * len(parking)
    gone += parking.expire(5)
    assert sorted(gone) == kept
    assert parking._size == len(parking) == 0
    ended = parking.served_count + parking.dropped_count + parking.expired_count
    assert parking.parked_count == ended
