"""The systemd unit: sound, hardened, and in step with what the node promises."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.main import app
from headrace.cli.terminal.exits import Exit
from headrace.model.units import parse_duration
from headrace.node.config.settings import SETTINGS, Config

UNIT = Path(__file__).parents[2] / "packaging" / "headrace.service"
EXPOSURE_MAX = 2.0  # of 10, by systemd's own count; most services have more than 9


def parsed(text):
    """Return the settings of a unit, by section and name; one that is repeated is joined."""
    found, section = {}, ""
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if header := re.fullmatch(r"\[(\w+)\]", line):
            section = header.group(1)
            found[section] = {}
            continue
        match = re.fullmatch(r"([A-Za-z]+)=(.*)", line)
        assert match, f"no setting: {line!r}"
        name, value = match.groups()
        before = found[section].get(name)
        found[section][name] = value if before is None else f"{before} {value}"
    return found


@pytest.fixture
def service():
    return parsed(UNIT.read_text())["Service"]


def test_it_tells_systemd_when_it_is_ready(service):
    assert service["Type"] == "notify"
    assert service["NotifyAccess"] == "main"


def test_systemd_waits_longer_for_a_stop_than_the_node(service):
    assert parse_duration(service["TimeoutStopSec"]) > Config().stop.timeout
    assert service["KillSignal"] == "SIGTERM"


def test_what_cannot_become_better_is_not_tried_again(service):
    assert service["RestartPreventExitStatus"].split() == [
        str(int(Exit.USAGE)),
        str(int(Exit.INTEGRITY)),
    ]


def test_its_command_is_one_that_exists(service):
    program, name, *options = shlex.split(service["ExecStart"])
    assert program.endswith("/headrace")
    assert name in {command.name for command in app.registered_commands}
    assert options == ["--data", "/var/lib/" + service["StateDirectory"]]


def test_every_variable_in_it_is_a_setting():
    known = {setting.variable for setting in SETTINGS.values()}
    named = set(re.findall(r"HEADRACE_\w+", UNIT.read_text()))
    assert named
    assert named <= known


def test_it_is_not_root_and_writes_only_its_own_directory(service):
    assert service["User"] == "headrace"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert service["NoNewPrivileges"] == "yes"
    assert "ReadWritePaths" not in service


@pytest.fixture
def analyze(tmp_path):
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("this machine has no systemd-analyze")
    # As it would be where the command is installed.
    command = Path(sys.executable).with_name("headrace")
    text = re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={command}", UNIT.read_text())
    unit = tmp_path / UNIT.name
    unit.write_text(text)

    def run(*arguments):
        return subprocess.run(
            [program, *arguments, str(unit)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def test_systemd_finds_nothing_wrong_with_it(analyze):
    ended = analyze("verify")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_systemd_counts_it_among_the_least_exposed(analyze):
    ended = analyze("security", "--offline=yes", "--no-pager")
    found = re.search(r"exposure level for \S+: ([0-9.]+)", ended.stdout)
    if found is None:
        pytest.skip(f"this systemd-analyze does not judge files: {ended.stderr}")
    assert float(found.group(1)) <= EXPOSURE_MAX
