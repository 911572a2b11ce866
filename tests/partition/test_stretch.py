"""Entries that lie side by side are read at once, and no bad byte of them is ever carried."""

import errno

import pytest
from tests.partition.shards import KEY, OTHER, a_shard

from headrace.errors import CorruptEntry, Stopped
from headrace.journal.entry import Entry, decode, decode_header
from headrace.model.ids import Op
from headrace.partition.files.batched_reads import glance
from headrace.partition.files.carry_table import Item
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace_lab.disk.memory import MemoryDisk

NEVER = SegmentSizes(size_min=10**9, size_target=10**9, waited_max=10**9)
FIRST, LAST = 3, 12  # ops of the appends


def a_shard_with_appends(disk, **changes):
    shard = a_shard(disk, sizes=NEVER, **changes)
    shard.open_partition(OTHER)
    while shard.head < LAST:
        shard.append(3)
    return shard


def items_of(shard, ops=range(FIRST, LAST + 1)):
    found = [decode_header(shard.store.group.journal.slot(Op(op)).sealed) for op in ops]
    return [Item(header.op, 256 + header.body_size, header.checksum) for header in found]


def reads_of(disk, act):
    """Return what `act` gives, and how many reads it took."""
    reads = []
    disk.read_fault = lambda *read: reads.append(read)
    found = act()
    disk.read_fault = None
    return found, len(reads)


def test_one_read_serves_all_that_lie_side_by_side():
    disk = MemoryDisk()
    shard = a_shard_with_appends(disk)
    journal = shard.store.group.journal
    found, read_count = reads_of(disk, lambda: glance(journal, items_of(shard)))
    assert [decode(data) for data in found] == [
        journal.read(Op(op)) for op in range(FIRST, LAST + 1)
    ]
    assert read_count == 1


def test_a_gap_and_another_file_need_a_read_of_their_own():
    disk = MemoryDisk()
    shard = a_shard_with_appends(disk, file_size=12 * 1024)
    journal = shard.store.group.journal
    ops = [3, 4, 6, 7, 8, 9, 10, 11, 12]
    borders = sum(journal.slot(Op(op)).file is not journal.slot(Op(op - 1)).file for op in ops)
    assert borders == 1
    found, read_count = reads_of(disk, lambda: glance(journal, items_of(shard, ops)))
    assert [decode(data).op for data in found] == ops
    assert read_count == 3


def test_what_is_not_in_the_journal_is_none():
    disk = MemoryDisk()
    shard = a_shard_with_appends(disk)
    items = items_of(shard)
    items.insert(4, Item(Op(99), 300, bytes(16)))
    found = glance(shard.store.group.journal, items)
    assert [data is None for data in found] == [item.op == 99 for item in items]


def test_a_file_that_was_drained_meanwhile_is_not_read():
    disk = MemoryDisk()
    shard = a_shard_with_appends(disk)
    items, journal = items_of(shard), shard.store.group.journal
    with journal.newest.hold():
        journal.newest.retire()
        found, read_count = reads_of(disk, lambda: glance(journal, items))
    assert set(found) == {None}
    assert read_count == 0


def test_a_closed_journal_is_not_read():
    shard = a_shard_with_appends(MemoryDisk())
    items = items_of(shard)
    shard.store.close()
    with pytest.raises(Stopped):
        glance(shard.store.group.journal, items)


def frame_of(shard, op):
    slot = shard.store.group.journal.slot(Op(op))
    header = decode_header(slot.sealed)
    return slot.file.path, slot.position, 64 + 256 + header.body_size


@pytest.mark.parametrize("op", [FIRST, 7, LAST])
def test_no_flipped_byte_of_a_frame_is_carried(op):
    disk = MemoryDisk()
    shard = a_shard_with_appends(disk)
    path, position, size = frame_of(shard, op)
    shard.seal()
    for at in range(position, position + size, 7):
        disk.flip(path, at * 8 + at % 8)
        with pytest.raises(CorruptEntry, match=f"op {op}:") as caught:
            shard.run()
        assert (caught.value.path, caught.value.position) == (path, position)
        assert [name for name in disk.files() if name.startswith("carry/")] == []
        disk.flip(path, at * 8 + at % 8)
    assert shard.run() == LAST + 1
    assert shard.ids() == list(range(30))
    held = shard.store.keeper.files.carry[Op(LAST + 1)]
    assert all(isinstance(held.read(item.op), Entry) for item in items_of(shard))


def test_an_unreadable_sector_spoils_only_its_entry():
    disk = MemoryDisk()
    shard = a_shard_with_appends(disk)
    path, position, _ = frame_of(shard, 7)
    shard.seal()
    asked = []

    def fault(where, at, size):
        if where == path:
            asked.append(at)
        return errno.EIO if where == path and at <= position < at + size else None

    disk.read_fault = fault
    with pytest.raises(CorruptEntry, match="op 7: unreadable"):
        shard.run()
    disk.read_fault = None
    assert len(asked) == 7  # all at once; then the five from 3 to 7, and 7 once more
    shard.run()
    assert shard.ids(key=KEY) == list(range(30))
