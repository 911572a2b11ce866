"""The process that seals: its messages, its descriptors, and that it ends with its parent."""

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.partition.shards import Place, a_hanging_child, await_that, on_files

from headrace.errors import CorruptEntry
from headrace.partition.segments.seal_job import (
    DAMAGED,
    DISK,
    OUTCOME_DECODER,
    Done,
    SealRefused,
    encode,
)
from headrace.partition.segments.sealer import Children
from headrace.partition.segments.sealing_child import NICENESS, SIZE, _Files, receive, send


@pytest.fixture
def place(tmp_path):
    with on_files(tmp_path / "shard") as root:
        yield Place(root)


@pytest.fixture
def child():
    with subprocess.Popen(
        [sys.executable, "-m", "headrace.partition.segments.sealing_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "src"},
        cwd=Path(__file__).parents[2],
    ) as process:
        yield process
        process.kill()


def asked(child, message: bytes):
    send(child.stdin, message)
    return OUTCOME_DECODER.decode(receive(child.stdout))


class TestMessages:
    def test_what_is_sent_is_received(self):
        stream = io.BytesIO()
        for message in (b"one", b"", b"x" * 100_000):
            send(stream, message)
        stream.seek(0)
        assert [receive(stream) for _ in range(4)] == [b"one", b"", b"x" * 100_000, None]

    @pytest.mark.parametrize("data", [b"", b"\x05", SIZE.pack(5), SIZE.pack(5) + b"four"])
    def test_the_end_of_the_input_ends_it_wherever_it_comes(self, data):
        assert receive(io.BytesIO(data)) is None


class TestEntries:
    def test_entries_are_read_from_the_files_of_the_job(self, place):
        files = _Files()
        for part in place.jobs[0].parts:
            entry = files.read(part)
            assert (entry.op, entry.checksum) == (part.op, part.checksum)
        assert len(files._open) == 1
        descriptor = next(iter(files._open.values()))
        files.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)

    def test_no_more_than_so_many_files_stay_open(self, place, tmp_path, monkeypatch):
        monkeypatch.setattr("headrace.partition.segments.sealing_child.OPEN_COUNT_MAX", 3)
        part = place.jobs[0].parts[0]
        files = _Files()
        for number in range(8):
            copy = tmp_path / f"{number}.wal"
            shutil.copy(part.path, copy)
            assert files.read(msgspec.structs.replace(part, path=str(copy))).op == part.op
            assert 1 <= len(files._open) <= 3
        files.close()

    def test_another_entry_and_no_entry_are_told_apart(self, place):
        _, first, second, *_ = place.jobs[0].parts
        files = _Files()
        other = msgspec.structs.replace(first, position=second.position)
        with pytest.raises(CorruptEntry, match="another entry") as caught:
            files.read(other)
        assert (caught.value.path, caught.value.position) == (first.path, second.position)
        none = msgspec.structs.replace(first, position=first.position + 8)
        with pytest.raises(CorruptEntry, match="checksum"):
            files.read(none)
        files.close()

    def test_no_link_is_followed(self, place, tmp_path):
        part = place.jobs[0].parts[0]
        link = tmp_path / "link"
        link.symlink_to(part.path)
        with pytest.raises(CorruptEntry, match="unreadable"):
            _Files().read(msgspec.structs.replace(part, path=str(link)))

    def test_nobody_is_waited_for_at_a_pipe_in_place_of_a_file(self, place, child, tmp_path):
        first, *rest = place.jobs[0].parts
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        parts = (msgspec.structs.replace(first, path=str(pipe)), *rest)
        outcome = asked(child, encode(msgspec.structs.replace(place.jobs[0], parts=parts)))
        assert (type(outcome), outcome.kind) == (SealRefused, DAMAGED)
        assert str(pipe) in outcome.flaw


class TestProcess:
    def test_it_serves_jobs_and_ends_with_its_input(self, place, child):
        # Bytes that are no job are answered, not died of.
        nonsense = asked(child, b"\xc1")
        assert (type(nonsense), nonsense.kind) == (SealRefused, DISK)
        gone = msgspec.structs.replace(place.jobs[0], directory="/nowhere/at/all")
        assert asked(child, encode(gone)).kind == DISK
        for job in place.jobs:
            assert isinstance(asked(child, encode(job)), Done)
        assert len(place.leftovers()) == 2
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == min(
            19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
        )
        # When no job comes it holds its three pipes, and nothing of any job.
        descriptors = Path(f"/proc/{child.pid}/fd")
        await_that(lambda: {one.name for one in descriptors.iterdir()} == {"0", "1", "2"})
        child.stdin.close()
        assert child.wait(60) == 0

    def test_it_ends_in_the_middle_of_a_job_too(self, place):
        child = a_hanging_child()
        try:
            send(child.stdin, encode(place.jobs[0]))
            await_that(place.leftovers)
            assert child.poll() is None
            child.stdin.close()
            assert child.wait(30) == 0
        finally:
            child.kill()
            child.stdout.close()
            child.wait()

    def test_a_started_child_has_no_descriptor_of_its_parent(self, place):
        children = Children(count=1)
        read_end, write_end = os.pipe()
        os.set_inheritable(write_end, True)
        os.set_inheritable(read_end, True)
        try:
            place.seal(children, place.jobs[0])
            (child,) = children.idle
            process = child.process
            descriptors = Path(f"/proc/{process.pid}/fd")
            await_that(lambda: {one.name for one in descriptors.iterdir()} == {"0", "1", "2"})
            links = {int(one.name): str(one.readlink()) for one in descriptors.iterdir()}
            assert str(Path(f"/proc/self/fd/{read_end}").readlink()) not in links.values()
            assert os.getsid(process.pid) == process.pid  # a Ctrl-C is not for it
        finally:
            os.close(read_end)
            os.close(write_end)
            children.close()
        assert process.poll() == 0
