"""`headrace demo` as its users run it, and its three verdicts."""

import json
import os
import subprocess
import sys

import msgspec
import pytest
from typer.testing import CliRunner

from headrace.cli import demo
from headrace.cli.exits import Exit
from headrace.cli.main import app
from headrace.sim.kill import kill_rounds
from headrace.sim.testimony import Silent

TINY = ("--rounds", "2", "--seconds", "0.2", "--seed", "3")


def run_demo(place, *arguments):
    environment = {name: text for name, text in os.environ.items() if name != "FORCE_COLOR"}
    return subprocess.run(
        [sys.executable, "-m", "headrace", "demo", *TINY, *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_demo_tells_each_phase_and_its_verdict_and_leaves_nothing(tmp_path):
    ended = run_demo(tmp_path)
    assert (ended.returncode, ended.stderr) == (Exit.OK, "")
    lines = ended.stdout.splitlines()
    labels = [line.split()[0] for line in lines if line[2:3].strip() and line.startswith("  ")]
    assert labels == ["write", "kill", "recover", "check"] * 2
    assert "process " in ended.stdout
    assert "recovered after an unclean stop" in ended.stdout
    assert lines[-1].startswith("HELD: 2 kills, ")
    assert list(tmp_path.iterdir()) == []


def test_the_json_is_one_object_with_stable_keys(tmp_path):
    ended = run_demo(tmp_path, "--json")
    assert (ended.returncode, ended.stderr) == (Exit.OK, "")
    told = json.loads(ended.stdout)
    assert list(told) == [
        *("demo", "verdict", "seed", "kills", "acknowledged", "lost", "invented"),
        *("problems", "rounds", "seconds"),
    ]
    figures = {key: told[key] for key in ("verdict", "seed", "kills", "lost", "invented")}
    assert figures == {"verdict": "held", "seed": 3, "kills": 2, "lost": 0, "invented": 0}
    assert told["acknowledged"] > 0
    assert [list(each) for each in told["rounds"]] == [
        [
            *("round", "killed", "during", "groups", "entries", "checkpoints"),
            *("acknowledged_op", "head", "snapshot_op", "replayed", "rewritten", "cut_ops"),
            *("digest", "report", "seconds"),
        ]
    ] * 2
    for each in told["rounds"]:
        assert each["head"] >= each["acknowledged_op"]


def test_a_named_directory_is_kept_and_not_used_twice(tmp_path):
    assert run_demo(tmp_path, "--data", "kept/group").returncode == Exit.OK
    assert (tmp_path / "kept/group/LOCK").exists()
    assert list((tmp_path / "kept/group/groups/00001/journal").glob("*.wal"))
    again = run_demo(tmp_path, "--data", "kept/group")
    assert again.returncode == Exit.USAGE
    assert "kept/group is not empty" in again.stderr


@pytest.mark.parametrize(
    ("change", "code", "verdict"),
    [
        ({"plant": "ack-before-write"}, Exit.INTEGRITY, "broken"),
        ({"op_count_max": 1}, Exit.NOT_SHOWN, "not shown"),
    ],
)
def test_a_demo_that_does_not_hold_says_so(tmp_path, monkeypatch, change, code, verdict):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        demo,
        "kill_rounds",
        lambda job, *rest: kill_rounds(msgspec.structs.replace(job, **change), *rest),
    )
    arguments = ["demo", "--rounds", "6", "--seconds", "0.3", "--seed", "3"]
    told = CliRunner().invoke(app, [*arguments, "--json"])
    assert told.exit_code == code
    assert json.loads(told.stdout)["verdict"] == verdict
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == code
    assert verdict.upper() in shown.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_says_nothing_shows_nothing(tmp_path, monkeypatch):
    def silent(*_):
        raise Silent("no sign of recovery within 60 s")
        yield

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "kill_rounds", silent)
    shown = CliRunner().invoke(app, ["demo"])
    assert shown.exit_code == Exit.NOT_SHOWN
    assert "no sign of recovery" in shown.stdout
