"""A power cut: what was durable stays, what was pending stays as far as the test says."""

from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_lab.disk.faults import Keep, Pending, choices
from headrace_lab.disk.memory import MemoryDisk


def a_disk(**files):
    disk = MemoryDisk()
    for name, data in files.items():
        disk.put(name, data)
    return disk


def shown(disk):
    return {path: disk.content(path) for path in disk.files()}


def all_of(disk):
    return [Keep(change.index) for change in disk.pending()]


def test_a_cut_with_nothing_kept_leaves_what_was_synced():
    disk = a_disk(a=b"old")
    file = disk.root.open("a", writable=True)
    file.write(0, [b"synced"])
    file.sync()
    file.write(0, [b"newest"])
    disk.root.create("b")
    disk.root.unlink("a")
    assert shown(disk.power_cut()) == {"a": b"synced"}


def test_a_cut_with_everything_kept_leaves_what_was_seen():
    disk = a_disk(a=b"old", b=b"gone")
    disk.root.open("a", writable=True).append([b" and new"])
    disk.root.unlink("b")
    disk.root.child("d", make=True).create("c").append([b"c"])
    assert shown(disk.power_cut(all_of(disk))) == {"a": b"old and new", "d/c": b"c"}


def test_a_synced_file_without_a_durable_name_is_gone():
    disk = MemoryDisk()
    file = disk.root.create("a")
    file.append([b"data"])
    file.sync()
    assert shown(disk.power_cut()) == {}
    disk.root.sync()
    assert shown(disk.power_cut()) == {"a": b"data"}


def test_a_durable_name_without_synced_data_is_an_empty_file():
    disk = MemoryDisk()
    disk.root.create("a").append([b"data"])
    disk.root.sync()
    assert shown(disk.power_cut()) == {"a": b""}


def test_kept_data_without_its_name_is_gone():
    disk = MemoryDisk()
    disk.root.create("a").append([b"data"])
    (write,) = [change for change in disk.pending() if change.kind == "write"]
    assert shown(disk.power_cut([Keep(write.index)])) == {}


def test_a_new_child_is_gone_until_its_parent_is_synced():
    disk = MemoryDisk()
    child = disk.root.child("d", make=True)
    file = child.create("a")
    file.append([b"data"])
    file.sync()
    child.sync()
    with pytest.raises(FileNotFoundError):
        disk.power_cut().root.child("d")
    disk.root.sync()
    assert shown(disk.power_cut()) == {"d/a": b"data"}


@pytest.mark.parametrize(
    ("kept", "left"),
    [
        ([], {"tmp": b"new", "a": b"old"}),
        ([0], {"tmp": b"new", "a": b"new"}),
        ([1], {"a": b"old"}),
        ([0, 1], {"a": b"new"}),
        ([1, 0], {"a": b"new"}),
    ],
)
def test_a_rename_has_four_outcomes(kept, left):
    disk = a_disk(a=b"old", tmp=b"new")
    disk.root.rename("tmp", "a")
    assert [change.kind for change in disk.pending()] == ["add-name", "drop-name"]
    assert shown(disk.power_cut([Keep(index) for index in kept])) == left


def test_a_rename_into_another_directory_needs_both_synced():
    disk = a_disk(a=b"data")
    child = disk.root.child("d", make=True)
    disk.root.sync()
    disk.root.rename("a", "b", child)
    disk.root.sync()
    assert shown(disk.power_cut()) == {}
    child.sync()
    assert shown(disk.power_cut()) == {"d/b": b"data"}


def test_a_link_is_gone_until_its_directory_is_synced():
    disk = a_disk(a=b"data")
    child = disk.root.child("d", make=True)
    disk.root.sync()
    disk.root.link("a", "b", child)
    assert shown(disk.power_cut()) == {"a": b"data"}
    child.sync()
    disk.root.unlink("a")
    disk.root.sync()
    assert shown(disk.power_cut()) == {"d/b": b"data"}


def test_a_kept_name_shows_one_file_under_both_names():
    disk = a_disk(a=b"data")
    disk.root.rename("a", "b")
    after = disk.power_cut([Keep(0)])
    after.root.open("a", writable=True).append([b"!"])
    assert shown(after) == {"a": b"data!", "b": b"data!"}


def test_a_write_lands_in_the_ranges_that_are_kept():
    disk = a_disk(a=b"..........")
    disk.root.open("a", writable=True).write(2, [b"abcdef"])
    assert shown(disk.power_cut([Keep(0, ((0, 2), (5, 6)))])) == {"a": b"..ab...f.."}
    assert shown(disk.power_cut([Keep(0, ())])) == {"a": b".........."}


def test_a_torn_append_grows_the_file_only_to_what_landed():
    disk = a_disk(a=b"..")
    disk.root.open("a", writable=True).append([b"abcdef"])
    assert shown(disk.power_cut([Keep(0, ((0, 3),))])) == {"a": b"..abc"}
    assert shown(disk.power_cut([Keep(0, ((4, 6),))])) == {"a": b"..\0\0\0\0ef"}
    assert shown(disk.power_cut([Keep(0, ((6, 6),))])) == {"a": b"..\0\0\0\0\0\0"}


def test_a_range_outside_the_write_is_refused():
    disk = a_disk(a=b"..")
    disk.root.open("a", writable=True).append([b"abc"])
    with pytest.raises(ValueError, match="not within 3 bytes"):
        disk.power_cut([Keep(0, ((0, 4),))])


def test_writes_land_in_the_order_given():
    disk = a_disk(a=b"....")
    file = disk.root.open("a", writable=True)
    file.write(0, [b"11"])
    file.write(1, [b"22"])
    assert shown(disk.power_cut([Keep(0), Keep(1)])) == {"a": b"122."}
    assert shown(disk.power_cut([Keep(1), Keep(0)])) == {"a": b"112."}


def test_a_truncate_is_one_change():
    disk = a_disk(a=b"abcdef")
    disk.root.open("a", writable=True).truncate(2)
    assert disk.pending() == [Pending(0, "truncate", "a", size=2)]
    assert shown(disk.power_cut()) == {"a": b"abcdef"}
    assert shown(disk.power_cut([Keep(0)])) == {"a": b"ab"}


def test_a_cut_leaves_the_disk_it_was_asked_of_alone():
    disk = a_disk(a=b"old")
    disk.root.open("a", writable=True).write(0, [b"new"])
    after = disk.power_cut([Keep(0)])
    after.root.open("a", writable=True).write(0, [b"???"])
    assert shown(disk) == {"a": b"new"}
    assert shown(disk.power_cut()) == {"a": b"old"}
    assert len(disk.pending()) == 1


def test_the_survivor_has_nothing_pending():
    disk = a_disk(a=b"old")
    disk.root.open("a", writable=True).write(0, [b"new"])
    after = disk.power_cut([Keep(0)])
    assert after.pending() == []
    assert shown(after.power_cut()) == {"a": b"new"}


def test_a_name_made_anew_may_show_the_old_file():
    disk = a_disk(a=b"old")
    disk.root.unlink("a")
    disk.root.create("a").append([b"new"])
    left = {
        tuple(sorted(shown(disk.power_cut(kept)).items()))
        for kept in choices(disk.pending(), Random(1), bound=3)
    }
    assert {(("a", b"old"),), (), (("a", b""),), (("a", b"new"),)} <= left


def test_pending_changes_are_told_in_order_with_places_and_sectors():
    disk = a_disk(a=b"")
    file = disk.root.open("a", writable=True)
    child = disk.root.child("d", make=True)
    file.write(500, [b"x" * 10, b"y" * 10])
    child.create("b")
    file.append([b"z"])
    disk.root.unlink("a")
    assert disk.pending() == [
        Pending(0, "add-name", "d"),
        Pending(1, "write", "a", 500, 20, 2),
        Pending(2, "add-name", "d/b"),
        Pending(3, "write", "a", 520, 1, 1),
        Pending(4, "drop-name", "a"),
    ]


def test_a_renamed_file_is_told_under_the_name_it_has_now():
    disk = MemoryDisk()
    disk.root.create("a.tmp").append([b"x"])
    disk.root.rename("a.tmp", "b", disk.root.child("d", make=True))
    assert [c.path for c in disk.pending() if c.kind == "write"] == ["d/b"]


def test_a_sync_settles_only_its_own_file_or_directory():
    disk = a_disk(a=b"", b=b"")
    one, other = (disk.root.open(name, writable=True) for name in "ab")
    one.append([b"1"])
    other.append([b"2"])
    disk.root.create("c")
    one.sync()
    assert [(c.kind, c.path) for c in disk.pending()] == [("write", "b"), ("add-name", "c")]
    disk.root.sync()
    assert [(c.kind, c.path) for c in disk.pending()] == [("write", "b")]


def test_an_empty_write_is_not_pending():
    disk = a_disk(a=b"")
    disk.root.open("a", writable=True).write(5, [b""])
    assert disk.pending() == []


NAMES = st.sampled_from(["a", "b", "c"])
STEPS = st.one_of(
    st.tuples(st.just("create"), NAMES),
    st.tuples(st.just("unlink"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("write"), NAMES, st.integers(0, 1200), st.binary(max_size=900)),
    st.tuples(st.just("truncate"), NAMES, st.integers(0, 1200)),
    st.tuples(st.just("sync"), NAMES),
    st.tuples(st.just("sync-dir")),
)


def take(root, step):
    with suppress(FileNotFoundError, FileExistsError):
        _take(root, step)


def _take(root, step):
    match step:
        case ("create" | "unlink" | "rename" as verb, *names):
            getattr(root, verb)(*names)
        case ("write", name, position, data):
            root.open(name, writable=True).write(position, [data])
        case ("truncate", name, size):
            root.open(name, writable=True).truncate(size)
        case ("sync", name):
            root.open(name).sync()
        case _:
            root.sync()


def sync_all(directory):
    for name in directory.names():
        directory.open(name).sync()
    directory.sync()


@given(st.lists(STEPS, max_size=20), st.lists(STEPS, max_size=20))
def test_after_any_steps_none_kept_is_what_was_synced_and_all_kept_what_was_seen(first, then):
    disk = MemoryDisk()
    child = disk.root.child("d", make=True)
    disk.root.sync()
    for step in first:
        take(child, step)
    sync_all(child)
    synced = shown(disk)
    assert disk.pending() == []
    for step in then:
        if step[0] not in ("sync", "sync-dir"):
            take(child, step)
    assert shown(disk.power_cut()) == synced
    assert shown(disk.power_cut(all_of(disk))) == shown(disk)


@given(st.lists(STEPS, max_size=30))
def test_after_any_steps_a_clone_shows_and_survives_as_its_origin_does(steps):
    disk = MemoryDisk()
    for step in steps:
        take(disk.root, step)
    clone = disk.clone()
    assert clone.pending() == disk.pending()
    assert shown(clone) == shown(disk)
    for kept in choices(disk.pending(), Random(3), bound=3):
        assert shown(clone.power_cut(kept)) == shown(disk.power_cut(kept))


def test_a_renamed_directory_survives_as_any_name_does():
    disk = a_disk()
    disk.put("d/a", b"x")
    disk.root.rename("d", "e")
    assert shown(disk.power_cut()) == {"d/a": b"x"}
    assert shown(disk.power_cut(all_of(disk))) == {"e/a": b"x"}
    disk.root.sync()
    assert shown(disk.power_cut()) == {"e/a": b"x"}
