"""Who seals: outcomes in order, children that die, hang or talk rubbish, and none forgotten."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import msgspec
import pytest
from tests.partition.shards import (
    KEY,
    SECONDS_MAX,
    Place,
    a_hanging_child,
    a_shard,
    await_that,
    layered,
    on_files,
    shard_options,
)

from headrace.errors import SealFailed
from headrace.partition.segments.seal_job import (
    DAMAGED,
    DISK,
    UNSEALABLE,
    Done,
    SealRefused,
    encode,
    seal_file,
)
from headrace.partition.segments.sealer import Children, InProcess, _Child
from headrace.partition.segments.sealing_child import SIZE
from headrace.storage.file import FileDirectory
from headrace_lab.disk.memory import MemoryDisk


@pytest.fixture(scope="module")
def children():
    made = Children(count=2)
    yield made
    made.close()


@pytest.fixture
def place(tmp_path):
    """A shard on real files with two segments to be written, as jobs."""
    with on_files(tmp_path / "shard") as root:
        yield Place(root)


class TestOutcomes:
    def test_children_and_the_caller_itself_write_the_same_rows(self, place, children):
        by_caller = place.seal(InProcess())
        by_children = place.seal(children)
        assert all(isinstance(one, Done) for one in by_children)
        assert [one.digests.rows for one in by_children] == [
            one.digests.rows for one in by_caller
        ]
        assert place.leftovers() == sorted(job.temporary for job in place.jobs)

    def test_children_import_nothing_from_the_working_directory(
        self, place, tmp_path, monkeypatch
    ):
        planted = tmp_path / "planted"
        planted.mkdir()
        (planted / "msgspec.py").write_text("raise SystemExit(1)")
        monkeypatch.chdir(planted)
        made = Children(count=1)
        try:
            assert all(isinstance(one, Done) for one in place.seal(made))
        finally:
            made.close()

    def test_outcomes_come_in_the_order_of_the_jobs(self, place, children):
        bad = msgspec.structs.replace(place.jobs[0], directory="/nowhere/at/all")
        jobs = [place.jobs[0], bad, place.jobs[1], bad]
        kinds = [type(one) for one in place.seal(children, *jobs)]
        assert kinds == [Done, SealRefused, Done, SealRefused]

    def test_children_stay_for_the_next_jobs(self, place, children):
        place.seal(children)
        pids = {one.process.pid for one in children.idle}
        assert 1 <= len(pids) <= children.count
        place.seal(children)
        assert {one.process.pid for one in children.idle} <= pids

    def test_no_job_starts_no_child(self):
        idle = Children()
        assert idle.seal([], MemoryDisk().root, lambda part: None) == []
        assert idle.idle == []

    def test_an_entry_that_is_not_there_is_damage(self, place, children):
        job = place.jobs[0]
        first, second, third, *rest = job.parts
        wrong = msgspec.structs.replace(second, position=third.position)
        job = msgspec.structs.replace(job, parts=(first, wrong, third, *rest))
        (outcome,) = place.seal(children, job)
        assert outcome.kind == DAMAGED
        assert f"op {second.op}: another entry" in outcome.flaw
        assert place.leftovers() == []

    @pytest.mark.parametrize("is_in_process", [True, False])
    def test_rows_that_are_not_the_segments_are_unsealable(
        self, place, children, is_in_process
    ):
        first, *rest = place.jobs[0].parts
        job = msgspec.structs.replace(place.jobs[0], parts=(first, first, *rest))
        (outcome,) = place.seal(InProcess() if is_in_process else children, job)
        assert outcome.kind == UNSEALABLE
        assert "offsets are not consecutive" in outcome.flaw
        assert place.leftovers() == []

    def test_what_an_earlier_try_left_under_the_name_is_no_hindrance(self, place, children):
        job = place.jobs[0]
        for sealer in (InProcess(), children):
            place.segments.create(job.temporary).close()
            (outcome,) = place.seal(sealer, job)
            assert isinstance(outcome, Done)
            place.segments.unlink(job.temporary)


class Hanging(Children):
    """Children that all hang in the middle of their job, and can be told apart."""

    def __init__(self, **limits):
        super().__init__(count=1, **limits)
        self.started = []

    def take(self):
        self.started.append(_Child(a_hanging_child()))
        return self.started[-1]


class TestDeath:
    def seal_blocked(self, place, sealer, job, meanwhile):
        """Seal a job that hangs in its middle, and do something when it does."""
        found = []
        thread = threading.Thread(target=lambda: found.extend(place.seal(sealer, job)))
        thread.start()
        try:
            meanwhile()
        finally:
            thread.join()
        return found

    def test_once_is_tried_again_and_done(self, place, children):
        child = _Child(a_hanging_child())
        children.idle.append(child)

        def meanwhile():
            await_that(place.leftovers)
            child.process.kill()

        (outcome,) = self.seal_blocked(place, children, place.jobs[0], meanwhile)
        assert isinstance(outcome, Done)
        assert child.process.poll() == -signal.SIGKILL

    def test_twice_is_unsealable_and_said_how(self, place):
        sealer = Hanging()
        started = sealer.started
        job = place.jobs[0]

        def meanwhile():
            for number in (1, 2):
                await_that(lambda n=number: len(started) == n and place.leftovers())
                place.segments.unlink(job.temporary)
                started[-1].process.kill()

        (outcome,) = self.seal_blocked(place, sealer, job, meanwhile)
        assert outcome == SealRefused(UNSEALABLE, "the child process died: SIGKILL")
        assert len(started) == 2
        assert sealer.idle == []

    def test_one_that_hangs_is_ended_after_its_time(self, place):
        sealer = Hanging(job_seconds_max=0.5)
        began = time.monotonic()
        (outcome,) = place.seal(sealer, place.jobs[0])
        assert outcome == SealRefused(UNSEALABLE, "the child process died: SIGKILL")
        assert 1.0 <= time.monotonic() - began < SECONDS_MAX
        assert sealer.idle == []

    def test_one_that_was_stopped_gives_its_job_to_another(self, place, children):
        place.seal(children)
        assert len(children.idle) == 2  # both are there and warm
        stopped = children.idle[-1].process
        sealer = Children(count=1, job_seconds_max=1.5, idle=children.idle)
        os.kill(stopped.pid, signal.SIGSTOP)
        (outcome,) = place.seal(sealer, place.jobs[0])
        assert isinstance(outcome, Done)
        assert stopped.poll() == -signal.SIGKILL

    def test_one_that_hangs_before_it_heard_a_long_job_is_ended_too(self, place):
        # It hears a little: then the pipe has room, but not for the next piece.
        deaf = a_talker("import sys, time; sys.stdin.buffer.raw.read(9000); time.sleep(600)")
        sealer = Children(count=1, job_seconds_max=1.5, idle=[deaf])
        job = place.jobs[0]
        long = msgspec.structs.replace(job, directory=job.directory + "/." * 200_000)
        (outcome,) = place.seal(sealer, long)
        assert not isinstance(outcome, Done)
        assert deaf.process.poll() == -signal.SIGKILL
        sealer.close()

    def test_an_idle_one_that_died_is_replaced(self, place, children):
        place.seal(children)
        gone = children.idle[-1].process
        gone.kill()
        gone.wait()
        assert all(isinstance(one, Done) for one in place.seal(children))

    def test_a_shard_whose_child_dies_each_time_goes_on(self, tmp_path):
        with on_files(tmp_path / "shard") as root:
            dying = Children(count=1)
            shard = a_shard(root, sealer=lambda: dying)
            shard.append_many(14)
            for _ in range(2):
                dying.idle[:] = [a_talker(DYING) for _ in range(2)]
                shard.checkpoint()
                (finding,) = shard.store.findings
                assert finding.what == "unsealed: the child process died: exit code 3"
                assert shard.ids() == list(range(140))
            shard.checkpoint()
            assert shard.store.findings == []
            assert not shard.unsealed
            shard.store.stop()


DYING = "import os, sys; sys.stdin.buffer.read(4); os._exit(3)"


def a_talker(program):
    """A child that is none: it runs `program`."""
    return _Child(
        subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
    )


def saying(data: bytes):
    program = f"import sys, time; sys.stdin.buffer.read(4); o = sys.stdout.buffer; \
o.write({data!r}); o.flush(); time.sleep(100)"
    return a_talker(program)


RUBBISH = {
    "no msgpack": SIZE.pack(4) + b"\xc1\xc1\xc1\xc1",
    "another message": SIZE.pack(3) + b"\x93\x01\x02",
    "text": b"Segmentation fault (core dumped)\n",
    "not UTF-8": SIZE.pack(10) + b"\x93\xa6Failed\xa1\xff\xa1",
    "two answers": 2
    * (SIZE.pack(len(encode(SealRefused(DISK, "x")))) + encode(SealRefused(DISK, "x"))),
}


class TestRubbish:
    @pytest.mark.parametrize("said", RUBBISH.values(), ids=RUBBISH)
    def test_one_that_talks_rubbish_is_not_asked_again(self, place, said):
        talker = saying(said)
        sealer = Children(count=1, job_seconds_max=30.0, idle=[talker])
        began = time.monotonic()
        (outcome,) = place.seal(sealer, place.jobs[0])
        assert isinstance(outcome, SealRefused)
        assert outcome.kind == DISK
        assert "cannot be read" in outcome.flaw
        assert time.monotonic() - began < 25.0
        assert sealer.idle == []
        assert talker.process.poll() == -signal.SIGKILL

    def test_the_checkpoint_is_tried_again_with_another_child(self, tmp_path):
        sealer = Children(count=1, idle=[saying(RUBBISH["text"])])
        with on_files(tmp_path / "shard") as root:
            shard = a_shard(root, sealer=lambda: sealer)
            shard.append_many(14)
            with pytest.raises(SealFailed, match="cannot be read"):
                shard.checkpoint()
            assert shard.run() == 16
            assert shard.ids() == list(range(140))
            shard.store.stop()

    def test_an_answer_that_comes_in_pieces_is_one(self, place):
        data = SIZE.pack(len(encode(SealRefused(DISK, "slow")))) + encode(
            SealRefused(DISK, "slow")
        )
        program = f"import sys, time; o = sys.stdout.buffer\n\
for b in {data!r}: o.write(bytes([b])); o.flush(); time.sleep(0.001)\n\
sys.stdin.buffer.read()"
        talker = a_talker(program)
        sealer = Children(count=1, idle=[talker])
        assert place.seal(sealer, place.jobs[0]) == [SealRefused(DISK, "slow")]
        assert sealer.idle == [talker]
        sealer.close()


class TestShard:
    def test_all_layers_on_real_files_with_children_over_restarts(self, tmp_path, children):
        kept = Kept(children)
        with on_files(tmp_path / "shard") as root:
            shard = a_shard(root, sealer=lambda: kept)
            layered(shard)
            shard.store.stop()
        for _ in range(2):
            with FileDirectory.open_root(str(tmp_path / "shard"), create=False) as root:
                shard = a_shard(root, sealer=lambda: kept)
                end = shard.partition.end
                assert shard.ids() == list(range(end))
                shard.append_many(3)
                shard.checkpoint()
                assert shard.store.findings == []
                assert shard.ids() == list(range(end + 30))
                shard.store.close()
        names = [path.name for path in (tmp_path / "shard" / "segments").iterdir()]
        assert sorted(names) == shard.segment_names()

    def test_a_store_without_options_seals_with_children(self):
        assert type(replace(shard_options(), sealer=Children).sealer()) is Children


class Kept:
    """Children that outlive the store."""

    is_apart = True

    def __init__(self, children):
        self.seal = children.seal

    def close(self):
        return


def test_the_callers_own_read_is_used_in_process_alone(place, children):
    asked = []

    def read(part):
        asked.append(part.op)
        return place._read(part)

    children.seal(place.jobs[:1], place.segments, read)
    assert asked == []
    assert isinstance(seal_file(place.jobs[0], place.segments, read), Done)
    assert asked == [part.op for part in place.jobs[0].parts]
    assert KEY.namespace == place.jobs[0].info.namespace
