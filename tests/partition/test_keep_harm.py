"""Kept journal files under rot, forged bytes, second tries and readers at bad moments."""

import errno

import pytest
from tests.partition.shards import KEY, OTHER, a_shard, carry_path
from tests.partition.test_keep import (
    FILE_SIZE,
    SMALL,
    TIMES,
    a_kept_shard,
    a_shard_that_kept_of_another,
    kept,
    oldest,
)
from xxhash import xxh3_128_digest

from headrace.errors import CorruptEntry, DiskFull
from headrace.journal.entry import Flaw
from headrace.partition import checkpoint_files as keeper_module
from headrace.partition.files.carry import CarryFile, open_carry
from headrace.partition.files.carry_table import CarrySource, Item, LinkedJournal, encode
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace.partition.scrub import scrub
from headrace.partition.segments.seal_job import SealPart
from headrace.partition.segments.sealing_child import _Files
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.faults import Crash, Crashed, Fail
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.shard.shard import purging, trimming


def rot_found_while_the_journal_has_all(disk):
    shard = a_kept_shard(disk, rounds=1)
    disk.flip(carry_path(shard.store.keeper.files.carry_ops[0]), 999)
    assert [one for one in scrub(shard.store.keeper) if one]
    for _ in range(3):
        shard.append_many(TIMES)
        shard.checkpoint()
    assert shard.store.group.journal.slot(5) is None
    return a_shard(disk.kill(), **SMALL)


def test_copied_entries_outlive_an_index_whose_rot_the_scrub_found_in_time():
    disk = MemoryDisk()
    disk.hook = lambda effect: Fail(errno.EPERM) if effect.kind == "link" else None
    assert rot_found_while_the_journal_has_all(disk).ids() == list(range(3_200))


def test_kept_entries_outlive_an_index_whose_rot_the_scrub_found_in_time():
    assert rot_found_while_the_journal_has_all(MemoryDisk()).ids() == list(range(3_200))


def test_kept_files_do_not_pile_up_behind_a_lost_carry_file():
    """All that is appended afterwards is trimmed soon: a whole log keeps a handful of files."""
    disk = MemoryDisk()
    shard = a_kept_shard(disk, rounds=4)
    lost = carry_path(shard.store.keeper.files.carry_ops[0])
    disk = disk.kill()
    disk.flip(lost, 999)
    shard = a_shard(disk, **SMALL)
    shard.open_partition(OTHER)
    counts = []
    for _ in range(12):
        shard.append_many(TIMES, key=OTHER)
        shard.checkpoint()
        shard.one(trimming(OTHER, shard.store.reader.bounds(OTHER)[1]))
        counts.append(len(kept(disk)))
    assert counts[-1] <= counts[3] + 2, counts


@pytest.mark.parametrize("link", [False, True])
def test_rot_does_not_stop_the_checkpoint_that_makes_a_segment_of_it(link):
    sizes = SegmentSizes(size_min=10**9, size_target=10**9, waited_max=1)
    disk = MemoryDisk()
    if not link:
        disk.hook = lambda effect: Fail(errno.EPERM) if effect.kind == "link" else None
    shard = a_shard(disk, sizes=sizes, file_size=FILE_SIZE)
    shard.append_many(TIMES)
    shard.checkpoint()
    path = oldest(disk) if link else f"journal/{1:020}.wal"
    disk.flip(path, disk.content(path).index(b"name 5") * 8)
    for _ in range(4):
        shard.append_many(3)
        shard.checkpoint()
    assert shard.ids(10) == list(range(10, 920))


def test_a_reader_between_two_looks_finds_what_was_carried_on(monkeypatch):
    """A copy of before has the entry; the file that it was kept in is collected meanwhile."""
    disk = MemoryDisk()
    shard = a_shard_that_kept_of_another(disk)
    assert kept(disk)
    monkeypatch.setattr(keeper_module, "KEPT_COUNT_MAX", 1)
    read, begun = CarryFile.read, []

    def slow(self, op):
        if not begun:
            begun.append(op)
            shard.one(purging(KEY))
            for _ in range(8):
                shard.append()
                shard.checkpoint()
            assert kept(disk) == []
        return read(self, op)

    monkeypatch.setattr(CarryFile, "read", slow)
    assert shard.ids(key=OTHER) == list(range(100))


def test_another_carry_file_of_that_name_does_not_say_what_is_needed():
    """Putting the right one back must bring its rows back."""
    twin = MemoryDisk()
    twin.hook = lambda effect: Fail(errno.EPERM) if effect.kind == "link" else None
    a_kept_shard(twin, rounds=4)
    disk = MemoryDisk()
    shard = a_kept_shard(disk, rounds=4)
    path = carry_path(shard.store.keeper.files.carry_ops[0])
    disk = disk.kill()
    right = disk.content(path)
    disk.put(path, twin.content(path))
    again = a_shard(disk, **SMALL)
    assert [one for one in again.store.findings if path in one.path]
    for _ in range(3):
        again.append()
        again.checkpoint()
    disk = disk.kill()
    disk.put(path, right)
    again = a_shard(disk, **SMALL)
    assert again.store.findings == []
    assert again.ids() == list(range(3_230))


def test_one_live_entry_does_not_hold_a_kept_file():
    disk = MemoryDisk()
    shard = a_shard(disk, **SMALL)
    shard.open_partition(OTHER)
    shard.append(key=OTHER)
    shard.append_many(TIMES)
    shard.checkpoint()
    assert kept(disk)
    for _ in range(4):
        shard.append_many(5)
        shard.one(purging(KEY))
        shard.checkpoint()
    assert kept(disk) == []
    again = a_shard(disk.kill(), **SMALL)
    assert again.ids(key=OTHER) == list(range(10))


def test_a_child_names_an_entry_that_a_forged_index_puts_beyond_any_file(tmp_path):
    source = CarrySource(1, 2**64 - 1, 1)
    item = Item(5, 300, b"k" * 16)
    data, _ = encode(SOLO, 9, [LinkedJournal(item, 1, 2**64 - 600)], [source])
    disk = MemoryDisk()
    disk.root.child("carry", make=True)
    disk.put(carry_path(9), data)
    found = open_carry(disk.root.child("carry"), SOLO, 9)
    if isinstance(found, Flaw):
        return
    path = tmp_path / source.name
    path.write_bytes(bytes(65_536))
    row = found.row(5)
    part = SealPart(5, str(path), row.position, row.size, row.checksum, 0, 0)
    with pytest.raises(CorruptEntry):
        _Files().read(part)


def test_a_carry_file_of_format_1_has_no_sources():
    """A reader of before would take the rows for entries of the file itself."""
    item = Item(5, 300, b"k" * 16)
    data, _ = encode(SOLO, 9, [LinkedJournal(item, 1, 8_192)], [CarrySource(1, 65_536, 1)])
    rest = data[16:24] + b"\1\0\1\0" + data[28:128]
    disk = MemoryDisk()
    disk.root.child("carry", make=True)
    disk.put(carry_path(9), xxh3_128_digest(rest) + rest + data[128:])
    assert isinstance(open_carry(disk.root.child("carry"), SOLO, 9), Flaw)


@pytest.mark.parametrize("link", [False, True])
def test_a_second_try_leaves_the_carry_file_that_a_durable_snapshot_names(monkeypatch, link):
    """The first try was whole but for the superblock; the second dies before its snapshot."""
    monkeypatch.setattr(keeper_module, "KEPT_COUNT_MAX", 3)
    monkeypatch.setattr(keeper_module, "CARRY_COUNT_MAX", 3)
    disk = MemoryDisk()
    refused = {} if link else {"link"}

    def fails(kinds, rooms, fault):
        def hook(effect):
            if effect.kind in refused:
                return Fail(errno.EPERM)
            return fault if effect.kind in kinds and effect.path.startswith(rooms) else None

        return hook

    disk.hook = fails((), (), None)
    shard = a_kept_shard(disk, rounds=6)
    shard.append_many(TIMES)
    every_change = ("create", "write", "truncate", "sync", "rename", "sync-dir")
    disk.hook = fails(("create", "write"), ("superblock",), Fail(errno.ENOSPC))
    with pytest.raises(DiskFull):
        shard.checkpoint()
    disk.hook = fails(every_change, ("snapshots",), Crash())
    with pytest.raises(Crashed):
        shard.run()
    disk = disk.kill()
    again = a_shard(disk, **SMALL)
    found = [one.what for one in again.store.findings]
    assert found == []
    assert again.ids() == list(range(5_600))
