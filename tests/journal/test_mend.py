"""In-place writes: a crash inside any of them leaves what the next recovery understands."""

import errno

import pytest
from tests.journal.builders import (
    CLUSTER,
    Recorder,
    a_body,
    a_disk_with,
    a_group,
    an_entry,
    bodies_of,
    contents,
    crash,
    effects_of,
    everything,
    frame_of,
    grow,
    prepare,
    rot_body,
    torn_append,
)

from headrace.errors import CorruptFile, NotNext, StorageFailed
from headrace.journal.recovery import mend
from headrace.journal.superblock import read_copies
from headrace.model.ids import Op
from headrace_lab.disk.faults import CrashAfter, Fail


def cut(group, first):
    mend.cut(group.group.journal, group.group.superblock, Op(first))


class TestCut:
    @pytest.mark.parametrize("first", [1, 2, 5, 10, 11, 12, 20, 21, 24, 25])
    def test_removes_every_op_from_the_first_on(self, first):
        disk, group = a_disk_with(25, CLUSTER)
        cut(group, first)
        assert group.head == first - 1
        assert sorted(bodies_of(group)) == list(range(1, first))
        again = a_group(disk.power_cut(), CLUSTER)
        assert again.head == first - 1
        assert again.report.cut is None

    @pytest.mark.parametrize("first", [5, 10, 11, 21])
    def test_appends_go_on_from_there_with_other_entries(self, first):
        disk, group = a_disk_with(25, CLUSTER)
        cut(group, first)
        journal = group.group.journal
        entries = group.seal([a_body(50)] * 15)
        journal.append(entries)
        again = a_group(disk.power_cut(), CLUSTER)
        assert again.head == first + 14
        assert len(bodies_of(again)[first]) == 50

    def test_is_an_intent_first_and_cleared_last(self):
        disk, group = a_disk_with(25)
        effects = effects_of(disk, lambda: cut(group, 5))
        paths = [effect.path for effect in effects]
        touched = [at for at, path in enumerate(paths) if path.startswith("journal")]
        names = [at for at, path in enumerate(paths) if path == "."]
        assert len(names) == 4
        assert names[1] < touched[0]
        assert touched[-1] < names[2]

    def test_unlinks_later_files_newest_first(self):
        disk, group = a_disk_with(25)
        effects = effects_of(disk, lambda: cut(group, 5))
        unlinked = [e.path for e in effects if e.kind == "unlink" and "journal" in e.path]
        assert unlinked == sorted(unlinked, reverse=True)
        assert len(unlinked) == 2

    @pytest.mark.parametrize("first", [5, 11, 24])
    def test_a_crash_inside_it_is_finished_by_the_next_recovery(self, first):
        for number in range(1, len(effects_of_cut(first)) + 1):
            disk, group = uncommitted_from(first)
            disk.hook = Recorder(number, CrashAfter())
            with crash():
                cut(group, first)
            for after in (disk.power_cut(), disk.power_cut(everything(disk)), disk.kill()):
                superblock = read_copies(after.root, group.group.journal.identity).best
                again = a_group(after)
                if superblock.cut_from == first:
                    assert again.head == first - 1
                    assert again.report.cut.first == first
                else:
                    assert again.head in (first - 1, 25)
                grow(again, 3)
                assert a_group(after.power_cut()).head == again.head

    def test_frames_above_a_pending_intent_do_not_count(self):
        disk, group = uncommitted_from(8)
        group.group.journal.mark()
        group.group.superblock.write(cut_from=Op(8))
        again = a_group(disk.kill())
        assert again.head == 7
        assert again.report.cut.first == 8
        assert sorted(bodies_of(again)) == list(range(1, 8))

    def test_an_intent_to_cut_what_was_committed_is_refused(self):
        disk, group = a_disk_with(10)
        group.group.superblock.write(cut_from=Op(8))
        group.group.journal.close()
        before = contents(disk)
        with pytest.raises(CorruptFile, match="an unfinished cut from op 8"):
            a_group(disk)
        assert contents(disk) == before

    @pytest.mark.parametrize("name", ["superblock.a.tmp", "superblock.b.tmp"])
    def test_without_room_for_the_intent_nothing_may_be_appended(self, name):
        disk, group = a_disk_with(5)
        prepare(group, 3)
        disk.hook = lambda effect: (
            Fail(errno.ENOSPC) if effect.path == name and effect.kind == "write" else None
        )
        with pytest.raises(StorageFailed, match="cut"):
            cut(group, 6)
        disk.hook = None
        with pytest.raises(StorageFailed, match="cut"):
            grow(group, 1)
        assert a_group(disk.kill()).head in (5, 8)

    def test_a_reader_finds_no_zeros_where_a_cut_entry_was(self):
        disk, group = a_disk_with(5)
        prepare(group, 3)
        journal = group.group.journal
        seen = []
        disk.hook = lambda effect: (
            seen.append(journal.read(Op(7))) if effect.path.startswith("journal") else None
        )
        cut(group, 6)
        assert seen
        assert all(entry is None for entry in seen)

    def test_an_interrupted_recovery_cuts_the_same(self):
        disk, group = a_disk_with(3)
        torn = torn_append(disk, group, [a_body()] * 2, 500)
        whole = torn.clone()
        expected = a_group(whole)
        effect_count = len(effects_of_recovery(torn))
        for number in range(1, effect_count + 1):
            dying = torn.clone()
            dying.hook = Recorder(number, CrashAfter())
            with crash():
                a_group(dying)
            again_disk = dying.power_cut()
            again = a_group(again_disk)
            assert again.head == expected.head == 4
            assert contents(again_disk, but="superblock") == contents(whole, but="superblock")


def uncommitted_from(first):
    disk, group = a_disk_with(first - 1)
    prepare(group, 26 - first)
    return disk, group


def effects_of_cut(first):
    disk, group = uncommitted_from(first)
    return effects_of(disk, lambda: cut(group, first))


def effects_of_recovery(disk):
    copy = disk.clone()
    return effects_of(copy, lambda: a_group(copy))


class TestRewrite:
    def test_writes_every_frame_above_the_proven_op_where_it_stands(self):
        disk, group = a_disk_with(12)
        before = contents(disk)
        effects = effects_of(disk, lambda: mend.rewrite(group.group.journal, Op(8)))
        assert contents(disk) == before
        assert [e.kind for e in effects] == ["write"] * 4 + ["sync"] * 2

    def test_of_nothing_is_no_effect(self):
        disk, group = a_disk_with(12)
        assert effects_of(disk, lambda: mend.rewrite(group.group.journal, Op(12))) == []


class TestRepair:
    def faulty_group(self):
        disk, group = a_disk_with(5, CLUSTER)
        group.group.idle()
        disk = disk.kill()
        place = frame_of(group, 3)
        rot_body(disk, place)
        again = a_group(disk, CLUSTER)
        return disk, again, again.report.faulty[0], group.sealed[2]

    def test_takes_the_entry_with_the_very_checksum(self):
        disk, group, faulty, lost = self.faulty_group()
        mend.repair(group.group.journal, faulty, lost)
        assert group.group.journal.ring.get(Op(3)).sealed == lost.sealed
        assert a_group(disk.power_cut(), CLUSTER).head == 5

    @pytest.mark.parametrize(("op", "field"), [(4, "op"), (3, "checksum")])
    def test_refuses_any_other_before_a_byte_is_written(self, op, field):
        disk, group, faulty, lost = self.faulty_group()
        other = an_entry(op, lost.header.parent, b"other", CLUSTER)
        recorder = disk.hook = Recorder()
        with pytest.raises(NotNext) as caught:
            mend.repair(group.group.journal, faulty, other)
        assert caught.value.field == field
        assert recorder.effects == []
