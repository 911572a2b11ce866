"""The one garbage collection: what may go, when, and what is set aside instead."""

import sys
import threading
from dataclasses import replace

import pytest
from tests.partition.shards import (
    KEY,
    OTHER,
    a_disk,
    a_shard,
    files_in,
    layered,
    sealed,
    table_of,
)

from headrace.model.ids import Offset, Op, Revision
from headrace.partition.files import carry as carry_module
from headrace.partition.files import file_set as files_module
from headrace.partition.files.file_set import FileFinding
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace.partition.segments.segment import segment_name
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.faults import Crash, Crashed
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.shard.shard import closing, purging, trimming


def snapshots(disk):
    return files_in(disk, "snapshots")


class TestHolding:
    def test_ops_are_parted_by_the_newest_carry_file_that_holds_each(self, monkeypatch):
        disk = MemoryDisk()
        shard = a_shard(disk, sizes=SegmentSizes(10**9, 10**9, 10**9))
        for times in (3, 1, 5):
            shard.append_many(times)
            shard.checkpoint()
        files = shard.store.keeper.files
        files.rotten.update(files.carry_ops[:2])
        shard.append_many(2)
        shard.checkpoint()  # carries again what is rotten and still in the journal
        ops = set(range(1, shard.head + 3))
        for look_cost in (0, 10**6):  # walks over each index, or looks every op up
            monkeypatch.setattr(carry_module, "_LOOK_COST", look_cost)
            found = {op: file for file, held in files.holding(ops) for op in held}
            assert set(found) == ops
            assert found == {op: files.carry_of(Op(op)) for op in ops}
        assert len(set(found.values())) == 5


class TestNamed:
    @pytest.mark.parametrize("deed", ["purge", "trim", "close"])
    def test_what_is_dropped_goes_when_no_kept_snapshot_names_it(self, deed):
        disk = MemoryDisk()
        shard = a_shard(disk)
        path = sealed(shard)
        proposal = {
            "purge": purging(KEY),
            "trim": trimming(KEY, Offset(140)),
            "close": closing(KEY, Revision(5)),
        }[deed]
        shard.one(proposal)
        assert files_in(disk, "segments") == [path]
        shard.checkpoint()  # the previous snapshot names it still
        assert files_in(disk, "segments") == [path]
        shard.checkpoint()
        assert files_in(disk, "segments") == []
        assert files_in(disk.power_cut(), "segments") == []
        assert files_in(disk, "quarantine") == []

    def test_a_segment_that_is_trimmed_in_its_middle_stays(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        path = sealed(shard)
        shard.one(trimming(KEY, Offset(139)))
        for _ in range(3):
            shard.checkpoint()
        assert files_in(disk, "segments") == [path]
        assert shard.ids() == [139]

    def test_carry_files_go_when_nothing_points_into_them(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        layered(shard)
        assert len(files_in(disk, "carry")) == 3
        shard.one(trimming(KEY, Offset(150)))
        shard.checkpoint()  # the run is sealed, but the previous snapshot names them
        assert len(files_in(disk, "carry")) == 3
        shard.checkpoint()
        assert files_in(disk, "carry") == []
        assert shard.ids() == list(range(150, 190))

    def test_files_of_the_previous_snapshot_are_there_when_it_is_needed(self):
        """Lose the newest snapshot after each step of a life: all rows are still there."""
        disk = MemoryDisk()
        shard = a_shard(disk)
        for number in range(12):
            shard.append_many(1 + number % 7)
            shard.checkpoint()
            end = shard.partition.end
            if len(snapshots(disk)) < 2:
                continue
            after = disk.power_cut()
            after.remove(snapshots(after)[-1])
            again = a_shard(after)
            assert again.store.report.fell_back
            assert again.ids() == list(range(end))
            assert again.store.findings == []

    def test_nothing_goes_while_a_kept_snapshot_cannot_be_read(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        path = sealed(shard)
        for _ in range(2):
            shard.checkpoint()
        disk = disk.kill()
        disk.flip(snapshots(disk)[0], 8 * 200)  # the previous one; the newest is used
        shard = a_shard(disk)
        shard.one(purging(KEY))
        shard.store.group.checkpoints.finish()
        assert files_in(disk, "segments") == [path]
        for _ in range(3):
            shard.checkpoint()
        assert files_in(disk, "segments") == []

    def test_a_snapshot_that_rots_under_a_running_shard_keeps_everything(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        path = sealed(shard)
        shard.one(purging(KEY))
        shard.checkpoint()
        shard.store.keeper.files.named.clear()  # as after a restart
        disk.flip(snapshots(disk)[-1], 8 * 200)
        shard.checkpoint()
        assert files_in(disk, "segments") == [path]
        shard.checkpoint()
        shard.checkpoint()
        assert files_in(disk, "segments") == []


class TestHeld:
    def test_a_segment_that_is_read_stays_until_the_reader_lets_go(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        path = sealed(shard)
        batches = shard.store.reader.read(KEY, Offset(0), Offset(140), columns=["id"])
        first = next(batches)
        shard.one(purging(KEY))
        for _ in range(3):
            shard.checkpoint()
        assert files_in(disk, "segments") == [path]
        assert table_of([first, *batches])["id"].to_pylist() == list(range(140))
        assert not shard.store.keeper.files.holds
        shard.checkpoint()
        assert files_in(disk, "segments") == []

    def test_a_reader_that_is_dropped_lets_go_too(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        sealed(shard)
        batches = shard.store.reader.read(KEY, Offset(0), Offset(140))
        next(batches)
        batches.close()
        assert not shard.store.keeper.files.holds

    def test_two_hold_until_both_have_let_go(self):
        files = a_shard().store.keeper.files
        with files.hold("x"):
            with files.hold("x"):
                assert files.holds["x"] == 2
            assert files.holds["x"] == 1
        assert not files.holds

    def test_threads_count_their_holds_right(self):
        files = a_shard().store.keeper.files

        together = threading.Barrier(4)

        def hold_often():
            together.wait()
            for _ in range(5_000):
                with files.hold("x"):
                    pass

        threads = [threading.Thread(target=hold_often) for _ in range(4)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        assert not files.holds


class TestStrangers:
    """Segments that are there at the start and that no snapshot names."""

    def crashed(self):
        """Die between the rename of a segment and its snapshot; the Seal is cut off."""
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(1)
        shard.checkpoint()
        shard.append_many(13)
        before = disk.clone()
        disk.hook = lambda effect: Crash() if effect.path.startswith("snapshots") else None
        with pytest.raises(Crashed):
            shard.checkpoint()
        (path,) = files_in(disk, "segments")
        return before, path, disk.content(path)

    def test_one_that_the_log_covers_waits_for_a_checkpoint_and_goes(self):
        disk, path, content = self.crashed()
        disk.put(path, content)
        disk.put(path.replace("00140.parquet", "00070.parquet"), content)
        shard = a_shard(disk)
        assert len(files_in(disk, "segments")) == 2
        assert shard.store.findings == []
        shard.checkpoint()
        # One has rows that were sealed again; nobody needs the other.
        assert files_in(disk, "segments") == [path]
        assert files_in(disk, "quarantine") == []
        assert shard.ids() == list(range(140))

    def test_the_finish_of_a_recovery_takes_no_stranger(self):
        disk, path, content = self.crashed()
        disk.put(path, content)
        for _ in range(3):
            shard = a_shard(disk)
            shard.store.group.checkpoints.finish()
            assert files_in(disk, "segments") == [path]
            disk = disk.kill()

    @pytest.mark.parametrize(
        "name",
        [
            segment_name(0, 1, 100, 141),  # beyond the end
            segment_name(0, 2, 0, 10),  # another life, of which nothing is known
            segment_name(9, 1, 0, 10),  # no such partition
        ],
    )
    def test_one_with_rows_that_the_log_does_not_know_goes_to_quarantine(self, name):
        disk, _, content = self.crashed()
        disk.put(f"segments/{name}", content)
        shard = a_shard(disk)
        assert files_in(disk, "segments") == [f"segments/{name}"]
        shard.checkpoint()
        assert files_in(disk, "quarantine") == [f"quarantine/{name}"]
        assert disk.power_cut().content(f"quarantine/{name}") == content
        assert shard.store.findings == [
            FileFinding(
                f"segments/{name}",
                "segment without any row that this log knows: moved to quarantine",
                rows_missing=False,
            )
        ]
        assert shard.ids() == list(range(140))

    def test_one_of_a_life_that_ended_goes(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        path = sealed(shard)
        content = disk.content(path)
        shard.one(closing(KEY, Revision(5)))
        for _ in range(3):
            shard.checkpoint()
        disk = disk.kill()
        disk.put(path, content)
        shard = a_shard(disk)
        shard.checkpoint()
        assert files_in(disk, "segments") + files_in(disk, "quarantine") == []

    def test_another_clusters_is_set_aside_though_its_name_is_covered(self):
        other = MemoryDisk()
        shard = a_shard(other, identity=replace(SOLO, cluster=b"another cluster!"))
        path = sealed(shard)
        disk, _, _ = self.crashed()
        name = path.replace("00140.parquet", "00120.parquet")
        disk.put(name, other.content(path))
        shard = a_shard(disk)
        shard.checkpoint()
        assert files_in(disk, "quarantine") == [name.replace("segments", "quarantine")]

    @pytest.mark.parametrize("content", [b"", b"PAR1", b"\0" * 300_000])
    def test_rubble_under_a_covered_name_is_set_aside(self, content):
        disk, _, _ = self.crashed()
        name = segment_name(0, 1, 0, 10)
        disk.put(f"segments/{name}", content)
        shard = a_shard(disk)
        shard.checkpoint()
        assert files_in(disk, "quarantine") == [f"quarantine/{name}"]

    def test_leftovers_go_at_the_start_and_what_is_no_segment_is_left_alone(self):
        disk = a_disk(layered)
        for name in ("segments/ab.tmp", "carry/x.carry.tmp", "segments/README"):
            disk.put(name, b"?")
        shard = a_shard(disk)
        assert not [name for name in disk.files() if name.endswith(".tmp")]
        for _ in range(3):
            shard.checkpoint()
        assert disk.content("segments/README") == b"?"
        assert shard.store.findings == []

    def test_a_carry_file_that_no_snapshot_names_goes_with_the_next_checkpoint(self):
        disk = a_disk(layered)
        disk.put("carry/00000000000000000005.carry", b"old")
        disk.put("carry/99999999999999999999.carry", b"no op has so many digits")
        shard = a_shard(disk)
        shard.checkpoint()
        assert "carry/00000000000000000005.carry" not in disk.files()
        assert "carry/99999999999999999999.carry" in disk.files()


class TestOpenFiles:
    def test_a_segment_is_checked_once_and_stays_open(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        path = sealed(shard)
        reads = []
        disk.read_fault = lambda path, _, size: reads.append((path, size))
        shard.ids(0, 1)
        whole = (path, 4 * 1024 * 1024)
        assert reads.count(whole) == 2  # the file, and its end
        reads.clear()
        shard.ids(0, 1)
        assert whole not in reads
        assert list(shard.store.keeper.files.open) == [path.split("/")[1]]

    def test_only_so_many_stay_open(self, monkeypatch):
        monkeypatch.setattr(files_module, "OPEN_COUNT_MAX", 2)
        shard = a_shard()
        for _ in range(4):
            sealed(shard)
        readers = [
            shard.store.reader.read(KEY, Offset(140 * n), Offset(140 * n + 140))
            for n in range(4)
        ]
        firsts = [next(one) for one in readers]
        names = shard.segment_names()
        assert list(shard.store.keeper.files.open) == names[2:]
        for number, (first, rest) in enumerate(zip(firsts, readers, strict=True)):
            found = table_of([first, *rest])["id"].to_pylist()
            assert found == list(range(140 * number, 140 * number + 140))
        shard.ids(280, 281)
        shard.ids(0, 1)
        assert list(shard.store.keeper.files.open) == [names[2], names[0]]

    def test_findings_are_told_once(self):
        files = a_shard().store.keeper.files
        for _ in range(2):
            files.report(FileFinding("a", "b"))
        assert files.findings == [FileFinding("a", "b")]


def test_partitions_do_not_touch_each_others_files():
    disk = MemoryDisk()
    shard = a_shard(disk)
    shard.open_partition(OTHER)
    shard.append_many(14, key=OTHER)
    path = sealed(shard)
    shard.one(closing(KEY, Revision(5)))
    for _ in range(3):
        shard.checkpoint()
    assert len(files_in(disk, "segments")) == 1
    assert path not in disk.files()
    assert shard.ids(key=OTHER) == list(range(140))


def test_a_file_that_is_gone_before_it_is_collected_stops_nothing():
    disk = MemoryDisk()
    shard = a_shard(disk)
    path = sealed(shard)
    shard.one(purging(KEY))
    disk.remove(path)
    for _ in range(3):
        shard.checkpoint()
    shard.append()
    assert shard.ids(140, 150) == list(range(140, 150))
