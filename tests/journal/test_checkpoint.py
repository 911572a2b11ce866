"""A checkpoint: only by a Seal, in one order, one at a time, and never skipping a step."""

import errno

import pytest
from tests.journal.builders import (
    Recorder,
    a_body,
    a_disk_with,
    a_group,
    bodies_of,
    checkpoint,
    crash,
    effects_of,
    either,
    everything,
    grow,
    grow_together,
    journal_path,
    snapshot_path,
)

from headrace.errors import CheckpointPending, DiskFull, StorageFailed
from headrace.journal.checkpoint import PENDING_MAX
from headrace.journal.entry import SEAL
from headrace.journal.superblock import read_copies
from headrace.model.ids import Op
from headrace.sim.solo import SOLO
from headrace.storage.faults import CrashAfter, Fail
from headrace.storage.memory import MemoryDisk


def snapshots_of(disk):
    return [path for path in disk.files() if path.startswith("snapshots/")]


class TestOrder:
    def test_snapshot_then_pair_then_prune_then_drain(self):
        disk = MemoryDisk()
        group = a_group(disk)
        for _ in range(2):
            grow(group, 11)
            checkpoint(group)
        grow_together(group, [b""], SEAL)
        effects = effects_of(disk, group.group.checkpoints.run)
        order = [
            ("sync-dir", "snapshots"),
            ("sync-dir", "."),
            ("sync-dir", "."),
            ("unlink", snapshot_path(12)),
            ("sync-dir", "snapshots"),
        ]
        found = [(effect.kind, effect.path) for effect in effects]
        places = []
        for step in order:
            places.append(found.index(step, places[-1] + 1 if places else 0))
        assert places == sorted(places)
        drained = [at for at, effect in enumerate(effects) if effect.path.startswith("journal")]
        assert min(drained) > places[-1]

    def test_only_a_seal_makes_one(self):
        _, group = a_disk_with(5)
        assert group.group.checkpoints.run() is None
        grow_together(group, [b""], SEAL)
        assert group.group.checkpoints.run() == 6
        assert group.group.checkpoints.run() is None

    def test_the_state_is_that_at_the_seal_whatever_came_after(self):
        disk, group = a_disk_with(3)
        grow_together(group, [b""], SEAL)
        digest = group.machine.digest()
        grow(group, 4)
        group.group.checkpoints.run()
        snapshot = group.group.checkpoints.snapshots.load(Op(4))
        group.machine.restore(snapshot.state)
        assert group.machine.digest() == digest
        assert a_group(disk.power_cut()).report.replayed == 4


class TestReach:
    def test_two_generations_are_kept(self):
        disk = MemoryDisk()
        group = a_group(disk)
        for _ in range(4):
            grow(group, 4)
            checkpoint(group)
        assert snapshots_of(disk.power_cut()) == [snapshot_path(15), snapshot_path(20)]

    def test_the_journal_reaches_back_to_the_previous_checkpoint(self):
        disk = MemoryDisk()
        group = a_group(disk)
        for _ in range(4):
            grow(group, 11)
            checkpoint(group)
        assert group.group.journal.ring.watermark == 36 - 1
        assert group.group.journal.first == 31
        assert journal_path(21) not in disk.files()

    def test_the_entry_at_each_kept_checkpoint_is_kept(self):
        disk = MemoryDisk()
        group = a_group(disk)
        for _ in range(4):
            grow(group, 11)
            checkpoint(group)
        again = a_group(disk.power_cut())
        assert min(bodies_of(again)) == 36
        assert {36, 48} <= bodies_of(again).keys()

    @either
    def test_the_previous_snapshot_is_usable_after_any_number_of_checkpoints(self, identity):
        disk = MemoryDisk()
        group = a_group(disk, identity)
        for _ in range(5):
            grow(group, 7)
            head = checkpoint(group)
            after = disk.power_cut()
            after.remove(snapshot_path(head))
            again = a_group(after, identity)
            assert again.report.fell_back
            assert again.machine.digest() == group.machine.digest()


class TestPending:
    def test_two_may_wait_and_then_appends_do(self):
        disk, group = a_disk_with(1)
        for _ in range(PENDING_MAX):
            grow_together(group, [b""], SEAL)
        recorder = disk.hook = Recorder()
        with pytest.raises(CheckpointPending) as caught:
            group.append([a_body()])
        assert caught.value.pending == PENDING_MAX
        assert recorder.effects == []
        assert group.group.checkpoints.run() == 2
        assert group.append([a_body()]) == 4
        assert group.group.checkpoints.run() == 3

    def test_a_step_that_fails_is_tried_again_for_the_same_op(self):
        disk, group = a_disk_with(3)
        for _ in range(2):
            grow_together(group, [b""], SEAL)
        full = Fail(errno.ENOSPC)
        disk.hook = lambda effect: full if effect.path.startswith("superblock") else None
        for _ in range(2):
            with pytest.raises(DiskFull):
                group.group.checkpoints.run()
        disk.hook = None
        assert [group.group.checkpoints.run() for _ in range(3)] == [4, 5, None]
        superblock = read_copies(disk.power_cut().root, SOLO).best
        assert (superblock.checkpoint.op, superblock.previous_op) == (5, 4)

    def test_one_that_fails_behind_the_pair_is_finished_by_recovery(self):
        disk = MemoryDisk()
        group = a_group(disk)
        for _ in range(2):
            grow(group, 11)
            checkpoint(group)
        grow_together(group, [b""], SEAL)
        disk.hook = lambda effect: Fail(errno.EIO) if effect.kind == "unlink" else None
        with pytest.raises(StorageFailed) as caught:
            group.group.checkpoints.run()
        assert caught.value.stage == "prune"
        disk.hook = None
        with pytest.raises(StorageFailed) as again:
            group.group.checkpoints.run()
        assert again.value is caught.value
        disk = disk.power_cut()
        assert a_group(disk).report.snapshot_op == 25
        superblock = read_copies(disk.power_cut().root, SOLO).best
        assert (superblock.checkpoint.op, superblock.previous_op) == (25, 24)
        assert snapshots_of(disk.power_cut()) == [snapshot_path(24), snapshot_path(25)]


class TestCrash:
    def test_a_crash_at_any_effect_loses_nothing(self):
        def prepared():
            disk = MemoryDisk()
            group = a_group(disk)
            for _ in range(2):
                grow(group, 11)
                checkpoint(group)
            grow(group, 3)
            grow_together(group, [b""], SEAL)
            return disk, group

        disk, group = prepared()
        digest = group.machine.digest()
        effects = effects_of(disk, group.group.checkpoints.run)
        for number in range(1, len(effects) + 1):
            disk, group = prepared()
            disk.hook = Recorder(number, CrashAfter())
            with crash():
                group.group.checkpoints.run()
            for after in (disk.power_cut(), disk.power_cut(everything(disk)), disk.kill()):
                again = a_group(after)
                assert again.head == 28
                assert again.machine.digest() == digest
                superblock = again.group.superblock.current
                assert (superblock.checkpoint.op, superblock.previous_op) == (28, 24)
                assert snapshots_of(after) == [snapshot_path(24), snapshot_path(28)]

    def test_a_seal_that_was_never_persisted_is_captured_again(self):
        disk, group = a_disk_with(3)
        grow_together(group, [b""], SEAL)
        disk = disk.power_cut()
        assert snapshots_of(disk) == []
        again = a_group(disk)
        assert snapshots_of(disk.power_cut()) == [snapshot_path(4)]
        assert again.report.replayed == 4
