"""Files that nobody may write, move or remove: each is a finding, and the shard goes on.

Only what the log is written to must be writable: the superblock and the newest journal file.
"""

import errno

import pytest
from tests.partition.shards import (
    KEY,
    OTHER,
    a_shard,
    carry_path,
    files_in,
    on_files,
)
from tests.stuck import immutable

from headrace.errors import SealFailed, StorageFailed
from headrace.model.ids import Revision
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace_lab.disk.faults import Crash, Crashed, Fail
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.shard.shard import closing

FILE_SIZE = 16 * 1024  # a dozen appends of 30 rows
NOT_PERMITTED = "Operation not permitted"
CARRYING = SegmentSizes(size_min=1 << 20, waited_max=16)  # what comes waits in journal files


def open_shard(disk, sizes=None):
    changes = {} if sizes is None else {"sizes": sizes}
    return a_shard(disk, file_size=FILE_SIZE, **changes)


def some_life(shard) -> None:
    """Roll, seal, drain: every file that a shard ever lets go comes and goes."""
    for _ in range(3):
        shard.append_many(6, 30)
        shard.checkpoint()


def rotten_names(disk: MemoryDisk) -> None:
    """Add what a crash, or somebody, may have left in each directory."""
    for room in ("journal", "journal/spare", "snapshots", "segments", "carry"):
        disk.put(f"{room}/left.tmp", b"half a file")
    disk.put("superblock.c.tmp", b"half a file")
    disk.put(
        "segments/0000000000000009-1-00000000000000000000-00000000000000000010.parquet", b""
    )
    disk.put("snapshots/00000000000000000002.snap", b"rubbish")
    disk.put(carry_path(3), b"rubbish")


def a_long_life(sizes) -> MemoryDisk:
    disk = MemoryDisk()
    shard = open_shard(disk, sizes)
    shard.open_partition(OTHER)
    some_life(shard)
    shard.append_many(14, key=OTHER)
    shard.checkpoint()
    shard.one(closing(OTHER, Revision(3)))
    shard.append_many(3)
    disk = disk.kill()
    rotten_names(disk)
    return disk


def may_be_stuck(disk: MemoryDisk) -> list[str]:
    newest = [path for path in files_in(disk, "journal") if "/spare/" not in path][-2:]
    written = {"superblock.a", "superblock.b", *newest}
    return [path for path in disk.files() if path not in written]


DISKS = {"segments": None, "kept files": CARRYING}


def reported(shard) -> set[str]:
    return {one.path for one in (*shard.store.findings, *shard.store.report.notes)}


@pytest.mark.parametrize("sizes", DISKS.values(), ids=DISKS)
def test_any_file_but_those_that_are_written_may_be_stuck(sizes):
    whole = a_long_life(sizes)
    healthy = whole.clone()
    control = open_shard(healthy, sizes)
    some_life(control)
    expected = control.ids()
    paths = may_be_stuck(whole)
    goes = set(paths) - set(healthy.files())
    kinds = {path.rpartition("/")[0] for path in goes}
    assert kinds == {"", "journal", "journal/spare", "snapshots", "segments", "carry"}
    for path in paths:
        disk = whole.clone()
        disk.set_immutable(path)
        shard = open_shard(disk, sizes)
        some_life(shard)
        assert path in disk.files()
        assert path not in goes or path in reported(shard), path
        disk = disk.kill()
        shard = open_shard(disk, sizes)
        assert shard.ids() == expected, path
        disk.set_immutable(path, to=False)
        disk = disk.kill()
        shard = open_shard(disk, sizes)
        some_life(shard)
        assert shard.ids()[: len(expected)] == expected, path
        is_gone = path not in disk.files()
        assert is_gone or path not in goes or "/spare/" in path, path  # which needs no hurry
        assert not shard.store.stuck, path


def test_a_condemned_second_name_of_a_live_file_is_never_enlisted():
    """After a power cut a file may have two names: that in `spare/` must not be used."""
    disk = MemoryDisk()
    shard = open_shard(disk)
    shard.append_many(3, 30)
    disk = disk.kill()
    (live,) = [path for path in files_in(disk, "journal") if "/spare/" not in path]
    header = disk.content(live)[:4096]
    journal = disk.root.child("journal")
    journal.link(live.rpartition("/")[2], "0000000000000001.wal", journal.child("spare"))
    stuck = "journal/spare/0000000000000001.wal"
    disk.hook = lambda effect: (
        Fail(errno.EPERM) if effect.kind == "unlink" and effect.path == stuck else None
    )
    shard = open_shard(disk)
    shard.append_many(40, 30)  # rolls that need a file each
    assert stuck in reported(shard)
    assert disk.content(stuck)[:4096] == disk.content(live)[:4096] == header
    assert open_shard(disk.kill()).ids() == list(range(43 * 30))


@pytest.mark.parametrize("name", ["superblock.a", "superblock.b", "the newest file"])
def test_what_the_log_is_written_to_halts_it_by_name(name):
    disk = MemoryDisk()
    shard = open_shard(disk)
    shard.append_many(3, 30)
    disk = disk.kill()
    (newest,) = [path for path in files_in(disk, "journal") if "/spare/" not in path]
    path = newest if name == "the newest file" else name
    disk.set_immutable(path)
    with pytest.raises(StorageFailed, match=f"{path}: .*{NOT_PERMITTED}"):
        open_shard(disk)
    disk.set_immutable(path, to=False)
    assert open_shard(disk.kill()).ids() == list(range(90))


class TestANameThatIsTaken:
    """A Seal writes its files under fixed names: what a crash left there may be stuck."""

    def crashed(self, room):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(1, key=KEY)
        shard.checkpoint()
        shard.append_many(13)
        shard.open_partition(OTHER)
        shard.append(key=OTHER)
        disk.hook = lambda effect: Crash() if effect.path.startswith("snapshots") else None
        with pytest.raises(Crashed):
            shard.checkpoint()
        disk = disk.kill()
        disk.set_immutable(path := files_in(disk, room)[-1])
        return disk, path

    def test_by_a_segment_its_rows_are_carried_until_it_goes(self):
        disk, path = self.crashed("segments")
        shard = a_shard(disk)
        assert {one.path for one in shard.store.findings} == {path}
        assert all(NOT_PERMITTED in one.what for one in shard.store.findings)
        assert not shard.pending
        for _ in range(3):
            shard.append_many(5)
            shard.checkpoint()
        assert shard.ids() == list(range(290))
        disk = disk.kill()
        shard = a_shard(disk)
        assert shard.ids() == list(range(290))
        disk.set_immutable(path, to=False)
        shard.checkpoint()
        assert shard.store.findings == []
        assert not shard.unsealed
        assert shard.ids() == list(range(290))

    def test_by_a_carry_file_the_checkpoint_waits_until_it_goes(self):
        disk, path = self.crashed("carry")
        shard = a_shard(disk)
        assert NOT_PERMITTED in shard.store.report.lines()[-1]
        assert len(shard.pending) == 1
        shard.append()
        with pytest.raises(SealFailed, match=NOT_PERMITTED):
            shard.run()
        assert path in str(shard.store.report.lines())
        disk.set_immutable(path, to=False)
        assert shard.run()
        assert shard.ids() == list(range(150))


def test_on_a_real_disk_every_file_at_once(tmp_path):
    """All that is there but the superblock and the newest journal file is immutable."""
    with on_files(tmp_path / "shard") as root:
        shard = open_shard(root)
        some_life(shard)
        shard.append()
        shard.checkpoint()
        shard.store.close()
    newest = max((tmp_path / "shard" / "journal").glob("*.wal"))
    every = [path for path in (tmp_path / "shard").rglob("*.*") if path.is_file()]
    paths = [path for path in every if path != newest and not path.match("superblock.*")]
    assert {path.parent.name for path in paths} == {
        "journal",
        "spare",
        "snapshots",
        "segments",
        "carry",
    }
    with immutable(*paths) as release, on_files(tmp_path / "shard") as root:
        shard = open_shard(root)
        some_life(shard)
        some_life(shard)
        assert shard.ids() == list(range(10 + 3 * 18 * 30))
        stuck = reported(shard)
        assert {path.rsplit("/")[-2] for path in stuck} >= {"journal", "spare", "snapshots"}
        release()
        some_life(shard)
        assert shard.store.findings == []
        assert shard.ids() == list(range(10 + 4 * 18 * 30))
