"""Standard streams that are closed, full, or read only in part; commands in pipes."""

import os
import shlex
import subprocess
import sys

import pytest

import headrace

COMMAND = shlex.join([sys.executable, "-m", "headrace"])


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "data"
    with headrace.open(path) as opened:
        opened.create_topic("orders", {"id": "int64"}).append({"id": list(range(100_000))})
        opened.create_topic("copy", {"id": "int64"})
    return path


def shell(line, **kwargs):
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **kwargs,
    )


@pytest.mark.parametrize("stream", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", ["topic list", "read orders --limit 2"])
def test_a_closed_stream_is_nothing_to_fall_over(log, words, stream):
    ended = shell(f"{COMMAND} {words} --data {log} {stream}")
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("words", ["topic list", "topic list --json", "read orders --limit 2"])
def test_a_full_disk_behind_the_output_is_said(log, words):
    ended = shell(f"{COMMAND} {words} --data {log} > /dev/full")
    assert ended.returncode == 1
    assert ended.stderr.startswith("headrace: standard output: writ")
    assert "No space left on device" in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("topic describe orders", 0),
        ("status", 0),
        ("read orders", 0),
        ("doctor", 1),  # nobody may take 0 for a verdict that was not heard
    ],
)
def test_who_has_read_enough_ends_a_command_without_a_word(log, words, code):
    place = log if words == "doctor" else f"--data {log}"
    ended = shell(f"{COMMAND} {words} {place} | true")
    assert (ended.returncode, ended.stderr) == (code, "")


def test_a_command_waits_for_another_that_uses_its_log_by_a_variable(log):
    line = f"{COMMAND} read orders --no-system | {COMMAND} produce copy"
    ended = shell(line, env={"HEADRACE_DATA": str(log)})
    assert (ended.returncode, ended.stderr) == (0, "100,000 rows acknowledged in 1 partition\n")


def test_two_commands_do_not_wait_for_one_another(log):
    """A shell around the first holds the pipe open until the first has ended."""
    line = f"( {COMMAND} read orders --no-system --data {log}; echo ) | "
    ended = shell(f"{line}{COMMAND} produce copy --data {log}")
    assert ended.returncode == 0
    assert ended.stderr.splitlines()[-1] == "100,000 rows acknowledged in 1 partition"


def test_what_was_printed_before_the_log_failed_is_not_taken_back():
    script = (
        "import sys\n"
        "from headrace.cli import main\n"
        "from headrace.errors import StorageFailed\n"
        "def made(word):\n"
        "    def run():\n"
        "        sys.stdout.write('a row\\n')\n"
        "        raise StorageFailed('segment', 'read', OSError(5, 'Input/output error'))\n"
        "    return run\n"
        "main.made = made\n"
        "main.main()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
    )
    assert (ended.returncode, ended.stdout) == (1, "a row\n")
    assert ended.stderr.startswith("headrace: segment: read failed: Input/output error")
