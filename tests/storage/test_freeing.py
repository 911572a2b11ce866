"""Large files are freed beside: their names go at once, their space soon after."""

import errno
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from headrace.storage import freeing
from headrace.storage.file import FileDirectory
from headrace.storage.freeing import FREEING, LARGE_SIZE, NONE, Freeing, hold_if_large

SECONDS_MAX = 30.0


@pytest.fixture
def root(tmp_path):
    with FileDirectory.open_root(str(tmp_path / "data"), create=True) as made:
        yield made


def make(root, name, size):
    with root.create(name) as file:
        file.truncate(size)


def held(root):
    """The files in `root` that this process has a descriptor of."""
    found = []
    for one in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(one.readlink()))
        except OSError:  # closed since it was listed
            continue
    return [name for name in found if name.startswith(f"{root.path}/")]


def deleted(root):
    return [name for name in held(root) if name.endswith(" (deleted)")]


def await_that(is_true):
    deadline = time.monotonic() + SECONDS_MAX
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Slow(Freeing):
    """Frees nothing until it is told to."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()
        self.settled = 0

    def _run(self):
        self.go.wait(SECONDS_MAX)
        super()._run()

    def settle(self):
        self.settled += 1
        self.go.set()
        return super().settle()


@pytest.fixture
def slow(root, monkeypatch):
    made = Slow()
    monkeypatch.setattr("headrace.storage.file.FREEING", made)
    yield made
    made.go.set()
    await_that(lambda: not deleted(root))


def test_the_name_of_a_large_file_goes_before_its_space(root, slow):
    make(root, "large", LARGE_SIZE)
    root.unlink("large")
    assert root.names() == []
    assert len(deleted(root)) == 1
    make(root, "large", LARGE_SIZE)  # its name is free again
    slow.go.set()
    await_that(lambda: not deleted(root))
    assert root.names() == ["large"]


def test_a_small_file_goes_at_once(root, slow):
    make(root, "small", LARGE_SIZE // 2)
    root.unlink("small")
    assert deleted(root) == []


def test_a_file_that_has_another_name_frees_nothing(root, slow):
    make(root, "one", LARGE_SIZE)
    root.link("one", "two", root)
    root.unlink("one")
    assert deleted(root) == []
    assert root.names() == ["two"]


def test_a_name_that_stays_keeps_no_descriptor(root, slow, monkeypatch):
    make(root, "large", LARGE_SIZE)

    def refuse(name, *, dir_fd):
        raise PermissionError(errno.EPERM, "not now", name)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(PermissionError):
        root.unlink("large")
    slow.go.set()
    await_that(lambda: held(root) == [])


@pytest.mark.parametrize(
    ("call", "act"),
    [
        ("posix_fallocate", lambda file: file.truncate(4096)),
        ("pwritev", lambda file: file.write(0, [bytes(4096)])),
    ],
)
def test_a_full_disk_waits_for_what_is_being_freed(root, slow, monkeypatch, call, act):
    make(root, "large", LARGE_SIZE)
    root.unlink("large")
    real = getattr(os, call)

    def full_until_settled(*arguments):
        if not slow.settled:
            raise OSError(errno.ENOSPC, "full")
        assert deleted(root) == []
        return real(*arguments)

    monkeypatch.setattr(os, call, full_until_settled)
    with root.create("small") as file:
        act(file)
        assert (file.size(), slow.settled) == (4096, 1)


def test_a_full_disk_is_full_when_nothing_is_being_freed(root, slow, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwritev", full)
    with root.create("written") as file, pytest.raises(OSError, match="full"):
        file.write(0, [b"some"])
    assert slow.settled == 1


def test_without_a_thread_files_are_freed_at_once(root, slow, monkeypatch):
    def refuse(*_):
        raise RuntimeError("no more threads")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    make(root, "large", LARGE_SIZE)
    root.unlink("large")
    assert deleted(root) == []
    monkeypatch.undo()
    again = Slow()
    again.go.set()
    again.close(os.open(os.devnull, os.O_RDONLY))
    again.settle()
    assert not again.settle()


def test_a_bad_descriptor_does_not_end_the_thread(root, slow):
    slow.close(1_000_000)
    make(root, "large", LARGE_SIZE)
    root.unlink("large")
    assert slow.settle()
    assert deleted(root) == []


def in_a_fork(is_true):
    """Return what `is_true` says in a process that was forked."""
    child = os.fork()
    if not child:
        signal.alarm(10)  # one that waits for ever fails
        answer = 2
        try:
            answer = 0 if is_true() else 1
        finally:
            os._exit(answer)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def test_a_forked_process_lets_go(root):
    FREEING.pause()  # of this thread alone: it may fork nevertheless
    try:
        make(root, "large", LARGE_SIZE)
        root.unlink("large")
        assert len(deleted(root)) == 1
        assert in_a_fork(lambda: deleted(root) == [])
        assert len(deleted(root)) == 1
    finally:
        FREEING.resume()
    await_that(lambda: not deleted(root))


def test_a_forked_process_frees_files_of_its_own(root):
    def free_one():
        make(root, "of the child", LARGE_SIZE)
        root.unlink("of the child")
        FREEING.settle()
        return deleted(root) == []

    assert in_a_fork(free_one)


def test_a_fork_closes_nothing_that_has_the_number_of_a_freed_file(root, monkeypatch):
    real, closed = os.close, threading.Event()

    def close_and_dawdle(descriptor):
        real(descriptor)
        if threading.current_thread().name == "freeing":
            closed.set()
            # As if it waited for its turn. No event can end that: the fork waits for it.
            time.sleep(0.2)

    monkeypatch.setattr(os, "close", close_and_dawdle)
    FREEING.settle()
    make(root, "large", LARGE_SIZE)
    root.unlink("large")
    assert closed.wait(SECONDS_MAX)
    pipe = os.pipe()  # takes the number that was just given back
    try:
        assert in_a_fork(lambda: all(os.fstat(end) for end in pipe))
    finally:
        for end in pipe:
            real(end)


def test_nobody_waits_with_more_than_so_many(root, slow, monkeypatch):
    monkeypatch.setattr(freeing, "WAITING_COUNT_MAX", 2)
    for number in range(4):
        make(root, f"large-{number}", LARGE_SIZE)
        root.unlink(f"large-{number}")
    assert len(deleted(root)) == 2


def test_what_is_no_file_is_not_held(root, tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        (tmp_path / "link").symlink_to(tmp_path / "data")
        for name in ("none", "link", "data"):
            assert hold_if_large(name, descriptor) == NONE
    finally:
        os.close(descriptor)
