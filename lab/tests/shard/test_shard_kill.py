"""SIGKILL on a shard's real processes: no acknowledged row is lost, none is invented."""

import time
from random import Random

import pytest

from headrace.cli.demo.child_process import living
from headrace_lab.harness.kill import Kills
from headrace_lab.shard.kills.kill import kill_run
from headrace_lab.shard.kills.ledger import (
    Ledger,
    LedgerRows,
    ShardAccount,
    size_of,
    void_since,
)
from headrace_lab.shard.kills.plants import KILL_PLANTS
from headrace_lab.shard.kills.trial import ShardTrial
from headrace_lab.shard.kills.workload import Batch, ShardWorkload

KILLS = 6
WORKLOAD = ShardWorkload(seed=7)


def a_trial(path, seed=1):
    data, ledger = str(path / "data"), str(path / "ledger")
    return ShardTrial(data=data, ledger=ledger, chance=Random(seed))


def some_rows(start=0, digest="00"):
    return LedgerRows(2, start, start + 3, Batch(4, 1), digest)


def test_no_acknowledged_row_is_lost_to_kills_at_random_moments(tmp_path):
    trial = a_trial(tmp_path)
    tally = Kills(trial).run(KILLS)
    assert tally.failures == []
    assert tally.count >= KILLS
    assert (tally.counts["rows lost"], tally.counts["rows invented"]) == (0, 0)
    assert tally.cases > KILLS // 2
    assert tally.counts["checkpoints"] > 0
    assert tally.among("beside") + tally.among("recovery") >= KILLS // 4
    assert tally.counts["rows read back"] > 0


@pytest.mark.campaign(1)
@pytest.mark.parametrize("plant", KILL_PLANTS)
def test_a_planted_bug_of_a_shard_is_caught(tmp_path, plant):
    tally = kill_run(tmp_path, 0, seed=2, plant=plant)
    assert tally.failures


def test_the_children_of_a_killed_writer_end_by_themselves(tmp_path):
    trial = a_trial(tmp_path)
    trial.begin_log()
    with trial.process("write") as writer:
        said = writer.testimony
        assert writer.await_that("a child at work", lambda _: said.is_writing)
        deadline = time.monotonic() + 60  # it says so just before it starts them
        while len(living(writer.mark)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(living(writer.mark)) > 1
        assert writer.kill()
        writer.await_orphans()
        assert living(writer.mark) == []


def test_a_ledger_counts_an_announced_version_as_tried_and_not_as_answered():
    account = ShardAccount()
    account.hear("trying 4 1")
    assert account.tried == {4: 1}
    assert account.answered == {}
    account.hear(some_rows().line("shown"))
    assert account.answered == {}
    account.hear(some_rows().line())
    assert account.answered == {4: 1}
    assert account.ends == {2: 3}


@pytest.mark.parametrize("second", [some_rows(start=3), some_rows(digest="01")])
def test_an_answer_that_differs_from_an_earlier_one_is_seen(second):
    account = ShardAccount()
    account.hear(some_rows().line())
    account.hear(some_rows().line())
    assert account.problems == []
    account.hear(second.line())
    assert "answered with other offsets" in account.problems[0]


def test_a_torn_line_of_a_ledger_was_never_written(tmp_path):
    path = tmp_path / "ledger"
    path.write_text(f"trying 4 1\n{some_rows().line()[:-1]}")
    ledger = Ledger(str(path))
    assert ledger.account.rows == {}
    ledger.acknowledge([some_rows().line()])
    ledger.close()
    assert ShardAccount.read(str(path)).rows == {Batch(4, 1): some_rows()}


def test_an_acknowledgement_after_a_failed_sync_is_seen(tmp_path):
    ledger = Ledger(str(tmp_path / "ledger"))
    ledger.has_failed_sync = True
    ledger.acknowledge([])
    assert ledger.account.problems == []
    ledger.acknowledge([some_rows().line()])
    assert "after a failed sync of the journal: rows 2" in ledger.account.problems[0]
    ledger.close()


def test_what_a_ledger_acknowledged_after_the_power_went_is_taken_back(tmp_path):
    path = tmp_path / "ledger"
    before = f"trying 4 1\n{some_rows().line()}\n"
    late = [
        "trying 4 2",
        "trimming 2 1",
        "trimmed 2 1",
        "dropped 4 2",
        some_rows(start=3).line(),
    ]
    path.write_text(before + "rows 2")
    assert size_of(str(path)) == len(before)
    path.write_text(before + "\n".join([*late, "rows 2"]))
    void_since(str(path), len(before))
    assert path.read_text() == before + "trying 4 2\ntrimming 2 1\n"
    assert size_of(str(tmp_path / "none")) == 0
    void_since(str(tmp_path / "none"), 0)
    assert not (tmp_path / "none").exists()


def test_a_batch_is_the_same_each_time_it_is_made():
    for source in (WORKLOAD.appenders[0], WORKLOAD.publishers[0]):
        for batch in WORKLOAD.entries(source, 3):
            assert WORKLOAD.rows(batch).equals(ShardWorkload(seed=7).rows(batch))
            assert WORKLOAD.rows(batch).num_rows == WORKLOAD.row_count(batch)
            assert not WORKLOAD.rows(batch).equals(ShardWorkload(seed=8).rows(batch))
