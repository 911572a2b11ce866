"""SIGKILL on real processes at random moments: what was acknowledged is there afterwards."""

from random import Random

import msgspec
import pytest

from headrace.errors import DirectoryHeld
from headrace.storage.lock import DirectoryLock
from headrace_lab.counter.trial import GroupTrial, Writer
from headrace_lab.counter.workload import GroupWorkload
from headrace_lab.counter.writer import GroupJob
from headrace_lab.harness.kill import Kills

KILLS = 12


def a_job(path, **changes):
    workload = GroupWorkload(seed=11, seal_every=60)
    return GroupJob(data=str(path / "data"), workload=workload, file_size=256 * 1024, **changes)


def kill(path, kills, plant=""):
    return Kills(GroupTrial(data=str(path / "data"), chance=Random(1), plant=plant)).run(kills)


def test_nothing_acknowledged_is_lost_to_kills_at_random_moments(tmp_path):
    tally = kill(tmp_path, KILLS)
    assert tally.failures == []
    assert tally.count >= KILLS
    assert tally.counts["entries acknowledged"] > KILLS
    assert tally.cases >= KILLS // 2
    in_a_phase = tally.landed.keys() & {"append", "checkpoint", "recovery"}
    assert sum(tally.landed[phase] for phase in in_a_phase) >= KILLS // 4


def test_a_planted_early_acknowledgement_is_caught(tmp_path):
    tally = kill(tmp_path, 8, plant="ack-before-write")
    assert "acknowledged entries are lost" in tally.failures[0]


def test_a_kill_alone_is_blind_to_a_missing_sync(tmp_path):
    tally = kill(tmp_path, 3, plant="ack-before-sync")
    assert tally.failures == []
    assert tally.count >= 3


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
        with Writer(msgspec.structs.replace(job, task="verify")) as second:
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
    with Writer(msgspec.structs.replace(job, task="verify")) as third:
        assert third.wait() == 0
    assert third.testimony.recovered.head >= holder.testimony.last_acknowledged
