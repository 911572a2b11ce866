"""The memory disk: every fault it can have is really had; clones and lives are kept apart."""

import errno
from typing import get_args

import pytest

from headrace_lab.disk.faults import (
    Crash,
    CrashAfter,
    Crashed,
    Effect,
    EffectKind,
    Fail,
    Keep,
    LoseSync,
    Pending,
)
from headrace_lab.disk.memory import MemoryDisk


def a_disk(**files):
    disk = MemoryDisk()
    for name, data in files.items():
        disk.put(name, data)
    return disk


def shown(disk):
    return {path: disk.content(path) for path in disk.files()}


def on(kind, fault):
    """A hook that gives `fault` to the first effect of this kind."""
    faults = [fault]
    return lambda effect: faults.pop() if faults and effect.kind == kind else None


def all_of(disk):
    return [Keep(change.index) for change in disk.pending()]


class TestLostSync:
    def test_then_sync_then_power_cut_loses_the_data(self):
        disk = a_disk(a=b"old")
        disk.hook = on("sync", LoseSync(errno.EIO))
        file = disk.root.open("a", writable=True)
        file.write(0, [b"new"])
        with pytest.raises(OSError, match="'a'") as caught:
            file.sync()
        assert caught.value.errno == errno.EIO
        assert disk.pending() == []
        file.write(3, [b"+"])
        file.sync()
        assert file.read(0, 9) == b"new+"
        assert shown(disk.power_cut()) == {"a": b"old+"}

    def test_is_seen_once_the_cache_is_dropped(self):
        disk = a_disk(a=b"old")
        disk.hook = on("sync", LoseSync(errno.EIO))
        file = disk.root.open("a", writable=True)
        file.write(0, [b"new"])
        with pytest.raises(OSError, match="'a'"):
            file.sync()
        file.write(3, [b" dirty"])
        assert file.read(0, 9) == b"new dirty"
        file.drop_cache()
        assert file.read(0, 9) == b"old dirty"
        assert len(disk.pending()) == 1

    def test_stays_hidden_in_a_clone_and_after_a_kill(self):
        disk = a_disk(a=b"old")
        disk.hook = on("sync", LoseSync(errno.EIO))
        file = disk.root.open("a", writable=True)
        file.write(0, [b"new"])
        with pytest.raises(OSError, match="'a'"):
            file.sync()
        for after in (disk.clone(), disk.kill()):
            assert shown(after) == {"a": b"new"}
            assert shown(after.power_cut()) == {"a": b"old"}

    def test_of_a_directory_loses_its_names(self):
        disk = a_disk(a=b"data")
        disk.hook = on("sync-dir", LoseSync(errno.EIO))
        disk.root.rename("a", "b")
        with pytest.raises(OSError, match="Input/output"):
            disk.root.sync()
        disk.root.sync()
        assert disk.root.names() == ["b"]
        assert shown(disk.clone()) == {"b": b"data"}
        assert shown(disk.power_cut()) == {"a": b"data"}

    def test_of_a_write_is_refused_as_a_mistake_of_the_test(self):
        disk = a_disk(a=b"")
        disk.hook = lambda _: LoseSync()
        with pytest.raises(ValueError, match="not a sync"):
            disk.root.open("a", writable=True).append([b"x"])


def perform(disk, kind):
    """Do one thing of each kind on a disk with files a and b and a child d."""
    root = disk.root
    acts = {
        "create": lambda: root.create("new"),
        "write": lambda: root.open("a", writable=True).write(1, [b"XY", b"Z"]),
        "append": lambda: root.open("a", writable=True).append([b"XY", b"Z"]),
        "truncate": lambda: root.open("a", writable=True).truncate(1),
        "sync": lambda: root.open("a").sync(),
        "rename": lambda: root.rename("a", "b"),
        "link": lambda: root.link("a", "new", root),
        "unlink": lambda: root.unlink("a"),
        "sync-dir": root.sync,
        "make-child": lambda: root.child("child", make=True),
    }
    acts[kind]()


def a_busy_disk():
    disk = a_disk(a=b"aaaa", b=b"bbbb")
    disk.root.open("a", writable=True).append([b"+"])
    disk.root.create("c")
    disk.effect_count = 0
    return disk


def state(disk):
    return shown(disk), shown(disk.power_cut()), [c.kind for c in disk.pending()]


KINDS = get_args(EffectKind)


@pytest.mark.parametrize("kind", KINDS)
class TestEachEffect:
    def test_a_failed_effect_raises_its_number_and_changes_nothing(self, kind):
        disk = a_busy_disk()
        before = state(disk)
        disk.hook = on(kind, Fail(errno.ENOSPC))
        with pytest.raises(OSError, match="No space left") as caught:
            perform(disk, kind)
        assert caught.value.filename
        assert state(disk) == before
        perform(disk, kind)
        assert state(disk) != before

    def test_a_crash_before_an_effect_changes_nothing(self, kind):
        disk = a_busy_disk()
        before = state(disk)
        disk.hook = on(kind, Crash())
        with pytest.raises(Crashed):
            perform(disk, kind)
        assert state(disk) == before

    def test_a_crash_after_an_effect_finds_it_done(self, kind):
        disk, same = a_busy_disk(), a_busy_disk()
        perform(same, kind)
        disk.hook = on(kind, CrashAfter())
        with pytest.raises(Crashed):
            perform(disk, kind)
        assert state(disk) == state(same)

    def test_the_hook_sees_the_effect_before_it_happens(self, kind):
        disk = a_busy_disk()
        before, seen = state(disk), []

        def look(effect):
            if not seen:
                assert state(disk) == before
            seen.append(effect)

        disk.hook = look
        perform(disk, kind)
        assert seen[0].kind == kind
        assert [effect.number for effect in seen] == list(range(1, len(seen) + 1))
        assert disk.effect_count == len(seen)


def test_effects_tell_path_and_size():
    disk = a_disk(a=b"")
    seen = []
    disk.hook = seen.append
    file = disk.root.child("d", make=True).create("f")
    file.append([b"12", b"345"])
    file.truncate(4)
    disk.root.rename("a", "g", disk.root.child("d"))
    disk.root.sync()
    disk.root.child("d", make=True)
    assert seen == [
        Effect(1, "make-child", "d", 0),
        Effect(2, "create", "d/f", 0),
        Effect(3, "append", "d/f", 5),
        Effect(4, "truncate", "d/f", 4),
        Effect(5, "rename", "d/g", 0),
        Effect(6, "sync-dir", ".", 0),
    ]


def test_a_short_write_leaves_its_first_bytes():
    disk = a_disk(a=b"....")
    disk.hook = on("write", Fail(errno.ENOSPC, done=3))
    with pytest.raises(OSError, match="No space left"):
        disk.root.open("a", writable=True).write(0, [b"ab", b"cd"])
    assert shown(disk) == {"a": b"abc."}
    assert disk.pending() == [Pending(0, "write", "a", 0, 3, 1)]


def test_a_crash_inside_a_write_leaves_its_first_bytes_in_the_cache():
    disk = a_disk(a=b"....")
    disk.hook = on("write", Crash(done=2))
    with pytest.raises(Crashed):
        disk.root.open("a", writable=True).write(0, [b"abcd"])
    assert shown(disk.kill()) == {"a": b"ab.."}
    assert shown(disk.power_cut()) == {"a": b"...."}


def test_a_failed_sync_keeps_its_writes_pending():
    disk = a_disk(a=b"old")
    disk.hook = on("sync", Fail(errno.EIO))
    file = disk.root.open("a", writable=True)
    file.write(0, [b"new"])
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    assert len(disk.pending()) == 1


def test_no_handler_of_exceptions_survives_a_crash():
    assert not issubclass(Crashed, Exception)


def test_after_a_crash_every_call_crashes_but_close_is_quiet():
    disk = a_disk(a=b"data")
    root, file = disk.root, disk.root.open("a", writable=True)
    disk.hook = on("unlink", Crash())
    with pytest.raises(Crashed):
        root.unlink("a")
    for act in (
        lambda: file.read(0, 1),
        lambda: file.write(0, [b"x"]),
        lambda: file.append([b"x"]),
        lambda: file.truncate(0),
        file.sync,
        file.size,
        file.drop_cache,
        lambda: root.create("b"),
        lambda: root.open("a"),
        lambda: root.rename("a", "b"),
        lambda: root.unlink("a"),
        root.names,
        root.sync,
        lambda: root.child("d"),
        lambda: root.child("d", make=True),
        lambda: disk.root.open("a"),
    ):
        with pytest.raises(Crashed):
            act()
    file.close()


def test_a_killed_process_leaves_all_it_wrote_readable_and_pending():
    disk = a_disk(a=b"old")
    file = disk.root.open("a", writable=True)
    file.append([b" new"])
    disk.root.create("b")
    after = disk.kill()
    assert shown(after) == {"a": b"old new", "b": b""}
    assert [change.kind for change in after.pending()] == ["write", "add-name"]
    assert shown(after.power_cut()) == {"a": b"old"}
    with pytest.raises(Crashed):
        file.read(0, 1)
    again = after.root.open("a", writable=True)
    again.sync()
    assert shown(after.power_cut()) == {"a": b"old new"}


def test_changes_of_a_second_life_are_pending_after_those_of_the_first():
    disk = a_disk(a=b"....")
    disk.root.open("a", writable=True).write(0, [b"11"])
    disk.root.open("a", writable=True).write(1, [b"22"])
    after = disk.kill()
    after.root.open("a", writable=True).write(2, [b"33"])
    assert [change.position for change in after.pending()] == [0, 1, 2]
    assert shown(after.power_cut(all_of(after))) == {"a": b"1233"}


def test_a_clone_and_its_origin_do_not_see_each_other():
    disk = a_disk(a=b"old", d=b"")
    file = disk.root.open("a", writable=True)
    file.write(0, [b"mid"])
    clone = disk.clone()
    file.write(0, [b"one"])
    file.sync()
    clone.root.open("a", writable=True).write(0, [b"two"])
    clone.root.unlink("d")
    assert shown(disk) == {"a": b"one", "d": b""}
    assert shown(clone) == {"a": b"two"}
    assert shown(clone.power_cut()) == {"a": b"old", "d": b""}
    assert disk.pending() == []
    assert [change.kind for change in clone.pending()] == ["write", "write", "drop-name"]


def test_a_clone_shares_content_until_it_is_written():
    disk = a_disk(a=b"x" * 1000, b=b"y" * 1000)
    clone = disk.clone()
    assert clone.content("a") is disk.content("a")
    assert clone.power_cut().content("a") is disk.content("a")


def test_a_clone_lives_and_counts_anew():
    disk = a_disk(a=b"")
    disk.read_fault = lambda *_: errno.EIO
    disk.hook = on("append", Crash())
    with pytest.raises(Crashed):
        disk.root.open("a", writable=True).append([b"x"])
    clone = disk.clone()
    assert (clone.hook, clone.read_fault, clone.effect_count) == (None, None, 0)
    clone.root.open("a", writable=True).append([b"x"])
    assert clone.effect_count == 1


def test_an_unreadable_sector_fails_the_reads_that_touch_it():
    disk = a_disk(a=b"x" * 2048, b=b"y")

    def second_sector(path, position, size):
        touched = position < 1024 and position + size > 512
        return errno.EIO if path == "a" and touched else None

    disk.read_fault = second_sector
    file = disk.root.open("a", writable=True)
    assert file.read(0, 512) == b"x" * 512
    assert file.read(1024, 10) == b"x" * 10
    with pytest.raises(OSError, match="Input/output error: 'a'"):
        file.read(511, 2)
    assert disk.root.open("b").read(0, 1) == b"y"


class TestDamageAtRest:
    def test_put_makes_a_durable_file_and_its_parents(self):
        disk = MemoryDisk()
        disk.put("groups/00000/superblock.a", b"data")
        assert disk.files() == ["groups/00000/superblock.a"]
        assert shown(disk.power_cut()) == {"groups/00000/superblock.a": b"data"}
        disk.put("groups/00000/superblock.a", b"other")
        assert shown(disk.power_cut()) == {"groups/00000/superblock.a": b"other"}

    def test_flip_turns_one_bit_over(self):
        disk = a_disk(a=b"\x00\x00")
        disk.flip("a", 0)
        disk.flip("a", 15)
        assert shown(disk.power_cut()) == shown(disk) == {"a": b"\x01\x80"}
        disk.flip("a", 15)
        assert shown(disk) == {"a": b"\x01\x00"}

    def test_overwrite_cut_and_remove_reach_the_platter(self):
        disk = a_disk(a=b"abcdef", b=b"x", c=b"y")
        disk.overwrite("a", 4, b"XYZ")
        disk.cut("b", 0)
        disk.remove("c")
        assert shown(disk) == {"a": b"abcdXYZ", "b": b""}
        assert shown(disk.power_cut()) == shown(disk)

    def test_a_clone_does_not_share_damage(self):
        disk = a_disk(a=b"\x00")
        clone = disk.clone()
        clone.flip("a", 3)
        assert shown(disk) == {"a": b"\x00"}
        assert shown(clone) == {"a": b"\x08"}

    def test_damage_is_seen_through_an_open_file(self):
        disk = a_disk(a=b"\x00")
        file = disk.root.open("a", writable=True)
        disk.flip("a", 0)
        assert file.read(0, 1) == b"\x01"

    def test_damage_makes_nothing_durable_that_was_pending(self):
        disk = a_disk(a=b"\x00")
        disk.root.open("a", writable=True).append([b"\x00"])
        disk.flip("a", 0)
        disk.flip("a", 8)
        assert shown(disk) == {"a": b"\x01\x01"}
        assert shown(disk.power_cut()) == {"a": b"\x01"}
        assert len(disk.pending()) == 1

    def test_removal_also_forgets_a_pending_name(self):
        disk = a_disk(a=b"x")
        disk.root.create("b")
        disk.remove("b")
        assert disk.pending() == []

    def test_a_file_that_is_not_there_cannot_be_damaged(self):
        disk = a_disk(a=b"x")
        for act in (
            lambda: disk.content("b"),
            lambda: disk.flip("d/b", 0),
            lambda: disk.remove("b"),
        ):
            with pytest.raises(FileNotFoundError):
                act()
