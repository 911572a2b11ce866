"""`headrace demo` as its users run it, its three verdicts, and the comparison behind them."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from tests.cli.terminal import Terminal

from headrace.cli.demo.checks import Claim, Told, compare
from headrace.cli.demo.child_process import MARK
from headrace.cli.demo.demo_rows import read_ledger
from headrace.cli.demo.pipeline_process import DriverTestimony
from headrace.cli.terminal.exits import Exit
from headrace_lab.node.plants import ACK_BEFORE_WRITE, ACK_BEFORE_WRITE_NO_HEADS

TINY = ("--quick", "--seconds", "1", "--seed", "3")


def run_demo(place, *arguments):
    environment = {name: text for name, text in os.environ.items() if name != "FORCE_COLOR"}
    return subprocess.run(
        [sys.executable, "-m", "headrace", "demo", *TINY, *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_the_demo_tells_each_phase_and_its_verdict_and_leaves_nothing(tmp_path):
    ended = run_demo(tmp_path)
    assert (ended.returncode, ended.stderr) == (Exit.OK, "")
    lines = ended.stdout.splitlines()
    labels = [line.split()[0] for line in lines if line[2:3].strip() and line.startswith("  ")]
    assert labels == ["start", "write", "kill", "recover", "compare"]
    assert "recovered after an unclean stop" in ended.stdout
    assert lines[-1].startswith("HELD: 1 kill, ")
    assert "\x1b" not in ended.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_json_is_one_object_and_the_directory_is_kept_and_not_used_twice(tmp_path):
    ended = run_demo(tmp_path, "--json", "--data", "kept")
    assert (ended.returncode, ended.stderr) == (Exit.OK, "")
    told = json.loads(ended.stdout)
    figures = {key: told[key] for key in ("verdict", "seed", "kills", "lost", "twice")}
    assert figures == {"verdict": "held", "seed": 3, "kills": 1, "lost": 0, "twice": 0}
    (life,) = told["rounds"]
    assert 0 < life["acknowledged"] < told["acknowledged"] == told["found"]
    assert life["recovery"][0].startswith("recovered after an unclean stop")
    assert (tmp_path / "kept/data/LOCK").exists()
    ledgers = list((tmp_path / "kept").glob("*.ledger"))
    rows = sum(each.end - each.start for path in ledgers for each in read_ledger(path))
    assert rows == told["acknowledged"]
    again = run_demo(tmp_path, "--data", "kept")
    assert again.returncode == Exit.USAGE
    assert "kept is not empty" in again.stderr


PLANTED = """
import sys
from headrace.cli import main
from headrace.cli.demo import demo_rows, steps
steps.COMMAND, demo_rows.PATIENCE = tuple(sys.argv.pop(1).split(";")), "10s"
main.main()
"""


def run_planted(place, command, *arguments):
    """Run the demo of another node."""
    return subprocess.run(
        [sys.executable, "-c", PLANTED, ";".join(command), "demo", "--seed", "0", *arguments],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_node_that_acknowledges_too_early_is_caught(tmp_path):
    """By its rows: its heads, which would tell as well, are not written here.

    What it lost is gone, or other rows are in its place. If its journal went on in another
    file, the start finds that the end of the one before is missing, and refuses. A producer
    whose acknowledged versions it has forgotten can go on with none.
    """
    command = (sys.executable, "-m", "headrace_lab.node.plants", ACK_BEFORE_WRITE_NO_HEADS)
    ended = run_planted(tmp_path, command, "--rounds", "3", "--seconds", "1")
    assert ended.returncode == Exit.INTEGRITY, ended.stdout + ended.stderr
    signs = ("acknowledged rows are lost", "out of order", r"at offset [\d,]+ is row")
    refused = "acknowledged rows are unavailable: group 1 .* acknowledged but are missing"
    forgotten = r"a producer gave up: .* version \d+ arrived before \d+"
    if re.search(refused, ended.stdout):
        assert "BROKEN: " in ended.stdout
        assert "the node does not serve what it acknowledged" in ended.stdout
    elif not re.search(forgotten, ended.stdout):
        assert re.search("|".join(signs), ended.stdout), ended.stdout
        assert "BROKEN: 3 kills, " in ended.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_node_whose_heads_tell_that_it_acknowledged_too_early_is_caught(tmp_path):
    command = (sys.executable, "-m", "headrace_lab.node.plants", ACK_BEFORE_WRITE)
    ended = run_planted(tmp_path, command, "--rounds", "6", "--seconds", "2")
    assert ended.returncode == Exit.INTEGRITY, ended.stdout
    caught = ("acknowledged rows are lost", "acknowledged rows are unavailable: group 1")
    assert any(one in ended.stdout for one in caught)
    assert "BROKEN: " in ended.stdout


def test_a_node_that_does_not_start_shows_nothing_and_says_why(tmp_path):
    ended = run_planted(tmp_path, ("/bin/false",), "--quick", "--json")
    assert ended.returncode == Exit.NOT_SHOWN
    told = json.loads(ended.stdout)
    assert told["verdict"] == "not shown"
    assert "the node ended before it listened" in told["problems"][0]


def test_rounds_that_are_heard_at_once_have_no_rate():
    said = DriverTestimony()
    for number in range(3):
        said.hear(json.dumps({"event": "round", "version": number, "lag": 0, "rows": 10**6}))
    assert said.rate == 0.0
    assert "rows/s" not in said.told
    said.heard = [(1.0, 0), (3.0, 500)]
    assert said.rate == 250.0


@pytest.mark.parametrize("phase", ["write", "recover"])
def test_an_interrupt_ends_it_at_once_and_leaves_nothing_running(tmp_path, monkeypatch, phase):
    monkeypatch.chdir(tmp_path)
    with Terminal("demo", "--seconds", "2", "--seed", "1") as terminal:
        mark = f"{MARK}={terminal.pid}-demo"
        terminal.read_until({"write": "rows acknowledged", "recover": "kill -9   "}[phase])
        began = time.monotonic()
        terminal.press("\x03")
        assert terminal.wait() == Exit.INTERRUPTED
        assert time.monotonic() - began < 30
    assert "Traceback" not in terminal.text
    assert [one.name for one in Path("/proc").iterdir() if _has(one, mark)] == []
    assert list(tmp_path.iterdir()) == []


def _has(process: Path, mark: str) -> bool:
    """Say whether a process, or a child of one, was started with `mark`."""
    try:
        return f"\0{mark}".encode() in b"\0" + (process / "environ").read_bytes()
    except OSError:  # no process, or gone
        return False


def rows_of(*rows):
    """Return a table of (source, number, partition, offset)."""
    names = ("source", "number", "_partition", "_offset")
    kinds = (pa.int32(), pa.int64(), pa.int32(), pa.int64())
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return pa.table(
        {n: pa.array(list(c), k) for n, k, c in zip(names, kinds, columns, strict=True)}
    )


GOOD = ((0, 0, 0, 0), (0, 1, 0, 1), (0, 2, 0, 2), (1, 0, 1, 0))
CLAIMS = (Claim(0, 3, (Told(0, 2), Told(2, 3))), Claim(1, 2, (Told(0, 1),)))


def test_rows_as_they_were_sent_have_no_problem():
    found = compare(rows_of(*GOOD), CLAIMS)
    assert (found.found, found.lost, found.twice, found.invented) == (4, 0, 0, 0)
    assert found.problems == ()


def test_a_row_that_was_sent_and_not_acknowledged_may_be_there():
    assert compare(rows_of(*GOOD, (1, 1, 1, 1)), CLAIMS).problems == ()


@pytest.mark.parametrize(
    ("rows", "counts", "said"),
    [
        (GOOD[:2] + GOOD[3:], (1, 0, 0), "producer 0: 1 of 3 acknowledged rows are lost"),
        ((*GOOD, (1, 0, 1, 1)), (0, 1, 0), "producer 1: 1 rows are there more than once"),
        ((*GOOD, (1, 0, 1, 1)), (0, 1, 0), "producer 1: at offset 1 is row 0 of producer 1"),
        ((*GOOD, (7, 1, 1, 1)), (0, 0, 1), "1 rows were never sent"),
        ((*GOOD, (1, 2, 1, 2)), (0, 0, 1), "1 rows were never sent"),
        ((*GOOD, (0, 0, 9, 0)), (0, 0, 1), "1 rows were never sent"),
        (
            ((0, 1, 0, 0), (0, 0, 0, 1), *GOOD[2:]),
            (0, 0, 0),
            "producer 0: at offset 0 is row 1 of producer 0",
        ),
        (
            ((1, 0, 0, 0), *GOOD[1:]),
            (1, 0, 1),
            "producer 0: 1 of 3 acknowledged rows are lost",
        ),
    ],
)
def test_whatever_is_not_as_it_was_acknowledged_is_named(rows, counts, said):
    found = compare(rows_of(*rows), CLAIMS)
    assert (found.lost, found.twice, found.invented) == counts
    assert said in found.problems


@pytest.mark.parametrize("told", [(Told(0, 2), Told(1, 2)), (Told(0, 1), Told(2, 3))])
def test_a_ledger_that_names_offsets_twice_or_leaves_some_out_is_a_problem(told):
    claim = Claim(0, 3, told)
    (problem,) = compare(rows_of(*GOOD[:3]), [claim]).problems
    assert "out of order" in problem


def test_a_line_without_its_end_was_never_told(tmp_path):
    ledger = tmp_path / "x.ledger"
    ledger.write_text('{"partition":0,"start":0,"end":5}\n{"partition":0,"start":5')
    assert list(read_ledger(ledger)) == [Told(0, 5)]
    assert list(read_ledger(tmp_path / "none")) == []
