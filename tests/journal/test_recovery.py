"""Every finding of a recovery and the one response to it, alone and in a cluster."""

from dataclasses import replace

import pytest
from tests.journal.builders import (
    BOTH,
    CLUSTER,
    FRAME_SIZE,
    FRAMES_PER_FILE,
    Grown,
    Place,
    Recorder,
    a_body,
    a_disk_with,
    a_group,
    an_entry,
    bodies_of,
    catch_up,
    checkpoint,
    contents,
    crash,
    everything,
    forge,
    frame_of,
    grow,
    grow_to_second_checkpoint,
    grow_together,
    journal_path,
    numbered_ids,
    rot_body,
    rot_prefix,
    snapshot_path,
    some_options,
    torn_append,
    wipe,
)
from xxhash import xxh3_128_digest

from headrace.errors import (
    ApplyFailed,
    ChainBroken,
    CorruptEntry,
    CorruptFile,
    CorruptSnapshot,
    ForeignFile,
    MissingFile,
    Rejected,
    TooFewSlots,
    UnsupportedFormat,
)
from headrace.journal import mend
from headrace.journal.entry import SEAL
from headrace.journal.file import BLOCK_SIZE, FIRST_POSITION
from headrace.journal.frame import PREFIX_SIZE
from headrace.journal.recovery import recover
from headrace.journal.report import Cut
from headrace.journal.snapshot import SnapshotFiles
from headrace.journal.superblock import NAMES, encode, read_copies
from headrace.model.ids import OP_MAX, GroupId, Op, ReplicaId
from headrace.sim.counter import CounterMachine
from headrace.sim.solo import SOLO
from headrace.storage.faults import CrashAfter, Keep, LoseSync
from headrace.storage.file import FileDirectory
from headrace.storage.memory import MemoryDisk

FILE_1 = journal_path(1)
FILE_11 = journal_path(11)
FILE_21 = journal_path(21)

either = pytest.mark.parametrize("identity", BOTH.values(), ids=BOTH)


def refused(disk, error, identity=SOLO, **changes):
    """The group must refuse to start, and leave every byte as it was."""
    before = contents(disk)
    with pytest.raises(error) as caught:
        a_group(disk, identity, **changes)
    assert contents(disk) == before
    return caught.value


def position_of(op: int) -> int:
    """Where the frame of `op` begins in a file of entries with `a_body()`."""
    return FIRST_POSITION + (op - 1) % FRAMES_PER_FILE * FRAME_SIZE


def superblock_of(disk, identity=SOLO):
    return read_copies(disk.root, identity).best


class TestNewDirectory:
    def test_an_empty_directory_becomes_a_group(self):
        disk = MemoryDisk()
        group = a_group(disk)
        assert group.report.is_new
        assert group.report.lines() == ["made a new group"]
        assert group.head == 0

    def test_a_new_group_survives_a_power_cut_at_once(self):
        disk = MemoryDisk()
        a_group(disk)
        again = a_group(disk.power_cut())
        assert not again.report.is_new
        assert again.head == 0

    def test_without_create_an_empty_directory_is_not_a_group(self):
        with pytest.raises(MissingFile, match="not a group"):
            a_group(MemoryDisk(), create=False)

    def test_a_crash_while_it_is_made_leaves_a_group_or_nothing(self):
        recorder = Recorder()
        a_group(MemoryDisk(hook=recorder))
        for number in range(1, len(recorder.effects) + 1):
            disk = MemoryDisk(hook=Recorder(number, CrashAfter()))
            with crash():
                a_group(disk)
            for after in (disk.power_cut(), disk.power_cut(everything(disk)), disk.kill()):
                again = a_group(after)
                assert again.head == 0
                assert grow(again, 1) == 1


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
        assert again.report.cut == (Cut(Op(4), Op(4), FILE_1) if traced else None)
        assert not any(disk_after(again).content(FILE_1)[position_of(4) :]) or not traced

    def test_in_a_cluster_what_is_cut_is_suspect(self):
        disk, group = a_disk_with(3, CLUSTER)
        after = torn_append(disk, group, [a_body()] * 3, FRAME_SIZE + 100)
        again = a_group(after, CLUSTER)
        assert again.report.cut == Cut(Op(5), Op(5), FILE_1)
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
        assert again.report.cut == Cut(Op(4), Op(6), FILE_1)
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
        assert again.report.cut == Cut(Op(4), Op(5), FILE_1)


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
        error = refused(disk, CorruptEntry)
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
        assert again.report.cut == (None if damage is wipe else Cut(Op(3), Op(3), FILE_1))

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
        error = refused(disk, CorruptEntry)
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
        error = refused(disk, ChainBroken)
        assert (error.path, error.position) == (FILE_1, position_of(4))
        assert error.expected == group.sealed[2].checksum.hex()
        assert error.found == stranger.header.parent.hex()

    def test_in_a_cluster_the_proven_prefix_is_kept_and_the_rest_suspect(self):
        disk, _, _ = self.forged(CLUSTER)
        again = a_group(disk, CLUSTER)
        assert again.head == 3
        assert again.report.cut.first == 4
        assert again.report.suspect == (4, 6)
        assert sorted(bodies_of(again)) == [1, 2, 3]
        assert grow(again, 1) == 4
        assert a_group(disk.power_cut(), CLUSTER).head == 4

    def test_a_snapshot_that_the_journal_does_not_go_on_from_is_a_break(self):
        disk, group = a_disk_with(3)
        snapshots = SnapshotFiles(disk.root.child("snapshots"), SOLO)
        snapshots.persist(Op(2), bytes(16), group.machine.snapshot())
        error = refused(disk.kill(), ChainBroken)
        assert "op 3 does not follow the snapshot at op 2" in str(error)

    def test_a_successor_with_another_parent_is_a_break(self):
        disk, _ = a_disk_with(12)
        stranger = MemoryDisk()
        group = a_group(stranger)
        grow_together(group, [a_body(13)])
        grow(group, 11)
        disk = disk.kill()
        disk.put(FILE_11, stranger.content(FILE_11))
        error = refused(disk, ChainBroken)
        assert (error.path, error.position) == (FILE_11, 0)


class TestMissingFile:
    def three_files(self, identity=SOLO):
        disk, group = a_disk_with(25, identity)
        group.group.idle()
        return disk.kill(), group

    @pytest.mark.parametrize(
        ("gone", "path", "words"),
        [
            (FILE_11, FILE_1, "the file after it is gone, with the ops from 11 to 20"),
            (FILE_21, FILE_11, "the file after it is gone, with the ops from 21"),
        ],
    )
    def test_alone_it_is_refused_by_name(self, gone, path, words):
        disk, _ = self.three_files()
        disk.remove(gone)
        error = refused(disk, MissingFile)
        assert error.path == path
        assert words in str(error)

    def test_alone_a_missing_first_file_is_refused_by_the_name_of_the_second(self):
        disk, _ = self.three_files()
        disk.remove(FILE_1)
        error = refused(disk, MissingFile)
        assert (error.path, error.expected, error.found) == (FILE_11, "first op at most 1", 11)

    @pytest.mark.parametrize(
        ("gone", "head", "suspect"), [(FILE_11, 10, (11, 25)), (FILE_21, 20, (21, OP_MAX))]
    )
    def test_in_a_cluster_the_prefix_stays_and_the_rest_is_suspect(self, gone, head, suspect):
        disk, _ = self.three_files(CLUSTER)
        disk.remove(gone)
        again = a_group(disk, CLUSTER)
        assert again.head == head
        assert again.report.suspect == suspect
        assert "is gone" in again.report.problem
        assert sorted(bodies_of(again)) == list(range(1, head + 1))
        assert grow(again, 2) == head + 2
        last = a_group(disk.power_cut(), CLUSTER)
        assert last.head == head + 2
        assert last.report.cut is None

    def test_below_the_snapshot_it_is_noted(self):
        disk, group = a_disk_with(25)
        checkpoint(group)
        disk = disk.kill()
        disk.remove(FILE_11)
        again = a_group(disk)
        assert again.head == 26
        assert any("the snapshot covers them" in note.what for note in again.report.notes)
        assert grow(again, 1) == 27

    @pytest.mark.parametrize("gone", [[FILE_1], [FILE_1, FILE_11]], ids=["one", "two"])
    def test_in_a_cluster_a_lost_beginning_costs_everything_behind_it(self, gone):
        disk, _ = self.three_files(CLUSTER)
        for path in gone:
            disk.remove(path)
        again = a_group(disk, CLUSTER)
        assert (again.head, again.report.suspect) == (0, (1, 25))
        assert [file.name for file in again.group.journal.files] == [FILE_1.split("/")[1]]
        grow(again, 3)
        again.group.idle()
        last = a_group(disk.power_cut(), CLUSTER)
        assert (last.head, last.report.suspect) == (3, (1, 25))
        assert last.report.cut is None

    @pytest.mark.parametrize("snapshot", [False, True])
    def test_in_a_cluster_no_file_at_all_is_a_new_one_and_everything_suspect(self, snapshot):
        disk, group = a_disk_with(3, CLUSTER)
        if snapshot:
            checkpoint(group)
        disk = disk.kill()
        disk.remove(FILE_1)
        again = a_group(disk, CLUSTER)
        base = 4 if snapshot else 0
        assert again.head == base
        assert again.report.suspect == (base + 1, OP_MAX)
        assert "no file" in again.report.problem
        assert grow(again, 2) == base + 2
        assert a_group(disk.power_cut(), CLUSTER).head == base + 2

    def test_alone_no_file_at_all_is_refused(self):
        disk, group = a_disk_with(3)
        checkpoint(group)
        disk = disk.kill()
        disk.remove(FILE_1)
        error = refused(disk, MissingFile)
        assert "the journal has no file" in str(error)

    def test_a_frozen_file_whose_end_frame_is_gone_loses_nothing(self):
        disk, _ = self.three_files()
        end = position_of(10) + FRAME_SIZE
        disk.overwrite(FILE_1, end, bytes(PREFIX_SIZE))
        again = a_group(disk)
        assert again.head == 25
        (note,) = again.report.notes
        assert (note.path, note.position, note.what, note.mended) == (
            FILE_1,
            end,
            "end frame",
            True,
        )
        assert a_group(disk.power_cut()).report.notes == ()

    def test_the_last_entries_of_a_frozen_file_zeroed_are_damage(self):
        disk, _ = self.three_files()
        disk.overwrite(FILE_1, position_of(9), bytes(2 * FRAME_SIZE + PREFIX_SIZE))
        error = refused(disk, CorruptEntry)
        assert error.path == FILE_1
        assert "op 9 was acknowledged" in str(error)

    def test_acknowledged_entries_zeroed_at_the_end_of_the_newest_are_damage(self):
        disk, group = a_disk_with(5)
        by_a_commit_in_the_superblock(group)
        disk = disk.kill()
        disk.overwrite(FILE_1, position_of(4), bytes(2 * FRAME_SIZE))
        error = refused(disk, CorruptEntry)
        assert "ops 4 to 5 were acknowledged" in str(error)
        assert (error.expected, error.found) == ("head 5", 3)


class TestHeaderBlocks:
    @either
    @pytest.mark.parametrize("block", [0, 1])
    def test_one_bad_block_is_written_again(self, block, identity):
        disk, group = a_disk_with(3, identity)
        expected, disk = bodies_of(group), disk.kill()
        whole = disk.content(FILE_1)
        disk.flip(FILE_1, (block * BLOCK_SIZE + 100) * 8)
        again = a_group(disk, identity)
        (note,) = again.report.notes
        assert (note.path, note.position, note.mended) == (FILE_1, block * BLOCK_SIZE, True)
        assert disk.power_cut().content(FILE_1)[:FIRST_POSITION] == whole[:FIRST_POSITION]
        assert bodies_of(again) == expected

    def test_alone_both_bad_refuse_and_the_file_stays(self):
        disk, _ = a_disk_with(15)
        disk = disk.kill()
        disk.overwrite(FILE_11, 0, bytes(FIRST_POSITION))
        error = refused(disk, CorruptFile)
        assert (error.path, error.position) == (FILE_11, 0)
        assert "the ops from 11 are out of reach" in str(error)

    def test_in_a_cluster_both_bad_cost_the_file_and_it_is_set_aside(self):
        disk, group = a_disk_with(15, CLUSTER)
        group.group.idle()
        disk = disk.kill()
        disk.overwrite(FILE_11, 0, bytes(FIRST_POSITION))
        damaged = disk.content(FILE_11)
        again = a_group(disk, CLUSTER)
        assert again.head == 10
        assert again.report.quarantined == (FILE_11,)
        assert disk.content("quarantine/" + FILE_11.split("/")[1]) == damaged
        assert again.report.suspect[0] == 11
        assert grow(again, 1) == 11

    def test_blocks_that_differ_are_not_believed(self):
        disk, _ = a_disk_with(15)
        disk = disk.kill()
        disk.overwrite(FILE_11, 0, disk.content(FILE_1)[:BLOCK_SIZE])
        error = refused(disk, CorruptFile)
        assert "header blocks" in str(error)

    def test_a_file_under_the_name_of_another_is_not_believed(self):
        disk, _ = a_disk_with(15)
        disk = disk.kill()
        disk.put(FILE_11, disk.content(FILE_1))
        error = refused(disk, CorruptFile)
        assert "first op in the header" in str(error)


class TestShortFile:
    def test_after_an_unclean_stop_nobody_knows_what_was_cut_off(self):
        disk, _ = a_disk_with(3)
        disk = disk.kill()
        disk.cut(FILE_1, position_of(5))
        error = refused(disk, CorruptFile)
        assert (error.path, error.position) == (FILE_1, position_of(5))
        assert error.found == position_of(5)

    def test_after_a_clean_stop_it_gets_its_empty_part_back(self):
        disk, group = a_disk_with(3)
        size = len(disk.content(FILE_1))
        group.group.stop()
        disk = disk.kill()
        disk.cut(FILE_1, position_of(5))
        again = a_group(disk)
        assert again.head == 3
        assert again.report.notes[0].what == "file size"
        assert len(disk.power_cut().content(FILE_1)) == size

    def test_of_a_frozen_file_the_next_one_tells_what_was_there(self):
        disk, _ = a_disk_with(15)
        disk = disk.kill()
        disk.cut(FILE_1, position_of(10) + FRAME_SIZE + PREFIX_SIZE)
        again = a_group(disk)
        assert again.head == 15
        assert "file size" in [note.what for note in again.report.notes]

    def test_in_a_cluster_what_is_left_stays_and_the_rest_is_suspect(self):
        disk, group = a_disk_with(6, CLUSTER)
        group.group.idle()
        disk = disk.kill()
        disk.cut(FILE_1, position_of(5))
        again = a_group(disk, CLUSTER)
        assert again.head == 4
        assert again.report.suspect[0] == 5
        assert grow(again, 2) == 6


class TestSnapshots:
    def two_checkpoints(self, identity=SOLO):
        disk = MemoryDisk()
        group = a_group(disk, identity)
        grow_to_second_checkpoint(group)
        group.group.idle()
        return disk.kill(), group

    @either
    def test_a_rotten_newest_one_falls_back_and_is_written_again(self, identity):
        disk, group = self.two_checkpoints(identity)
        whole = disk.content(snapshot_path(10))
        disk.flip(snapshot_path(10), 8 * (len(whole) - 1))
        again = a_group(disk, identity)
        assert again.report.fell_back
        assert again.report.snapshot_op == 5
        assert again.report.replayed == 7
        assert again.report.quarantined == (snapshot_path(10),)
        assert disk.power_cut().content(snapshot_path(10)) == whole
        assert again.machine.digest() == group.machine.digest()
        assert superblock_of(disk, identity).previous_op == 5
        last = a_group(disk.power_cut(), identity)
        assert last.report.snapshot_op == 10
        assert not last.report.fell_back

    @either
    def test_a_missing_newest_one_is_no_different(self, identity):
        disk, group = self.two_checkpoints(identity)
        whole = disk.content(snapshot_path(10))
        disk.remove(snapshot_path(10))
        again = a_group(disk, identity)
        assert again.report.fell_back
        assert disk.power_cut().content(snapshot_path(10)) == whole
        assert again.machine.digest() == group.machine.digest()

    def test_a_stale_newest_one_is_not_the_paired_one(self):
        disk, group = self.two_checkpoints()
        other = MemoryDisk()
        SnapshotFiles(other.root, SOLO).persist(Op(10), bytes(16), group.machine.snapshot())
        disk.put(snapshot_path(10), other.content(f"{10:020}.snap"))
        again = a_group(disk)
        assert again.report.fell_back
        assert again.report.snapshot_op == 5
        assert again.report.quarantined == (snapshot_path(10),)
        assert again.machine.digest() == group.machine.digest()

    def test_an_older_one_is_refused_if_the_journal_does_not_chain_through_the_pair(self):
        disk, group = self.two_checkpoints()
        disk.flip(snapshot_path(10), 900)
        rot_body(disk, frame_of(group, 8))
        error = refused(disk, CorruptSnapshot)
        assert error.expected == "a snapshot at op 10"
        assert error.found == [5]

    def test_with_both_bad_a_journal_from_op_1_replays_everything(self):
        disk, group = self.two_checkpoints()
        for op in (5, 10):
            disk.flip(snapshot_path(op), 900)
        again = a_group(disk)
        assert again.report.snapshot_op == 0
        assert again.report.fell_back
        assert again.report.replayed == 12
        assert again.report.quarantined == (snapshot_path(10), snapshot_path(5))
        assert again.machine.digest() == group.machine.digest()

    @either
    def test_with_both_bad_and_the_beginning_drained_it_is_refused(self, identity):
        disk = MemoryDisk()
        group = a_group(disk, identity)
        for _ in range(3):
            grow(group, 11)
            checkpoint(group)
        disk = disk.kill()
        for op in (24, 36):
            disk.flip(snapshot_path(op), 900)
        error = refused(disk, CorruptSnapshot, identity)
        assert error.expected == "a snapshot at op 36"

    def test_a_rotten_previous_one_is_set_aside_and_the_newest_used(self):
        disk, group = self.two_checkpoints()
        disk.flip(snapshot_path(5), 900)
        again = a_group(disk)
        assert again.report.snapshot_op == 10
        assert not again.report.fell_back
        assert again.report.quarantined == (snapshot_path(5),)
        assert again.machine.digest() == group.machine.digest()

    def test_one_newer_than_the_pairing_is_accepted_and_becomes_the_pair(self):
        disk, group = a_disk_with(4)
        checkpoint(group)
        grow(group, 4)
        grow_together(group, [b""], SEAL)
        disk.hook = lambda effect: CrashAfter() if effect.path == "snapshots" else None
        with crash():
            group.group.checkpoints.run()
        disk = disk.power_cut()
        assert superblock_of(disk).checkpoint.op == 5
        again = a_group(disk)
        assert again.report.snapshot_op == 10
        assert again.report.replayed == 0
        assert superblock_of(disk).checkpoint.op == 10
        assert superblock_of(disk).previous_op == 5

    def test_one_newer_than_the_pairing_and_rotten_costs_nothing(self):
        disk, group = a_disk_with(4)
        checkpoint(group)
        grow(group, 4)
        grow_together(group, [b""], SEAL)
        disk.hook = lambda effect: CrashAfter() if effect.path == "snapshots" else None
        with crash():
            group.group.checkpoints.run()
        disk = disk.power_cut()
        disk.flip(snapshot_path(10), 900)
        again = a_group(disk)
        assert again.report.snapshot_op == 5
        assert again.report.replayed == 5
        assert superblock_of(disk).checkpoint.op == 10
        assert again.machine.digest() == group.machine.digest()


class TestSuperblock:
    @either
    @pytest.mark.parametrize("name", NAMES)
    def test_one_bad_copy_is_written_again(self, name, identity):
        disk, group = a_disk_with(3, identity)
        expected, disk = bodies_of(group), disk.kill()
        disk.flip(name, 200)
        again = a_group(disk, identity)
        assert not again.report.superblock_rebuilt
        assert [note.what for note in again.report.notes] == ["superblock checksum"]
        assert read_copies(disk.power_cut().root, identity).flaws == (None, None)
        assert bodies_of(again) == expected

    def test_alone_no_valid_copy_is_rebuilt_from_snapshot_and_journal(self):
        disk = MemoryDisk()
        group = a_group(disk)
        grow_to_second_checkpoint(group)
        disk = disk.kill()
        disk.flip(NAMES[0], 200)
        disk.remove(NAMES[1])
        again = a_group(disk)
        assert again.report.superblock_rebuilt
        assert again.report.snapshot_op == 10
        assert again.head == 12
        assert again.machine.digest() == group.machine.digest()
        rebuilt = superblock_of(disk.power_cut())
        assert (rebuilt.checkpoint.op, rebuilt.previous_op, rebuilt.commit) == (10, 5, 12)

    @pytest.mark.parametrize("keep", [True, False], ids=["both snapshots", "only the older"])
    def test_a_crash_while_it_is_rebuilt_is_followed_by_the_same_end(self, keep):
        disk = MemoryDisk()
        group = a_group(disk, slots=30)
        for _ in range(4):
            grow(group, 9)
            checkpoint(group)
        disk = torn_append(disk, group, [a_body()], 200)
        for name in NAMES:
            disk.remove(name)
        if not keep:
            disk.flip(snapshot_path(40), 900)
        whole = disk.clone()
        recorder = whole.hook = Recorder()
        expected = a_group(whole, slots=30)
        for number in range(1, len(recorder.effects) + 1):
            dying = disk.clone()
            dying.hook = Recorder(number, CrashAfter())
            with crash():
                a_group(dying, slots=30)
            for after in (dying.power_cut(), dying.power_cut(everything(dying)), dying.kill()):
                again = a_group(after, slots=30)
                assert again.head == expected.head == 40
                assert again.machine.digest() == expected.machine.digest()

    def test_in_a_cluster_the_report_says_that_none_was_left(self):
        disk, _ = a_disk_with(3, CLUSTER)
        disk = disk.kill()
        for name in NAMES:
            disk.remove(name)
        report = a_group(disk, CLUSTER).report
        assert report.superblock_rebuilt
        assert report.replayed <= 3

    def test_an_older_copy_beside_a_bad_newer_one_is_enough(self):
        disk, group = a_disk_with(3)
        disk.hook = lambda effect: CrashAfter() if effect.path == "." else None
        with crash():
            group.group.superblock.write(commit=Op(3))
        disk = disk.power_cut()
        disk.flip(NAMES[0], 200)
        again = a_group(disk)
        assert again.head == 3
        assert not again.report.superblock_rebuilt

    def test_two_copies_of_one_sequence_that_differ_are_refused(self):
        disk, group = a_disk_with(3)
        current = group.group.superblock.current
        disk = disk.kill()
        disk.put(NAMES[1], encode(replace(current, commit=Op(99))))
        error = refused(disk, CorruptFile)
        assert error.path == f"./{NAMES[1]}"
        assert f"both copies have sequence {current.sequence} and differ" in str(error)


STRANGERS = {
    "cluster": replace(SOLO, cluster=b"another--cluster"),
    "group": replace(SOLO, group=GroupId(2)),
    "replica": replace(CLUSTER, replica=ReplicaId(1)),
    "replica_count": replace(SOLO, replica_count=2),
    "namespace_bits": replace(SOLO, namespace_bits=(20, 20, 24)),
}


class TestForeign:
    @pytest.mark.parametrize("field", STRANGERS)
    def test_a_directory_of_another_identity_is_refused(self, field):
        other = STRANGERS[field]
        ours = CLUSTER if field == "replica" else SOLO
        disk, _ = a_disk_with(3, other)
        error = refused(disk.kill(), ForeignFile, ours)
        assert error.field == field
        assert error.path == "./superblock.a"
        assert error.expected != error.found
        assert isinstance(error, Rejected)

    @pytest.mark.parametrize("field", ["cluster", "group"])
    def test_a_journal_file_of_another_identity_is_refused(self, field):
        disk, _ = a_disk_with(3)
        other, _ = a_disk_with(3, STRANGERS[field])
        disk = disk.kill()
        disk.put(FILE_1, other.content(FILE_1))
        error = refused(disk, ForeignFile)
        assert (error.path, error.field) == (FILE_1, field)

    @pytest.mark.parametrize("field", ["cluster", "group"])
    def test_a_snapshot_of_another_identity_is_refused(self, field):
        disk, group = a_disk_with(4)
        checkpoint(group)
        other, foreign = a_disk_with(4, STRANGERS[field])
        checkpoint(foreign)
        disk = disk.kill()
        disk.put(snapshot_path(5), other.content(snapshot_path(5)))
        error = refused(disk, ForeignFile)
        assert (error.path, error.field) == (snapshot_path(5), field)


class TestQuarantine:
    def test_nothing_in_it_is_ever_replaced(self):
        disk = MemoryDisk()
        grow_to_second_checkpoint(a_group(disk))
        disk = disk.kill()
        damaged = []
        for bit in (900, 901, 902):
            disk.flip(snapshot_path(10), bit)
            damaged.append(disk.content(snapshot_path(10)))
            assert a_group(disk).report.quarantined == (snapshot_path(10),)
            disk = disk.power_cut()
        kept = [disk.content(path) for path in disk.files() if path.startswith("quarantine/")]
        assert sorted(kept) == sorted(damaged)


class TestSlots:
    def test_fewer_than_the_live_ops_are_refused(self):
        disk, _ = a_disk_with(12)
        error = refused(disk.kill(), TooFewSlots, slots=11)
        assert (error.slots, error.live) == (11, 12)
        assert a_group(disk.kill(), slots=12).head == 12

    def test_live_ops_are_counted_from_the_previous_checkpoint(self):
        disk = MemoryDisk()
        grow_to_second_checkpoint(a_group(disk))
        error = refused(disk.kill(), TooFewSlots, slots=7)
        assert error.live == 12 - 4
        assert a_group(disk.kill(), slots=8).head == 12


class TestReplay:
    @either
    def test_goes_through_the_same_apply_and_ends_in_the_same_state(self, identity):
        disk, group = a_disk_with(7, identity)
        group.group.superblock.write(commit=group.head)
        again = a_group(disk.power_cut(), identity)
        assert again.report.replayed == 7
        assert again.machine.digest() == group.machine.digest()

    def test_in_a_cluster_only_what_is_known_committed_is_run(self):
        disk = MemoryDisk()
        group = a_group(disk, CLUSTER)
        grow(group, 3)
        group.group.journal.append(group.seal([a_body()] * 2))
        again = a_group(disk.kill(), CLUSTER)
        assert again.head == 5
        assert again.report.replayed == 3
        assert again.group.journal.commit == 3

    def test_alone_what_is_durable_is_committed(self):
        disk = MemoryDisk()
        group = a_group(disk)
        group.group.append(group.seal([a_body()] * 5))
        again = a_group(disk.power_cut())
        assert again.report.replayed == 5

    def test_a_machine_that_raises_halts_the_group_by_name(self):
        class Stubborn(CounterMachine):
            def apply(self, entry):
                if entry.op == 3:
                    raise ZeroDivisionError
                return CounterMachine.apply(self, entry)

        disk, _ = a_disk_with(5)
        with pytest.raises(ApplyFailed, match="op 3: ZeroDivisionError") as caught:
            recover(disk.kill().root, SOLO, Stubborn(), some_options())
        assert caught.value.found == "ZeroDivisionError"
        assert a_group(disk.kill()).head == 5


class TestScannedIsNotDurable:
    def test_frames_that_only_the_cache_has_are_written_again(self):
        disk, group = a_disk_with(3)
        disk.hook = lambda effect: CrashAfter() if effect.kind == "write" else None
        with crash():
            group.append([a_body()] * 2)
        disk = disk.kill()
        assert disk.pending()
        again = a_group(disk)
        assert again.head == 5
        assert again.report.rewritten == 2
        assert sorted(bodies_of(a_group(disk.power_cut()))) == [1, 2, 3, 4, 5]

    def test_a_lost_sync_is_seen_once_the_cache_is_dropped(self):
        disk, group = a_disk_with(3)
        disk.hook = lambda effect: LoseSync() if effect.kind == "sync" else None
        with pytest.raises(Exception, match="append failed"):
            group.append([a_body()])
        disk = disk.kill()
        assert any(disk.content(FILE_1)[position_of(4) :])
        again = a_group(disk)
        assert again.head == 3
        assert again.report.cut is None
        assert grow(again, 1) == 4
        assert a_group(disk.power_cut()).head == 4

    def test_a_lost_sync_of_the_end_frame_reaches_back_to_the_file_before(self):
        disk, group = a_disk_with(FRAMES_PER_FILE)
        seen = []

        def hook(effect):
            seen.append(effect)
            ends = effect.kind == "sync" and effect.path == FILE_1
            return LoseSync() if ends else None

        disk.hook = hook
        with pytest.raises(Exception, match="end failed"):
            group.append([a_body()])
        disk = disk.kill()
        again = a_group(disk)
        assert again.head == 10
        assert [note.what for note in again.report.notes] == ["end frame"]
        assert grow(again, 1) == 11
        assert a_group(disk.power_cut()).head == 11

    def test_nothing_is_rewritten_after_a_clean_stop(self):
        disk, group = a_disk_with(3)
        group.group.stop()
        again = a_group(disk.power_cut())
        assert again.report.was_clean
        assert again.report.rewritten == 0

    def test_nothing_is_replayed_before_the_rewrite_is_durable(self):
        disk, group = a_disk_with(3)
        disk.hook = lambda effect: CrashAfter() if effect.kind == "write" else None
        with crash():
            group.append([a_body()])
        disk = disk.kill()
        machine = Watching(disk)
        recover(disk.root, SOLO, machine, some_options())
        assert machine.applied == 4
        assert machine.pending_at_first_apply == []


class Watching(CounterMachine):
    """Looks at what the disk has pending when the first entry is applied."""

    def __init__(self, disk):
        super().__init__()
        self.disk = disk
        self.pending_at_first_apply = None

    def apply(self, entry):
        if self.pending_at_first_apply is None:
            pending = self.disk.pending()
            self.pending_at_first_apply = [one for one in pending if one.path == FILE_1]
        return super().apply(entry)


class TestCleanStop:
    @either
    def test_leaves_its_head_and_is_recognised(self, identity):
        disk, group = a_disk_with(3, identity)
        group.group.stop()
        assert superblock_of(disk.power_cut(), identity).clean_head == 3
        report = a_group(disk.power_cut(), identity).report
        assert report.was_clean
        assert (report.cut, report.notes) == (None, ())

    def test_its_mark_is_cleared_before_the_first_append(self):
        disk, group = a_disk_with(3)
        group.group.stop()
        disk = disk.power_cut()
        a_group(disk)
        assert superblock_of(disk.power_cut()).clean_head is None

    def test_an_empty_group_can_stop_cleanly(self):
        disk = MemoryDisk()
        a_group(disk).group.stop()
        assert a_group(disk.power_cut()).report.was_clean


class TestTwiceEqualsOnce:
    def torn(self):
        disk, group = a_disk_with(3)
        return torn_append(disk, group, [a_body()] * 2, 500)

    def fallen_back(self):
        disk = MemoryDisk()
        grow_to_second_checkpoint(a_group(disk))
        disk = disk.kill()
        disk.flip(snapshot_path(10), 900)
        return disk

    def healed(self):
        disk, _ = a_disk_with(15)
        disk = disk.kill()
        disk.flip(FILE_1, 900)
        disk.overwrite(FILE_1, position_of(10) + FRAME_SIZE, bytes(PREFIX_SIZE))
        return disk

    def drained(self):
        disk = MemoryDisk()
        group = a_group(disk)
        for _ in range(3):
            grow(group, 14)
            checkpoint(group)
        return disk.kill()

    @pytest.mark.parametrize("make", ["torn", "fallen_back", "healed", "drained"])
    def test_one_disk_gives_one_report_and_one_state(self, make):
        disk = getattr(self, make)()
        one, other = disk.clone(), disk.clone()
        first = Grown.open(one.root, some_options(new_id=numbered_ids()))
        second = Grown.open(other.root, some_options(new_id=numbered_ids()))
        assert first.report == second.report
        assert first.machine.digest() == second.machine.digest()
        assert contents(one) == contents(other)

    @pytest.mark.parametrize("make", ["torn", "fallen_back", "healed", "drained"])
    def test_a_second_recovery_finds_nothing_to_do(self, make):
        disk = getattr(self, make)()
        first = a_group(disk)
        once = contents(disk, but="superblock")
        disk = disk.power_cut()
        second = a_group(disk)
        assert contents(disk, but="superblock") == once
        assert second.machine.digest() == first.machine.digest()
        assert (second.head, second.report.cut, second.report.rewritten) == (
            first.head,
            None,
            0,
        )
        assert (second.report.notes, second.report.quarantined) == ((), ())
        disk = disk.power_cut()
        third = a_group(disk)
        assert third.report == second.report
        assert contents(disk, but="superblock") == once


class TestLeftovers:
    def test_unfinished_files_are_dropped_wherever_they_are(self):
        disk, _ = a_disk_with(3)
        disk = disk.kill()
        names = ["superblock.a.tmp", "journal/x.wal.tmp", "journal/spare/y.wal.tmp"]
        names.append(snapshot_path(9) + ".tmp")
        for name in names:
            disk.put(name, b"half")
        assert a_group(disk).head == 3
        assert not [path for path in disk.files() if path.endswith(".tmp")]

    def test_names_that_are_no_journal_files_are_left_alone(self):
        disk, _ = a_disk_with(3)
        disk = disk.kill()
        disk.put("journal/notes.txt", b"mine")
        assert a_group(disk).head == 3
        assert disk.content("journal/notes.txt") == b"mine"


class TestNewerFormats:
    @pytest.mark.parametrize(
        ("path", "at", "start", "end"),
        [
            (FILE_1, 26, 0, BLOCK_SIZE),
            (NAMES[0], 26, 0, None),
            (snapshot_path(5), 26, 0, 120),
        ],
    )
    def test_are_refused_as_such(self, path, at, start, end):
        disk, group = a_disk_with(4)
        checkpoint(group)
        disk = disk.kill()
        data = bytearray(disk.content(path))
        data[at : at + 2] = (2).to_bytes(2, "little")
        stop = len(data) if end is None else end
        data[start : start + 16] = xxh3_128_digest(bytes(data[start + 16 : stop]))
        disk.put(path, bytes(data))
        error = refused(disk, UnsupportedFormat)
        assert (error.path.removeprefix("./"), error.found) == (path, 2)


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
        error = refused(disk, CorruptEntry, file_size=1024 * 1024)
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


class TestOnRealFiles:
    def test_a_life_with_rolls_checkpoints_a_torn_tail_and_a_fall_back(self, tmp_path):
        with FileDirectory.open_root(str(tmp_path / "g"), create=True) as root:
            group = Grown.open(root, some_options())
            grow_to_second_checkpoint(group)
            digest = group.machine.digest()
            path = tmp_path / "g" / "journal" / f"{11:020}.wal"
            place = frame_of(group, 12)
            group.group.journal.close()
        with open(path, "r+b") as file:
            file.seek(place.end)
            file.write(path.read_bytes()[place.position :][:200])
        snapshot = tmp_path / "g" / snapshot_path(10)
        data = bytearray(snapshot.read_bytes())
        data[-1] ^= 1
        snapshot.write_bytes(bytes(data))
        with FileDirectory.open_root(str(tmp_path / "g"), create=False) as root:
            again = Grown.open(root, some_options())
            assert again.head == 12
            assert again.report.fell_back
            assert again.report.cut == Cut(Op(13), Op(13), str(path))
            assert again.machine.digest() == digest
            grow(again, 1)
            again.group.stop()
        with FileDirectory.open_root(str(tmp_path / "g"), create=False) as root:
            last = Grown.open(root, some_options())
            assert last.report.was_clean
            assert last.head == 13
            last.group.journal.close()

    def test_refusal_changes_no_byte(self, tmp_path):
        with FileDirectory.open_root(str(tmp_path / "g"), create=True) as root:
            group = Grown.open(root, some_options())
            grow(group, 12)
            group.group.stop()
        path = tmp_path / "g" / FILE_1
        data = bytearray(path.read_bytes())
        data[position_of(3) + 330] ^= 1
        path.write_bytes(bytes(data))
        before = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
        with (
            FileDirectory.open_root(str(tmp_path / "g"), create=False) as root,
            pytest.raises(CorruptEntry) as caught,
        ):
            Grown.open(root, some_options())
        assert caught.value.position == position_of(3)
        after = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
        assert after == before


class TestPlaces:
    def test_the_arithmetic_of_these_tests_is_that_of_the_journal(self):
        _, group = a_disk_with(12)
        for op in range(1, 13):
            path = FILE_1 if op <= 10 else FILE_11
            assert frame_of(group, op) == Place(path, position_of(op), FRAME_SIZE)
