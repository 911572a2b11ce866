"""The keeper: what a Seal makes durable, and what becomes of it when the disk does not help."""

import errno

import pytest
from tests.partition.shards import (
    KEY,
    NEWER,
    OTHER,
    WRITER,
    ApartAndStubborn,
    Stubborn,
    a_shard,
    carry_path,
    files_in,
    sealed,
    some_rows,
)

from headrace.errors import (
    CheckpointPending,
    DiskFull,
    SealFailed,
    StorageFailed,
)
from headrace.model.ids import Offset, Op, Revision
from headrace.model.results import Receipt
from headrace.partition.machine.results import Sealed
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace.partition.machine.state import Placed
from headrace.partition.segments.seal_job import DISK, Done, SealRefused
from headrace.partition.segments.sealer import InProcess
from headrace_lab.disk.faults import Crash, CrashAfter, Crashed, Fail, LoseSync
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.shard.shard import (
    appending,
    closing,
    evolving,
    publishing,
    purging,
    staging,
    trimming,
)


def is_temporary(effect) -> bool:
    return effect.path.startswith("segments/") and effect.path.endswith(".tmp")


class TestPlaces:
    def test_a_run_is_carried_until_it_is_large_enough(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(4)
        shard.checkpoint()
        assert (len(files_in(disk, "segments")), len(files_in(disk, "carry"))) == (0, 1)
        shard.append_many(8)
        shard.checkpoint()
        assert shard.segment_names() == [
            "0000000000000000-1-00000000000000000000-00000000000000000120.parquet"
        ]
        assert shard.ids() == list(range(120))

    def test_a_small_run_waits_so_many_seals_and_no_more(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append()
        sealed_counts = []
        for _ in range(5):
            shard.checkpoint()
            sealed_counts.append(len(shard.segments))
        assert sealed_counts == [0, 0, 0, 1, 1]

    def test_a_long_run_becomes_files_of_the_target_size(self):
        shard = a_shard(sizes=SegmentSizes(2_000, 4_000, 3))
        shard.append_many(40)
        shard.checkpoint()
        assert [(one.first, one.end) for one in shard.segments] == [
            (0, 100),
            (100, 200),
            (200, 300),
            (300, 400),
        ]
        assert shard.ids() == list(range(400))

    def test_a_new_schema_ends_the_run_and_the_file(self):
        shard = a_shard()
        shard.append_many(10)
        shard.one(evolving(KEY, 2, NEWER))
        shard.append_many(10, schema=NEWER, schema_id=2)
        shard.checkpoint()
        assert [(one.end, one.version) for one in shard.segments] == [(100, 1), (200, 2)]
        assert shard.rows()["note"].null_count == 100

    def test_carried_entries_are_written_once(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        ops = []
        for _ in range(3):
            shard.append()
            op = shard.checkpoint()
            ops.append(list(shard.store.keeper.files.carry[op].ops))
        assert ops == [[2], [4], [6]]

    def test_a_seal_with_nothing_new_writes_no_file(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        for _ in range(3):
            shard.checkpoint()
        assert files_in(disk, "carry") + files_in(disk, "segments") == []

    def test_staged_rows_are_carried_and_published_after_a_restart(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        rows = some_rows(0, 10)
        receipt = shard.one(staging(KEY, rows, WRITER, 1, (b"s" * 16, 0))).receipt
        for _ in range(4):
            shard.checkpoint()
        assert shard.store.group.journal.slot(Op(2)) is None
        shard = a_shard(disk.kill())
        assert shard.ids() == []
        assert isinstance(receipt, Receipt)
        shard.one(publishing(KEY, WRITER, 1, [receipt]))
        assert shard.ids() == list(range(10))
        for _ in range(4):
            shard.checkpoint()
        assert all(isinstance(one.place, Placed) for one in shard.segments)
        assert shard.ids() == list(range(10))

    def test_what_happens_between_a_seal_and_its_checkpoint_changes_nothing_of_it(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.open_partition(OTHER)
        shard.append_many(12)
        shard.append_many(3, key=OTHER)
        shard.seal()
        assert isinstance(shard.results[0], Sealed)
        shard.append_many(1)
        shard.one(trimming(KEY, Offset(125)))
        shard.one(closing(OTHER, Revision(9)))
        digest = shard.store.machine.digest()
        shard.run()
        assert len(files_in(disk, "segments")) == 1
        again = a_shard(disk.kill())
        assert again.store.machine.digest() == digest
        assert again.ids() == list(range(125, 130))


class TestFull:
    def full(self, disk):
        disk.hook = lambda effect: (
            Fail(errno.ENOSPC) if is_temporary(effect) and effect.kind == "write" else None
        )

    def test_a_full_disk_leaves_the_checkpoint_pending_and_all_rows_there(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(14)
        self.full(disk)
        with pytest.raises(DiskFull):
            shard.checkpoint()
        first = shard.head
        assert shard.pending == [first]
        assert shard.ids() == list(range(140))
        shard.append()
        with pytest.raises(DiskFull):
            shard.checkpoint()
        second = shard.head
        assert shard.pending == [first, second]
        with pytest.raises(CheckpointPending):
            shard.append()
        assert files_in(disk, "segments") == []
        disk.hook = None
        assert [shard.run(), shard.run(), shard.run()] == [first, second, None]
        shard.append()
        assert shard.ids() == list(range(160))
        assert len(files_in(disk, "segments")) == 1

    def test_a_start_on_a_full_disk_says_so_and_serves_all_rows(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(14)
        shard.seal()
        disk = disk.kill()
        self.full(disk)
        shard = a_shard(disk)
        (note,) = shard.store.report.notes
        assert "no space left" in note.what
        assert not note.mended
        assert shard.ids() == list(range(140))
        disk.hook = None
        assert shard.run() == 16
        assert shard.ids() == list(range(140))

    @pytest.mark.parametrize("room", ["carry/", "snapshots/"])
    def test_full_behind_the_segments_does_not_write_them_twice(self, room):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.open_partition(OTHER)
        shard.append_many(14)
        shard.append(key=OTHER)
        effects = []

        def hook(effect):
            effects.append(effect)
            is_write = effect.kind == "write" and effect.path.startswith(room)
            return Fail(errno.ENOSPC) if is_write else None

        disk.hook = hook
        with pytest.raises(DiskFull):
            shard.checkpoint()
        assert len(files_in(disk, "segments")) == 1
        disk.hook = effects.append
        effects.clear()
        assert shard.run() == shard.head
        assert not [one for one in effects if one.path.startswith("segments/")]
        again = a_shard(disk.kill())
        assert again.ids() == list(range(140))
        assert again.ids(key=OTHER) == list(range(10))


class TestFailures:
    @pytest.mark.parametrize("kind", ["create", "write", "sync"])
    def test_a_temporary_file_that_fails_is_left_for_a_new_one(self, kind):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(14)
        names = []

        def hook(effect):
            if is_temporary(effect) and effect.kind == kind:
                names.append(effect.path)
                return LoseSync() if kind == "sync" else Fail(errno.EIO)
            return None

        disk.hook = hook
        for _ in range(2):
            with pytest.raises(SealFailed, match="nothing is lost"):
                shard.checkpoint() if not shard.pending else shard.run()
        assert len(set(names)) == 2
        assert files_in(disk, "segments") == []
        assert shard.ids() == list(range(140))
        disk.hook = None
        assert shard.run() == 16
        assert shard.ids() == list(range(140))
        assert shard.store.findings == []

    def test_a_failed_rename_is_tried_again(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(14)
        disk.hook = lambda effect: (
            Fail(errno.EIO)
            if effect.kind == "rename" and effect.path.startswith("segments/")
            else None
        )
        with pytest.raises(SealFailed):
            shard.checkpoint()
        assert files_in(disk, "segments") == []
        disk.hook = None
        assert shard.run() == 16
        assert shard.ids() == list(range(140))

    @pytest.mark.parametrize("room", ["segments", "carry"])
    def test_a_failed_sync_of_a_directory_is_never_tried_again(self, room):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.open_partition(OTHER)
        shard.append_many(14)
        shard.append(key=OTHER)
        syncs = []

        def hook(effect):
            if (effect.kind, effect.path) == ("sync-dir", room):
                syncs.append(effect)
                return LoseSync()
            return None

        disk.hook = hook
        with pytest.raises(StorageFailed) as caught:
            shard.checkpoint()
        assert caught.value.stage == "sync-dir"
        for _ in range(2):
            with pytest.raises(StorageFailed) as again:
                shard.run()
            assert again.value is caught.value
        with pytest.raises(StorageFailed) as refused:
            shard.append()
        assert refused.value is caught.value
        assert len(syncs) == 1
        assert files_in(disk, "snapshots") == []
        assert bool(shard.unsealed) == (room == "segments")  # not placed before it is durable
        assert shard.ids() == list(range(140))
        for after in (disk.power_cut(), disk.kill()):
            reopened = a_shard(after)
            assert reopened.ids() == list(range(140))
            assert reopened.ids(key=OTHER) == list(range(10))
            assert not reopened.unsealed
            assert [len(files_in(after, "segments"))] == [1]

    def test_a_file_that_cannot_be_deleted_is_reported_and_tried_again(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        sealed(shard)
        (name,) = files_in(disk, "segments")
        shard.one(purging(KEY))
        shard.checkpoint()
        tries = []

        def stubborn(effect):
            if effect.kind != "unlink" or not effect.path.startswith("segments/"):
                return None
            tries.append(effect.path)
            return Fail(errno.EIO)

        disk.hook = stubborn
        for count in (1, 2):
            shard.checkpoint()
            assert len(tries) == count
            assert files_in(disk, "segments") == [name]
            assert [finding.what for finding in shard.store.findings] == [
                "cannot be deleted: Input/output error"
            ]
        disk.hook = None
        shard.checkpoint()
        assert files_in(disk, "segments") == []
        assert not shard.store.findings
        assert shard.store.reader.bounds(KEY) == (140, 140)

    def test_a_file_that_is_not_what_the_sealer_says_is_not_named(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.store.keeper.sealer = Liar(disk)
        shard.append_many(14)
        with pytest.raises(SealFailed, match="differs from what the child reported"):
            shard.checkpoint()
        assert files_in(disk, "segments") == []
        shard.store.keeper.sealer = InProcess()
        assert shard.run() == 16
        assert shard.ids() == list(range(140))

    def test_one_bad_outcome_does_not_undo_the_good_ones(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.open_partition(OTHER)
        shard.append_many(14)
        shard.append_many(14, key=OTHER)
        sealer = shard.store.keeper.sealer = Half()
        with pytest.raises(SealFailed):
            shard.checkpoint()
        assert len(files_in(disk, "segments")) == 1
        shard.run()
        assert sealer.jobs == [[0, 1], [0]]
        assert len(files_in(disk, "segments")) == 2


class Liar:
    """Changes the file after it was read back."""

    def __init__(self, disk):
        self.disk = disk

    is_apart = False

    def seal(self, jobs, directory, read):
        outcomes = InProcess().seal(jobs, directory, read)
        for job in jobs:
            self.disk.flip(f"{directory.path}/{job.temporary}", 800)
        return outcomes

    def close(self):
        return


class Half:
    """Fails the first job of its first round."""

    def __init__(self):
        self.jobs = []

    is_apart = False

    def seal(self, jobs, directory, read):
        self.jobs.append([job.info.namespace for job in jobs])
        outcomes = InProcess().seal(jobs, directory, read)
        assert all(isinstance(one, Done) for one in outcomes)
        if len(self.jobs) == 1:
            outcomes[0] = SealRefused(DISK, "the disk sneezed")
        return outcomes

    def close(self):
        return


class TestUnsealable:
    @pytest.mark.parametrize("kind", [Stubborn, ApartAndStubborn])
    def test_it_is_carried_reported_served_and_sealed_at_last(self, kind):
        disk = MemoryDisk()
        shard = a_shard(disk)
        stubborn = shard.store.keeper.sealer = kind({0})
        shard.append_many(14)
        for number in range(1, 9):
            assert shard.checkpoint() == shard.head
            assert stubborn.asked == number
            (finding,) = shard.store.findings
            assert finding.path == f"segments/{shard.segment_names()[0]}"
            assert finding.what == "unsealed: these rows are too beautiful"
            assert shard.ids(0, 140) == list(range(140))
            shard.append_many(10)
            if number % 3 == 0:
                disk = disk.kill()
                shard = a_shard(disk, sealer=lambda: stubborn)
        assert len(shard.unsealed) == 1
        assert len(shard.segments) > 5
        # Its rows are in no segment and no longer in the journal.
        assert shard.store.group.journal.slot(Op(2)) is None
        stubborn.is_on = False
        shard.checkpoint()
        assert not shard.unsealed
        assert shard.store.findings == []
        end = shard.partition.end
        assert shard.ids() == list(range(end))
        for _ in range(3):
            shard.checkpoint()
        assert files_in(disk, "carry") == []
        assert a_shard(disk.kill()).ids() == list(range(end))

    def test_its_entries_stay_in_the_one_carry_file_that_has_them(self):
        disk = MemoryDisk()
        shard = a_shard(disk, sealer=lambda: Stubborn({0}))
        shard.append_many(14)
        first = shard.checkpoint()
        for _ in range(4):
            shard.append_many(12)
            shard.checkpoint()
        assert files_in(disk, "carry") == [carry_path(first)]

    def test_once_trimmed_nothing_is_left_of_it(self):
        disk = MemoryDisk()
        shard = a_shard(disk, sealer=lambda: Stubborn({0}))
        shard.append_many(14)
        shard.checkpoint()
        shard.one(trimming(KEY, Offset(70)))
        assert shard.ids() == list(range(70, 140))
        assert len(shard.store.findings) == 1
        shard.one(purging(KEY))
        assert shard.store.findings == []
        for _ in range(2):
            shard.checkpoint()
        assert files_in(disk, "carry") == []


class TestCrash:
    def test_a_crash_at_any_effect_of_a_checkpoint_loses_nothing(self):
        def prepared():
            disk = MemoryDisk()
            shard = a_shard(disk, slots=64)
            shard.append_many(2)
            shard.checkpoint()
            shard.append_many(12)
            shard.seal()
            return disk, shard

        disk, shard = prepared()
        digest = shard.store.machine.digest()
        effects = []
        disk.hook = effects.append
        shard.run()
        kinds = {(one.kind, one.path.split("/")[0]) for one in effects}
        assert {("rename", "segments"), ("sync-dir", "segments"), ("write", "snapshots")} <= (
            kinds
        )
        for number in range(1, len(effects) + 1):
            for fault in (Crash(), CrashAfter()):
                disk, shard = prepared()
                count = iter(range(1, 10_000))
                disk.hook = lambda _, n=number, f=fault, c=count: f if next(c) == n else None
                with pytest.raises(Crashed):
                    shard.run()
                for after in (disk.power_cut(), disk.kill()):
                    again = a_shard(after, slots=64)
                    assert again.store.machine.digest() == digest
                    assert again.ids() == list(range(140))
                    assert again.store.findings == []
                    assert not again.unsealed
                    names = files_in(after, "segments")
                    assert names == [f"segments/{again.segment_names()[0]}"]


def test_a_writer_that_repeats_itself_after_a_seal_adds_no_row():
    shard = a_shard()
    shard.append_many(14)
    shard.checkpoint()
    shard.one(appending(KEY, some_rows(0, 10), WRITER, 1))
    assert shard.store.reader.bounds(KEY) == (0, 140)


class Unstartable:
    """A sealer whose children cannot be started."""

    is_apart = False

    def seal(self, jobs, directory, read):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    def close(self):
        return


def test_a_child_that_cannot_be_started_is_tried_again_later():
    disk = MemoryDisk()
    shard = a_shard(disk)
    shard.append_many(14)
    sealer, shard.store.keeper.sealer = shard.store.keeper.sealer, Unstartable()
    with pytest.raises(SealFailed, match="temporarily unavailable"):
        shard.checkpoint()
    shard.store.keeper.sealer = sealer
    assert shard.run() is not None
    assert shard.ids() == list(range(140))
    assert not shard.unsealed
