"""A tapped directory tells, can be made to lie, and else is the directory it wraps."""

from random import Random

import pytest

from headrace.journal.recovery.recover import RecoveryOptions
from headrace.storage.file import FileDirectory
from headrace_lab.counter.solo import Solo
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.disk.tapped import Tap, TappedDirectory


def a_tapped(root, **tap):
    told = []
    return TappedDirectory(root, Tap(lambda kind, name: told.append((kind, name)), **tap)), told


def test_every_effect_is_told_before_it_happens():
    directory, told = a_tapped(MemoryDisk().root)
    child = directory.child("d", make=True)
    file = child.create("a")
    file.append([b"12"])
    file.write(0, [b"3"])
    file.truncate(1)
    file.sync()
    child.rename("a", "b", directory)
    child.sync()
    directory.unlink("b")
    assert [kind for kind, _ in told] == [
        *("create", "write", "write", "truncate", "sync", "rename", "sync-dir", "unlink")
    ]
    assert told[5] == ("rename", "b")


def test_a_planted_directory_skips_the_sync_of_live_journal_files_alone():
    disk = MemoryDisk()
    directory, told = a_tapped(disk.root, skips_journal_sync=True)
    live, spare = f"{1:020}.wal", f"{1:016x}.wal"
    for name in (live, spare):
        file = directory.create(name)
        file.append([b"x"])
        file.sync()
    directory.sync()
    after = disk.power_cut()
    assert {name: after.content(name) for name in after.files()} == {live: b"", spare: b"x"}
    assert ("sync", live) in told


@pytest.mark.parametrize("writeback", [None, Random(5)])
def test_a_group_lives_in_a_tapped_directory_as_in_its_own(tmp_path, writeback):
    options = RecoveryOptions(slots=256, file_size=64 * 1024)
    real = FileDirectory.open_root(str(tmp_path), create=False)
    solo = Solo.open(a_tapped(real, writeback=writeback)[0], options)
    for number in range(30):
        solo.append([bytes(8) + b"x" * 5000, bytes(8) + b"y"])
        if number % 10 == 9:
            solo.checkpoint()
    assert len(solo.group.journal.files) > 1
    solo.group.journal.close()
    again = Solo.open(real, options)
    assert again.head == solo.head
    assert again.machine.digest() == solo.machine.digest()
    again.group.journal.close()
