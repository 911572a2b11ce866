"""One holder per data directory, in this process or in another."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import DirectoryHeld, StorageFailed
from headrace.storage.lock import DirectoryLock

HOLDER = """
import sys, time
from headrace.storage.lock import DirectoryLock
lock = DirectoryLock.acquire(sys.argv[1], socket="/run/other.sock")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def other(tmp_path):
    source = str(Path(__file__).parents[2] / "src")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": source},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_the_file_tells_who_holds_it(tmp_path):
    with DirectoryLock.acquire(str(tmp_path), socket="/run/it.sock") as lock:
        assert lock.path == f"{tmp_path}/LOCK"
        text = (tmp_path / "LOCK").read_text()
        assert text == f"pid={os.getpid()}\nsocket=/run/it.sock\n"
        assert (tmp_path / "LOCK").stat().st_mode & 0o777 == 0o600


def test_another_process_is_refused_with_the_pid_of_the_holder(tmp_path, other):
    with pytest.raises(DirectoryHeld, match=f"process {other.pid}") as caught:
        DirectoryLock.acquire(str(tmp_path))
    assert caught.value.pid == other.pid
    assert caught.value.path == str(tmp_path)
    assert f"pid={other.pid}\n" in (tmp_path / "LOCK").read_text()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, other):
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert f"pid={other.pid}\n" in (tmp_path / "LOCK").read_text()
    with DirectoryLock.acquire(str(tmp_path)):
        assert (tmp_path / "LOCK").read_text() == f"pid={os.getpid()}\nsocket=\n"


def test_the_same_process_is_refused_too(tmp_path):
    with DirectoryLock.acquire(str(tmp_path)), pytest.raises(DirectoryHeld) as caught:
        DirectoryLock.acquire(str(tmp_path))
    assert caught.value.pid == os.getpid()


@pytest.mark.parametrize("text", [b"", b"pid=\n", b"pid=x\n", b"\xff\xfe", b"socket=/a\n"])
def test_a_holder_that_left_no_pid_is_just_another_process(tmp_path, text):
    with DirectoryLock.acquire(str(tmp_path)):
        (tmp_path / "LOCK").write_bytes(text)
        with pytest.raises(DirectoryHeld, match="another process") as caught:
            DirectoryLock.acquire(str(tmp_path))
        assert caught.value.pid is None


def test_release_lets_the_next_one_in(tmp_path):
    lock = DirectoryLock.acquire(str(tmp_path))
    lock.release()
    lock.release()
    with DirectoryLock.acquire(str(tmp_path)):
        pass
    assert (tmp_path / "LOCK").read_bytes() == b""


def test_release_frees_it_although_a_forked_child_has_a_copy(tmp_path):
    lock = DirectoryLock.acquire(str(tmp_path))
    copy = os.dup(lock._descriptor)
    lock.release()
    DirectoryLock.acquire(str(tmp_path)).release()
    os.close(copy)


def test_a_refused_attempt_leaks_no_descriptor_and_leaves_the_lock_held(tmp_path):
    with DirectoryLock.acquire(str(tmp_path)):
        gc.collect()  # what other tests have left must not go meanwhile
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(3):
            with pytest.raises(DirectoryHeld):
                DirectoryLock.acquire(str(tmp_path))
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_linked_lock_is_refused(tmp_path):
    (tmp_path / "elsewhere").write_bytes(b"precious")
    (tmp_path / "LOCK").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageFailed) as caught:
        DirectoryLock.acquire(str(tmp_path))
    assert caught.value.stage == "lock"
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"


def test_children_do_not_inherit_the_lock(tmp_path):
    with DirectoryLock.acquire(str(tmp_path)) as lock:
        assert not os.get_inheritable(lock._descriptor)


def test_a_forked_child_does_not_keep_its_parents_lock(tmp_path):
    lock = DirectoryLock.acquire(str(tmp_path))
    until, end = os.pipe()
    heard, ready = os.pipe()
    child = os.fork()
    if child == 0:  # lives on until the pipe closes
        os.close(end)
        os.write(ready, b".")
        os.read(until, 1)
        os._exit(0)
    os.read(heard, 1)
    try:
        os.close(lock._descriptor)  # as the death of this process would
        DirectoryLock.acquire(str(tmp_path)).release()
    finally:
        lock._descriptor = -1
        os.close(end)
        os.waitpid(child, 0)
        for descriptor in (until, heard, ready):
            os.close(descriptor)
