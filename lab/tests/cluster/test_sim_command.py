"""`headrace sim`: what it prints, and how it ends."""

import json

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace_lab.cluster import report
from headrace_lab.cluster.mutants import MUTANTS
from headrace_lab.harness.mutants import planted


def run(*arguments: str):
    return CliRunner().invoke(app, ["sim", *arguments])


def test_a_clean_run_says_what_landed_and_ends_well():
    done = run("--seeds", "1", "--first", "3")
    assert done.exit_code == 0, done.output
    assert "faults landed" in done.stdout
    assert "no violation in 1 seed\n" in done.stderr


def test_json_is_one_object_of_the_same_seed_each_time():
    first, second = (json.loads(run("--seeds", "1", "--json").stdout) for _ in range(2))
    assert first["events"] == second["events"] > 0
    assert first["faults_landed"] == second["faults_landed"]
    assert first["violations"] == []


def test_a_violation_names_its_oracle_its_last_events_and_how_to_repeat_it():
    with planted("commit by any ack", MUTANTS):
        done = run("--seeds", "1", "--first", "3", "--replicas", "3")
    assert done.exit_code == 1
    assert "commit by a quorum" in done.stdout
    assert "repeat it: headrace sim --seeds 1 --first 3 --replicas 3" in done.stdout


def test_a_run_that_showed_too_little_ends_with_seven(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report, "SEEDS_FOR_ALL_KINDS", 1)
    done = run("--seeds", "1")
    assert done.exit_code == 7
    assert "never landed: " in done.stderr
