"""What only real files can show: descriptors, permissions, links, short calls, full disks."""

import errno
import gc
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.storage import file as file_module
from headrace.storage.file import PIECES_MAX, FileDirectory


@pytest.fixture
def data(tmp_path):
    with FileDirectory.open_root(str(tmp_path / "data"), create=True) as directory:
        yield directory


@pytest.fixture
def umask():
    before = os.umask(0)
    yield os.umask
    os.umask(before)


def mode_of(path):
    return stat.S_IMODE(Path(path).stat().st_mode)


def open_descriptors():
    gc.collect()  # what other tests have left must not go between two counts
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_short_write_resumes_in_the_middle_of_a_piece(data, monkeypatch):
    pwritev = os.pwritev
    calls = []

    def short(descriptor, pieces, position):
        calls.append(position)
        return pwritev(descriptor, [b"".join(pieces)[:3]], position)

    monkeypatch.setattr(os, "pwritev", short)
    with data.create("a") as file:
        file.write(10, [b"ab", b"", b"cdefghij", memoryview(b"k"), bytearray(b"lm")])
        assert file.read(10, 99) == b"abcdefghijklm"
    assert calls == [10, 13, 16, 19, 22]


def test_a_short_write_of_wide_items_resumes_at_the_byte(data, monkeypatch):
    pwritev = os.pwritev

    def short(descriptor, pieces, position):
        return pwritev(descriptor, [b"".join(pieces)[:3]], position)

    monkeypatch.setattr(os, "pwritev", short)
    with data.create("a") as file:
        file.write(0, [memoryview(b"abcdefgh").cast("I")])
        assert file.read(0, 99) == b"abcdefgh"


def test_no_call_gets_more_pieces_than_the_kernel_takes(data, monkeypatch):
    pwritev = os.pwritev
    counts = []

    def counting(descriptor, pieces, position):
        counts.append(len(pieces))
        return pwritev(descriptor, pieces, position)

    monkeypatch.setattr(os, "pwritev", counting)
    with data.create("a") as file:
        file.write(0, [b"x"] * (PIECES_MAX * 2 + 1))
        assert file.size() == PIECES_MAX * 2 + 1
    assert counts == [PIECES_MAX, PIECES_MAX, 1]
    assert PIECES_MAX <= 1024


def test_all_but_the_last_call_of_a_write_begin_their_write_back(data, monkeypatch):
    begun = []
    monkeypatch.setattr(file_module, "_sync_file_range", lambda _, *rest: begun.append(rest))
    size = file_module.WRITE_SIZE_MAX
    storage = data.create("x")
    storage.write(4096, [bytes(2 * size), b"rest"])
    assert begun == [(4096, size, 2), (4096 + size, size, 2)]
    begun.clear()
    storage.write(0, [b"one call"])
    assert begun == []


def test_a_system_without_early_write_back_writes_the_same(data, monkeypatch):
    whole = bytes(range(256)) * 10_000
    data.create("x").write(0, [whole])
    monkeypatch.setattr(file_module, "_sync_file_range", None)
    data.create("y").write(0, [whole])
    assert data.open("x").read(0, len(whole)) == data.open("y").read(0, len(whole)) == whole


def test_a_write_that_takes_no_bytes_is_an_error_and_not_a_loop(data, monkeypatch):
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    with data.create("a") as file, pytest.raises(OSError, match="took no bytes") as caught:
        file.write(0, [b"x"])
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == f"{data.path}/a"


def test_a_short_read_goes_on_to_the_size_asked_for(data, monkeypatch):
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 3), at))
    with data.create("a") as file:
        file.write(0, [b"0123456789"])
        assert file.read(1, 8) == b"12345678"
        assert file.read(1, 99) == b"123456789"


def test_a_read_ends_where_the_file_was_cut_meanwhile(data, monkeypatch):
    pread = os.pread
    with data.create("a") as file:
        file.write(0, [b"0123456789"])

        def cutting(descriptor, size, position):
            found = pread(descriptor, min(size, 4), position)
            os.ftruncate(descriptor, 6)
            return found

        monkeypatch.setattr(os, "pread", cutting)
        assert file.read(0, 10) == b"012345"


def test_sync_reaches_the_kernel_for_files_and_directories(data, monkeypatch):
    calls = []
    monkeypatch.setattr(os, "fdatasync", lambda _: calls.append("fdatasync"))
    monkeypatch.setattr(os, "fsync", lambda _: calls.append("fsync"))
    with data.create("a") as file:
        file.sync()
    data.sync()
    assert calls == ["fdatasync", "fsync"]


def test_drop_cache_reaches_the_kernel(data, monkeypatch):
    calls = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: calls.append(arguments[1:]))
    with data.create("a") as file:
        file.drop_cache()
    assert calls == [(0, 0, os.POSIX_FADV_DONTNEED)]


def test_what_a_truncate_adds_has_its_space(data):
    with data.create("a") as file:
        file.write(0, [b"abc"])
        file.truncate(1024 * 1024)
        assert os.fstat(file._descriptor).st_blocks * 512 >= 1024 * 1024
        assert file.read(0, 5) == b"abc\0\0"
        assert not any(file.read(3, 1024 * 1024))


def test_a_truncate_that_finds_no_space_leaves_the_file_as_it_was(data, monkeypatch):
    reserve = os.posix_fallocate

    def half(descriptor, start, size):
        reserve(descriptor, start, size // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", half)
    with data.create("a") as file:
        file.write(0, [b"abc"])
        with pytest.raises(OSError, match=f"{data.path}/a") as caught:
            file.truncate(1024 * 1024)
        assert caught.value.errno == errno.ENOSPC
        assert file.size() == 3
        assert os.fstat(file._descriptor).st_blocks * 512 <= 4096


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o200])
def test_modes_do_not_depend_on_the_umask(tmp_path, umask, mask):
    umask(mask)
    with FileDirectory.open_root(str(tmp_path / "data"), create=True) as data:
        data.create("a")
        data.child("d", make=True)
        assert mode_of(data.path) == 0o700
        assert mode_of(f"{data.path}/a") == 0o600
        assert mode_of(f"{data.path}/d") == 0o700


def test_descriptors_are_not_inherited(data):
    with data.create("a") as file, data.child("d", make=True) as child:
        for opened in (data, file, child):
            assert not os.get_inheritable(opened._descriptor)


def test_a_link_is_listed_but_never_followed(data, tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (tmp_path / "data" / "link").symlink_to(target)
    assert data.names() == ["link"]
    with pytest.raises(OSError, match="data/link") as caught:
        data.open("link")
    assert caught.value.errno == errno.ELOOP
    with pytest.raises(FileExistsError):
        data.create("link")
    assert target.read_bytes() == b"precious"


def test_create_does_not_write_through_a_dangling_link(data, tmp_path):
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        data.create("link")
    assert not (tmp_path / "elsewhere").exists()


def test_a_linked_directory_is_refused_as_child_and_as_root(data, tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "data" / "link").symlink_to(tmp_path / "target")
    for act in (
        lambda: data.child("link"),
        lambda: data.child("link", make=True),
        lambda: FileDirectory.open_root(f"{data.path}/link", create=True),
    ):
        with pytest.raises(NotADirectoryError, match="data/link"):
            act()


def test_a_directory_follows_its_descriptor_and_not_its_name(data, tmp_path):
    (tmp_path / "data").rename(tmp_path / "moved")
    (tmp_path / "data").mkdir()
    data.create("a")
    assert (tmp_path / "moved" / "a").exists()
    assert not (tmp_path / "data" / "a").exists()


def test_the_root_is_made_only_when_asked(tmp_path):
    path = str(tmp_path / "data")
    with pytest.raises(FileNotFoundError, match=path):
        FileDirectory.open_root(path, create=False)
    FileDirectory.open_root(path, create=True).create("a")
    with FileDirectory.open_root(path, create=True) as again:
        assert again.names() == ["a"]


def test_a_new_root_is_durable_in_its_parent(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink())
    )
    FileDirectory.open_root(str(tmp_path / "data"), create=True)
    FileDirectory.open_root(str(tmp_path / "data"), create=True)
    assert synced == [tmp_path]


def test_every_error_names_its_file(data, monkeypatch):
    def failing(*_):
        raise OSError(errno.EIO, "Input/output error")

    with data.create("a") as file:
        for name in (
            "pread",
            "pwritev",
            "ftruncate",
            "posix_fallocate",
            "fdatasync",
            "posix_fadvise",
        ):
            monkeypatch.setattr(os, name, failing)
        file._descriptor, descriptor = os.dup(file._descriptor), file._descriptor
        os.pwrite(descriptor, b"x", 0)
        os.close(descriptor)
        for act in (
            lambda: file.read(0, 1),
            lambda: file.append([b"x"]),
            lambda: file.truncate(0),
            lambda: file.truncate(9),
            file.sync,
            file.drop_cache,
        ):
            with pytest.raises(OSError, match=f"{data.path}/a") as caught:
                act()
            assert caught.value.errno == errno.EIO


def test_a_failed_rename_names_both_paths(data):
    child = data.child("d", make=True)
    with pytest.raises(FileNotFoundError) as caught:
        data.rename("a", "b", child)
    assert caught.value.filename == f"{data.path}/a"
    assert caught.value.filename2 == f"{data.path}/d/b"


def test_forgotten_handles_give_their_descriptors_back(data):
    gc.collect()
    before = open_descriptors()
    for number in range(10):
        data.create(f"{number}")
        data.child("d", make=True).names()
    gc.collect()
    assert open_descriptors() == before


def test_a_failed_open_leaks_no_descriptor(data):
    before = open_descriptors()
    for act in (data.open, data.child, data.unlink):
        with pytest.raises(FileNotFoundError):
            act("missing")
    assert open_descriptors() == before


FULL_DISK = """
import errno, resource, sys
from headrace.storage.file import FileDirectory
data = FileDirectory.open_root(sys.argv[1], create=False)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
file = data.create("a")
try:
    file.write(0, [b"x" * 600, b"y" * 600])
except OSError as error:
    assert error.errno == errno.EFBIG, error
    assert error.filename == data.path + "/a", error.filename
    assert file.read(0, 2000) == b"x" * 600 + b"y" * 400
    sys.exit(7)
"""


def test_a_write_past_the_limit_fails_after_the_part_that_fitted(data):
    source = str(Path(__file__).parents[2] / "src")
    run = subprocess.run(
        [sys.executable, "-c", FULL_DISK, data.path],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        check=False,
    )
    assert run.returncode == 7, run.stderr.decode()
