"""`headrace serve` as people run it: it says where it listens, serves, and stops cleanly."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import pytest

import headrace
from headrace.server.connections.tcp import bind_tcp

SECONDS_MAX = 60


@contextmanager
def serving(path, *options, **environment):
    """Run a node, and give its process and the address it says."""
    command = [sys.executable, "-m", "headrace", "serve", "--data", str(path)]
    command += ["--listen", "127.0.0.1:0", "--set", "journal.file_size=4MiB", *options]
    environ = os.environ | environment
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as process:
        said = []
        try:
            for line in process.stderr:
                said.append(line)
                if "node.listening" in line:
                    yield process, line.rpartition(" ")[2].strip().strip('"'), said
                    break
            else:
                pytest.fail("".join(said))
        finally:
            process.kill()


def refused(*arguments, code=2) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_node_that_appends_and_reads_has_not_imported_pandas(tmp_path):
    assert find_spec("pandas")
    with serving(tmp_path, "--set", "listen.http=") as (process, address, _):
        with headrace.connect(address) as log:
            schema = {"id": "int64", "name": "string", "at": "timestamp"}
            topic = log.create_topic("orders", schema, partitions=2, key="name")
            for number in range(3):
                at = datetime(2026, 1, 1, tzinfo=UTC)
                topic.append({"id": [number], "name": [f"n{number}"], "at": [at]})
            assert topic.read(columns=["id", "_timestamp"]).to_table().num_rows == 3
            assert topic.read(where="id >= 1").to_table().num_rows == 2
        mapped = Path(f"/proc/{process.pid}/maps").read_text()
    assert "/pyarrow/" in mapped
    assert "/pandas/" not in mapped


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly_and_everything_is_there_again(tmp_path, number):
    with serving(tmp_path, "--set", "listen.http=") as (process, address, _):
        with headrace.connect(address) as log:
            topic = log.create_topic("orders", {"id": "int64"})
            topic.append({"id": list(range(100))})
        process.send_signal(number)
        assert process.wait(SECONDS_MAX) == 0
    with serving(tmp_path, "--set", "listen.http=") as (process, address, said):
        assert any("after a clean stop" in line for line in said)
        with headrace.connect(address) as log:
            assert log.topic("orders").read().to_table()["id"].to_pylist() == list(range(100))


def test_a_manager_hears_when_it_is_ready_and_when_it_stops(tmp_path):
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name)
        manager.settimeout(SECONDS_MAX)
        options = ("--set", "listen.http=")
        with serving(tmp_path / "data", *options, NOTIFY_SOCKET=name) as (process, address, _):
            ready, said = manager.recv(4096).decode().split("\n")
            assert ready == "READY=1"
            assert said.startswith("STATUS=ready on ")
            assert said.endswith(address)
            process.send_signal(signal.SIGTERM)
            assert manager.recv(4096) == b"STOPPING=1\nSTATUS=stopping"
            assert process.wait(SECONDS_MAX) == 0


def test_a_group_that_refuses_is_said_to_the_manager_and_the_others_serve(tmp_path):
    data, name = tmp_path / "data", str(tmp_path / "notify")
    with serving(data, "--set", "listen.http=") as (process, address, _):
        with headrace.connect(address) as log:
            log.create_topic("orders", {"id": "int64"}).append({"id": [1]})
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
    (journal,) = (data / "groups/00001/journal").glob("*.wal")
    with journal.open("r+b") as file:
        file.write(bytes(8192))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name)
        manager.settimeout(SECONDS_MAX)
        with serving(data, "--set", "listen.http=", NOTIFY_SOCKET=name):
            assert manager.recv(4096).startswith(b"READY=1\nSTATUS=not ready")


def test_a_hangup_changes_nothing_and_says_so(tmp_path):
    with serving(tmp_path, "--set", "listen.http=") as (process, address, _):
        process.send_signal(signal.SIGHUP)
        line = process.stderr.readline()
        assert "node.hangup.ignored" in line
        assert "settings are read at the start" in line
        with headrace.connect(address) as log:
            assert log.status()["ready"] is True


def test_kill_9_loses_nothing(tmp_path):
    with serving(tmp_path, "--set", "listen.http=") as (process, address, _):
        with headrace.connect(address) as log:
            log.create_topic("orders", {"id": "int64"}).append({"id": [1, 2, 3]})
        process.kill()
        process.wait(SECONDS_MAX)
    with serving(tmp_path, "--set", "listen.http=") as (process, address, said):
        assert any("after an unclean stop" in line for line in said)
        with headrace.connect(address) as log:
            assert log.topic("orders").read().to_table()["id"].to_pylist() == [1, 2, 3]


def test_a_second_node_hears_which_setting_takes_another_http_port(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"listen.http=127.0.0.1:{taken.getsockname()[1]}"
        said = refused(
            "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--set", where
        )
    assert "listen.http: cannot listen on 127.0.0.1 port" in said
    assert "--set listen.http=127.0.0.1:0" in said


def test_health_and_metrics_are_served(tmp_path):
    with serving(tmp_path, "--set", "listen.http=127.0.0.1:0") as (_, address, said):
        (port,) = re.findall(r"node\.health\.listening.*127\.0\.0\.1:(\d+)", "".join(said))
        with headrace.connect(address) as log:
            log.create_topic("orders", {"id": "int64"}).append({"id": [1, 2, 3]})
        base = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(f"{base}/health/ready", timeout=10) as answer:
            found = json.load(answer)
        assert found["ready"] is True
        assert found["steps"]["listen"].endswith(address)
        with urllib.request.urlopen(f"{base}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        assert "headrace_append_rows_total 3.0" in text
        assert "headrace_append_bytes_total 0.0" not in text
        groups = float(re.search(r"(?m)^headrace_commit_group_ops_count (\S+)", text).group(1))
        ops = float(re.search(r"(?m)^headrace_commit_group_ops_sum (\S+)", text).group(1))
        assert 3 <= groups <= ops  # the topic, its partition, its rows
        free = float(re.search(r"(?m)^headrace_disk_free_bytes (\S+)", text).group(1))
        assert free > 0
        assert "headrace_ready 1.0" in text


def test_other_processes_reach_it_through_its_socket(tmp_path):
    with serving(tmp_path, "--set", "listen.http=") as (_, address, _):
        with headrace.connect(address) as log:
            log.create_topic("orders", {"id": "int64"}).append({"id": [1]})
        with headrace.connect(f"unix:{tmp_path}/headrace.sock") as log:
            assert log.topics() == ["default/orders"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "seal.sise=1GiB"], "Is it seal.size?"),
        (["--set", "seal.size"], "section.key=value"),
        (["--set", "seal.size=much"], "seal.size"),
        (["--listen", "nowhere"], "listen.address"),
        (["--listen", "0.0.0.0:7000"], "auth.token"),
        (["--config", "/nonexistent.toml"], "cannot be read"),
    ],
)
def test_a_bad_setting_is_named_and_nothing_is_made(tmp_path, options, said):
    path = tmp_path / "data"
    assert said in refused("--data", str(path), *options)
    assert not path.exists()


def test_a_directory_that_is_held_says_by_whom(tmp_path):
    with serving(tmp_path, "--set", "listen.http=") as (process, _, _):
        command = [sys.executable, "-m", "headrace", "serve", "--data", str(tmp_path)]
        done = subprocess.run(
            [*command, "--listen", "127.0.0.1:0", "--set", "listen.http="],
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 5
        assert f"in use by process {process.pid}" in done.stderr
        assert done.stderr.endswith("Stop it, or choose another directory\n")


def test_a_directory_that_is_held_is_said_before_any_port(tmp_path):
    """With the defaults of both, as a person starts a second one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with serving(tmp_path, "--set", "listen.http=") as (process, _, _):
            for key in ("address", "http"):
                setting = ("--set", f"listen.{key}=127.0.0.1:{port}")
                said = refused("--data", str(tmp_path), *setting, code=5)
                assert f"in use by process {process.pid}" in said
                assert str(port) not in said


@pytest.mark.parametrize("key", ["address", "http"])
def test_a_port_that_is_taken_leaves_nothing_behind(tmp_path, key):
    path = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        others = {"address": "127.0.0.1:0", "http": ""} | {key: where}
        settings = [("--set", f"listen.{name}={value}") for name, value in others.items()]
        said = refused("--data", str(path), *(each for pair in settings for each in pair))
    assert f"listen.{key}: cannot listen" in said
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_another_node_listens_at_soon_leaves_nothing_behind(tmp_path):
    async def scene():
        port = await bind_tcp("127.0.0.1", 0)  # it recovers, and lets nobody in yet
        where = f"127.0.0.1:{port.addresses[0][1]}"
        options = ("--listen", where, "--set", "listen.http=")
        said = await asyncio.to_thread(refused, "--data", str(tmp_path / "data"), *options)
        assert f"cannot listen at {where}" in said
        port.close()

    asyncio.run(scene())
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_the_socket_goes_is_said_before_anything_is_made(tmp_path):
    (tmp_path / "headrace.sock").write_text("mine")
    said = refused("--data", str(tmp_path), "--listen", "127.0.0.1:0", "--set", "listen.http=")
    assert "headrace.sock is there and is no socket" in said
    assert [each.name for each in tmp_path.iterdir()] == ["headrace.sock"]


class TestEmbedded:
    def test_it_listens_on_the_socket_alone_and_ends_when_nobody_is_connected(self, tmp_path):
        with headrace.open(tmp_path / "data") as log:
            log.create_topic("orders", {"id": "int64"}).append({"id": [1, 2, 3]})
        command = [sys.executable, "-m", "headrace", "serve", "--data", str(tmp_path / "data")]
        command += ["--embedded", "--idle-exit", "2s"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            said = until_said(process.stderr, "node.listening")
            assert "127.0.0.1" not in said
            with headrace.connect(f"unix:{tmp_path}/data/headrace.sock") as log:
                assert log.topic("orders").read().row_count == 3
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(3)  # somebody is there
            assert process.wait(SECONDS_MAX) == 0
            assert "node.idle" in process.stderr.read()
        assert not (tmp_path / "data" / "headrace.sock").exists()

    def test_what_makes_no_sense_is_refused(self, tmp_path):
        data = ["--data", str(tmp_path), "--embedded"]
        assert "listens on no address" in refused(*data, "--listen", "127.0.0.1:0")
        assert "--idle-exit 10ms is too short" in refused(*data, "--idle-exit", "10ms")
        assert "no duration" in refused(*data, "--idle-exit", "soon")
        headrace.open(tmp_path / "log").close()
        data = ["--data", str(tmp_path / "log"), "--embedded"]
        assert "--embedded listens on nothing else" in refused(
            *data, "--set", "listen.socket=false"
        )

    def test_a_directory_without_a_log_is_left_alone(self, tmp_path):
        command = [sys.executable, "-m", "headrace", "serve", "--data", str(tmp_path / "no")]
        done = subprocess.run(
            [*command, "--embedded"], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr.count("holds no log")) == (3, 1)
        assert not (tmp_path / "no").exists()


def until_said(lines, word):
    for line in lines:
        if word in line:
            return line
    raise AssertionError(f"it never said {word}")
