"""SIGKILL on a real node under producers: nothing told is lost, nothing is there twice."""

from random import Random

import pyarrow as pa
import pytest

from headrace.cli.demo.child_process import living
from headrace.client.values.answers import Range
from headrace.client.write.ledger import Line
from headrace_lab.node.audit import NodeAudit, Unit, _units
from headrace_lab.node.kill import KillPlan, kill_run, planted_run
from headrace_lab.node.ledger import NodeAccount, Notes, place
from headrace_lab.node.plants import CUT_TOO_MUCH, NEW_WRITER, PLANTS, WRITERS_FORGOTTEN
from headrace_lab.node.process import NodeProcess, NodeTestimony
from headrace_lab.node.trial import HOST, _free_port
from headrace_lab.node.workload import KEYED, PLAIN, SHARED, Name, NodeWorkload

KILLS = 4
SAMPLE = {"recovery": 1, "checkpoint": 1, "creation": 1, "acknowledgement": 2}
WORKLOAD = NodeWorkload(seed=7)
SHOWN_IN_ROWS = (WRITERS_FORGOTTEN, NEW_WRITER, CUT_TOO_MUCH)


def a_line(source_rows=3, start=0, version=1, writer="aa"):
    end = start + source_rows
    return Line(PLAIN.name, 0, 1, start, end, source_rows, writer, version, "00")


def an_audit(tmp_path, lines=(), tried=9):
    """An audit of source 0, with nothing read yet."""
    account = NodeAccount(str(tmp_path))
    account.lives.append(0)
    account.created[PLAIN.name] = {1}
    source = account.source(0)
    source.tried = tried
    for line in lines:
        source.hear_line(line, 0)
    source.told_rows = source.acknowledged_rows
    return NodeAudit("", account, WORKLOAD)


def show(audit, name, start, rows=None):
    """Let an audit find a batch in partition 0."""
    rows = WORKLOAD.rows(name) if rows is None else rows
    unit = Unit(name, PLAIN.name, 0, start, start + rows.num_rows, 1)
    audit._judge_unit(unit, rows)
    return unit.end


def test_kills_at_random_moments_lose_nothing_and_double_nothing(tmp_path):
    tally = kill_run(tmp_path, KillPlan(KILLS, seed=3, aims=SAMPLE))
    assert tally.failures == []
    assert tally.count == KILLS
    assert not tally.more["wrong"]
    assert tally.cases == 1
    assert tally.counts["rows acknowledged"] > 0
    assert tally.counts["rows read back"] >= tally.counts["rows acknowledged"]
    assert tally.counts["reconnects"] > 0


@pytest.mark.campaign(1)
@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_bug_of_a_node_or_its_client_is_caught(tmp_path, plant):
    tally = planted_run(tmp_path, plant, seed=1)
    assert tally.failures
    if plant in SHOWN_IN_ROWS:  # the others may show only as an error that a user is told
        assert tally.more["wrong"], tally.failures


def test_sigterm_ends_a_node_with_0_and_the_next_start_says_that_it_was_clean(tmp_path):
    address = f"{HOST}:{_free_port(Random())}"
    for expected in ("created a new group", "recovered after a clean stop"):
        with NodeProcess(str(tmp_path / "data"), address) as node:
            assert node.await_that("a node", lambda said: said.is_listening)
            node.ask_to_stop()
            assert node.wait() == 0
        assert node.testimony.is_stopped
        assert node.testimony.problems == []
        assert [said.startswith(expected) for said in node.testimony.recovered] == [True] * 2
        assert living(node.mark) == []


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last):",
        '{"event": "node.group.refused", "group": 1}',
        '{"event": "node.checkpoint.failed", "error": "x"}',
        '{"event": "node.group.recovered", "said": "moved to quarantine: x"}',
        '{"event": "node.group.recovered", "said": "x: ops 3 to 4 are missing"}',
    ],
)
def test_what_no_crash_explains_in_a_nodes_events_is_a_problem(line):
    said = NodeTestimony()
    said.hear('{"event": "node.group.recovered", "said": "x.wal: end frame (repaired)"}')
    assert said.problems == []
    said.hear(line)
    assert len(said.problems) == 1


def test_an_acknowledged_append_that_is_at_its_place_is_no_problem(tmp_path):
    count = WORKLOAD.row_count(Name(0, 1))
    audit = an_audit(tmp_path, [a_line(count)])
    show(audit, Name(0, 1), 0)
    audit._judge_ledger(0, audit.account.source(0))
    assert audit.problems == []


@pytest.mark.parametrize("start", [None, 1])
def test_an_acknowledged_append_that_is_gone_or_elsewhere_is_lost(tmp_path, start):
    count = WORKLOAD.row_count(Name(0, 1))
    audit = an_audit(tmp_path, [a_line(count)])
    if start is not None:
        show(audit, Name(0, 1), start)
    audit._judge_ledger(0, audit.account.source(0))
    assert audit.counts["lost"] == count


def test_a_batch_that_is_there_twice_is_seen(tmp_path):
    audit = an_audit(tmp_path)
    show(audit, Name(0, 1), show(audit, Name(0, 1), 0))
    assert "a second time" in audit.problems[0]


@pytest.mark.parametrize(
    ("name", "rows", "said"),
    [
        (Name(0, 10), None, "no such rows"),  # never tried
        (Name(0, 1, 1), None, "no such rows"),  # appends have one piece
        (Name(1, 1), None, "no such rows"),  # of another topic
        (Name(0, 1), WORKLOAD.rows(Name(0, 2)), "no such rows"),
        (Name(0, 2), WORKLOAD.rows(Name(0, 2)).slice(0, 1), "only a part"),
    ],
)
def test_rows_that_nobody_sent_so_are_invented(tmp_path, name, rows, said):
    assert WORKLOAD.row_count(Name(0, 2)) > 1
    audit = an_audit(tmp_path)
    show(audit, name, 0, rows)
    assert said in audit.problems[0]


def test_versions_that_do_not_lie_in_their_order_are_seen(tmp_path):
    audit = an_audit(tmp_path, [a_line(start=3, version=1), a_line(start=0, version=2)])
    audit._judge_versions(audit.account.source(0))
    assert "version 2 at 0" in audit.problems[0]


def test_half_a_transaction_is_seen(tmp_path):
    source = WORKLOAD.transactors[0]
    number = next(n for n in range(1, 99) if len(WORKLOAD.pieces(source, n)) > 1)
    audit = an_audit(tmp_path)
    audit.account.source(source).tried = number
    piece = WORKLOAD.pieces(source, number)[0]
    unit = Unit(piece, SHARED.name, WORKLOAD.partition_of(piece), 0, 1, 1)
    audit.units[unit.topic, unit.partition, 0] = unit
    audit._judge_transactions(source, audit.account.source(source))
    assert "half a transaction" in audit.problems[0]


def test_notes_and_ledgers_are_read_on_from_where_they_were_left(tmp_path):
    notes, account = Notes(str(tmp_path), "4"), NodeAccount(str(tmp_path))
    notes.say("tried", 1, 10)
    assert account.look().open_rows == 10
    (tmp_path / "4.ledger").write_bytes(a_line(10).encode() + a_line(5).encode()[:-1])
    assert (account.look().open_rows, account.acknowledged_rows) == (0, 10)
    notes.say("tried", 2, 5)
    notes.acknowledge("settled", 10)  # what is given up is not in flight any more
    notes.acknowledge("published", 3, place(Range(1, 4, 6)))
    assert account.look().open_rows == 0
    assert account.source(4).tried == 2
    assert account.source(4).published == {3: (Range(1, 4, 6),)}
    notes.close()


def test_a_batch_is_the_same_each_time_and_its_keys_choose_the_partitions():
    name = Name(1, 3)
    assert WORKLOAD.topic_of(1) == KEYED
    rows = WORKLOAD.rows(name)
    assert rows.equals(NodeWorkload(seed=7).rows(name))
    assert not rows.equals(NodeWorkload(seed=8).rows(name))
    parts = [WORKLOAD.rows_in(name, number) for number in range(KEYED.partition_count)]
    assert sum(part.num_rows for part in parts) == rows.num_rows
    keys = [set(part["key"].to_pylist()) for part in parts]
    assert sum(map(len, keys)) == len(set().union(*keys))


def test_rows_are_parted_where_a_batch_ends_or_begins_again():
    one, two = WORKLOAD.rows(Name(0, 1)), WORKLOAD.rows(Name(0, 2))
    found = list(_units(pa.Table.from_batches([one, one, two]).combine_chunks()))
    ends = [one.num_rows, 2 * one.num_rows, 2 * one.num_rows + two.num_rows]
    assert [name for name, _, _ in found] == [Name(0, 1), Name(0, 1), Name(0, 2)]
    assert [end for _, _, end in found] == ends
