"""`headrace demo --spark`, as its users run it."""

import json
import subprocess
import sys

import pytest
from tests.spark.conftest import rows
from tests.spark.test_pipeline import a_definition, run

from headrace.cli import demo_lies
from headrace.cli.demo_lies import lie_about_log, lies, proof_of


def test_log_and_table_agree_whoever_is_killed_and_every_lie_is_named(tmp_path):
    command = [sys.executable, "-m", "headrace", "demo", "--spark", "--seconds", "1", "--json"]
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=500, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = json.loads(ended.stdout)
    assert told["verdict"] == "held"
    assert told["acknowledged"] == told["found"] > 0
    assert len(told["checks"]) == 8
    assert all(told["checks"].values())
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def filled(spark, tmp_path, topic):
    topic.append(rows(0, 300), partition=0)
    run(spark, a_definition(tmp_path))
    return tmp_path / "table"


def test_a_lie_that_is_not_told_is_not_named(monkeypatch, topic, filled):
    """What names a lie must be silent without it, or it names nothing."""
    assert proof_of(topic, filled).holds
    for act in ("_delete", "_repeat"):
        monkeypatch.setattr(demo_lies, act, lambda table: None)
    monkeypatch.setattr(demo_lies, "_flip", lambda file: file)
    assert [said for _, said in lies(topic, filled)] == [None, None, None]
    assert lie_about_log(filled.parent / "data")[1] is None
