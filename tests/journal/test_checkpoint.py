"""A checkpoint: only by a Seal, in one order, one at a time, and never skipping a step."""

import errno
import threading
from dataclasses import dataclass, field

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
    superblock_of,
)

from headrace.errors import CheckpointPending, DiskFull, SealFailed, StorageFailed
from headrace.journal.checkpoint import PENDING_MAX
from headrace.journal.entry import SEAL
from headrace.journal.machine_seam import MachineState
from headrace.journal.snapshot import Snapshot
from headrace.journal.superblock import read_copies
from headrace.model.ids import Op
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.faults import Crash, CrashAfter, Fail, LoseSync
from headrace_lab.disk.memory import MemoryDisk


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


@dataclass
class Logged:
    """A keeper that writes down when it is called, and fails when it is told to."""

    poisoned = None
    kept = frozenset()
    log: list = field(default_factory=list)
    failures: list = field(default_factory=list)

    def restore(self, state):
        self.log.append(("restore", None if state is None else state.local))

    def seal(self, captured, journal, snapshots):
        self.log.append(("seal", captured.op))
        if self.failures:
            raise self.failures.pop(0)
        # Everything up to the Seal is there to be read.
        assert all(journal.read(Op(op)) for op in range(max(1, captured.op - 3), captured.op))
        return MachineState(captured.state.replicated, b"sealed at %d" % captured.op)

    def collect(self, snapshots, kept, journal):
        self.log.append(("collect", tuple(kept)))
        assert all(isinstance(snapshots.load(op), Snapshot) for op in kept)

    def hook(self, effect):
        self.log.append((effect.kind, effect.path))


class TestKeeper:
    def a_kept_group(self, checkpoint_count=2):
        keeper = Logged()
        disk = MemoryDisk()
        group = a_group(disk, keeper=keeper)
        for _ in range(checkpoint_count):
            grow(group, 11)
            checkpoint(group)
        return disk, group, keeper

    def test_seal_then_snapshot_then_pair_then_prune_then_collect_then_drain(self):
        disk, group, keeper = self.a_kept_group()
        grow(group, 11)
        grow_together(group, [b""], SEAL)
        keeper.log.clear()
        disk.hook = keeper.hook
        assert group.group.checkpoints.run() == 36
        steps = [
            ("seal", 36),
            ("rename", snapshot_path(36)),
            ("sync-dir", "snapshots"),
            ("rename", "superblock.a"),
            ("rename", "superblock.b"),
            ("unlink", snapshot_path(12)),
            ("collect", (36, 24)),
        ]
        assert [one for one in keeper.log if one in steps] == [
            *steps[:3],
            *steps[3:6],
            ("sync-dir", "snapshots"),
            steps[6],
        ]
        drains = [at for at, one in enumerate(keeper.log) if one[1] and "journal" in str(one)]
        assert drains
        assert min(drains) > keeper.log.index(("collect", (36, 24)))

    def test_the_snapshot_has_the_local_part_of_the_keeper(self):
        disk, group, _ = self.a_kept_group()
        assert group.group.checkpoints.snapshots.load(Op(24)).state.local == b"sealed at 24"
        keeper = Logged()
        a_group(disk.power_cut(), keeper=keeper)
        assert keeper.log[0] == ("restore", b"sealed at 24")
        assert keeper.log[-1] == ("collect", (24, 12))

    def test_a_new_group_restores_nothing(self):
        keeper = Logged()
        a_group(MemoryDisk(), keeper=keeper)
        assert keeper.log == [("restore", None)]

    def test_a_failed_seal_is_tried_again_for_the_same_op_and_nothing_behind_is_skipped(self):
        disk, group, keeper = self.a_kept_group(1)
        for _ in range(2):
            grow(group, 2)
            grow_together(group, [b""], SEAL)
        keeper.log.clear()
        keeper.failures = [SealFailed("segments", "one"), DiskFull("segments", "two")]
        for error in (SealFailed, DiskFull):
            with pytest.raises(error):
                group.group.checkpoints.run()
            assert snapshots_of(disk) == [snapshot_path(12)]
            assert superblock_of(disk).checkpoint.op == 12
            with pytest.raises(CheckpointPending):
                group.append([a_body()])
        assert [group.group.checkpoints.run() for _ in range(3)] == [15, 18, None]
        seals = [op for what, op in keeper.log if what == "seal"]
        assert seals == [15, 15, 15, 18]
        assert group.append([a_body()]) == 19
        superblock = superblock_of(disk)
        assert (superblock.checkpoint.op, superblock.previous_op) == (18, 15)

    @pytest.mark.parametrize("error", [SealFailed("segments", "no"), DiskFull("segments", "s")])
    def test_a_start_at_which_sealing_fails_serves_and_says_so(self, error):
        disk, group = a_disk_with(3)
        grow_together(group, [b""], SEAL)
        keeper = Logged(failures=[error])
        again = a_group(disk.kill(), keeper=keeper)
        (note,) = again.report.notes
        assert (note.what, note.mended) == (str(error), False)
        assert again.machine.digest() == group.machine.digest()
        assert again.group.checkpoints.run() == 4

    def test_a_collection_that_fails_is_done_before_the_next_drain(self):
        disk, group, keeper = self.a_kept_group()
        grow(group, 11)
        grow_together(group, [b""], SEAL)
        whole, keeper.collect = keeper.collect, failing_once(keeper.collect)
        first = group.group.journal.first
        with pytest.raises(StorageFailed):
            group.group.checkpoints.run()
        assert group.group.journal.first == first
        assert [one.op for one in group.group.checkpoints.pending] == [36]
        keeper.collect = whole
        assert group.group.checkpoints.run() == 36
        assert group.group.journal.first > first
        superblock = superblock_of(disk)
        assert (superblock.checkpoint.op, superblock.previous_op) == (36, 24)


def failing_once(collect):
    def fails(snapshots, kept, journal):
        collect(snapshots, kept, journal)
        raise StorageFailed("segments", "collect", OSError(errno.EIO, "no"))

    return fails


class TestPersistAndSettle:
    def test_appends_go_on_between_them(self):
        disk, group = a_disk_with(3)
        grow_together(group, [b""], SEAL)
        made = group.group.checkpoints.persist()
        assert made.op == 4
        assert snapshots_of(disk) == [snapshot_path(4)]
        assert superblock_of(disk).checkpoint.op == 0
        assert grow(group, 5) == 9
        assert group.group.checkpoints.settle(made) == 4
        superblock = superblock_of(disk.power_cut())
        assert superblock.checkpoint == made
        assert not group.group.checkpoints.pending

    def test_a_crash_between_them_is_a_newer_snapshot_that_is_accepted(self):
        disk, group = a_disk_with(3)
        grow_together(group, [b""], SEAL)
        group.group.checkpoints.persist()
        grow(group, 2)
        for after in (disk.power_cut(), disk.kill()):
            again = a_group(after)
            assert (again.report.snapshot_op, again.head) == (4, 6)
            assert again.machine.digest() == group.machine.digest()
            assert superblock_of(after).checkpoint.op == 4

    def test_persisting_twice_is_as_good_as_once(self):
        _, group = a_disk_with(3)
        grow_together(group, [b""], SEAL)
        first = group.group.checkpoints.persist()
        assert group.group.checkpoints.persist() == first
        assert group.group.checkpoints.settle(first) == 4

    def test_one_after_the_other_oldest_first(self):
        _, group = a_disk_with(1)
        for _ in range(2):
            grow_together(group, [b""], SEAL)
        for expected in (2, 3):
            made = group.group.checkpoints.persist()
            assert made.op == expected
            group.group.checkpoints.settle(made)

    def test_persist_in_a_thread_of_its_own_beside_appends(self):
        disk = MemoryDisk()
        group = a_group(disk)
        for _ in range(12):
            grow(group, 3)
            grow_together(group, [b""], SEAL)
            made = []
            thread = threading.Thread(
                target=lambda m=made: m.append(group.group.checkpoints.persist())
            )
            thread.start()
            grow(group, 3)
            thread.join()
            group.group.checkpoints.settle(made[0])
        again = a_group(disk.kill())
        assert again.head == 12 * 7
        assert again.machine.digest() == group.machine.digest()


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
        synced = []

        def hook(effect):
            if (effect.kind, effect.path) != ("sync-dir", "snapshots"):
                return None
            synced.append(effect)
            return LoseSync() if len(synced) == 2 else None  # of the snapshot, of the pruning

        disk.hook = hook
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

    def test_dropping_the_previous_one_ends_the_same(self):
        """For room: the journal begins at the pair, and the older snapshot goes."""

        def prepared():
            disk, group = a_disk_with(23)
            checkpoint(group)
            grow(group, 11)
            checkpoint(group)
            grow(group, 3)
            return disk, group

        disk, group = prepared()
        digest, drop = group.machine.digest(), group.group.checkpoints.drop_previous
        effects = effects_of(disk, drop)
        assert effects_of(disk, drop) == []  # it is done
        ends = set()
        for number in range(1, len(effects) + 1):
            for fault in (Crash(), CrashAfter()):
                disk, group = prepared()
                disk.hook = Recorder(number, fault)
                with crash():
                    group.group.checkpoints.drop_previous()
                for after in (disk.power_cut(), disk.power_cut(everything(disk)), disk.kill()):
                    again = a_group(after)
                    assert (again.head, again.machine.digest()) == (39, digest)
                    previous = again.group.superblock.current.previous_op
                    ends.add(int(previous))
                    kept = sorted({int(previous), 36})
                    assert snapshots_of(after) == [snapshot_path(op) for op in kept]
                    again.group.checkpoints.drop_previous()
                    assert snapshots_of(after) == [snapshot_path(36)]
                    assert journal_path(1) not in after.files()
                    assert a_group(after.power_cut()).machine.digest() == digest
        assert ends == {24, 36}

    def test_a_pending_one_keeps_the_previous(self):
        disk, group = a_disk_with(11)
        checkpoint(group)
        grow(group, 11)
        checkpoint(group)
        grow_together(group, [b""], SEAL)
        assert effects_of(disk, group.group.checkpoints.drop_previous) == []

    def test_a_seal_that_was_never_persisted_is_captured_again(self):
        disk, group = a_disk_with(3)
        grow_together(group, [b""], SEAL)
        disk = disk.power_cut()
        assert snapshots_of(disk) == []
        again = a_group(disk)
        assert snapshots_of(disk.power_cut()) == [snapshot_path(4)]
        assert again.report.replayed == 4
