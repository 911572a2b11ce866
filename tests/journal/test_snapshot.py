"""A snapshot is whole under its name, or not there; each stage of writing fails its own way."""

import errno
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.journal.builders import Recorder, everything

from headrace.errors import DiskFull, ForeignFile, StorageFailed
from headrace.journal.entry import Flaw
from headrace.journal.machine_seam import MachineState
from headrace.journal.snapshot import Snapshot, SnapshotFiles, snapshot_name
from headrace.model.ids import GroupId, Op
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.faults import Fail
from headrace_lab.disk.memory import MemoryDisk

TIP = b"t" * 16
STATE = MachineState(b"replicated", b"local")
NAME = snapshot_name(Op(9))


def some_files(disk=None, identity=SOLO):
    return SnapshotFiles((disk or MemoryDisk()).root, identity)


def names_after(disk) -> tuple[list[str], list[str]]:
    """Return what a reader sees now, and what a power cut that keeps nothing leaves."""
    return disk.files(), disk.power_cut().files()


class TestBytes:
    @given(
        st.integers(0, 2**64 - 1),
        st.binary(min_size=16, max_size=16),
        st.binary(max_size=300),
        st.binary(max_size=300),
    )
    def test_both_parts_come_back(self, op, tip, replicated, local):
        files = some_files()
        snapshot = files.persist(Op(op), tip, MachineState(replicated, local))
        assert files.load(Op(op)) == snapshot
        assert snapshot.state == MachineState(replicated, local)

    @given(st.binary(max_size=300))
    def test_arbitrary_bytes_are_a_flaw(self, data):
        disk = MemoryDisk()
        disk.put(NAME, data)
        assert isinstance(some_files(disk).load(Op(9)), Flaw)

    @given(st.data())
    def test_no_single_byte_can_change_unnoticed(self, data):
        disk = MemoryDisk()
        some_files(disk).persist(Op(9), TIP, STATE)
        whole = bytearray(disk.content(NAME))
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
        disk.put(NAME, bytes(whole))
        assert isinstance(some_files(disk).load(Op(9)), Flaw)

    @pytest.mark.parametrize("size", [0, 1, 119, 120, 129, 134])
    def test_one_cut_short_is_a_flaw(self, size):
        disk = MemoryDisk()
        some_files(disk).persist(Op(9), TIP, STATE)
        disk.cut(NAME, size)
        assert isinstance(some_files(disk).load(Op(9)), Flaw)

    def test_each_part_has_a_checksum_of_its_own(self):
        disk = MemoryDisk()
        some_files(disk).persist(Op(9), TIP, STATE)
        whole = disk.content(NAME)
        for at, part in ((-6, "replicated"), (-1, "local")):
            disk.put(NAME, whole)
            disk.flip(NAME, (len(whole) + at) * 8)
            found = some_files(disk).load(Op(9))
            assert isinstance(found, Flaw)
            assert found.what == f"checksum of the {part} part"

    def test_equal_states_have_equal_files_and_names_of_their_own(self):
        one, other = some_files(), some_files()
        assert one.persist(Op(9), TIP, STATE) == other.persist(Op(9), TIP, STATE)
        changed = other.persist(Op(9), TIP, replace(STATE, local=b"elsewhere"))
        assert changed.checksum != one.persist(Op(9), TIP, STATE).checksum

    def test_one_under_the_name_of_another_is_a_flaw(self):
        disk = MemoryDisk()
        some_files(disk).persist(Op(9), TIP, STATE)
        disk.put(snapshot_name(Op(8)), disk.content(NAME))
        assert some_files(disk).load(Op(8)) == Flaw("snapshot op", 8, 9)

    def test_a_missing_and_an_unreadable_one_are_flaws(self):
        disk = MemoryDisk()
        some_files(disk).persist(Op(9), TIP, STATE)
        disk.read_fault = lambda path, at, size: errno.EIO
        for op, what in ((8, "missing"), (9, "unreadable")):
            found = some_files(disk).load(Op(op))
            assert isinstance(found, Flaw)
            assert found.what == f"snapshot is {what}"

    @pytest.mark.parametrize(
        ("field", "stranger"),
        [
            ("cluster", replace(SOLO, cluster=bytes(16))),
            ("group", replace(SOLO, group=GroupId(5))),
        ],
    )
    def test_one_of_another_group_is_refused(self, field, stranger):
        disk = MemoryDisk()
        some_files(disk, stranger).persist(Op(9), TIP, STATE)
        with pytest.raises(ForeignFile) as caught:
            some_files(disk).load(Op(9))
        assert (caught.value.path, caught.value.field) == (NAME, field)


class TestStages:
    """An older snapshot of the same op stands; each stage leaves something else on disk."""

    STAGES = ((1, "write"), (2, "write"), (3, "sync"), (4, "rename"), (5, "sync-dir"))

    def failed(self, number, fault):
        disk = MemoryDisk()
        files = some_files(disk)
        old = files.persist(Op(9), TIP, MachineState(b"old"))
        recorder = disk.hook = Recorder(number, fault)
        with pytest.raises((StorageFailed, DiskFull)) as caught:
            files.persist(Op(9), TIP, STATE)
        disk.hook = None
        assert recorder.landed is not None
        return disk, old, caught.value

    @pytest.mark.parametrize(("number", "stage"), STAGES)
    def test_each_stage_says_its_name(self, number, stage):
        _, _, error = self.failed(number, Fail(errno.EIO))
        assert isinstance(error, StorageFailed)
        assert (error.stage, error.path, error.cause.errno) == (stage, NAME, errno.EIO)

    @pytest.mark.parametrize(("number", "stage"), STAGES)
    def test_a_full_disk_is_back_pressure_except_at_a_sync(self, number, stage):
        _, _, error = self.failed(number, Fail(errno.ENOSPC))
        expected = StorageFailed if stage.startswith("sync") else DiskFull
        assert type(error) is expected
        assert error.stage == stage

    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_until_the_sync_the_old_one_stands_and_nothing_else(self, number):
        disk, old, _ = self.failed(number, Fail(errno.EIO))
        assert names_after(disk) == ([NAME], [NAME])
        assert some_files(disk).load(Op(9)) == old
        assert some_files(disk.power_cut()).load(Op(9)) == old

    def test_at_the_rename_the_old_one_stands_beside_a_whole_leftover(self):
        disk, old, _ = self.failed(4, Fail(errno.EIO))
        assert names_after(disk) == ([NAME, NAME + ".tmp"], [NAME])
        assert some_files(disk).load(Op(9)) == old

    def test_at_the_sync_of_the_directory_either_may_survive(self):
        disk, old, _ = self.failed(5, Fail(errno.EIO))
        seen = some_files(disk).load(Op(9))
        assert isinstance(seen, Snapshot)
        assert seen.state == STATE
        assert some_files(disk.power_cut()).load(Op(9)) == old
        assert some_files(disk.power_cut(everything(disk))).load(Op(9)) == seen

    @pytest.mark.parametrize("number", [1, 2, 4])
    def test_where_nothing_happened_the_next_try_works(self, number):
        disk, _, _ = self.failed(number, Fail(errno.ENOSPC))
        snapshot = some_files(disk).persist(Op(9), TIP, STATE)
        assert some_files(disk.power_cut()).load(Op(9)) == snapshot


class TestPrune:
    def test_keeps_the_op_and_everything_above(self):
        disk = MemoryDisk()
        files = some_files(disk)
        for op in (3, 6, 9):
            files.persist(Op(op), TIP, STATE)
        files.prune(Op(6))
        assert some_files(disk.power_cut()).ops() == [9, 6]

    def test_of_nothing_is_no_effect(self):
        disk = MemoryDisk()
        files = some_files(disk)
        files.persist(Op(9), TIP, STATE)
        recorder = disk.hook = Recorder()
        files.prune(Op(9))
        assert recorder.effects == []

    def test_names_that_are_no_snapshots_are_not_listed(self):
        disk = MemoryDisk()
        for name in ("7.snap", NAME + ".tmp", "notes"):
            disk.put(name, b"x")
        assert some_files(disk).ops() == []
