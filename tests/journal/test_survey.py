"""Files that are missing, rotten, short, foreign or newer, alone and in a cluster."""

from dataclasses import replace

import pytest
from tests.journal.builders import (
    CLUSTER,
    FILE_1,
    FILE_11,
    FILE_21,
    FRAME_SIZE,
    Recorder,
    a_body,
    a_disk_with,
    a_group,
    bodies_of,
    checkpoint,
    crash,
    either,
    everything,
    grow,
    grow_to_second_checkpoint,
    position_of,
    refused_start,
    snapshot_path,
    superblock_of,
    torn_append,
)
from xxhash import xxh3_128_digest

from headrace.errors import (
    CorruptEntry,
    CorruptFile,
    ForeignFile,
    MissingFile,
    Rejected,
    UnsupportedFormat,
)
from headrace.journal.frame import PREFIX_SIZE
from headrace.journal.journal_file import BLOCK_SIZE, FIRST_POSITION
from headrace.journal.superblock import NAMES, READER, encode, read_copies
from headrace.model.ids import OP_MAX, GroupId, Op, ReplicaId
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.faults import CrashAfter
from headrace_lab.disk.memory import MemoryDisk


class TestMissingFile:
    def three_files(self, identity=SOLO):
        disk, group = a_disk_with(25, identity)
        group.group.idle()
        return disk.kill(), group

    @pytest.mark.parametrize(
        ("gone", "path", "words"),
        [
            (FILE_11, FILE_1, "the file after it is missing, with the ops from 11 to 20"),
            (FILE_21, FILE_11, "the file after it is missing, with the ops from 21"),
        ],
    )
    def test_alone_it_is_refused_by_name(self, gone, path, words):
        disk, _ = self.three_files()
        disk.remove(gone)
        error = refused_start(disk, MissingFile)
        assert error.path == path
        assert words in str(error)

    def test_alone_a_missing_first_file_is_refused_by_the_name_of_the_second(self):
        disk, _ = self.three_files()
        disk.remove(FILE_1)
        error = refused_start(disk, MissingFile)
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
        assert "is missing" in again.report.problem
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
        assert "no files" in again.report.problem
        assert grow(again, 2) == base + 2
        assert a_group(disk.power_cut(), CLUSTER).head == base + 2

    def test_alone_no_file_at_all_is_refused(self):
        disk, group = a_disk_with(3)
        checkpoint(group)
        disk = disk.kill()
        disk.remove(FILE_1)
        error = refused_start(disk, MissingFile)
        assert "the journal has no files" in str(error)

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
        error = refused_start(disk, CorruptEntry)
        assert error.path == FILE_1
        assert "op 9 was acknowledged" in str(error)

    def test_acknowledged_entries_zeroed_at_the_end_of_the_newest_are_damage(self):
        disk, group = a_disk_with(5)
        group.group.superblock.write(commit=group.head)
        disk = disk.kill()
        disk.overwrite(FILE_1, position_of(4), bytes(2 * FRAME_SIZE))
        error = refused_start(disk, CorruptEntry)
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
        error = refused_start(disk, CorruptFile)
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
        error = refused_start(disk, CorruptFile)
        assert "header blocks" in str(error)

    def test_a_file_under_the_name_of_another_is_not_believed(self):
        disk, _ = a_disk_with(15)
        disk = disk.kill()
        disk.put(FILE_11, disk.content(FILE_1))
        error = refused_start(disk, CorruptFile)
        assert "first op in the header" in str(error)


class TestShortFile:
    def test_after_an_unclean_stop_nobody_knows_what_was_cut_off(self):
        disk, _ = a_disk_with(3)
        disk = disk.kill()
        disk.cut(FILE_1, position_of(5))
        error = refused_start(disk, CorruptFile)
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
        error = refused_start(disk, CorruptFile)
        assert error.path == f"./{NAMES[1]}"
        assert f"both copies have sequence {current.sequence} and differ" in str(error)


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
        error = refused_start(disk.kill(), ForeignFile, ours)
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
        error = refused_start(disk, ForeignFile)
        assert (error.path, error.field) == (FILE_1, field)

    @pytest.mark.parametrize("field", ["cluster", "group"])
    def test_a_snapshot_of_another_identity_is_refused(self, field):
        disk, group = a_disk_with(4)
        checkpoint(group)
        other, foreign = a_disk_with(4, STRANGERS[field])
        checkpoint(foreign)
        disk = disk.kill()
        disk.put(snapshot_path(5), other.content(snapshot_path(5)))
        error = refused_start(disk, ForeignFile)
        assert (error.path, error.field) == (snapshot_path(5), field)


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
        data[at : at + 2] = (READER + 1).to_bytes(2, "little")
        stop = len(data) if end is None else end
        data[start : start + 16] = xxh3_128_digest(bytes(data[start + 16 : stop]))
        disk.put(path, bytes(data))
        error = refused_start(disk, UnsupportedFormat)
        assert (error.path.removeprefix("./"), error.found) == (path, READER + 1)
