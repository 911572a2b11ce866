"""`headrace demo --spark`, as its users run it."""

import json
import os
import pty
import subprocess
import sys

import pyarrow as pa
import pytest
from tests.cli.commands import headrace_here
from tests.cli.terminal import Terminal
from tests.spark.conftest import rows
from tests.spark.test_pipeline import a_definition, run

from headrace.cli.demo import wrong_tables
from headrace.cli.demo.checks import Claim, Told
from headrace.cli.demo.demo_digest import acknowledged_rows, digest_of
from headrace.cli.demo.kill_keys import Keys
from headrace.cli.demo.wrong_tables import lie_about_log, lies, proof_of
from headrace.cli.terminal.exits import Exit


@pytest.mark.campaign(1, of="demo")
def test_log_and_table_agree_whoever_is_killed_and_every_lie_is_named(tmp_path):
    command = [sys.executable, "-m", "headrace", "demo", "--spark", "--seconds", "1", "--json"]
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=500, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(ended.stdout)
    assert told["verdict"] == "held"
    assert told["acknowledged"] == told["found"] > 0
    assert told["kills"] == 2
    assert len(told["checks"]) == 9
    assert all(told["checks"].values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.campaign(1, of="demo")
def test_whoever_has_the_keys_kills_and_the_proof_holds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHAOS", "1")
    with Terminal("demo", "--spark", "--seed", "1") as terminal:
        terminal.read_until("n kills the node, d the driver, b both", 180)
        for key, seen in (("n", "listens after"), ("d", "starts"), ("q", "HELD: 2 kills")):
            terminal.press(key)
            terminal.read_until(seen, 180)
        assert terminal.wait() == Exit.OK
    assert "rows/s" in terminal.text
    assert "three equal digests" in terminal.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--spark"], ["--spark", "--json"], []])
def test_there_are_no_keys_without_a_terminal_or_without_spark(words):
    ended = headrace_here("demo", "--chaos", *words)
    assert ended.code == Exit.USAGE
    assert ("needs a terminal" if words else "requires --spark") in ended.err


def test_a_key_that_is_pressed_early_counts(monkeypatch):
    person, terminal = pty.openpty()
    with os.fdopen(terminal) as opened:
        monkeypatch.setattr(sys, "stdin", opened)
        os.write(person, b"N")
        os.read(person, 1)  # its echo: the key has come to the terminal
        with Keys() as keys:
            assert (keys.pressed(), keys.pressed()) == ("n", "")
    os.close(person)


class TestDigest:
    CLAIMS = (Claim(0, 5, (Told(0, 3), Told(3, 5))), Claim(1, 2, (Told(0, 2),)))

    def test_it_is_of_the_rows_and_not_of_their_order_or_pieces(self):
        made = acknowledged_rows(self.CLAIMS)
        assert made.num_rows == 7
        mixed = pa.concat_tables([made.slice(4), made.slice(0, 4)])
        assert digest_of(mixed) == digest_of(made)

    def test_each_change_changes_it(self):
        made = acknowledged_rows(self.CLAIMS)
        others = [made.slice(1), pa.concat_tables([made, made.slice(0, 1)])]
        for place, name in enumerate(made.column_names):
            values = made[name].to_pylist()
            changed = pa.array([values[1], *values[1:]], made.schema.field(name).type)
            if name not in ("source", "_partition"):
                others.append(made.set_column(place, name, changed))
        assert len({digest_of(one) for one in [made, *others]}) == 1 + len(others)


@pytest.fixture
def filled(spark, tmp_path, topic):
    topic.append(rows(0, 300), partition=0)
    run(spark, a_definition(tmp_path))
    return tmp_path / "table"


def test_a_lie_that_is_not_told_is_not_named(monkeypatch, topic, filled):
    """What names a lie must be silent without it, or it names nothing."""
    assert proof_of(topic, filled).holds
    for act in ("_delete", "_copy_in"):
        monkeypatch.setattr(wrong_tables, act, lambda table: 1)
    monkeypatch.setattr(wrong_tables, "_flip", lambda file: file)
    assert [said for _, said in lies(topic, filled)] == [None, None, None]
    assert lie_about_log(filled.parent / "data")[1] is None
