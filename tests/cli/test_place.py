"""Which log a command is about: a directory, one that a process holds, or a node elsewhere."""

import subprocess
import sys

import pyarrow as pa
import pytest
from tests.cli.commands import a_node, headrace_here

import headrace
from headrace.cli.exits import Exit


@pytest.fixture(autouse=True)
def nothing_said_before(monkeypatch):
    for name in ("HEADRACE_DATA", "HEADRACE_ADDRESS", "HEADRACE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_no_log_is_named():
    ended = headrace_here("topic", "list")
    assert ended.code == Exit.USAGE
    assert "no log is named. Add --data DIR, or --address HOST:PORT" in ended.err


def test_two_logs_are_named(tmp_path):
    ended = headrace_here("topic", "list", "--data", tmp_path, "--address", "x:1")
    assert ended.code == Exit.USAGE
    assert "a directory and an address are given" in ended.err


def test_a_directory_that_is_not_there_is_not_made_by_looking(tmp_path):
    ended = headrace_here("topic", "list", "--data", tmp_path / "nowhere")
    assert ended.code == Exit.NOT_FOUND
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_is_made_by_creating(tmp_path):
    path = tmp_path / "new"
    assert (
        headrace_here("topic", "create", "a", "--schema", "id:int64", "--data", path).code == 0
    )
    with headrace.open(path) as log:
        assert log.topics() == ["default/a"]


def test_an_empty_name_is_not_this_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = headrace_here("topic", "create", "a", "--schema", "id:int64", "--data", "")
    assert ended.code == Exit.USAGE
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_is_not_there_is_unavailable():
    ended = headrace_here("topic", "list", "--address", "127.0.0.1:1", "--timeout", "1s")
    assert ended.code == Exit.UNAVAILABLE
    assert "127.0.0.1:1" in ended.err


def test_the_environment_names_the_log(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path))
    assert headrace_here("topic", "list", "--json").json == {"topics": []}


def test_a_held_directory_is_reached_through_its_process(tmp_path):
    with a_node(tmp_path) as address:
        made = headrace_here("topic", "create", "a", "--schema", "id:int64", "--data", tmp_path)
        assert made.code == 0
        with headrace.connect(address) as log:
            assert log.topics() == ["default/a"]


def test_a_pipe_between_two_commands_on_one_directory_loses_nothing(tmp_path):
    with headrace.open(tmp_path / "data") as log:
        first = log.create_topic("a", {"id": "int64"})
        first.append(pa.table({"id": list(range(200_000))}))
        log.create_topic("b", {"id": "int64"})
    read = [sys.executable, "-m", "headrace", "read", "a", "--no-system", "--data", "data"]
    produce = [sys.executable, "-m", "headrace", "produce", "b", "--data", "data"]
    with subprocess.Popen(read, stdout=subprocess.PIPE, cwd=tmp_path) as one:
        two = subprocess.run(produce, stdin=one.stdout, cwd=tmp_path, timeout=120, check=True)
        one.stdout.close()
        assert one.wait(60) == 0
    assert two.returncode == 0
    with headrace.open(tmp_path / "data") as log:
        assert log.topic("b").read().row_count == 200_000
