"""The contract of `Storage` and `Directory`, held by both twins."""

import errno
import tempfile
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stuck import immutable

from headrace.storage.file import PIECES_MAX, FileDirectory
from headrace_lab.disk.memory import MemoryDisk


def content_of(directory, name):
    with directory.open(name) as file:
        return file.read(0, file.size())


def put(directory, name, data):
    with directory.create(name) as file:
        file.append([data])


def test_pieces_are_read_back_in_their_order(root):
    with root.create("a") as file:
        file.write(0, [b"one", bytearray(b"two"), memoryview(b"three")])
        assert file.read(0, 100) == b"onetwothree"
        assert file.read(3, 3) == b"two"
        assert file.size() == 11


def test_more_pieces_than_one_call_takes_are_all_written(root):
    pieces = [b"%d," % number for number in range(PIECES_MAX * 2 + 7)]
    with root.create("a") as file:
        file.write(5, pieces)
        assert file.read(5, 1 << 20) == b"".join(pieces)


def test_empty_pieces_write_nothing(root):
    with root.create("a") as file:
        file.write(9, [])
        file.write(9, [b"", memoryview(b"")])
        assert file.size() == 0
        file.write(0, [b"", b"x", b"", b"y", b""])
        assert file.read(0, 9) == b"xy"


def test_a_piece_of_wide_items_is_written_as_its_bytes(root):
    wide = memoryview(array("I", [1, 2, 3]))
    with root.create("a") as file:
        file.write(0, [wide, b"end"])
        assert file.read(0, 100) == wide.tobytes() + b"end"


def test_a_read_is_short_only_where_the_file_ends(root):
    with root.create("a") as file:
        file.write(0, [b"0123456789"])
        assert file.read(8, 5) == b"89"
        assert file.read(10, 5) == b""
        assert file.read(400, 5) == b""
        assert file.read(4, 0) == b""


def test_a_size_or_position_from_damaged_bytes_is_harmless_to_read(root):
    with root.create("a") as file:
        file.write(0, [b"abc"])
        assert file.read(1, 1 << 62) == b"bc"
        assert file.read(1 << 70, 1) == b""


def test_a_write_beyond_the_end_leaves_zeros_between(root):
    with root.create("a") as file:
        file.write(4, [b"x"])
        assert file.read(0, 9) == b"\0\0\0\0x"


def test_append_returns_where_its_first_piece_lies(root):
    with root.create("a") as file:
        assert file.append([b"abc", b"d"]) == 0
        assert file.append([b"e"]) == 4
        assert file.read(0, 9) == b"abcde"


def test_truncate_cuts_and_grows_with_zeros(root):
    with root.create("a") as file:
        file.write(0, [b"abcdef"])
        file.truncate(2)
        file.truncate(4)
        assert file.read(0, 9) == b"ab\0\0"
        assert file.size() == 4


def test_sync_and_drop_cache_leave_the_content_alone(root):
    with root.create("a") as file:
        file.write(0, [b"abc"])
        file.drop_cache()
        file.sync()
        root.sync()
        file.drop_cache()
        assert file.read(0, 9) == b"abc"


def test_create_refuses_a_name_that_is_taken(root):
    put(root, "a", b"old")
    with pytest.raises(FileExistsError, match="a'"):
        root.create("a")
    root.child("b", make=True)
    with pytest.raises(FileExistsError):
        root.create("b")
    assert content_of(root, "a") == b"old"


def test_open_never_creates(root):
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '[^']*a'$"):
        root.open("a")
    assert root.names() == []


def test_what_is_opened_to_read_cannot_be_written(root):
    put(root, "a", b"abc")
    with root.open("a") as file:
        for act in (
            lambda: file.write(0, [b"x"]),
            lambda: file.append([b"x"]),
            lambda: file.truncate(9),
        ):
            with pytest.raises(OSError, match="a'") as caught:
                act()
            assert caught.value.errno == errno.EBADF
    assert content_of(root, "a") == b"abc"


def test_an_immutable_file_is_read_and_nothing_else(tmp_path):
    with FileDirectory.open_root(str(tmp_path / "data"), create=True) as real:
        put(real, "a", b"abc")
        with immutable(tmp_path / "data" / "a"):
            check_immutable(real)
    disk = MemoryDisk()
    disk.put("a", b"abc")
    disk.set_immutable("a")
    for again in (disk.clone(), disk.power_cut(), disk):
        check_immutable(again.root)
    disk.set_immutable("a", to=False)
    disk.root.unlink("a")


def check_immutable(root):
    put(root, "b", b"")
    assert content_of(root, "a") == b"abc"
    for act in (
        lambda: root.open("a", writable=True),
        lambda: root.unlink("a"),
        lambda: root.rename("a", "c"),
        lambda: root.rename("b", "a"),
        lambda: root.link("a", "c", root),
    ):
        with pytest.raises(PermissionError, match="a'"):
            act()
    assert root.names() == ["a", "b"]


def test_a_directory_cannot_be_opened_unlinked_or_replaced_as_a_file(root):
    root.child("d", make=True)
    put(root, "a", b"")
    for act in (
        lambda: root.open("d"),
        lambda: root.unlink("d"),
        lambda: root.rename("a", "d"),
    ):
        with pytest.raises(IsADirectoryError):
            act()


def test_a_directory_is_renamed_with_all_it_holds(root):
    put(root.child("d", make=True).child("e", make=True), "a", b"x")
    root.rename("d", "f")
    assert content_of(root.child("f").child("e"), "a") == b"x"
    with pytest.raises(FileNotFoundError):
        root.child("d")


def test_a_renamed_directory_replaces_nothing(root):
    root.child("d", make=True)
    root.child("empty", make=True)
    put(root, "a", b"")
    for taken in ("empty", "a"):
        with pytest.raises(FileExistsError):
            root.rename("d", taken)
    assert root.child("d").names() == []


def test_rename_replaces_what_had_the_name(root):
    put(root, "a", b"new")
    put(root, "b", b"old")
    root.rename("a", "b")
    assert root.names() == ["b"]
    assert content_of(root, "b") == b"new"


def test_rename_into_another_directory_moves_the_file(root):
    child = root.child("d", make=True)
    put(root, "a", b"data")
    root.rename("a", "b", child)
    assert root.names() == []
    assert child.names() == ["b"]
    assert content_of(child, "b") == b"data"


def test_rename_onto_itself_keeps_the_file(root):
    put(root, "a", b"data")
    root.rename("a", "a")
    assert content_of(root, "a") == b"data"


def test_a_missing_name_cannot_be_renamed_or_unlinked(root):
    with pytest.raises(FileNotFoundError):
        root.rename("a", "b")
    with pytest.raises(FileNotFoundError):
        root.unlink("a")


def test_rename_onto_another_kind_of_disk_is_refused(root):
    put(root, "a", b"")
    with pytest.raises(TypeError):
        root.rename("a", "b", MemoryDisk().root)


def test_an_open_file_outlives_its_name(root):
    with root.create("a") as file:
        file.append([b"abc"])
        root.unlink("a")
        assert root.names() == []
        file.append([b"def"])
        assert file.read(0, 9) == b"abcdef"


def test_a_renamed_file_is_still_the_open_one(root):
    with root.create("a") as file:
        root.rename("a", "b")
        file.append([b"abc"])
    assert content_of(root, "b") == b"abc"


def test_a_link_is_a_second_name_of_the_same_bytes(root):
    put(root, "a", b"abc")
    room = root.child("d", make=True)
    root.link("a", "b", room)
    root.open("a", writable=True).write(1, [b"X"])
    assert content_of(room, "b") == b"aXc"
    root.unlink("a")
    assert content_of(room, "b") == b"aXc"


def test_a_file_knows_how_many_names_it_has(root):
    put(root, "a", b"bytes")
    room = root.child("room", make=True)
    with root.open("a") as file:
        assert file.name_count == 1
        root.link("a", "b", room)
        assert file.name_count == 2
        root.unlink("a")
        assert file.name_count == 1
        room.unlink("b")
        assert file.name_count == 0


def test_a_link_replaces_nothing(root):
    put(root, "a", b"a")
    put(root, "b", b"b")
    for name, error in (("a", FileExistsError), ("none", FileNotFoundError)):
        with pytest.raises(error):
            root.link(name, "b", root)
    root.child("d", make=True)
    with pytest.raises(IsADirectoryError):
        root.link("d", "c", root)
    assert content_of(root, "b") == b"b"


def test_names_are_sorted_and_without_directories(root):
    for name in ("b", "c", "a"):
        put(root, name, b"")
    root.child("aa", make=True)
    assert root.names() == ["a", "b", "c"]
    assert root.names() == ["a", "b", "c"]


def test_child_opens_and_makes_if_told(root):
    with pytest.raises(FileNotFoundError):
        root.child("d")
    put(root.child("d", make=True), "a", b"x")
    assert root.child("d", make=True).names() == ["a"]
    assert content_of(root.child("d"), "a") == b"x"
    assert root.child("d").open("a").path.endswith("d/a")


def test_a_file_is_no_child(root):
    put(root, "a", b"")
    with pytest.raises(NotADirectoryError):
        root.child("a")
    with pytest.raises(NotADirectoryError):
        root.child("a", make=True)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\0"])
def test_a_name_that_is_no_single_component_is_refused(root, name):
    put(root, "a", b"")
    for act in (
        lambda: root.create(name),
        lambda: root.open(name),
        lambda: root.rename(name, "b"),
        lambda: root.rename("a", name),
        lambda: root.link(name, "b", root),
        lambda: root.link("a", name, root),
        lambda: root.unlink(name),
        lambda: root.child(name),
        lambda: root.child(name, make=True),
    ):
        with pytest.raises(ValueError, match="single path component"):
            act()


def test_a_closed_file_answers_bad_descriptor(root):
    file = root.create("a")
    file.close()
    file.close()
    for act in (
        lambda: file.read(0, 1),
        lambda: file.write(0, [b"x"]),
        lambda: file.append([b"x"]),
        lambda: file.truncate(0),
        file.sync,
        file.size,
        file.drop_cache,
    ):
        with pytest.raises(OSError, match="a'") as caught:
            act()
        assert caught.value.errno == errno.EBADF


NAMES = st.sampled_from(["a", "b", "c"])
PLACES = st.integers(0, 1500)
DATA = st.binary(max_size=1200)
STEPS = st.one_of(
    st.tuples(st.just("create"), NAMES),
    st.tuples(st.just("open"), NAMES),
    st.tuples(st.just("append"), st.lists(DATA, max_size=3)),
    st.tuples(st.just("write"), PLACES, st.lists(DATA, max_size=3)),
    st.tuples(st.just("truncate"), PLACES),
    st.tuples(st.just("read"), PLACES, PLACES),
    st.tuples(st.sampled_from(["sync", "drop_cache", "size"])),
    st.tuples(st.sampled_from(["rename", "link"]), NAMES, NAMES),
    st.tuples(st.just("unlink"), NAMES),
    st.tuples(st.just("down"), NAMES),
    st.tuples(st.sampled_from(["names", "sync_names", "up"])),
)


class Walker:
    """Takes steps in one twin: where it stands, and the file it has open."""

    def __init__(self, root):
        self.root = root
        self.here = root
        self.file = None

    def take(self, step):
        verb, *arguments = step
        try:
            return self._take(verb, arguments)
        except OSError as error:
            return error.errno

    def _take(self, verb, arguments):
        match verb:
            case "create":
                self.file = self.here.create(*arguments)
            case "open":
                self.file = self.here.open(*arguments, writable=True)
            case "rename" | "unlink" | "names":
                return getattr(self.here, verb)(*arguments)
            case "link":
                self.here.link(*arguments, self.root)
            case "sync_names":
                self.here.sync()
            case "down":
                self.here = self.here.child(*arguments, make=True)
            case "up":
                self.here = self.root
            case _ if self.file is not None:
                return getattr(self.file, verb)(*arguments)
        return None


def everything(directory, depth=3):
    files = {name: content_of(directory, name) for name in directory.names()}
    for name in "abc" if depth else "":
        if name not in files:
            try:
                files[name] = everything(directory.child(name), depth - 1)
            except FileNotFoundError:
                continue
    return files


@given(st.lists(STEPS, max_size=30))
def test_any_steps_show_the_same_in_both_twins(steps):
    with tempfile.TemporaryDirectory() as path:
        real = Walker(FileDirectory.open_root(path, create=False))
        pretend = Walker(MemoryDisk().root)
        for step in steps:
            assert real.take(step) == pretend.take(step), step
        assert everything(real.root) == everything(pretend.root)
