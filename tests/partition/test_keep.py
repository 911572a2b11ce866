"""Journal files that are mostly live are kept under a second name, and nothing is copied."""

import errno
import itertools
from contextlib import contextmanager
from dataclasses import replace

import pytest
from tests.partition.shards import (
    KEY,
    OTHER,
    a_shard,
    carry_path,
    files_in,
    new_id,
    on_files,
)

from headrace.errors import CorruptEntry, DiskFull
from headrace.journal.journal_file import FileHeader, decode_block
from headrace.journal.spare import Spares
from headrace.partition import checkpoint_files as keeper_module
from headrace.partition.files import linked_journals
from headrace.partition.files.carry import CarryFile
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace.partition.scrub import scrub
from headrace.partition.segments.sealer import Children
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.faults import Crash, Crashed, Fail, Keep
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.shard.shard import purging, trimming

NEVER = SegmentSizes(size_min=10**9, size_target=10**9, waited_max=10**9)
FILE_SIZE = 32 * 1024  # 24 KiB of frames: about 33 appends of ten rows
SMALL = {"sizes": NEVER, "file_size": FILE_SIZE}
ROOM = {"slots": 2048, "spare_count_max": 9}
TIMES = 80  # appends of a round: two files are full, and some are in a third


def kept(disk: MemoryDisk) -> list[str]:
    return [path for path in files_in(disk, "carry") if path.endswith(".wal")]


def spares(disk: MemoryDisk) -> list[str]:
    return files_in(disk, "journal/spare")


def names_of(paths: list[str]) -> set[str]:
    return {path.rpartition("/")[2] for path in paths}


def oldest(disk: MemoryDisk) -> str:
    """Return the kept file with the lowest ops."""

    def first_op(path: str) -> int:
        header = decode_block(disk.content(path), path)
        assert isinstance(header, FileHeader)
        return header.first_op

    return min(kept(disk), key=first_op)


def a_kept_shard(disk: MemoryDisk | None = None, *, rounds: int = 1, **changes):
    """Each round fills two files and a part of a third, and makes a checkpoint."""
    shard = a_shard(disk, **{**SMALL, **changes})
    for _ in range(rounds):
        shard.append_many(TIMES)
        shard.checkpoint()
    return shard


def crashes_of_a_checkpoint(make):
    """Give the disk after each crash of a checkpoint of what `make` makes on an empty one."""
    for reached in itertools.count():
        disk = MemoryDisk()
        shard = make(disk)
        last = disk.effect_count + reached
        disk.hook = lambda effect, last=last: Crash() if effect.number > last else None
        try:
            shard.checkpoint()
        except Crashed:
            yield disk
        else:
            return


def names_and_everything(disk):
    """Return what a kernel may have written by itself: all names, or all."""
    pending = disk.pending()
    names = [Keep(one.index) for one in pending if one.kind.endswith("name")]
    return names, [Keep(one.index) for one in pending]


def a_shard_that_kept_of_another(disk, **changes):
    """An entry of OTHER is in a kept file, and in the journal no more."""
    shard = a_shard(disk, **SMALL, **changes)
    shard.open_partition(OTHER)
    shard.append_many(10, key=OTHER)
    shard.append_many(TIMES)
    for _ in range(4):
        shard.checkpoint()
        shard.append()
    assert shard.store.group.journal.slot(5) is None
    return shard


def test_a_file_that_is_mostly_live_is_linked_and_not_copied():
    disk = MemoryDisk()
    shard = a_kept_shard(disk)
    (carry,) = shard.store.keeper.files.carry.values()
    assert len(kept(disk)) == len(carry.sources) == 2
    assert carry.size < 40 * TIMES + 20 * 1_000
    journal = shard.store.group.journal
    assert [source.file_id for source in carry.sources] == [
        file.header.file_id for file in journal.files[:2]
    ]
    for path in kept(disk):
        assert disk.content(path) in [
            disk.content(one) for one in files_in(disk, "journal") if "spare" not in one
        ]


def test_the_file_that_is_appended_to_is_not_kept():
    disk = MemoryDisk()
    shard = a_shard(disk, **SMALL)
    shard.append_many(25)
    shard.checkpoint()
    assert len(shard.store.group.journal.files) == 1
    assert kept(disk) == []


def test_a_file_that_is_mostly_dead_is_not_kept():
    disk = MemoryDisk()
    shard = a_shard(disk, **SMALL)
    shard.append_many(50)
    shard.one(purging(KEY))
    shard.append_many(3)
    shard.checkpoint()
    assert len(shard.store.group.journal.files) == 2
    assert kept(disk) == []
    assert shard.ids() == list(range(500, 530))


def test_rows_are_read_after_the_journal_let_its_name_go():
    disk = MemoryDisk()
    shard = a_kept_shard(disk, rounds=4)
    assert shard.store.group.journal.slot(5) is None
    assert shard.ids() == list(range(3_200))
    again = a_shard(disk.kill(), **SMALL)
    assert again.store.findings == []
    assert again.ids() == list(range(3_200))
    again = a_shard(disk.power_cut(), **SMALL)
    assert again.ids() == list(range(3_200))


def test_rows_of_kept_files_become_segments():
    disk = MemoryDisk()
    a_kept_shard(disk, rounds=4)
    disk = disk.kill()
    sizes = SegmentSizes(size_min=4_000, size_target=16_000, waited_max=3)
    shard = a_shard(disk, sizes=sizes, file_size=FILE_SIZE)
    for _ in range(3):
        shard.checkpoint()
    assert not shard.partition.runs
    assert not shard.unsealed
    assert shard.ids() == list(range(3_200))
    assert kept(disk) == []


class TestRecycling:
    """A kept file that began a new life would be overwritten under its second name."""

    def test_a_kept_file_never_becomes_a_spare(self):
        disk = MemoryDisk()
        shard = a_kept_shard(disk, rounds=5)
        assert len(kept(disk)) >= 8
        assert not names_of(spares(disk)) & names_of(kept(disk))
        assert shard.ids() == list(range(4_000))

    def test_nor_after_a_restart_that_drains(self):
        disk = MemoryDisk()
        shard = a_kept_shard(disk, rounds=2)
        shard.append_many(30)

        def at_drain(effect):
            is_drain = effect.kind in ("unlink", "rename") and effect.path.endswith(".wal")
            return Crash() if is_drain and effect.path.startswith("journal/") else None

        disk.hook = at_drain
        with pytest.raises(Crashed):
            shard.checkpoint()
        disk = disk.kill()
        again = a_shard(disk, **SMALL)
        assert not names_of(spares(disk)) & names_of(kept(disk))
        again.append_many(100)
        assert again.ids() == list(range(2_900))

    def let_go(self, shard):
        """Have nothing of what is kept needed any more, by the previous snapshot, too."""
        shard.one(purging(KEY))
        shard.checkpoint()
        shard.checkpoint()

    def test_what_nobody_needs_any_more_is_appended_to_again(self):
        disk = MemoryDisk()
        shard = a_kept_shard(disk, rounds=3, **ROOM)
        before = names_of(kept(disk))
        self.let_go(shard)
        assert kept(disk) == []
        assert before <= names_of(spares(disk))
        shard.append_many(4 * TIMES)
        assert not before & names_of(spares(disk))
        assert shard.ids() == list(range(2_400, 5_600))
        assert a_shard(disk.power_cut(), **SMALL, **ROOM).ids() == list(range(2_400, 5_600))

    def test_a_reader_who_has_it_open_looks_again(self, monkeypatch):
        """A copy of before has the entry; the file is in another life while it is read."""
        disk = MemoryDisk()
        shard = a_shard_that_kept_of_another(disk, **ROOM)
        before = names_of(kept(disk))
        monkeypatch.setattr(keeper_module, "KEPT_COUNT_MAX", 1)
        look, begun = CarryFile._kept, []

        @contextmanager
        def slow(self, source):
            with look(self, source) as file:
                if not begun:
                    begun.append(source)
                    shard.one(purging(KEY))
                    for _ in range(8):
                        shard.append()
                        shard.checkpoint()
                    shard.append_many(4 * TIMES)
                    assert not before & (names_of(spares(disk)) | names_of(kept(disk)))
                yield file

        monkeypatch.setattr(CarryFile, "_kept", slow)
        assert shard.ids(key=OTHER) == list(range(100))
        assert begun

    def test_a_name_that_leads_to_a_live_file_is_dropped(self):
        """As a power cut may leave it: the file has begun a new life under its other name."""
        disk = MemoryDisk()
        shard = a_shard(disk, **SMALL, **ROOM)
        shard.append_many(TIMES)
        disk.root.child("journal").link(
            f"{1:020}.wal", f"{new_id():016x}.wal", disk.root.child("carry")
        )
        disk = disk.kill()
        again = a_shard(disk, **SMALL, **ROOM)
        (second,) = names_of(kept(disk))
        again.checkpoint()
        again.checkpoint()
        assert second not in names_of(kept(disk)) | names_of(spares(disk))
        again.append_many(4 * TIMES)
        assert again.ids() == list(range(4_000))

    def test_what_is_in_quarantine_stays_as_it_is(self):
        """It could not be read at a start, and can be now: one file with two names."""
        disk = MemoryDisk()
        shard = a_kept_shard(disk, rounds=2, **ROOM)
        known = shard.store.keeper.files.kept
        files = shard.store.group.journal.files
        path = next(file.path for file in files if file.header.file_id in known)
        disk = disk.kill()
        disk.read_fault = lambda at, position, _: errno.EIO if at == path else None
        again = a_shard(disk, **SMALL, **ROOM)
        disk.read_fault = None
        (aside,) = files_in(disk, "quarantine")
        before = disk.content(aside)
        self.let_go(again)
        again.append_many(600)
        assert disk.content(aside) == before
        assert kept(disk) == []
        assert again.ids() == list(range(1_600, 7_600))

    def test_every_crash_of_a_checkpoint_that_lets_go_leaves_every_row(self):
        """Whatever the kernel wrote: nothing, all, names, or one of those that move."""

        def before_it(disk):
            shard = a_kept_shard(disk, rounds=2, **ROOM)
            shard.one(purging(KEY))
            shard.append_many(TIMES)
            shard.checkpoint()
            return shard

        reached = reused = 0
        for disk in crashes_of_a_checkpoint(before_it):
            reached += 1
            names, everything = names_and_everything(disk)
            moved = [
                [Keep(one.index)]
                for one in disk.pending()
                if one.kind.endswith("name") and one.path.startswith(("carry", "journal/spare"))
            ]
            for kept_changes in ([], everything, names, *moved):
                after = disk.power_cut(kept_changes)
                before = names_of(kept(after))
                again = a_shard(after, **SMALL, **ROOM)
                count = len(again.ids())
                assert again.ids() == list(range(1_600, 1_600 + count))
                assert count >= 10 * TIMES
                for _ in range(3):
                    again.append_many(TIMES)
                    again.checkpoint()
                known = again.store.keeper.files.kept
                assert names_of(kept(after)) == {f"{each:016x}.wal" for each in known}
                reused += bool(before - names_of(kept(after)))
                assert again.ids() == list(range(1_600, 1_600 + count + 30 * TIMES))
        assert reached > 20
        assert reused > 20

    def test_the_planted_bug_is_noticed(self, monkeypatch):
        retire = Spares.retire
        monkeypatch.setattr(
            Spares, "retire", lambda self, room, file, **_: retire(self, room, file)
        )
        shard = a_kept_shard(rounds=4)
        shard.append_many(TIMES)
        with pytest.raises(CorruptEntry):
            shard.ids()


class TestCollecting:
    def test_a_kept_file_goes_when_nothing_in_it_is_live(self):
        disk = MemoryDisk()
        shard = a_kept_shard(disk, rounds=3)
        assert kept(disk)
        shard.one(purging(KEY))
        shard.checkpoint()
        assert kept(disk)  # the previous snapshot needs them
        shard.checkpoint()
        assert kept(disk) == []
        assert shard.store.keeper.files.kept == {}

    def test_the_previous_snapshot_finds_its_own_after_the_newest_is_lost(self):
        disk = MemoryDisk()
        shard = a_kept_shard(disk, rounds=3)
        shard.one(purging(KEY))
        newest = shard.checkpoint()
        dead = disk.kill()
        dead.remove(f"snapshots/{newest:020}.snap")
        again = a_shard(dead, **SMALL)
        assert again.store.report.fell_back
        assert again.store.findings == []

    def test_nothing_goes_while_a_named_carry_file_does_not_say_what_it_needs(self):
        disk = MemoryDisk()
        shard = a_kept_shard(disk, rounds=3)
        shard.one(purging(KEY))
        shard.checkpoint()
        disk = disk.kill()
        older = min(files_in(disk, "carry"))
        assert older.endswith(".carry")
        disk.flip(older, 999)
        before = kept(disk)
        a_shard(disk, **SMALL)
        assert kept(disk) == before

    def test_a_link_of_an_unfinished_checkpoint_is_collected_later(self):
        disk = MemoryDisk()
        shard = a_shard(disk, **SMALL)
        shard.append_many(TIMES)
        shard.one(purging(KEY))
        disk.root.child("journal").link(
            f"{1:020}.wal", f"{new_id():016x}.wal", disk.root.child("carry")
        )
        disk = disk.kill()
        again = a_shard(disk, **SMALL)
        assert len(kept(disk)) == 1
        again.checkpoint()
        again.checkpoint()
        assert kept(disk) == []


def test_a_journal_file_of_another_log_is_set_aside():
    other = MemoryDisk()
    a_kept_shard(other, identity=replace(SOLO, cluster=b"another cluster!"))
    foreign = other.content(kept(other)[0])
    disk = MemoryDisk()
    a_shard(disk, **SMALL)
    disk = disk.kill()
    disk.put("carry/0123456789abcdef.wal", foreign)
    shard = a_shard(disk, **SMALL)
    shard.checkpoint()
    shard.checkpoint()
    assert kept(disk) == []
    assert disk.content("quarantine/0123456789abcdef.wal") == foreign


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_where_no_second_name_can_be_given_entries_are_copied(number):
    disk = MemoryDisk()
    disk.hook = lambda effect: Fail(number) if effect.kind == "link" else None
    shard = a_kept_shard(disk, rounds=4)
    assert kept(disk) == []
    assert shard.store.keeper.files.kept == {}
    assert spares(disk)
    assert all(not one.sources for one in shard.store.keeper.files.carry.values())
    assert a_shard(disk.kill(), **SMALL).ids() == list(range(3_200))


def test_a_name_that_something_else_has_is_not_taken_for_the_file():
    disk = MemoryDisk()
    shard = a_shard(disk, **SMALL)
    shard.append_many(TIMES)
    first = shard.store.group.journal.files[0].header.file_id
    disk = disk.kill()
    disk.put(f"carry/{first:016x}.wal", bytes(FILE_SIZE))
    again = a_shard(disk, **SMALL)
    for _ in range(3):
        again.checkpoint()
        again.append_many(TIMES)
    assert again.store.group.journal.slot(5) is None
    assert again.ids() == list(range(3_200))


def test_a_second_try_keeps_the_same_files():
    disk = MemoryDisk()
    shard = a_shard(disk, **SMALL)
    shard.append_many(TIMES)
    disk.hook = lambda effect: Fail(28) if effect.path.startswith("snapshots/") else None
    with pytest.raises(DiskFull):
        shard.checkpoint()
    disk.hook = None
    before = kept(disk)
    assert len(before) == 2
    shard.run()
    assert kept(disk) == before
    disk = disk.kill()
    again = a_shard(disk, **SMALL)
    for _ in range(3):
        again.append()
        again.checkpoint()
    assert again.ids() == list(range(830))


def test_every_crash_of_a_checkpoint_leaves_every_row():
    """Whatever the kernel wrote by itself: nothing, or all names and bytes."""

    def before_it(disk):
        shard = a_kept_shard(disk, rounds=2)
        shard.append_many(TIMES)
        return shard

    reached = 0
    for disk in crashes_of_a_checkpoint(before_it):
        reached += 1
        names, everything = names_and_everything(disk)
        for kept_changes in ([], everything, names):
            after = disk.power_cut(kept_changes)
            again = a_shard(after, **SMALL)
            assert again.ids() == list(range(2_400))
            again.append_many(TIMES)
            again.checkpoint()
            again.append_many(TIMES)
            again.checkpoint()
            assert again.ids() == list(range(4_000))
    assert reached > 10


class TestDamage:
    def test_a_kept_file_that_is_gone_is_named(self):
        disk = MemoryDisk()
        a_kept_shard(disk, rounds=4)
        disk = disk.kill()
        lost = oldest(disk)
        content = disk.content(lost)
        disk.remove(lost)
        shard = a_shard(disk, **SMALL)
        assert [one.path.endswith(lost) for one in shard.store.findings] == [True]
        with pytest.raises(CorruptEntry, match=lost.split("/")[1]):
            shard.ids(0, 10)
        assert shard.ids(1_000) == list(range(1_000, 3_200))
        shard.append_many(3)
        shard.checkpoint()
        shard.checkpoint()
        disk = disk.kill()
        disk.put(lost, content)
        again = a_shard(disk, **SMALL)
        assert again.store.findings == []
        assert again.ids() == list(range(3_230))

    def test_rot_in_a_kept_file_costs_one_entry_and_the_scrub_finds_it(self):
        disk = MemoryDisk()
        shard = a_kept_shard(disk, rounds=4)
        lost = oldest(disk)
        position = disk.content(lost).index(b"name 5")
        disk.flip(lost, position * 8)
        with pytest.raises(CorruptEntry, match=lost.split("/")[1]):
            shard.ids(0, 10)
        assert shard.ids(10) == list(range(10, 3_200))
        (finding,) = [one for one in scrub(shard.store.keeper) if one]
        assert finding.path == lost
        shard.append_many(3)
        shard.checkpoint()
        assert shard.ids(10) == list(range(10, 3_230))

    def test_rot_does_not_stop_checkpoints_while_the_journal_has_the_same_file(self):
        disk = MemoryDisk()
        shard = a_kept_shard(disk, rounds=1)
        lost = oldest(disk)
        position = disk.content(lost).rindex(b"name")
        disk.flip(lost, position * 8)
        assert [one for one in scrub(shard.store.keeper) if one]
        shard.one(trimming(KEY, 280))  # so little is left that it would be copied
        for _ in range(3):
            shard.append_many(3)
            shard.checkpoint()
        with pytest.raises(CorruptEntry):
            shard.ids()

    def test_a_carry_file_without_its_index_loses_what_it_keeps_by_name(self):
        disk = MemoryDisk()
        shard = a_kept_shard(disk, rounds=4)
        oldest = carry_path(shard.store.keeper.files.carry_ops[0])
        disk = disk.kill()
        disk.flip(oldest, 999)
        again = a_shard(disk, **SMALL)
        with pytest.raises(CorruptEntry, match="carry"):
            again.ids(0, 10)
        assert again.ids(1_000) == list(range(1_000, 3_200))


def test_what_stays_live_long_is_copied_out_of_kept_files(monkeypatch):
    monkeypatch.setattr(keeper_module, "KEPT_COUNT_MAX", 3)
    disk = MemoryDisk()
    shard = a_shard(disk, **SMALL)
    shard.open_partition(OTHER)
    shard.append_many(10, key=OTHER)
    shard.append_many(TIMES)
    shard.checkpoint()
    assert kept(disk)
    shard.one(purging(KEY))
    for _ in range(8):
        shard.append()
        shard.checkpoint()
    assert kept(disk) == []
    assert shard.ids(key=OTHER) == list(range(100))
    assert a_shard(disk.kill(), **SMALL).ids(key=OTHER) == list(range(100))


def test_children_read_kept_files(tmp_path):
    with on_files(tmp_path / "shard") as root:
        shard = a_kept_shard(root, rounds=4)
        shard.store.close()
        sizes = SegmentSizes(size_min=4_000, size_target=16_000, waited_max=3)
        again = a_shard(root, sizes=sizes, file_size=FILE_SIZE, sealer=Children)
        assert again.store.group.journal.slot(5) is None
        again.checkpoint()
        assert not again.unsealed
        assert again.segments
        assert again.ids() == list(range(3_200))
        again.store.close()


def test_what_is_left_of_a_kept_file_is_worth_a_copy_below_a_64th():
    shard = a_kept_shard()
    (carry,) = shard.store.keeper.files.carry.values()
    count = len(carry.ops)
    assert carry.sources
    assert not linked_journals.is_sparse(carry, -(-count // 64))
    assert linked_journals.is_sparse(carry, -(-count // 64) - 1)
