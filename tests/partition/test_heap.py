"""What a child keeps from job to job, and when it gives it back."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.partition.shards import Place, on_files

from headrace.partition.segments import sealing_child
from headrace.partition.segments.seal_job import Done
from headrace.partition.segments.sealer import Children
from headrace.partition.segments.sealing_child import KEPT, _Files, _next_job, send

# Takes and frees memory of both kinds ten times; prints the pages that came anew after the
# first time, and what is resident before and after giving back.
SCRIPT = """
import resource
import pyarrow as pa
from headrace.partition.segments.sealing_child import give_back
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20
def use():
    held = [memoryview(pa.allocate_buffer(24 << 20)).cast("B") for _ in range(3)]
    for each in held:
        each[::4096] = bytes(len(each) // 4096)
    held += [bytearray(24 << 20) for _ in range(3)]
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(9):
    use()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
kept = resident()
give_back()
print(faults, kept, resident())
"""


def numbers(environment):
    command = [sys.executable, "-c", SCRIPT]
    given = {**os.environ, **environment}
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=given)
    return [int(word) for word in ended.stdout.split()]


def test_memory_comes_again_without_new_pages_and_goes_back_when_told():
    left_alone, *_ = numbers({})
    faults, kept, given_back = numbers(KEPT)
    assert faults * 4 < left_alone
    assert given_back < kept - 100


@pytest.fixture
def ends():
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as source, os.fdopen(write_end, "wb") as sink:
        yield source, sink


@pytest.fixture
def given_back(monkeypatch):
    """Counts how often memory was given back, and says when."""
    told = threading.Semaphore(0)
    monkeypatch.setattr(sealing_child, "give_back", told.release)
    return told


def test_a_child_that_waits_for_a_job_gives_memory_back_once(ends, given_back, monkeypatch):
    source, sink = ends
    monkeypatch.setattr(sealing_child, "IDLE_SECONDS", 0.05)
    heard = []
    waiting = threading.Thread(target=lambda: heard.append(_next_job(source, _Files())))
    waiting.start()
    assert given_back.acquire(timeout=30)
    assert not given_back.acquire(timeout=0.3)
    send(sink, b"a job")
    waiting.join()
    assert heard == [b"a job"]


def test_a_child_that_has_a_job_keeps_its_memory(ends, given_back):
    source, sink = ends
    send(sink, b"a job")
    assert _next_job(source, _Files()) == b"a job"
    sink.close()
    assert _next_job(source, _Files()) is None
    assert not given_back.acquire(blocking=False)


def test_a_child_that_has_sealed_has_not_imported_pandas(tmp_path):
    children = Children(count=1)
    with on_files(tmp_path / "shard") as root:
        place = Place(root)
        (outcome,) = place.seal(children, place.jobs[0])
    try:
        (one,) = children.idle
        mapped = Path(f"/proc/{one.process.pid}/maps").read_text()
    finally:
        children.close()
    assert isinstance(outcome, Done)
    assert "/pyarrow/" in mapped
    assert "/pandas/" not in mapped


def test_children_are_started_so_whatever_their_parent_has(tmp_path, monkeypatch):
    monkeypatch.setenv("MIMALLOC_PURGE_DELAY", "7")
    children = Children(count=1)
    with on_files(tmp_path / "shard") as root:
        place = Place(root)
        place.seal(children, place.jobs[0])
    try:
        (one,) = children.idle
        given = Path(f"/proc/{one.process.pid}/environ").read_bytes().split(b"\0")
    finally:
        children.close()
    for name, value in KEPT.items():
        assert [each for each in given if each.startswith(f"{name}=".encode())] == [
            f"{name}={value}".encode()
        ]
