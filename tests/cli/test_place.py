"""Which log a command is about: a directory, one that a process holds, or a node elsewhere."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager

import pyarrow as pa
import pytest
from tests.cli.commands import a_node, headrace_here

import headrace
from headrace.cli.main import made
from headrace.cli.terminal.exits import Exit
from headrace.wire.address import SOCKET_NAME


@pytest.fixture(autouse=True)
def nothing_said_before(monkeypatch):
    for name in ("HEADRACE_DATA", "HEADRACE_ADDRESS", "HEADRACE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_no_log_is_named():
    ended = headrace_here("topic", "list")
    assert ended.code == Exit.USAGE
    assert "no log is given. Add --data DIR, or --address HOST:PORT" in ended.err


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


def test_a_node_that_goes_on_waits_for_nobody_who_uses_it(tmp_path):
    ended, was_ended = threading.Event(), []
    data = tmp_path / "data"
    with headrace.open(data) as log, headrace.connect(f"unix:{data / SOCKET_NAME}") as guest:

        def ask():
            until = time.monotonic() + 10
            while not ended.wait(0.05) and time.monotonic() < until:
                guest.topics()
            was_ended.append(ended.is_set())

        asking = threading.Thread(target=ask)
        asking.start()
        assert headrace_here("topic", "list", "--data", data).code == 0
        ended.set()
        asking.join()
        assert log.topics() == []
    assert was_ended == [True]


class TestAPlaceThatCannotBeRead:
    """Whatever the system says, it is one line with the path and the next step."""

    COMMANDS = (("topic", "list"), ("status",), ("read", "orders"), ("group", "list"))

    @pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
    def test_a_directory_of_another_user(self, tmp_path, command):
        locked = tmp_path / "locked"
        (locked / "log").mkdir(parents=True)
        with nobody_may(locked):
            ended = headrace_here(*command, "--data", locked / "log")
        assert ended.code == Exit.FAILURE
        assert ended.err == (
            f"headrace: {locked}/log: Permission denied. "
            "Run as the user that owns it, or change its permissions (see ls -ld)\n"
        )

    @pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
    def test_a_directory_that_may_be_entered_and_not_read(self, tmp_path, command):
        headrace.open(tmp_path / "log").close()
        with nobody_may(tmp_path / "log"):
            ended = headrace_here(*command, "--data", tmp_path / "log")
        assert ended.code == Exit.FAILURE
        assert ended.err.startswith(f"headrace: {tmp_path}/log")
        assert "Permission denied" in ended.err
        assert ended.err.count("\n") == 1

    @pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
    def test_a_name_that_is_too_long(self, tmp_path, command):
        ended = headrace_here(*command, "--data", tmp_path / ("a" * 300))
        assert ended.code == Exit.NOT_FOUND
        assert ended.err.endswith("aaa: File name too long. Use a shorter name\n")
        assert ended.err.count("\n") == 1

    @pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
    def test_a_place_below_a_file_and_one_that_leads_round(self, tmp_path, command):
        (tmp_path / "file").touch()
        (tmp_path / "round").symlink_to(tmp_path / "round")
        for path in (tmp_path / "file" / "log", tmp_path / "round"):
            ended = headrace_here(*command, "--data", path)
            assert ended.code == Exit.NOT_FOUND
            assert str(path) in ended.err
            assert ended.err.count("\n") == 1


@contextmanager
def nobody_may(path):
    """Give a path that this process may not read for as long as this lasts, root or not."""
    made()  # what is loaded late may be in a place that is root's own
    parents = [each for each in path.parents if each.is_relative_to(tempfile.gettempdir())]
    before = [(each, each.stat().st_mode) for each in (path, *parents)]
    for each in parents[:-1]:
        each.chmod(0o755)
    path.chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        for each, mode in before[:-1]:
            each.chmod(mode)
