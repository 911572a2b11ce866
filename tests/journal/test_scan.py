"""The scan classifies and changes nothing."""

import pytest
from tests.journal.builders import (
    FRAME_SIZE,
    FRAMES_PER_FILE,
    a_body,
    a_disk_with,
    contents,
    frame_of,
    grow_together,
    journal_path,
    rot_body,
    rot_prefix,
    wipe,
)

from headrace.journal.entry import root
from headrace.journal.frame import PREFIX_SIZE
from headrace.journal.journal_file import FIRST_POSITION
from headrace.journal.recovery.scan import contiguous_from, scan
from headrace.journal.recovery.scan_findings import (
    Candidate,
    CleanEnd,
    Evidence,
    Scan,
    TornTail,
)
from headrace.model.ids import Op
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.memory import MemoryDisk


def scanned(disk: MemoryDisk, group, evidence: Evidence | None = None, skip=()) -> Scan:
    before = contents(disk)
    directory = disk.root.child("journal")
    candidates = [
        Candidate(directory.open(file.name), file.header)
        for file in group.group.journal.files
        if file.name not in skip
    ]
    found = scan(candidates, SOLO, evidence or Evidence())
    assert contents(disk) == before
    assert disk.pending() == []
    return found


def ops(found: Scan) -> list[int]:
    return [entry.op for entry in found.entries]


class TestWhole:
    def test_every_entry_is_found_in_order(self):
        disk, group = a_disk_with(25)
        found = scanned(disk, group)
        assert ops(found) == list(range(1, 26))
        assert isinstance(found.ending, CleanEnd)
        assert (found.head, found.tip) == (25, group.sealed[-1].checksum)
        assert [file.has_end for file in found.files] == [True, True, False]
        assert [file.last_op for file in found.files] == [10, 20, 25]
        assert (found.faulty, found.gaps, found.breaks, found.rubble) == ([], [], [], [])

    def test_what_it_proves_is_one_group_less_without_a_mark(self):
        disk, group = a_disk_with(3)
        assert (scanned(disk, group).proven, scanned(disk, group).commit) == (2, 2)
        group.group.idle()
        assert (scanned(disk, group).proven, scanned(disk, group).commit) == (3, 3)

    def test_an_empty_journal_has_the_head_before_its_first_op(self):
        disk, group = a_disk_with(0)
        found = scanned(disk, group)
        assert (found.head, found.tip) == (0, root(SOLO))


class TestEvidence:
    @pytest.mark.parametrize("damage", [rot_body, rot_prefix], ids=lambda one: one.__name__)
    def test_tells_damage_from_a_torn_tail(self, damage):
        disk, group = a_disk_with(3)
        damage(disk, frame_of(group, 3))
        torn = scanned(disk, group)
        assert torn.ending == TornTail(Op(3), Op(3), 0, frame_of(group, 3).position)
        assert (torn.faulty, torn.head) == ([], 2)
        proven = scanned(disk, group, Evidence(durable=Op(3)))
        assert isinstance(proven.ending, CleanEnd)
        assert [one.op for one in proven.faulty] == [3]
        assert proven.head == 3

    def test_what_lies_behind_a_bad_frame_is_none(self):
        disk, group = a_disk_with(2)
        grow_together(group, [a_body()] * 3)
        rot_prefix(disk, frame_of(group, 3))
        found = scanned(disk, group)
        assert found.ending == TornTail(Op(3), Op(5), 0, frame_of(group, 3).position)
        assert ops(found) == [1, 2]

    def test_the_name_of_a_file_proves_everything_before_it(self):
        disk, group = a_disk_with(FRAMES_PER_FILE)
        journal = group.group.journal
        new = journal.spares.enlist(
            journal.directory, SOLO, Op(11), journal.tip, journal.spares.file_size
        )
        journal.files.append(new)
        assert scanned(disk, group).proven == 10

    def test_zeros_where_something_durable_was_are_a_gap(self):
        disk, group = a_disk_with(3)
        wipe(disk, frame_of(group, 3))
        assert scanned(disk, group).gaps == []
        (gap,) = scanned(disk, group, Evidence(durable=Op(3))).gaps
        assert (gap.first, gap.last, gap.is_file) == (3, 3, False)


class TestFaulty:
    def test_a_neighbour_names_the_checksum_of_a_lost_prefix(self):
        disk, group = a_disk_with(5)
        rot_prefix(disk, frame_of(group, 3))
        (faulty,) = scanned(disk, group).faulty
        assert faulty.checksum == group.sealed[2].checksum
        assert faulty.position == frame_of(group, 3).position

    def test_a_following_file_names_the_last_one_of_the_file_before(self):
        disk, group = a_disk_with(12)
        place = frame_of(group, 10)
        disk.overwrite(place.path, place.position, bytes(FRAME_SIZE + PREFIX_SIZE))
        (faulty,) = scanned(disk, group).faulty
        assert (faulty.op, faulty.checksum) == (10, group.sealed[9].checksum)

    def test_a_bad_mark_costs_nothing(self):
        disk, group = a_disk_with(3)
        group.group.idle()
        at = frame_of(group, 3).end
        grow_together(group, [a_body()])
        disk.flip(journal_path(1), (at + 30) * 8)
        found = scanned(disk, group)
        assert ops(found) == [1, 2, 3, 4]
        assert [one.position for one in found.rubble] == [at]
        assert found.faulty == []


class TestPendingCut:
    def test_frames_at_or_above_it_do_not_count(self):
        disk, group = a_disk_with(5)
        group.group.idle()
        found = scanned(disk, group, Evidence(durable=Op(5), cut_from=Op(4)))
        assert ops(found) == [1, 2, 3]
        assert (found.head, found.proven) == (3, 3)
        assert found.gaps == []

    def test_nor_do_files_above_it(self):
        disk, group = a_disk_with(25)
        found = scanned(disk, group, Evidence(cut_from=Op(8)))
        assert ops(found) == list(range(1, 8))
        assert (found.gaps, found.faulty) == ([], [])

    def test_at_the_first_op_of_a_file_it_leaves_the_file(self):
        disk, group = a_disk_with(25)
        found = scanned(disk, group, Evidence(cut_from=Op(21)))
        assert ops(found) == list(range(1, 21))
        assert (found.gaps, found.faulty) == ([], [])


class TestGaps:
    @pytest.mark.parametrize(("gone", "first", "last"), [(11, 11, 20), (21, 21, None)])
    def test_a_missing_file_is_one(self, gone, first, last):
        disk, group = a_disk_with(25)
        (gap,) = scanned(disk, group, skip=[journal_path(gone).split("/")[1]]).gaps
        assert (gap.first, gap.last, gap.is_file) == (first, last, True)


class TestContiguous:
    def test_entries_chain_from_the_base(self):
        disk, group = a_disk_with(6)
        found = scanned(disk, group).entries
        tip = group.sealed[1].checksum
        assert [one.op for one in contiguous_from(found, Op(2), tip)] == [3, 4, 5, 6]
        assert list(contiguous_from(found, Op(2), bytes(16))) == []

    def test_they_stop_at_a_hole(self):
        disk, group = a_disk_with(6)
        found = [one for one in scanned(disk, group).entries if one.op != 4]
        assert [one.op for one in contiguous_from(found, Op(0), root(SOLO))] == [1, 2, 3]

    def test_positions_are_those_of_the_frames(self):
        disk, group = a_disk_with(3)
        positions = [one.position for one in scanned(disk, group).entries]
        assert positions == [FIRST_POSITION + FRAME_SIZE * k for k in range(3)]
