"""Reading frames out of a file, whole or in ruins."""

import errno

import pytest
from tests.journal.builders import (
    FILE_SIZE,
    FRAME_SIZE,
    a_disk_with,
    an_entry,
    frame_of,
    grow,
    rot_body,
    rot_prefix,
)

from headrace.journal.entry import Flaw, Header
from headrace.journal.frame import Prefix
from headrace.journal.journal_file import FIRST_POSITION
from headrace.journal.recovery.walk import FileReader, traces
from headrace.model.ids import Op
from headrace_lab.counter.solo import SOLO


def a_reader(disk, group):
    file = group.group.journal.newest
    storage = disk.root.child("journal").open(file.name)
    return FileReader(storage, file.header.file_id, file.header.size)


def found_traces(reader, start=FIRST_POSITION, lowest=1):
    return list(traces(reader, start, SOLO.cluster, SOLO.group, Op(lowest)))


class TestFrame:
    def test_a_whole_frame_has_prefix_and_header_and_no_flaw(self):
        disk, group = a_disk_with(3)
        frame = a_reader(disk, group).frame(frame_of(group, 2).position)
        assert isinstance(frame.prefix, Prefix)
        assert frame.header == group.sealed[1].header
        assert frame.flaw is None

    def test_a_rotten_body_leaves_the_prefix_to_speak(self):
        disk, group = a_disk_with(3)
        rot_body(disk, frame_of(group, 2))
        frame = a_reader(disk, group).frame(frame_of(group, 2).position)
        assert isinstance(frame.prefix, Prefix)
        assert frame.prefix.tip == group.sealed[1].checksum
        assert frame.flaw is not None
        assert frame.flaw.what == "body checksum"

    def test_a_prefix_over_another_entry_is_a_flaw(self):
        disk, group = a_disk_with(3)
        two, other = frame_of(group, 2), an_entry(2, bytes(16), group.sealed[1].body)
        disk.overwrite(two.path, two.position + 64, other.sealed)
        frame = a_reader(disk, group).frame(two.position)
        assert isinstance(frame.flaw, Flaw)
        assert frame.flaw.what == "entry"

    def test_the_end_of_the_file_is_a_flaw(self):
        disk, group = a_disk_with(3)
        frame = a_reader(disk, group).frame(FILE_SIZE - 32)
        assert isinstance(frame.flaw, Flaw)

    def test_an_unreadable_sector_is_a_flaw_of_its_own_frame_alone(self):
        disk, group = a_disk_with(5)
        bad = frame_of(group, 3).position
        disk.read_fault = lambda path, at, size: (
            errno.EIO if at < bad + 100 and bad < at + size else None
        )
        reader = a_reader(disk, group)
        flaws = [reader.frame(frame_of(group, op).position).flaw for op in range(1, 6)]
        assert [flaw.what if flaw else None for flaw in flaws] == [
            None,
            None,
            "unreadable",
            None,
            None,
        ]

    @pytest.mark.parametrize("size", [65_000, 65_216, 65_217, 70_000, 140_000])
    def test_frames_around_the_window_are_read_whole(self, size):
        disk, group = a_disk_with(2, file_size=1024 * 1024)
        grow(group, 2, size)
        grow(group, 2)
        reader = a_reader(disk, group)
        for op in (1, 3, 2, 4, 5, 6, 1):
            frame = reader.frame(frame_of(group, op).position)
            assert isinstance(frame.header, Header)
            assert frame.header.op == op


class TestTraces:
    def test_each_frame_leaves_two_its_prefix_and_its_header(self):
        disk, group = a_disk_with(3)
        found = found_traces(a_reader(disk, group))
        assert [(trace.op, trace.prefix is not None) for trace in found] == [
            (1, True),
            (1, False),
            (2, True),
            (2, False),
            (3, True),
            (3, False),
        ]

    def test_a_rotten_prefix_still_shows_the_file_id(self):
        disk, group = a_disk_with(1)
        rot_prefix(disk, frame_of(group, 1))
        first, second = found_traces(a_reader(disk, group))
        assert (first.op, first.prefix) == (None, None)
        assert second.op == 1

    def test_headers_of_an_earlier_life_have_ops_below_the_lowest(self):
        disk, group = a_disk_with(3)
        reader = a_reader(disk, group)
        reader.file_id += 1
        assert found_traces(reader, lowest=4) == []
        assert [trace.op for trace in found_traces(reader, lowest=3)] == [3]

    def test_an_unreadable_sector_counts(self):
        disk, group = a_disk_with(1)
        bad = FIRST_POSITION + 4 * FRAME_SIZE
        disk.read_fault = lambda path, at, size: (
            errno.EIO if at < bad + 512 and bad < at + size else None
        )
        found = found_traces(a_reader(disk, group), FIRST_POSITION + FRAME_SIZE)
        assert found
        assert {trace.op for trace in found} == {None}

    def test_zeros_leave_none(self):
        disk, group = a_disk_with(0)
        assert found_traces(a_reader(disk, group)) == []
