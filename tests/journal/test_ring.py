"""The ring: every live op has its own slot, and only live ops have one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.journal.builders import a_file_header

from headrace.journal.journal_file import JournalFile
from headrace.journal.ring import Ring, Slot
from headrace.model.ids import Op
from headrace_lab.disk.memory import MemoryDisk

FILE = JournalFile(MemoryDisk().root.create("f"), a_file_header())


def a_slot(op):
    return Slot(Op(op), FILE, 64 * op, b"sealed")


def a_ring(count=4, watermark=0, ops=()):
    ring = Ring(count, Op(watermark))
    for op in ops:
        ring.put(a_slot(op))
    return ring


def held(ring, last=50):
    return [slot.op for slot in ring.between(Op(0), Op(last))]


def test_an_op_is_found_under_its_number_alone():
    ring = a_ring(ops=[1, 2])
    assert ring.get(Op(1)) == a_slot(1)
    assert ring.get(Op(5)) is None
    assert ring.get(Op(3)) is None


@pytest.mark.parametrize(
    ("watermark", "op", "collides"), [(0, 4, False), (0, 5, True), (3, 7, False), (3, 8, True)]
)
def test_a_slot_is_taken_until_the_watermark_passes_its_op(watermark, op, collides):
    assert a_ring(4, watermark).collides(Op(op)) is collides


def test_a_colliding_slot_is_never_overwritten():
    ring = a_ring(ops=[1, 2, 3, 4])
    with pytest.raises(AssertionError):
        ring.put(a_slot(5))
    assert held(ring) == [1, 2, 3, 4]


def test_a_raised_watermark_frees_slots_for_later_ops():
    ring = a_ring(ops=[1, 2, 3, 4])
    ring.raise_watermark(Op(2))
    assert held(ring) == [3, 4]
    ring.put(a_slot(5))
    ring.put(a_slot(6))
    assert held(ring) == [3, 4, 5, 6]


def test_the_watermark_never_falls():
    ring = a_ring(ops=[1, 2, 3])
    ring.raise_watermark(Op(2))
    ring.raise_watermark(Op(1))
    assert ring.watermark == 2
    assert held(ring) == [3]


def test_a_gap_stays_a_gap():
    ring = a_ring(8, ops=[1, 2, 5])
    assert held(ring) == [1, 2, 5]
    ring.raise_watermark(Op(1))
    assert held(ring) == [2, 5]
    ring.put(a_slot(4))
    assert held(ring) == [2, 4, 5]


def test_a_cut_suffix_is_forgotten():
    ring = a_ring(ops=[1, 2, 3, 4])
    ring.forget_from(Op(3))
    assert held(ring) == [1, 2]


def test_forgetting_an_old_op_leaves_the_new_one_in_its_slot():
    ring = a_ring(ops=[1, 2, 3, 4])
    ring.raise_watermark(Op(4))
    ring.put(a_slot(5))
    ring.raise_watermark(Op(4))
    assert held(ring) == [5]


def test_a_number_from_a_stranger_costs_no_more_than_the_ring():
    ring = a_ring(ops=[1, 2, 3, 4])
    assert [slot.op for slot in ring.between(Op(2), Op(2**62))] == [2, 3, 4]


@given(st.integers(1, 9), st.lists(st.booleans(), max_size=60))
def test_it_holds_exactly_the_live_ops(count, moves):
    ring, head, watermark = Ring(count), 0, 0
    for appends in moves:
        if appends and head - watermark < count:
            head += 1
            ring.put(a_slot(head))
        elif not appends and watermark < head:
            watermark += 1
            ring.raise_watermark(Op(watermark))
        assert ring.collides(Op(head + 1)) == (head - watermark == count)
        assert held(ring, head) == list(range(watermark + 1, head + 1))
