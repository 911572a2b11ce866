"""Spares: the only way into the journal, and out of it."""

import errno

import pytest
from tests.journal.builders import (
    FILE_SIZE,
    FRAMES_PER_FILE,
    Recorder,
    a_disk_with,
    a_group,
    bodies_of,
    checkpoint,
    contents,
    crash,
    effects_of,
    everything,
    grow,
    journal_path,
)

from headrace.errors import DiskFull, StorageFailed
from headrace.journal.journal_file import FIRST_POSITION, decode_block
from headrace.model.ids import Op
from headrace_lab.disk.faults import CrashAfter, Fail, Keep
from headrace_lab.disk.memory import MemoryDisk


def spare_names(disk):
    return [path for path in disk.files() if path.startswith("journal/spare/")]


def a_drained_group(**changes):
    """Two checkpoints, so that the first file has become a spare."""
    disk = MemoryDisk()
    group = a_group(disk, **changes)
    grow(group, 11)
    checkpoint(group)
    checkpoint(group)
    return disk, group


class TestEnlist:
    def test_a_file_is_whole_and_durable_before_it_has_a_live_name(self):
        disk, group = a_disk_with(FRAMES_PER_FILE)
        effects = effects_of(disk, lambda: grow(group, 1))
        kinds = [effect.kind for effect in effects]
        assert kinds[: kinds.index("rename") + 2] == ["write", "sync", "rename", "sync-dir"]

    @pytest.mark.parametrize("landed", ["nothing", "the new name", "the old name dropped"])
    def test_a_crash_at_the_rename_leaves_a_spare_or_an_empty_successor(self, landed):
        disk, group = a_disk_with(FRAMES_PER_FILE)
        disk.hook = lambda effect: CrashAfter() if effect.kind == "rename" else None
        with crash():
            grow(group, 1)
        names = [change for change in disk.pending() if change.kind.endswith("name")]
        kept = {"nothing": [], "the new name": names[:1], "the old name dropped": names[1:]}
        again = a_group(disk.power_cut([Keep(change.index) for change in kept[landed]]))
        assert again.head == 10
        assert grow(again, 1) == 11
        assert again.report.cut is None

    def test_a_spare_that_is_too_small_is_not_taken(self):
        disk, group = a_disk_with(1)
        spares = spare_names(disk)
        grow(group, 1, 50_000)
        assert spare_names(disk) == spares
        assert group.group.journal.newest.header.size > 50_000

    def test_each_life_has_an_id_of_its_own(self):
        disk = MemoryDisk()
        group = a_group(disk)
        ids = []
        for _ in range(6):
            grow(group, 9)
            checkpoint(group)
            ids += [file.header.file_id for file in group.group.journal.files]
        by_name = {path: disk.content(path) for path in disk.files() if path.endswith(".wal")}
        assert len(by_name) <= 5
        assert len(set(ids)) == 6


class TestRetire:
    def test_a_drained_file_becomes_a_spare(self):
        disk, group = a_drained_group()
        assert journal_path(1) not in disk.files()
        assert len(spare_names(disk)) == 1
        assert group.group.journal.first == 11

    def test_a_file_with_a_second_name_loses_this_one_and_stays_as_it_is(self):
        disk = MemoryDisk()
        group = a_group(disk)
        grow(group, 25)
        journal, room = group.group.journal, disk.root.child("kept", make=True)
        kept, other = journal.files[:2]
        journal.directory.link(kept.name, "kept.wal", room)
        before = disk.content("kept/kept.wal")
        journal.drain(Op(20), {kept.header.file_id})
        assert spare_names(disk) == [f"journal/spare/{other.header.file_id:016x}.wal"]
        grow(group, 40)
        assert disk.content("kept/kept.wal") == before

    def test_its_old_bytes_stay_and_never_validate_again(self):
        disk, group = a_drained_group()
        (spare,) = spare_names(disk)
        old = disk.content(spare)
        grow(group, 10)
        recycled = group.group.journal.newest
        new = disk.content(recycled.path)
        assert new[recycled.end :] == old[recycled.end :]
        assert any(new[recycled.end :])
        assert decode_block(new, "x") != decode_block(old, "x")
        again = a_group(disk.power_cut())
        assert again.head == group.head
        assert again.report.cut is None
        assert again.report.notes == ()

    def test_spares_beyond_the_limit_are_unlinked(self):
        disk = MemoryDisk()
        group = a_group(disk, spare_count_max=1)
        grow(group, 45)
        checkpoint(group)
        checkpoint(group)
        assert len(spare_names(disk)) == 1
        assert group.group.journal.first == 41

    def test_a_file_of_another_size_is_unlinked(self):
        disk = MemoryDisk()
        group = a_group(disk)
        grow(group, 1, 100_000)
        grow(group, 12)
        checkpoint(group)
        checkpoint(group)
        assert {len(disk.content(path)) for path in spare_names(disk)} <= {FILE_SIZE}

    def test_a_held_file_is_unlinked_and_its_bytes_stay_readable(self):
        disk = MemoryDisk()
        group = a_group(disk)
        grow(group, 11)
        checkpoint(group)
        oldest = group.group.journal.files[0]
        before = spare_names(disk)
        with oldest.hold() as held:
            assert held
            checkpoint(group)
            assert journal_path(1) not in disk.files()
            assert spare_names(disk) == before
            grow(group, 20)
            assert any(oldest.storage.read(FIRST_POSITION, 64))

    def test_a_full_disk_does_not_hinder_a_drain(self):
        disk = MemoryDisk()
        group = a_group(disk)
        grow(group, 11)
        checkpoint(group)
        full = Fail(errno.ENOSPC)
        into_spare = "journal/spare/"
        disk.hook = lambda effect: full if effect.path.startswith(into_spare) else None
        checkpoint(group)
        assert journal_path(1) not in disk.power_cut().files()


class TestReuse:
    """A file of another room, in which nothing is needed any more."""

    def a_second_name(self, **changes):
        """A drained file under a name elsewhere; returns its disk, group, room and id."""
        disk = MemoryDisk()
        grown = a_group(disk, **changes)
        grow(grown, 11)
        group = grown.group
        room = disk.root.child("elsewhere", make=True)
        file_id = group.journal.files[0].header.file_id
        group.journal.directory.link(journal_path(1).split("/")[1], "kept.wal", room)
        return disk, group, room, file_id

    def drain(self, group, file_id):
        group.journal.drain(Op(10), {file_id})
        assert group.journal.files[0].header.file_id != file_id

    def test_it_becomes_a_spare_durably(self):
        disk, group, room, file_id = self.a_second_name()
        self.drain(group, file_id)
        effects = effects_of(
            disk, lambda: [group.journal.reuse(room, "kept.wal", file_id), room.sync()]
        )
        assert [effect.kind for effect in effects] == ["rename", "sync-dir", "sync-dir"]
        assert f"journal/spare/{file_id:016x}.wal" in spare_names(disk.power_cut())
        assert room.names() == []

    def test_not_while_the_journal_has_it(self):
        disk, group, room, file_id = self.a_second_name()
        assert not group.journal.reuse(room, "kept.wal", file_id)
        assert room.names() == ["kept.wal"]
        assert f"journal/spare/{file_id:016x}.wal" not in spare_names(disk)

    def test_not_in_another_life_which_may_be_live(self):
        _, group, room, file_id = self.a_second_name()
        assert not group.journal.reuse(room, "kept.wal", file_id + 1)
        assert room.names() == ["kept.wal"]

    def test_no_more_than_are_wanted(self):
        disk, group, room, file_id = self.a_second_name(spare_count_max=1)
        self.drain(group, file_id)
        group.journal.prepare()
        assert len(spare_names(disk)) == 1
        assert not group.journal.reuse(room, "kept.wal", file_id)
        assert room.names() == ["kept.wal"]

    def test_none_of_another_size(self):
        _, group, room, file_id = self.a_second_name()
        self.drain(group, file_id)
        room.open("kept.wal", writable=True).truncate(2 * FILE_SIZE)
        assert not group.journal.reuse(room, "kept.wal", file_id)

    def test_where_it_cannot_be_moved_it_stays(self):
        disk, group, room, file_id = self.a_second_name()
        self.drain(group, file_id)
        disk.hook = lambda effect: Fail(errno.ENOSPC) if effect.kind == "rename" else None
        assert not group.journal.reuse(room, "kept.wal", file_id)
        assert room.names() == ["kept.wal"]

    def test_a_sync_that_fails_poisons_the_journal(self):
        disk, group, room, file_id = self.a_second_name()
        self.drain(group, file_id)
        disk.hook = lambda effect: Fail(errno.EIO) if effect.kind == "sync-dir" else None
        with pytest.raises(StorageFailed):
            group.journal.reuse(room, "kept.wal", file_id)
        assert group.journal.poisoned is not None


class TestTidy:
    @pytest.mark.parametrize("kept", ["spare", "live", "both"])
    def test_after_a_crash_inside_a_drain_a_file_has_one_name(self, kept):
        disk = MemoryDisk()
        group = a_group(disk)
        grow(group, 11)
        checkpoint(group)
        disk.hook = lambda effect: (
            CrashAfter() if effect.kind == "rename" and "spare" in effect.path else None
        )
        with crash():
            checkpoint(group)
        added, dropped = [change for change in disk.pending() if change.kind.endswith("name")]
        choice = {"spare": [added, dropped], "live": [], "both": [added]}[kept]
        after = disk.power_cut([Keep(change.index) for change in choice])
        assert (journal_path(1) in after.files()) == (kept != "spare")
        assert len(spare_names(after)) == (kept != "live")
        again = a_group(after)
        assert journal_path(1) not in after.files()
        assert len(spare_names(after)) == 1
        grow(again, 25)
        last = a_group(after.power_cut())
        assert last.head == 13 + 25
        assert sorted(bodies_of(last)) == sorted(bodies_of(again))

    def test_the_spare_name_of_a_live_file_is_dropped(self):
        disk, _ = a_disk_with(3)
        disk = disk.kill()
        twin = "journal/spare/0123456789abcdef.wal"
        disk.put(twin, disk.content(journal_path(1)))
        a_group(disk)
        assert twin not in disk.files()

    def test_a_spare_that_cannot_be_read_hinders_nobody(self):
        disk, _ = a_disk_with(3)
        disk = disk.kill()
        disk.read_fault = lambda path, at, size: errno.EIO if "spare" in path else None
        assert a_group(disk).head == 3

    def test_a_spare_of_an_earlier_life_is_kept(self):
        disk, _ = a_drained_group()
        before = spare_names(disk)
        disk = disk.kill()
        a_group(disk)
        assert spare_names(disk) == before


class TestMake:
    def test_a_new_spare_is_full_and_durable_under_its_name(self):
        disk, _ = a_disk_with(0)
        (spare,) = spare_names(disk.power_cut())
        assert disk.power_cut().content(spare) == bytes(FILE_SIZE)

    def test_it_is_reserved_and_synced_before_it_has_its_name(self):
        disk, group = a_disk_with(FRAMES_PER_FILE + 1)
        effects = effects_of(disk, group.group.journal.spares.ensure)
        assert [(one.kind, one.size) for one in effects] == [
            ("create", 0),
            ("truncate", FILE_SIZE),
            ("sync", 0),
            ("rename", 0),
            ("sync-dir", 0),
        ]
        assert [one.path.endswith(".tmp") for one in effects] == [
            True,
            True,
            True,
            False,
            False,
        ]

    @pytest.mark.parametrize("number", range(1, 5))
    def test_until_then_it_has_no_name_and_leaves_nothing(self, number):
        disk, group = a_disk_with(FRAMES_PER_FILE + 1)
        before = contents(disk)
        disk.hook = Recorder(number, Fail(errno.ENOSPC, done=100))
        with pytest.raises(DiskFull):
            group.group.journal.spares.ensure()
        assert contents(disk) == before
        assert contents(disk.power_cut()) == before


class TestEnsure:
    def test_recovery_leaves_at_least_one(self):
        disk, _ = a_disk_with(25)
        disk = disk.kill()
        assert spare_names(disk) == []
        a_group(disk)
        assert len(spare_names(disk.power_cut())) == 1

    def test_without_room_the_group_starts_all_the_same(self):
        disk, _ = a_disk_with(25)
        disk = disk.kill()
        full = Fail(errno.ENOSPC)
        disk.hook = lambda effect: (
            full if effect.kind in ("create", "truncate") and ("spare" in effect.path) else None
        )
        again = a_group(disk)
        assert again.head == 25
        assert "no space left" in again.report.notes[-1].what

    def test_a_broken_disk_is_not_a_full_one(self):
        disk, _ = a_disk_with(25)
        disk = disk.kill()
        disk.hook = lambda effect: Fail(errno.EIO) if effect.kind == "truncate" else None
        with pytest.raises(StorageFailed):
            a_group(disk)


GROWING = {"first_size": FILE_SIZE, "file_size": 20 * FILE_SIZE, "slots": 512}


class TestGrowth:
    """Files are as large as a log is used: small in one that stays empty."""

    def a_growing_group(self):
        disk = MemoryDisk()
        return disk, a_group(disk, **GROWING)

    def sizes(self, disk, room="journal/"):
        wanted = [path for path in disk.files() if path.rpartition("/")[0] + "/" == room]
        return [len(disk.content(path)) // FILE_SIZE for path in sorted(wanted)]

    def spare_sizes(self, disk):
        return self.sizes(disk, "journal/spare/")

    def test_a_new_log_has_a_small_file_and_the_next_one(self):
        disk, _ = self.a_growing_group()
        assert (self.sizes(disk), self.spare_sizes(disk)) == ([1], [4])

    def test_each_file_is_larger_than_the_one_before_up_to_the_configured_size(self):
        disk, group = self.a_growing_group()
        while len(group.group.journal.files) < 5:
            grow(group, 1, 3000)
        assert self.sizes(disk) == [1, 4, 16, 20, 20]
        assert a_group(disk.power_cut(), **GROWING).head == group.head

    def test_an_entry_that_needs_more_gets_it_and_files_grow_from_there(self):
        _, group = self.a_growing_group()
        grow(group, 1, 3 * FILE_SIZE)
        assert group.group.journal.newest.header.size == 4 * FILE_SIZE
        grow(group, 1, 2 * FILE_SIZE)
        assert group.group.journal.newest.header.size == 16 * FILE_SIZE

    def test_a_restart_goes_on_from_the_newest_file(self):
        disk, group = self.a_growing_group()
        grow(group, FRAMES_PER_FILE + 1)
        assert (self.sizes(disk), self.spare_sizes(disk)) == ([1, 4], [])
        after = disk.power_cut()
        again = a_group(after, **GROWING)
        assert self.spare_sizes(after) == [16]
        while len(again.group.journal.files) < 3:
            grow(again, 1, 3000)
        assert self.sizes(after) == [1, 4, 16]

    def test_a_small_drained_file_is_unlinked(self):
        disk, group = self.a_growing_group()
        grow(group, FRAMES_PER_FILE + 1)
        group.group.idle()
        checkpoint(group)
        checkpoint(group)
        assert (self.sizes(disk), self.spare_sizes(disk)) == ([4], [16])

    def test_the_bytes_of_spares_are_those_of_each(self):
        _, group = self.a_growing_group()
        grow(group, FRAMES_PER_FILE + 1)
        group.group.idle()
        assert group.group.journal.spares.size() == 16 * FILE_SIZE

    def test_on_a_full_disk_what_was_drained_serves_although_it_is_small(self):
        disk, group = self.a_growing_group()
        disk.hook = lambda effect: (
            Fail(errno.ENOSPC)
            if effect.kind in ("create", "truncate") and "wal" in effect.path
            else None
        )
        for _ in range(6):
            count = len(group.group.journal.files)
            while len(group.group.journal.files) == count:
                grow(group, 1, 3000)
            checkpoint(group)
            checkpoint(group)
            assert sorted(self.sizes(disk) + self.spare_sizes(disk)) == [1, 4]
        disk.hook = None
        group.group.idle()
        assert max(self.spare_sizes(disk)) == 4 * self.sizes(disk)[-1]
        assert a_group(disk.power_cut(), **GROWING).head == group.head

    @pytest.mark.parametrize("number", range(1, 12))
    def test_a_crash_at_any_effect_of_a_larger_file_loses_nothing(self, number):
        disk, group = self.a_growing_group()
        grow(group, FRAMES_PER_FILE)
        recorder = Recorder(number, CrashAfter())
        disk.hook = recorder
        with crash():
            grow(group, 1)
            group.group.idle()
        for after in (disk.power_cut(), disk.power_cut(everything(disk))):
            again = a_group(after, **GROWING)
            assert again.head in (FRAMES_PER_FILE, FRAMES_PER_FILE + 1)
            grow(again, 3, 3000)
            assert a_group(after.power_cut(), **GROWING).head == again.head


class TestFullDisk:
    def full(self, effect):
        """Grow nothing: the files that exist may be overwritten, new bytes have no room."""
        return Fail(errno.ENOSPC) if effect.kind in ("create", "truncate") else None

    def test_with_a_spare_a_roll_succeeds(self):
        disk, group = a_disk_with(FRAMES_PER_FILE)
        disk.hook = self.full
        assert grow(group, FRAMES_PER_FILE) == 20

    def test_without_one_it_is_back_pressure_and_goes_on_when_space_returns(self):
        disk, group = a_disk_with(FRAMES_PER_FILE)
        disk.hook = self.full
        grow(group, FRAMES_PER_FILE)
        for _ in range(3):
            with pytest.raises(DiskFull) as caught:
                grow(group, 1)
            assert caught.value.stage == "roll"
        assert group.group.journal.poisoned is None
        assert a_group(disk.power_cut()).head == 20
        disk.hook = None
        assert grow(group, 1) == 21
        assert a_group(disk.power_cut()).head == 21

    def test_a_roll_that_found_no_room_leaves_no_leftovers(self):
        disk, group = a_disk_with(2 * FRAMES_PER_FILE)
        before = contents(disk)
        disk.hook = lambda effect: Fail(errno.ENOSPC) if effect.kind == "truncate" else None
        for _ in range(3):
            with pytest.raises(DiskFull):
                grow(group, 1)
        assert contents(disk) == before

    def test_a_group_that_needs_a_roll_may_end_half_way_and_says_where(self):
        disk, group = a_disk_with(2 * FRAMES_PER_FILE - 2)
        disk.hook = self.full
        entries = group.seal([b"12345678k"] * 5)
        with pytest.raises(DiskFull):
            group.group.append(entries)
        assert group.group.journal.durable == 20
        assert group.group.journal.commit == 20
        again = a_group(disk.power_cut(everything(disk)))
        assert again.head == 20
        group.group.journal.append([])
        disk.hook = None
        assert group.group.append(entries[2:]) == 23
        assert group.group.journal.read(Op(23)).body == entries[-1].body
