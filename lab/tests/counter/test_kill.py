"""SIGKILL on real processes at random moments: what was acknowledged is there afterwards."""

from collections import Counter

import msgspec
import pytest

from headrace.errors import DirectoryHeld
from headrace.storage.lock import DirectoryLock
from headrace_lab.counter.kill import Checked, Killed, Moments, kill_rounds
from headrace_lab.counter.testimony import Writer
from headrace_lab.counter.workload import Workload
from headrace_lab.counter.writer import Job

KILLS = 12


def a_job(path, **changes):
    workload = Workload(seed=11, seal_every=60)
    return Job(data=str(path / "data"), workload=workload, file_size=256 * 1024, **changes)


def run(job, count, seed=1):
    events = list(kill_rounds(job, count, Moments(seed)))
    kills = [event for event in events if isinstance(event, Killed)]
    return kills, [event for event in events if isinstance(event, Checked)]


def test_nothing_acknowledged_is_lost_to_kills_at_random_moments(tmp_path):
    kills, checks = run(a_job(tmp_path), KILLS)
    assert [check.problems for check in checks if check.problems] == []
    assert sum(kill.landed for kill in kills) == KILLS
    assert sum(kill.entry_count for kill in kills) > KILLS
    phases = Counter(kill.phase for kill in kills)
    assert phases["append"] + phases["checkpoint"] + phases["recovery"] >= KILLS // 4


def test_a_planted_early_acknowledgement_is_caught(tmp_path):
    _, checks = run(a_job(tmp_path, plant="ack-before-write"), 8)
    assert "acknowledged entries are lost" in checks[-1].problems[0]
    assert checks[-1].lost_count > 0


def test_a_kill_alone_is_blind_to_a_missing_sync(tmp_path):
    job = a_job(tmp_path, plant="ack-before-sync", is_tapped=True)
    kills, checks = run(job, 3)
    assert all(kill.landed for kill in kills)
    assert not any(check.problems for check in checks)


def test_a_writer_that_ends_by_itself_is_no_kill(tmp_path):
    job = a_job(tmp_path, op_count_max=1)
    with Writer(job) as writer:
        assert writer.await_that("its end", lambda said: said.is_done)
        writer.wait()
        assert not writer.kill()


def test_a_process_that_holds_a_directory_keeps_others_out_and_is_named(tmp_path):
    job = a_job(tmp_path)
    with Writer(job) as holder:
        assert holder.await_that("an entry", lambda said: bool(said.acknowledged))
        with Writer(msgspec.structs.replace(job, task="recover")) as second:
            assert second.wait() == 1
        held = f"DirectoryHeld: {job.data} is in use by process {holder.pid}"
        assert second.testimony.failed.startswith(held)
        assert not second.testimony.is_recovering
        with pytest.raises(DirectoryHeld) as caught:
            DirectoryLock.acquire(job.data)
        assert caught.value.pid == holder.pid
        count = len(holder.testimony.acknowledged)
        assert holder.await_that("one more", lambda said: len(said.acknowledged) > count)
        assert holder.kill()
    with Writer(msgspec.structs.replace(job, task="recover")) as third:
        assert third.wait() == 0
    assert third.testimony.findings.head >= holder.testimony.last_acknowledged
