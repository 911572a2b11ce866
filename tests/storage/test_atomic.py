"""A file replaced as a whole: old or new after any failure, and new for good after success."""

import errno
import gc
import os
from pathlib import Path
from random import Random

import pytest

from headrace.errors import CorruptEntry, StorageFailed
from headrace.storage.atomic import atomic_replace, atomic_write, is_leftover
from headrace.storage.file import FileDirectory
from headrace_lab.disk.faults import Crash, CrashAfter, Crashed, Fail, LoseSync, choices
from headrace_lab.disk.memory import MemoryDisk

OLD, NEW = b"old" * 300, b"new" * 500
EFFECTS = ["create", "write", "sync", "rename", "sync-dir"]


def a_disk():
    disk = MemoryDisk()
    disk.put("d/name", OLD)
    return disk


def replace(disk):
    atomic_replace(disk.root.child("d"), "name", [NEW[:700], NEW[700:]])


def fill(file):
    """Write the new file in two writes."""
    file.write(0, [NEW[:700]])
    file.write(700, [NEW[700:]])


def failed(disk, kind, fault):
    """Replace on a disk where the effect of this kind fails, and return the error."""
    disk.hook = lambda effect: fault if effect.kind == kind else None
    with pytest.raises(StorageFailed) as caught:
        replace(disk)
    disk.hook = None
    return caught.value


def test_the_file_is_made_and_then_replaced(root):
    atomic_replace(root, "name", [b"one"])
    atomic_replace(root, "name", [b"t", b"", b"wo"])
    assert root.names() == ["name"]
    with root.open("name") as file:
        assert file.read(0, 99) == b"two"


def test_a_leftover_of_an_earlier_try_is_no_obstacle(root):
    with root.create("name.tmp") as file:
        file.append([b"a longer leftover"])
    atomic_replace(root, "name", [b"new"])
    assert root.names() == ["name"]
    with root.open("name") as file:
        assert file.read(0, 99) == b"new"


def test_the_file_goes_through_its_stages_in_order():
    disk = a_disk()
    seen = []
    disk.hook = lambda effect: seen.append((effect.kind, effect.path))
    replace(disk)
    assert seen == [
        ("create", "d/name.tmp"),
        ("write", "d/name.tmp"),
        ("sync", "d/name.tmp"),
        ("rename", "d/name"),
        ("sync-dir", "d"),
    ]


def test_once_returned_no_power_cut_brings_the_old_file_back():
    disk = a_disk()
    replace(disk)
    assert disk.pending() == []
    assert disk.power_cut().content("d/name") == NEW


@pytest.mark.parametrize("fault", [Crash(), CrashAfter()])
@pytest.mark.parametrize("kind", EFFECTS)
def test_a_power_cut_at_any_effect_leaves_the_old_file_or_the_new(kind, fault):
    disk = a_disk()
    disk.put("d/name.tmp", b"leftover")
    disk.hook = lambda effect: fault if effect.kind == kind else None
    with pytest.raises(Crashed):
        replace(disk)
    cuts = 0
    for kept in choices(disk.pending(), Random(7), bound=6):
        after = disk.power_cut(kept)
        assert after.content("d/name") in (OLD, NEW)
        replace(after)
        assert after.power_cut().content("d/name") == NEW
        cuts += 1
    assert cuts >= len(disk.pending()) + 1


def test_a_write_that_fails_says_so_and_leaves_the_old_file_alone():
    disk = a_disk()
    error = failed(disk, "write", Fail(errno.ENOSPC, done=600))
    assert (error.path, error.stage) == ("d/name", "write")
    assert error.cause.errno == errno.ENOSPC
    assert error.__cause__ is error.cause
    assert disk.files() == ["d/name"]
    assert disk.content("d/name") == OLD
    replace(disk)
    assert disk.power_cut().content("d/name") == NEW


def test_a_create_that_fails_is_of_the_write_stage():
    disk = a_disk()
    assert failed(disk, "create", Fail(errno.EMFILE)).stage == "write"
    assert disk.files() == ["d/name"]


@pytest.mark.parametrize("fault", [Fail(errno.EIO), LoseSync(errno.EIO)])
def test_a_lost_sync_is_never_renamed_and_a_retry_uses_a_new_file(fault):
    disk = a_disk()
    assert failed(disk, "sync", fault).stage == "sync"
    assert disk.content("d/name") == OLD
    assert disk.files() == ["d/name"]
    replace(disk)
    assert disk.power_cut().content("d/name") == NEW


def test_a_rename_that_fails_leaves_the_whole_new_file_beside_the_old():
    disk = a_disk()
    assert failed(disk, "rename", Fail(errno.EIO)).stage == "rename"
    assert disk.content("d/name") == OLD
    assert disk.content("d/name.tmp") == NEW
    replace(disk)
    assert disk.power_cut().content("d/name") == NEW


def test_a_directory_sync_that_fails_shows_the_new_file_and_a_cut_may_undo_it():
    disk = a_disk()
    error = failed(disk, "sync-dir", LoseSync(errno.EIO))
    assert (error.path, error.stage) == ("d/name", "sync-dir")
    assert disk.content("d/name") == NEW
    assert disk.power_cut().content("d/name") == OLD


def test_the_first_failure_is_told_when_the_clean_up_fails_too():
    disk = a_disk()
    disk.hook = lambda effect: Fail(errno.EROFS) if effect.kind in ("sync", "unlink") else None
    with pytest.raises(StorageFailed) as caught:
        replace(disk)
    assert caught.value.stage == "sync"
    assert disk.content("d/name") == OLD


def test_a_leftover_that_cannot_be_unlinked_is_of_the_write_stage():
    disk = a_disk()
    disk.put("d/name.tmp", b"leftover")
    assert failed(disk, "unlink", Fail(errno.EACCES)).stage == "write"
    assert disk.content("d/name") == OLD


@pytest.mark.parametrize(
    ("call", "stage"),
    [("pwritev", "write"), ("fdatasync", "sync"), ("rename", "rename"), ("fsync", "sync-dir")],
)
def test_real_files_fail_at_the_same_stages(tmp_path, monkeypatch, call, stage):
    def failing(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    with FileDirectory.open_root(str(tmp_path), create=False) as directory:
        atomic_replace(directory, "name", [OLD])
        gc.collect()  # what other tests have left must not go meanwhile
        before = len(list(Path("/proc/self/fd").iterdir()))
        with monkeypatch.context() as patched:
            patched.setattr(os, call, failing)
            with pytest.raises(StorageFailed) as caught:
                atomic_replace(directory, "name", [NEW])
        assert caught.value.stage == stage
        assert caught.value.path == f"{tmp_path}/name"
        assert len(list(Path("/proc/self/fd").iterdir())) == before
        left = {"name", "name.tmp"} if stage == "rename" else {"name"}
        assert set(directory.names()) == left
        assert (tmp_path / "name").read_bytes() == (NEW if stage == "sync-dir" else OLD)


def test_only_temporary_names_are_leftovers():
    assert is_leftover("superblock.a.tmp")
    assert not is_leftover("superblock.a")
    assert not is_leftover("tmp")


class TestFilledByItsWriter:
    def test_the_file_is_what_was_filled_in_and_survives_a_power_cut(self):
        disk = a_disk()
        atomic_write(disk.root.child("d"), "name", fill)
        assert disk.pending() == []
        assert disk.power_cut().content("d/name") == NEW
        assert disk.files() == ["d/name"]

    def test_the_old_file_is_read_until_the_new_one_is_whole(self):
        disk = a_disk()

        def looking(file):
            fill(file)
            assert disk.content("d/name") == OLD

        atomic_write(disk.root.child("d"), "name", looking)
        assert disk.content("d/name") == NEW

    @pytest.mark.parametrize("fault", [Crash(), Crash(done=100), CrashAfter()])
    @pytest.mark.parametrize("number", range(1, 7))
    def test_a_power_cut_at_any_effect_leaves_the_old_file_or_the_new(self, number, fault):
        disk = a_disk()
        disk.hook = lambda effect: fault if effect.number == number else None
        with pytest.raises(Crashed):
            atomic_write(disk.root.child("d"), "name", fill)
        for kept in choices(disk.pending(), Random(7), bound=6):
            assert disk.power_cut(kept).content("d/name") in (OLD, NEW)

    def test_any_write_of_it_that_fails_is_of_the_write_stage(self):
        for number in (2, 3):
            disk = a_disk()
            fault = Fail(errno.ENOSPC, done=9)
            disk.hook = lambda effect, at=number, fault=fault: (
                fault if effect.number == at else None
            )
            with pytest.raises(StorageFailed) as caught:
                atomic_write(disk.root.child("d"), "name", fill)
            assert (caught.value.path, caught.value.stage) == ("d/name", "write")
            assert caught.value.cause.errno == errno.ENOSPC
            assert disk.files() == ["d/name"]
            assert disk.content("d/name") == OLD

    @pytest.mark.parametrize(
        "error",
        [CorruptEntry("rotten", path="j"), StorageFailed("j", "sync-dir", OSError(errno.EIO))],
        ids=["corrupt", "storage"],
    )
    def test_an_error_with_a_name_comes_out_unchanged_and_leaves_no_leftover(self, error):
        disk = a_disk()

        def raising(file):
            file.write(0, [NEW])
            raise error

        with pytest.raises(type(error)) as caught:
            atomic_write(disk.root.child("d"), "name", raising)
        assert caught.value is error
        assert caught.value.__cause__ is None
        assert disk.files() == ["d/name"]
        assert disk.content("d/name") == OLD

    def test_a_file_that_was_not_filled_is_closed(self, tmp_path):
        def raising(file):
            raise CorruptEntry("rotten", path="j")

        with FileDirectory.open_root(str(tmp_path), create=False) as directory:
            gc.collect()  # what other tests have left must not go meanwhile
            before = len(list(Path("/proc/self/fd").iterdir()))
            with pytest.raises(CorruptEntry):
                atomic_write(directory, "name", raising)
            assert len(list(Path("/proc/self/fd").iterdir())) == before
            assert directory.names() == []
