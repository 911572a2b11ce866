"""docs/operating.md says what the code does, and its backups can be restored."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from typer.main import get_command

import headrace
from headrace.cli.main import app
from headrace.cli.terminal.exits import Exit
from headrace.errors import Corrupt
from headrace.server.metrics import Counter, Gauge, Histogram

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operating.md").read_text()
SECONDS_MAX = 60


def test_every_metric_is_on_the_page_as_the_code_has_it():
    rows = re.findall(r"(?m)^\| `(headrace_\w+)` \| (\w+) \| (.*?) \| (.+?) \|$", PAGE)
    wanted = [
        (each.value, kind.__name__.lower(), f"`{label}`" if label else "", each.meaning)
        for kind in (Counter, Gauge, Histogram)
        for each in kind
        for label in [getattr(each, "label", "")]
    ]
    assert [(name, kind, label.strip(), said) for name, kind, label, said in rows] == wanted


def test_every_exit_code_is_on_the_page():
    table = PAGE.partition("| exit code |")[2].partition("## ")[0]
    assert [int(code) for code in re.findall(r"(?m)^\| (\d+) \|", table)] == [
        int(each) for each in Exit
    ]


def shown():
    """Return every `headrace …` that the page shows, in blocks and within lines."""
    blocks = "\n".join(re.findall(r"(?ms)^```sh\n(.*?)^```$", PAGE))
    inline = re.findall(r"`(headrace [a-z][^`]*)`", PAGE)
    lines = [line for line in blocks.splitlines() if line.startswith("headrace ")]
    return sorted({*lines, *inline})


def command_faults(text):
    """Walk the words of a command line down the tree of commands."""
    words = shlex.split(text)[1:]
    command = get_command(app)
    while words and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return [f"no command {words[0]}"]
        command = command.commands[words.pop(0)]
    known = {option for each in command.params for option in each.opts}
    return [f"no option {word}" for word in words if word.startswith("-") and word not in known]


@pytest.mark.parametrize("text", shown())
def test_a_command_on_the_page_exists_with_its_options(text):
    assert command_faults(text) == []


def test_a_command_that_is_not_there_is_found():
    assert command_faults("headrace stats") == ["no command stats"]
    assert command_faults("headrace config sow") == ["no command sow"]
    assert command_faults("headrace status --date x") == ["no option --date"]


@contextmanager
def a_node(path):
    """Run a node with all its children in a group of processes that can be frozen."""
    command = [sys.executable, "-m", "headrace", "serve", "--data", str(path)]
    command += ["--listen", "127.0.0.1:0"]
    for one in ("listen.http=", "journal.file_size=4MiB", "seal.size=64KiB", "seal.age=200ms"):
        command += ["--set", one]
    command += ["--set", "limits.body_size=64KiB"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            for line in process.stderr:
                if "node.listening" in line:
                    yield process, line.rpartition(" ")[2].strip().strip('"')
                    break
            else:
                pytest.fail("the node did not start")
        finally:
            with suppress(ProcessLookupError):  # it has ended, with all its children
                os.killpg(process.pid, signal.SIGKILL)


def filled(address, batches=50):
    with headrace.connect(address) as log:
        topic = log.create_topic("orders", {"id": "int64"})
        for number in range(batches):
            topic.append({"id": list(range(number * 100, number * 100 + 100))})
        with topic.consumer("billing") as consumer:
            consumer.poll()
            consumer.commit()


def ids_in(path):
    with headrace.open(path, journal__file_size="4MiB") as log:
        topic = log.topic("orders")
        assert topic.cursors("billing")
        return topic.read().to_table()["id"].to_pylist()


def test_a_copy_of_a_stopped_node_is_a_backup(tmp_path):
    with a_node(tmp_path / "data") as (process, address):
        filled(address)
        process.terminate()
        assert process.wait(SECONDS_MAX) == 0
    (line,) = re.findall(r"(?m)^cp (.*) /var/lib/headrace /backup/headrace$", PAGE)
    copy = ["cp", *shlex.split(line), str(tmp_path / "data"), str(tmp_path / "backup")]
    subprocess.run(copy, check=True, timeout=SECONDS_MAX)
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "backup").rename(tmp_path / "data")
    assert ids_in(tmp_path / "data") == list(range(5000))


def test_all_files_at_one_moment_are_a_backup_of_a_running_node(tmp_path):
    with a_node(tmp_path / "data") as (process, address):
        filled(address)
        with headrace.connect(address) as log, log.producer("orders") as producer:
            for first in range(5000, 20_000, 100):
                producer.send([{"id": number} for number in range(first, first + 100)])
            os.killpg(process.pid, signal.SIGSTOP)  # what a snapshot of a disk is like
            ignored = shutil.ignore_patterns("*.sock")
            shutil.copytree(tmp_path / "data", tmp_path / "backup", ignore=ignored)
            os.killpg(process.pid, signal.SIGCONT)
    found = ids_in(tmp_path / "backup")
    assert len(found) >= 5000  # all that was acknowledged, and maybe some that was on its way
    assert found == list(range(len(found)))


def test_a_copy_without_some_of_its_files_is_refused(tmp_path):
    with a_node(tmp_path / "data") as (process, address):
        filled(address, batches=1)
        process.terminate()
        assert process.wait(SECONDS_MAX) == 0
    shutil.rmtree(tmp_path / "data" / "groups" / "00001" / "journal")
    with pytest.raises(Corrupt):
        ids_in(tmp_path / "data")
