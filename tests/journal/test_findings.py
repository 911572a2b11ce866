"""What a scan can find in frames, and the one response to each, alone and in a cluster."""

import pytest
from tests.journal.builders import (
    CLUSTER,
    FILE_1,
    FILE_11,
    FRAME_SIZE,
    Place,
    a_body,
    a_disk_with,
    a_group,
    an_entry,
    bodies_of,
    catch_up,
    checkpoint,
    crash,
    either,
    forge,
    frame_of,
    grow,
    grow_to_second_checkpoint,
    grow_together,
    position_of,
    refused_start,
    rot_body,
    rot_prefix,
    superblock_of,
    torn_append,
    wipe,
)

from headrace.errors import (
    ChainBroken,
    CorruptEntry,
)
from headrace.journal.frame import PREFIX_SIZE
from headrace.journal.journal_file import BLOCK_SIZE
from headrace.journal.recovery import mend
from headrace.journal.recovery.recovery_report import TailCut
from headrace.journal.snapshot import SnapshotFiles
from headrace.journal.superblock import NAMES
from headrace.model.ids import Op
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.faults import CrashAfter, Keep
from headrace_lab.disk.memory import MemoryDisk


class TestCleanEnd:
    @either
    def test_nothing_is_cut_and_nothing_is_suspect(self, identity):
        disk, _ = a_disk_with(3, identity)
        again = a_group(disk.power_cut(), identity)
        assert again.head == 3
        assert again.report.cut is None
        assert again.report.suspect is None
        assert again.report.notes == ()

    @either
    def test_an_append_of_which_nothing_landed_leaves_one(self, identity):
        disk, group = a_disk_with(3, identity)
        after = torn_append(disk, group, [a_body()], 0)
        report = a_group(after, identity).report
        assert (report.head, report.cut, report.suspect) == (3, None, None)

    def test_an_earlier_life_behind_the_head_is_no_trace(self):
        disk = MemoryDisk()
        group = a_group(disk)
        for _ in range(2):
            grow(group, 14)
            checkpoint(group)
        grow(group, 3)
        recycled = group.group.journal.newest
        assert any(disk.content(recycled.path)[recycled.end :])
        again = a_group(disk.power_cut())
        assert again.head == 33
        assert again.report.cut is None


class TestTornTail:
    @pytest.mark.parametrize("done", [1, 24, 63, 64, 100, 319, 320, 331])
    def test_alone_it_is_cut(self, done):
        disk, group = a_disk_with(3)
        again = a_group(torn_append(disk, group, [a_body()], done))
        assert again.head == 3
        assert again.report.suspect is None
        traced = done >= 24  # from there on the file's id is there to be seen
        assert again.report.cut == (TailCut(Op(4), Op(4), FILE_1) if traced else None)
        assert not any(disk_after(again).content(FILE_1)[position_of(4) :]) or not traced

    def test_in_a_cluster_what_is_cut_is_suspect(self):
        disk, group = a_disk_with(3, CLUSTER)
        after = torn_append(disk, group, [a_body()] * 3, FRAME_SIZE + 100)
        again = a_group(after, CLUSTER)
        assert again.report.cut == TailCut(Op(5), Op(5), FILE_1)
        assert again.report.suspect == (5, 5)
        assert superblock_of(after, CLUSTER).suspect == (5, 5)

    @pytest.mark.parametrize(("identity", "suspect"), [(SOLO, None), (CLUSTER, (4, 6))])
    def test_it_reaches_to_the_highest_header_that_can_be_read(self, identity, suspect):
        disk, group = a_disk_with(3, identity)
        disk.hook = lambda effect: CrashAfter() if effect.kind == "write" else None
        with crash():
            group.append([a_body()] * 3)
        third_only = Keep(0, ((2 * FRAME_SIZE, 3 * FRAME_SIZE),))
        again = a_group(disk.power_cut([third_only]), identity)
        assert again.report.cut == TailCut(Op(4), Op(6), FILE_1)
        assert again.report.suspect == suspect

    def test_the_suspect_range_is_durable_before_a_byte_is_cut(self):
        disk, group = a_disk_with(3, CLUSTER)
        after = torn_append(disk, group, [a_body()], 200)
        torn = after.content(FILE_1)
        after.hook = lambda effect: CrashAfter() if effect.path == FILE_1 else None
        with crash():
            a_group(after, CLUSTER)
        found = after.power_cut()
        assert found.content(FILE_1) == torn
        assert superblock_of(found, CLUSTER).suspect == (4, 4)
        assert superblock_of(found, CLUSTER).cut_from == 4

    def test_the_suspect_range_outlives_the_cut_and_later_recoveries(self):
        disk, group = a_disk_with(3, CLUSTER)
        disk = torn_append(disk, group, [a_body()], 200)
        for _ in range(3):
            report = a_group(disk, CLUSTER).report
            assert report.suspect == (4, 4)
            disk = disk.power_cut()
        assert report.cut is None

    def test_two_suspect_ranges_become_one(self):
        disk, group = a_disk_with(3, CLUSTER)
        disk = torn_append(disk, group, [a_body()], 200)
        group = a_group(disk, CLUSTER)
        grow(group, 2)
        disk = torn_append(disk, group, [a_body()], 200)
        assert a_group(disk, CLUSTER).report.suspect == (4, 6)

    def test_a_cut_is_durable_before_the_next_append(self):
        disk, group = a_disk_with(3)
        disk = torn_append(disk, group, [a_body()], 331)
        group = a_group(disk)
        disk = torn_append(disk, group, [a_body(24)], 0)
        again = a_group(disk)
        assert again.head == 3
        assert again.report.cut is None
        assert grow(again, 1) == 4

    def test_crash_recover_append_crash_keeps_every_acknowledged_entry(self):
        disk, group = a_disk_with(3)
        for size in (12, 40, 100):
            disk = torn_append(disk, group, [a_body()], 331)
            group = a_group(disk)
            grow(group, 1, size)
        found = bodies_of(a_group(disk.power_cut()))
        assert [len(body) for body in found.values()] == [12, 12, 12, 12, 40, 100]

    def test_a_whole_frame_behind_the_torn_one_is_no_evidence(self):
        disk, group = a_disk_with(3)
        disk.hook = lambda effect: CrashAfter() if effect.kind == "write" else None
        with crash():
            group.append([a_body()] * 2)
        second_only = Keep(0, ((FRAME_SIZE, 2 * FRAME_SIZE),))
        again = a_group(disk.power_cut([second_only]))
        assert again.head == 3
        assert again.report.cut == TailCut(Op(4), Op(5), FILE_1)


def disk_after(group) -> MemoryDisk:
    return group.group.journal.directory._disk


def by_the_next_group(group):
    grow(group, 1)


def by_a_mark(group):
    group.group.idle()


def by_a_commit_in_the_superblock(group):
    group.group.superblock.write(commit=group.head)


def by_a_clean_stop(group):
    group.group.stop()


def by_a_snapshot_of_which_only_the_file_is_good(group):
    state = group.machine.snapshot()
    journal = group.group.journal
    group.group.checkpoints.snapshots.persist(journal.durable, journal.tip, state)


def by_the_name_of_the_next_file(group):
    journal = group.group.journal
    journal.spares.enlist(
        journal.directory, journal.identity, Op(journal.durable + 1), journal.tip, 4096
    )


EVIDENCE = [by_the_next_group, by_a_mark, by_a_commit_in_the_superblock, by_a_clean_stop]
EVIDENCE += [by_the_name_of_the_next_file]


class TestDamageWithEvidence:
    @pytest.mark.parametrize(
        "damage", [rot_body, rot_prefix, wipe], ids=lambda one: one.__name__
    )
    @pytest.mark.parametrize("prove", EVIDENCE, ids=lambda one: one.__name__)
    def test_alone_it_is_refused_by_name(self, prove, damage):
        disk, group = a_disk_with(3)
        place = frame_of(group, 3)
        prove(group)
        disk = disk.kill()
        damage(disk, place)
        error = refused_start(disk, CorruptEntry)
        assert error.path == FILE_1
        assert "Nothing was changed" in error.hint
        if damage is not wipe:
            assert error.position == place.position
            assert error.expected != error.found

    @pytest.mark.parametrize(
        "damage", [rot_body, rot_prefix, wipe], ids=lambda one: one.__name__
    )
    def test_without_evidence_the_same_damage_is_a_torn_tail(self, damage):
        disk, group = a_disk_with(2)
        grow(group, 1)
        place = frame_of(group, 3)
        disk = disk.kill()
        damage(disk, place)
        again = a_group(disk)
        assert again.head == 2
        assert again.report.cut == (None if damage is wipe else TailCut(Op(3), Op(3), FILE_1))

    def test_a_snapshot_file_is_evidence_even_if_no_superblock_names_it(self):
        disk, group = a_disk_with(3)
        by_a_snapshot_of_which_only_the_file_is_good(group)
        rot_body(disk, frame_of(group, 3))
        again = a_group(disk.kill())
        assert again.report.snapshot_op == 3
        assert [one.op for one in again.report.faulty] == [3]

    def test_a_superblock_that_was_rebuilt_may_be_evidence_no_more(self):
        disk, group = a_disk_with(3)
        by_a_commit_in_the_superblock(group)
        disk = disk.kill()
        rot_body(disk, frame_of(group, 3))
        for name in NAMES:
            disk.remove(name)
        again = a_group(disk)
        assert again.head == 2
        assert again.report.superblock_rebuilt

    def test_in_a_cluster_the_slot_is_faulty_and_its_checksum_known(self):
        disk, group = a_disk_with(5, CLUSTER)
        group.group.idle()
        place, lost = frame_of(group, 3), group.sealed[2]
        disk = disk.kill()
        rot_body(disk, place)
        report = a_group(disk, CLUSTER).report
        (faulty,) = report.faulty
        assert (faulty.op, faulty.checksum) == (3, lost.checksum)
        assert (faulty.path, faulty.position) == (FILE_1, place.position)
        assert report.cut is None
        assert report.suspect is None

    @pytest.mark.parametrize(
        "damage", [rot_body, rot_prefix, wipe], ids=lambda one: one.__name__
    )
    @pytest.mark.parametrize("op", [1, 3, 5])
    def test_in_a_cluster_a_repair_brings_everything_back(self, op, damage):
        disk, group = a_disk_with(5, CLUSTER)
        group.group.idle()
        expected = bodies_of(group)
        lost, place = group.sealed[op - 1], frame_of(group, op)
        disk = disk.kill()
        damage(disk, place)
        again = a_group(disk, CLUSTER)
        (faulty,) = again.report.faulty
        assert faulty.checksum == lost.checksum
        mend.repair(again.group.journal, faulty, lost)
        whole = a_group(disk.power_cut(), CLUSTER)
        assert whole.report.faulty == ()
        assert whole.head == 5
        assert bodies_of(whole) == expected

    def test_in_a_cluster_a_last_entry_that_nothing_names_is_suspect(self):
        disk, group = a_disk_with(3, CLUSTER)
        by_a_commit_in_the_superblock(group)
        place = frame_of(group, 3)
        disk = disk.kill()
        rot_prefix(disk, place)
        again = a_group(disk, CLUSTER)
        assert (again.head, again.report.suspect[0]) == (2, 3)
        assert again.report.suspect[1] >= 3  # behind it nobody can tell how many there were
        assert "op 3 was acknowledged" in again.report.problem
        assert grow(again, 2) == 4
        assert a_group(disk.power_cut(), CLUSTER).head == 4

    def test_in_a_cluster_appends_go_on_above_a_faulty_slot(self):
        disk, group = a_disk_with(5, CLUSTER)
        group.group.idle()
        lost = group.sealed[2]
        disk = disk.kill()
        rot_body(disk, frame_of(group, 3))
        again = a_group(disk, CLUSTER)
        assert again.head == 5
        assert again.group.applied == 2
        again.group.append(again.seal([a_body()]))
        again.group.idle()
        third = a_group(disk.power_cut(), CLUSTER)
        assert third.head == 6
        assert third.report.cut is None
        (faulty,) = third.report.faulty
        mend.repair(third.group.journal, faulty, lost)
        catch_up(third)
        assert sorted(bodies_of(third)) == [1, 2, 3, 4, 5, 6]

    def test_two_frames_in_a_row_are_both_faulty(self):
        disk, group = a_disk_with(6, CLUSTER)
        group.group.idle()
        for op in (3, 4):
            rot_prefix(disk, frame_of(group, op))
        report = a_group(disk.kill(), CLUSTER).report
        checksums = [None, group.sealed[3].checksum]
        assert [(one.op, one.checksum) for one in report.faulty] == list(
            zip((3, 4), checksums, strict=True)
        )

    def test_an_unreadable_sector_is_damage_not_a_crash(self):
        disk, group = a_disk_with(5)
        group.group.idle()
        disk = disk.kill()
        bad = position_of(3)
        disk.read_fault = lambda path, at, size: (
            5 if path == FILE_1 and at < bad + 512 and bad < at + size else None
        )
        error = refused_start(disk, CorruptEntry)
        assert (error.path, error.position) == (FILE_1, bad)


class TestDamageBelowTheSnapshot:
    @either
    @pytest.mark.parametrize(
        "damage", [rot_body, rot_prefix, wipe], ids=lambda one: one.__name__
    )
    @pytest.mark.parametrize("op", [6, 9])
    def test_it_is_reported_and_costs_nothing(self, op, damage, identity):
        disk = MemoryDisk()
        group = a_group(disk, identity)
        grow_to_second_checkpoint(group)
        group.group.idle()
        place = frame_of(group, op)
        disk = disk.kill()
        damage(disk, place)
        again = a_group(disk, identity)
        assert again.head == 12
        assert again.report.snapshot_op == 10
        assert [one.op for one in again.report.faulty] == [op]
        assert again.machine.digest() == group.machine.digest()

    def test_at_the_snapshot_itself_as_well(self):
        disk = MemoryDisk()
        group = a_group(disk)
        grow_to_second_checkpoint(group)
        disk = disk.kill()
        rot_body_of_seal = frame_of(group, 10)
        disk.flip(rot_body_of_seal.path, (rot_body_of_seal.position + PREFIX_SIZE) * 8)
        again = a_group(disk)
        assert again.head == 12
        assert [one.op for one in again.report.faulty] == [10]

    def test_damage_up_to_the_end_of_the_newest_file_moves_on_to_a_new_one(self):
        disk = MemoryDisk()
        group = a_group(disk)
        grow(group, 4)
        checkpoint(group)
        disk = disk.kill()
        disk.overwrite(FILE_1, position_of(4), bytes(2 * FRAME_SIZE))
        again = a_group(disk)
        assert again.head == 5
        assert again.group.journal.newest.header.first_op == 6
        grow(again, 2)
        last = a_group(disk.power_cut())
        assert last.head == 7
        assert sorted(op for op in bodies_of(last) if op > 5) == [6, 7]


class TestChainBreak:
    def forged(self, identity):
        disk, group = a_disk_with(6, identity)
        group.group.idle()
        stranger = an_entry(4, bytes(16), a_body(), identity)
        forge(disk, group, frame_of(group, 4), stranger, durable=3)
        return disk.kill(), group, stranger

    def test_alone_it_is_refused_by_name(self):
        disk, group, stranger = self.forged(SOLO)
        error = refused_start(disk, ChainBroken)
        assert (error.path, error.position) == (FILE_1, position_of(4))
        assert error.expected == group.sealed[2].checksum.hex()
        assert error.found == stranger.header.parent.hex()

    def test_in_a_cluster_the_proven_prefix_is_kept_and_the_rest_suspect(self):
        disk, _, _ = self.forged(CLUSTER)
        again = a_group(disk, CLUSTER)
        assert again.head == 3
        assert again.report.cut.first == 4
        assert again.report.suspect[0] == 4
        assert again.report.suspect[1] >= 6  # behind a break nobody can tell how many
        assert sorted(bodies_of(again)) == [1, 2, 3]
        assert grow(again, 1) == 4
        assert a_group(disk.power_cut(), CLUSTER).head == 4

    def test_a_snapshot_that_the_journal_does_not_go_on_from_is_a_break(self):
        disk, group = a_disk_with(3)
        snapshots = SnapshotFiles(disk.root.child("snapshots"), SOLO)
        snapshots.persist(Op(2), bytes(16), group.machine.snapshot())
        error = refused_start(disk.kill(), ChainBroken)
        assert "op 3 does not follow the snapshot at op 2" in str(error)

    def test_a_successor_with_another_parent_is_a_break(self):
        disk, _ = a_disk_with(12)
        stranger = MemoryDisk()
        group = a_group(stranger)
        grow_together(group, [a_body(13)])
        grow(group, 11)
        disk = disk.kill()
        disk.put(FILE_11, stranger.content(FILE_11))
        error = refused_start(disk, ChainBroken)
        assert (error.path, error.position) == (FILE_11, 0)


class TestReadersEdges:
    """Frames around and beyond the reader's window of 64 KiB, and files of a single entry."""

    @pytest.mark.parametrize("size", [65_535 - 320, 65_536 - 320, 65_536, 65_537, 200_000])
    @pytest.mark.parametrize("around", [0, 3])
    def test_a_frame_larger_than_the_window_is_found_again(self, size, around):
        disk = MemoryDisk()
        group = a_group(disk, file_size=1024 * 1024)
        grow(group, around)
        grow(group, 1, size)
        grow(group, around)
        expected = bodies_of(group)
        again = a_group(disk.power_cut(), file_size=1024 * 1024)
        assert bodies_of(again) == expected
        assert again.report.cut is None

    def test_damage_in_a_large_frame_is_placed_exactly(self):
        disk = MemoryDisk()
        group = a_group(disk, file_size=1024 * 1024)
        grow(group, 1)
        grow(group, 1, 150_000)
        grow(group, 1)
        place = frame_of(group, 2)
        disk = disk.kill()
        disk.flip(place.path, (place.end - 100) * 8)
        error = refused_start(disk, CorruptEntry, file_size=1024 * 1024)
        assert error.position == place.position
        assert "op 2" in str(error)

    def test_an_entry_larger_than_a_file_gets_a_file_of_its_own_size(self):
        disk, group = a_disk_with(3)
        grow(group, 1, 100_000)
        grow(group, 2)
        sizes = [file.header.size for file in group.group.journal.files]
        assert sizes[1] > 100_000
        assert sizes[1] % BLOCK_SIZE == 0
        again = a_group(disk.power_cut())
        assert bodies_of(again) == bodies_of(group)
        assert [file.header.size for file in again.group.journal.files] == sizes


class TestPlaces:
    def test_the_arithmetic_of_these_tests_is_that_of_the_journal(self):
        _, group = a_disk_with(12)
        for op in range(1, 13):
            path = FILE_1 if op <= 10 else FILE_11
            assert frame_of(group, op) == Place(path, position_of(op), FRAME_SIZE)
