"""`headrace topic delete --wait-erased`: how it ends, what is on the disk then, and kills."""

import signal
import subprocess
from pathlib import Path
from random import Random
from time import sleep

import msgspec
import pyarrow as pa
import pytest
from tests.cli.commands import a_node, command, headrace_here
from tests.node.test_erasure import holding

import headrace
from headrace.cli.commands.topic import TopicDeleted
from headrace.cli.terminal.exits import Exit

SCHEMA = pa.schema([("id", pa.int64()), ("secret", pa.binary())])
MARK = Random(1).randbytes(32)
ROWS, SIZE = 40, 100_000


def fill(log: headrace.Log) -> None:
    """Make two topics whose rows are in the same files, those of `gone` with a mark."""
    chance = Random(2)
    for topic in ("gone", "other"):
        log.create_topic(topic, SCHEMA, partitions=2)
    for first in range(0, ROWS, 10):
        for topic, mark in (("gone", MARK), ("other", b"")):
            secrets = [mark + chance.randbytes(SIZE) for _ in range(10)]
            rows = pa.table([range(first, first + 10), secrets], schema=SCHEMA)
            log.topic(topic).append(rows, partition=first // 10 % 2)


def ids_of_other(log: headrace.Log) -> list[int]:
    return sorted(log.topic("other").read(columns=["id"]).to_table()["id"].to_pylist())


@pytest.fixture(params=["embedded", "held", "address"])
def place(request, tmp_path):
    """Options that name a log: one opened here, one that a process holds, one elsewhere."""
    if request.param == "embedded":
        with headrace.open(tmp_path) as log:
            fill(log)
        yield ["--data", str(tmp_path)]
        return
    with a_node(tmp_path) as address:
        with headrace.connect(address) as log:
            fill(log)
        yield ["--data", str(tmp_path)] if request.param == "held" else ["--address", address]


def test_no_file_has_its_bytes_when_the_command_is_over(place, tmp_path):
    assert holding(tmp_path, MARK)
    ended = headrace_here("topic", "delete", "gone", "--yes", "--wait-erased", "--json", *place)
    assert (ended.code, ended.json) == (
        0,
        {"topic": "default/gone", "deleted": True, "erased": True, "left": []},
    )
    assert holding(tmp_path, MARK) == []
    assert "Waiting for " in ended.err
    again = headrace_here("topic", "delete", "gone", "--wait-erased", "--yes", *place)
    assert again.code == Exit.NOT_FOUND
    assert "add --if-exists to wait for its leftovers" in again.err
    again = headrace_here(
        "topic", "delete", "gone", "--wait-erased", "--if-exists", "--yes", *place
    )
    assert again.code == 0
    assert "Topic gone does not exist (already deleted?)." in again.err
    assert "No file of the log holds bytes of deleted topics any more." in again.err
    listed = headrace_here("topic", "list", "--json", *place).json["topics"]
    assert [(one["topic"], one["rows"]) for one in listed] == [("default/other", ROWS)]


def test_who_does_not_wait_is_told_nothing_of_it(tmp_path):
    with headrace.open(tmp_path) as log:
        fill(log)
    ended = headrace_here("topic", "delete", "gone", "--yes", "--json", "--data", tmp_path)
    assert ended.json == {
        "topic": "default/gone",
        "deleted": True,
        "erased": None,
        "left": [],
    }
    ended = headrace_here(
        *("topic", "delete", "gone", "--yes", "--json", "--if-exists", "--data", tmp_path)
    )
    assert (ended.code, ended.json["deleted"]) == (0, False)
    assert ended.json["topic"] == "default/gone"


def test_a_time_to_wait_needs_something_to_wait_for(tmp_path):
    ended = headrace_here(
        *("topic", "delete", "gone", "--erase-timeout", "1s", "--data", tmp_path)
    )
    assert ended.code == Exit.USAGE
    assert "--erase-timeout requires --wait-erased" in ended.err


@pytest.mark.parametrize("time", ["bogus", "0s", "-1s", ""])
def test_invalid_erase_timeout_is_rejected_before_the_topic_is_deleted(tmp_path, time):
    with headrace.open(tmp_path) as log:
        log.create_topic("gone", SCHEMA).append([{"id": 1}])
    ended = headrace_here(
        *("topic", "delete", "gone", "--yes", "--wait-erased"),
        *("--erase-timeout", time, "--data", tmp_path),
    )
    assert ended.code == Exit.USAGE
    assert "erase" in ended.err
    with headrace.open(tmp_path) as log:
        assert log.topic("gone").read().to_table().num_rows == 1


def test_when_the_time_is_over_it_names_the_files_and_what_to_do(tmp_path):
    quarantine = tmp_path / "groups" / "00001" / "quarantine"
    with headrace.open(tmp_path) as log:
        fill(log)
    there = quarantine / "00000000000000000007.carry"
    there.write_bytes(MARK)
    words = ["topic", "delete", "gone", "--yes", "--wait-erased", "--if-exists"]
    words += ["--data", str(tmp_path)]
    ended = headrace_here(*words, "--erase-timeout", "3s", "--json")
    assert ended.code == Exit.UNAVAILABLE
    found = msgspec.json.decode(ended.raw, type=TopicDeleted)
    assert (found.deleted, found.erased) == (True, False)
    assert [one.path for one in found.left] == [str(there)]
    assert str(there) in ended.err
    assert "in quarantine: delete it" in ended.err
    assert "headrace topic delete gone --if-exists --wait-erased" in ended.err
    there.unlink()
    assert headrace_here(*words).code == 0
    assert holding(tmp_path, MARK) == []


class TestKilled:
    """kill -9 at any moment of the command, which in a directory of its own is the node."""

    WORDS = ("topic", "delete", "gone", "--yes", "--wait-erased", "--if-exists", "--data")

    def killed(self, path: Path, seconds: float) -> bool:
        """Kill the command so long after the topic went; say whether it was still running."""
        process = subprocess.Popen(
            command(*self.WORDS, path), stderr=subprocess.PIPE, text=True
        )
        with process:
            assert "topic" in process.stderr.readline().lower()
            sleep(seconds)
            process.kill()
        return process.returncode == -signal.SIGKILL

    @pytest.mark.campaign(2)
    @pytest.mark.parametrize("number", range(12))
    def test_the_command_is_repeated_and_nothing_is_left_nor_lost(self, tmp_path, number):
        with headrace.open(tmp_path) as log:
            fill(log)
        chance = Random(number)
        landed = [self.killed(tmp_path, chance.uniform(0.0, 0.2)) for _ in range(3)]
        assert any(landed)
        assert subprocess.run(command(*self.WORDS, tmp_path), check=False).returncode == 0
        assert holding(tmp_path, MARK) == []
        with headrace.open(tmp_path) as log:
            assert log.topics() == ["default/other"]
            assert ids_of_other(log) == list(range(ROWS))
        assert holding(tmp_path, MARK) == []
