"""A running group: apply in order, halt by name, stop cleanly."""

import errno

import pytest
from tests.journal.builders import (
    CLUSTER,
    FRAMES_PER_FILE,
    Grown,
    Recorder,
    a_body,
    a_disk_with,
    a_group,
    an_entry,
    checkpoint,
    effects_of,
    frame_of,
    grow,
    rot_body,
    some_options,
)

from headrace.errors import (
    ApplyFailed,
    CorruptEntry,
    DiskFull,
    RingFull,
    Stopped,
    StorageFailed,
)
from headrace.journal.entry import SEAL
from headrace.journal.group import SEAL_SLOTS
from headrace.journal.recovery.recover import recover
from headrace.journal.superblock import read_copies
from headrace.model.ids import Op
from headrace_lab.counter.counter import ADD, CounterMachine, add
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.faults import Fail
from headrace_lab.disk.memory import MemoryDisk


class TestApply:
    def test_gives_the_machines_result(self):
        group = a_group(MemoryDisk())
        entries = group.seal([add("apples", 3), add("apples", 4), b"?"], ADD)
        group.group.append(entries)
        assert [group.group.apply(entry) for entry in entries] == [3, 7, "rejected"]

    def test_out_of_order_is_a_bug_of_the_caller(self):
        group = a_group(MemoryDisk())
        entries = group.seal([a_body()] * 2)
        group.group.append(entries)
        with pytest.raises(AssertionError):
            group.group.apply(entries[1])

    def test_of_what_is_not_committed_is_a_bug_of_the_caller(self):
        group = a_group(MemoryDisk(), CLUSTER)
        entries = group.seal([a_body()])
        group.group.append(entries)
        with pytest.raises(AssertionError):
            group.group.apply(entries[0])

    def test_that_raises_halts_the_group_by_name(self):
        class Failing(CounterMachine):
            def apply(self, entry):
                raise KeyError("lost")

        disk = MemoryDisk()
        running, _ = recover(disk.root, SOLO, Failing(), some_options())
        group = Grown(running, running.machine, None)
        entries = group.seal([a_body()])
        running.append(entries)
        with pytest.raises(ApplyFailed) as caught:
            running.apply(entries[0])
        assert "op 1: KeyError('lost')" in str(caught.value)
        assert (caught.value.path, caught.value.found) == ("journal", "KeyError")
        assert isinstance(caught.value.__cause__, KeyError)
        assert running.applied == 0
        with pytest.raises(ApplyFailed) as again:
            running.append(group.seal([a_body()]))
        assert again.value is caught.value
        assert running.journal.durable == 1


class TestCommit:
    def test_alone_what_is_durable_is_committed(self):
        _, group = a_disk_with(0)
        group.group.append(group.seal([a_body()] * 3))
        assert group.group.journal.commit == 3

    def test_in_a_cluster_it_waits_for_the_quorum(self):
        group = a_group(MemoryDisk(), CLUSTER)
        group.group.append(group.seal([a_body()] * 3))
        assert group.group.journal.commit == 0


class TestRoomForSeals:
    def test_entries_leave_slots_for_the_seals_that_empty_the_ring(self):
        disk, group = a_disk_with(4, slots=4 + SEAL_SLOTS)
        recorder = disk.hook = Recorder()
        with pytest.raises(RingFull) as caught:
            group.append([a_body()])
        assert recorder.effects == []
        assert (caught.value.op, caught.value.watermark, caught.value.slots) == (5, 0, 4)
        disk.hook = None
        assert [checkpoint(group), checkpoint(group)] == [5, 6]
        assert group.append([a_body()]) == 7

    def test_a_ring_can_always_be_emptied(self):
        _, group = a_disk_with(0, slots=4 + SEAL_SLOTS)
        for _ in range(5):
            while True:
                try:
                    group.append([a_body()])
                except RingFull:
                    break
            checkpoint(group)
            checkpoint(group)
        assert group.head > 20


class TestStop:
    def test_is_a_mark_and_then_the_clean_head(self):
        disk, group = a_disk_with(3)
        effects = effects_of(disk, group.group.stop)
        paths = [effect.path for effect in effects]
        assert paths[0].startswith("journal/")
        assert paths[-1] == "."
        assert read_copies(disk.power_cut().root, SOLO).best.clean_head == 3

    def test_after_an_idle_tick_needs_no_second_mark(self):
        disk, group = a_disk_with(3)
        group.group.idle()
        effects = effects_of(disk, group.group.stop)
        assert not [effect for effect in effects if effect.path.startswith("journal/")]

    def test_never_cuts(self):
        disk, group = a_disk_with(3)
        before = disk.content("journal/00000000000000000001.wal")
        group.group.stop()
        after = disk.content("journal/00000000000000000001.wal")
        end = frame_of(group, 3).end
        assert after[:end] == before[:end]

    def test_makes_any_later_rot_of_the_last_entry_damage(self):
        disk, group = a_disk_with(3)
        place = frame_of(group, 3)
        group.group.stop()
        disk = disk.power_cut()
        rot_body(disk, place)
        with pytest.raises(CorruptEntry) as caught:
            a_group(disk)
        assert caught.value.position == place.position

    def test_on_a_full_disk_may_be_repeated(self):
        disk, group = a_disk_with(3)
        disk.hook = Recorder(3, Fail(errno.ENOSPC))
        with pytest.raises(DiskFull):
            group.group.stop()
        disk.hook = None
        group.group.stop()
        assert a_group(disk.power_cut()).report.was_clean

    def test_with_a_checkpoint_still_waiting_loses_nothing(self):
        disk, group = a_disk_with(3)
        group.append([b""], SEAL)
        group.group.stop()
        again = a_group(disk.power_cut())
        assert again.report.was_clean
        assert again.group.superblock.current.checkpoint.op == 4
        assert again.machine.digest() == group.machine.digest()


class TestIdle:
    def test_leaves_evidence_and_nothing_to_rewrite(self):
        disk, group = a_disk_with(3)
        group.group.idle()
        again = a_group(disk.kill())
        assert again.report.rewritten == 0
        assert not again.report.was_clean

    def test_makes_the_spare_that_the_last_roll_took(self):
        disk, group = a_disk_with(FRAMES_PER_FILE + 1)
        assert group.group.journal.spares.names() == []
        group.group.idle()
        assert len(group.group.journal.spares.names()) == 1
        assert effects_of(disk, group.group.idle) == []

    def test_on_a_full_disk_leaves_its_mark_and_waits_for_room(self):
        disk, group = a_disk_with(FRAMES_PER_FILE + 1)
        disk.hook = lambda effect: Fail(errno.ENOSPC) if effect.kind == "create" else None
        with pytest.raises(DiskFull):
            group.group.idle()
        assert group.group.journal.marked == 11
        assert group.group.journal.poisoned is None
        disk.hook = None
        group.group.idle()
        assert len(group.group.journal.spares.names()) == 1

    def test_costs_nothing_when_nothing_is_new(self):
        disk, group = a_disk_with(3)
        group.group.idle()
        assert effects_of(disk, group.group.idle) == []
        grow(group, 1)
        assert len(effects_of(disk, group.group.idle)) == 2
        assert group.group.journal.marked == Op(4)


class TestStuck:
    def test_a_group_of_ordinary_entries_and_a_seal_leaves_room_for_more_seals(self):
        _, group = a_disk_with(0, slots=16)
        entries = group.seal([a_body()] * 15)
        last = group.seal([a_body()] * 15)[-1]
        seal = an_entry(16, last.checksum, b"", operation=SEAL)
        with pytest.raises(RingFull):
            group.group.append([*entries, seal])
        assert group.head == 0

    def test_a_machine_that_cannot_be_captured_halts_the_group_by_name(self):
        class Uncapturable(CounterMachine):
            def snapshot(self):
                raise ValueError("no words for it")

        group, _ = recover(MemoryDisk().root, SOLO, Uncapturable(), some_options())
        entry = an_entry(1, operation=SEAL, body=b"")
        group.append([entry])
        with pytest.raises(ApplyFailed, match="no words for it"):
            group.apply(entry)
        with pytest.raises(ApplyFailed):
            group.append([an_entry(2, entry.checksum)])

    def test_a_poisoned_superblock_stops_appends(self):
        disk, group = a_disk_with(2)
        disk.hook = lambda effect: (
            Fail(errno.EIO) if effect.path.startswith("superblock.b") else None
        )
        with pytest.raises(StorageFailed):
            group.group.superblock.write()
        disk.hook = None
        with pytest.raises(StorageFailed, match=r"superblock\.b"):
            grow(group, 1)

    def test_after_a_stop_everything_says_so(self):
        _, group = a_disk_with(2)
        group.group.stop()
        with pytest.raises(Stopped):
            group.group.journal.read(Op(1))
        with pytest.raises(Stopped):
            grow(group, 1)
