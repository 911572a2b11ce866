"""Setting a file aside: durable, under a free name, and never over another."""

import errno

import pytest

from headrace.storage.atomic import set_aside
from headrace_lab.disk.faults import CrashAfter, Crashed, Fail
from headrace_lab.disk.memory import MemoryDisk


def a_place():
    disk = MemoryDisk()
    room, quarantine = (disk.root.child(name, make=True) for name in ("room", "quarantine"))
    disk.root.sync()
    disk.put("room/file", b"bad")
    return disk, room, quarantine


def test_it_moves_durably_and_says_where_it_was():
    disk, room, quarantine = a_place()
    assert set_aside(room, "file", quarantine) == "room/file"
    after = disk.power_cut()
    assert after.files() == ["quarantine/file"]
    assert after.content("quarantine/file") == b"bad"


def test_nothing_in_quarantine_is_ever_replaced():
    disk, room, quarantine = a_place()
    for content in (b"first", b"second", b"third"):
        disk.put("room/file", content)
        set_aside(room, "file", quarantine)
    assert {path: disk.content(path) for path in disk.files()} == {
        "quarantine/file": b"first",
        "quarantine/file.1": b"second",
        "quarantine/file.2": b"third",
    }


def test_a_free_number_below_is_taken():
    disk, room, quarantine = a_place()
    disk.put("quarantine/file", b"")
    disk.put("quarantine/file.2", b"")
    set_aside(room, "file", quarantine)
    assert disk.content("quarantine/file.1") == b"bad"


def test_a_crash_at_any_effect_leaves_it_in_one_place():
    disk, room, quarantine = a_place()
    before = disk.effect_count
    set_aside(room, "file", quarantine)
    for number in range(1, disk.effect_count - before + 1):
        disk, room, quarantine = a_place()
        count = iter(range(1, 99))
        disk.hook = lambda _, n=number, c=count: CrashAfter() if next(c) == n else None
        with pytest.raises(Crashed):
            set_aside(room, "file", quarantine)
        for after in (disk.power_cut(), disk.kill()):
            found = set(after.files())
            # Found in both it is one file with two names: the next start sets it aside again.
            assert found
            assert found <= {"room/file", "quarantine/file"}
            assert {after.content(path) for path in found} == {b"bad"}


def test_a_failed_rename_leaves_it_where_it_is():
    disk, room, quarantine = a_place()
    disk.hook = lambda effect: Fail(errno.EIO) if effect.kind == "rename" else None
    with pytest.raises(OSError, match="error"):
        set_aside(room, "file", quarantine)
    assert disk.files() == ["room/file"]
