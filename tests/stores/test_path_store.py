"""A store on a path: a new file is whole or absent, never replaces one, and is durable."""

import errno
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from headrace.errors import BadRequest, StorageFailed
from headrace.spark.stores.location import location_of
from headrace.spark.stores.path_store import PathStore
from headrace.spark.stores.seam import NotInStore, StoredFile, Upload
from headrace.spark.stores.store import store_of


@pytest.fixture
def root(tmp_path):
    return tmp_path / "tables" / "orders"


@pytest.fixture
def store(root):
    return store_of(location_of(str(root)))


def put(store, name, data):
    with store.write(name) as file:
        file.write(data)


class Effects:
    """Records what reaches the file system, in order, by the kind of call and the path."""

    def __init__(self, monkeypatch, root):
        self.root, self.seen = root, []
        for name in ("open", "link", "fsync", "unlink", "mkdir"):
            monkeypatch.setattr(os, name, self._recorded(name, getattr(os, name)))

    def _recorded(self, name, call):
        def recorded(first, *rest, **more):
            target = f"/proc/self/fd/{first}" if isinstance(first, int) else first
            path = Path(os.readlink(target) if isinstance(first, int) else target)  # noqa: PTH115
            done = call(first, *rest, **more)
            if name != "open" or rest[0] & os.O_CREAT:
                self.seen.append((name, self.told(path)))
            return done

        return recorded

    def told(self, path):
        shown = os.path.relpath(path, self.root)
        return "temporary" if path.name.endswith(".headrace") else shown


class TestWriting:
    def test_a_written_file_is_there_whole(self, store, root):
        put(store, "a/b=c d%é/x.parquet", b"12345")
        assert (root / "a/b=c d%é/x.parquet").read_bytes() == b"12345"
        assert store.head("a/b=c d%é/x.parquet") == StoredFile("a/b=c d%é/x.parquet", 5, "")
        assert [each.name for each in root.rglob("*") if each.is_file()] == ["x.parquet"]

    def test_each_step_is_durable_before_the_next(self, store, root, monkeypatch):
        root.mkdir(parents=True)
        put(store, "first", b"1")
        effects = Effects(monkeypatch, root)
        put(store, "a/x", b"12345")
        assert effects.seen == [
            ("mkdir", "a"),
            ("fsync", "."),
            ("open", "temporary"),
            ("fsync", "temporary"),
            ("link", "temporary"),
            ("fsync", "a"),
            ("unlink", "temporary"),
        ]

    def test_a_directory_of_others_is_synced_in_its_parents_once(
        self, store, root, monkeypatch
    ):
        (root / "a").mkdir(parents=True)
        effects = Effects(monkeypatch, root)
        put(store, "a/x", b"")
        assert effects.seen[:3] == [("fsync", "."), ("fsync", ".."), ("fsync", "../..")]
        del effects.seen[:]
        put(store, "a/y", b"")
        assert [each for each in effects.seen if each[0] == "fsync"] == [
            ("fsync", "temporary"),
            ("fsync", "a"),
        ]

    def test_it_never_replaces_a_file(self, store, root):
        put(store, "x", b"old")
        with pytest.raises(BadRequest, match=f"{root}/x: a file of that name is there"):
            put(store, "x", b"new")
        assert (root / "x").read_bytes() == b"old"
        assert os.listdir(root) == ["x"]  # noqa: PTH208

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_nothing_is_left_if_the_block_raises(self, store, root, error):
        def write():
            with store.write("x") as file:
                file.write(b"half")
                raise error

        with pytest.raises(error):
            write()
        assert list(root.iterdir()) == []

    def test_a_library_may_close_the_file(self, store, root):
        with store.write("x") as file:
            file.write(b"12345")
            file.close()
        assert (root / "x").read_bytes() == b"12345"

    @pytest.mark.parametrize("what", ["write", "put_new"])
    def test_a_limit_of_the_disk_is_named_and_leaves_nothing(self, store, root, what):
        writers = {"write": partial(put, store), "put_new": store.put_new}
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            with pytest.raises(StorageFailed, match="writing the new file failed: ") as caught:
                writers[what]("x", bytes(1_000_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert caught.value.cause.errno == errno.EFBIG
        assert "Free some space" in str(caught.value)
        assert list(root.iterdir()) == []

    def test_one_of_many_writers_wins(self, root):
        stores = [PathStore(str(root)) for _ in range(8)]
        for round_ in range(20):
            with ThreadPoolExecutor(8) as writers:
                won = list(
                    writers.map(
                        lambda store, name, number: store.put_new(name, b"%d" % number),
                        stores,
                        [f"a/{round_}"] * 8,
                        range(8),
                    )
                )
            assert won.count(True) == 1
            assert (root / f"a/{round_}").read_bytes() == b"%d" % won.index(True)

    @pytest.mark.parametrize("failing", [1, 2])
    def test_no_failed_sync_is_retried(self, store, root, monkeypatch, failing):
        put(store, "first", b"1")
        calls = []

        def failed(descriptor):
            calls.append(descriptor)
            if len(calls) == failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "fsync", failed)
        with pytest.raises(StorageFailed, match="Input/output error") as caught:
            put(store, "x", b"12345")
        assert len(calls) == failing
        assert caught.value.cause.errno == errno.EIO
        assert (root / "x").exists() == (failing == 2)

    def test_a_file_system_without_links_is_refused(self, store, root, monkeypatch):
        def link(*_):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

        monkeypatch.setattr(os, "link", link)
        with pytest.raises(BadRequest, match="this file system has no hard links"):
            put(store, "x", b"12345")
        assert list(root.iterdir()) == []

    @pytest.mark.parametrize("name", ["", "/x", "a//b", "../x", "a/./b", "a\nb", "x/"])
    def test_a_name_that_leads_outside_is_refused(self, store, name):
        with pytest.raises(BadRequest, match="is not a valid name"):
            put(store, name, b"")


class TestPutNew:
    def test_the_first_is_taken_and_the_second_is_not(self, store, root):
        assert store.put_new("_headrace/1.json", b"one")
        assert not store.put_new("_headrace/1.json", b"two")
        assert not store.put_new("_headrace/1.json", b"one")
        assert (root / "_headrace/1.json").read_bytes() == b"one"
        assert os.listdir(root / "_headrace") == ["1.json"]  # noqa: PTH208

    def test_a_link_whose_answer_was_lost_is_known_as_its_own(self, store, monkeypatch):
        link = os.link

        def repeated(source, target):
            link(source, target)
            link(
                source, target
            )  # as over NFS: the kernel repeats it, and the second is refused

        monkeypatch.setattr(os, "link", repeated)
        assert store.put_new("x", b"one")
        assert not store.put_new("x", b"one")


class TestReading:
    def test_ranges_and_tails_are_exact(self, store):
        put(store, "x", b"0123456789")
        assert store.read("x", 2, 3) == b"234"
        assert store.read("x", 10, 0) == b""
        assert store.tail("x", 4) == b"6789"
        assert store.tail("x", 11) == b"0123456789"
        assert store.tail("x", 0) == b""

    def test_a_file_that_is_too_short_is_an_error(self, store):
        put(store, "x", b"0123456789")
        with pytest.raises(StorageFailed, match="expected 3 bytes from 8 on, found 2"):
            store.read("x", 8, 3)

    def test_a_missing_file_is_named(self, store, root):
        for ask in (lambda: store.read("x/y", 0, 1), lambda: store.tail("x/y", 1)):
            with pytest.raises(NotInStore, match=f"{root}/x/y: there is no such file"):
                ask()
        assert store.head("x/y") is None
        put(store, "x", b"a file")
        assert store.head("x/y") is None
        with pytest.raises(NotInStore):
            store.durable(["x", "x/y"])

    def test_a_directory_is_no_file(self, store):
        put(store, "a/x", b"")
        assert store.head("a") is None

    def test_all_files_are_listed_hidden_ones_too(self, store, root):
        assert list(store.list()) == []
        for name in ("x", ".hidden", "_headrace/p/1.json", "a/b/c", "ab"):
            put(store, name, name.encode())
        (root / "to_nowhere").symlink_to("nowhere")
        assert sorted(store.list(), key=str) == sorted(
            [StoredFile(name, len(name), "") for name in ("x", ".hidden", "a/b/c", "ab")]
            + [StoredFile("_headrace/p/1.json", 18, "")],
            key=str,
        )
        assert [each.name for each in store.list("a")] == ["a/b/c"]
        assert list(store.list("x")) == []

    def test_removing_what_is_gone_is_fine(self, store):
        put(store, "a/x", b"")
        store.remove(["a/x", "a/x", "b/y", "a"][:3])
        assert list(store.list()) == []

    def test_files_of_others_are_made_durable(self, store, root, monkeypatch):
        (root / "a").mkdir(parents=True)
        (root / "a" / "x").write_bytes(b"12345")
        (root / "a" / "y").write_bytes(b"12345")
        effects = Effects(monkeypatch, root)
        store.durable(["a/x", "a/y"])
        assert effects.seen[:4] == [
            ("fsync", "a/x"),
            ("fsync", "a/y"),
            ("fsync", "a"),
            ("fsync", "."),
        ]


# Kills itself with SIGKILL before or after the nth call that changes the file system.
WRITER = """
import os, signal, sys
from headrace.spark.stores.path_store import PathStore

root, what, at, when = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
count = 0

def struck(call):
    def wrapped(*args, **more):
        global count
        count += 1
        if count == at and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        done = call(*args, **more)
        if count == at and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    return wrapped

for name in ("open", "mkdir", "fsync", "link", "unlink", "write"):
    setattr(os, name, struck(getattr(os, name)))
store = PathStore(root)
if what == "put_new":
    assert store.put_new("a/x", b"0123456789" * 100_000)
else:
    with store.write("a/x") as file:
        for _ in range(10):
            file.write(b"0123456789" * 10_000)
            file.flush()
            os.write(2, b"")  # a step in the middle of the file
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["write", "put_new"])
def test_a_killed_writer_leaves_the_file_whole_or_absent(tmp_path, what, when):
    found = []
    for at in range(1, 100):
        root = tmp_path / f"{at}"
        done = subprocess.run(
            [sys.executable, "-c", WRITER, str(root), what, str(at), when],
            timeout=60,
            check=False,
        )
        store = PathStore(str(root))
        head = store.head("a/x")
        assert head in (None, StoredFile("a/x", 1_000_000, ""))
        found.append(head is not None)
        unfinished = list(store.uploads.list())
        assert {each.name for each in unfinished} <= {"a/x"}
        for each in unfinished:
            store.uploads.abort(each)
            store.uploads.abort(each)
        assert [path.name for path in root.rglob("*") if path.is_file()] == ["x"] * found[-1]
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
    assert done.returncode == 0
    assert found == sorted(found)  # absent up to one step, and whole from there on
    assert found.count(False) > 3
    assert found.count(True) > 2


def test_an_unfinished_write_is_no_file(store):
    with store.write("a/x") as file:
        file.write(b"12345")
        file.flush()
        assert list(store.list()) == []
        [upload] = store.uploads.list()
        assert upload.name == "a/x"
        assert [upload] == list(store.uploads.list("a"))
    assert list(store.uploads.list()) == []


def test_only_a_temporary_file_is_aborted(store):
    put(store, "x", b"12345")
    for upload in (Upload("x", "x"), Upload("x", ".y.0123456789abcdef.headrace")):
        with pytest.raises(BadRequest, match="is not a temporary file of 'x'"):
            store.uploads.abort(upload)
    assert store.head("x")
