"""The command as its users run it: a process, its output and its exit code."""

import importlib.metadata
import inspect
import json
import os
import signal
import subprocess
import sys
import tomllib
from contextlib import nullcontext
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import headrace
from headrace import errors
from headrace.cli import verbs
from headrace.cli.main import app
from headrace.cli.terminal.exits import Exit, exit_code
from headrace_lab.bench import place
from headrace_lab.bench.frame import Case, Result
from headrace_lab.bench.registry import BENCHES
from headrace_lab.commands import bench

ROOT = Path(__file__).parents[2]
# Variables that make a pipe pass for a terminal.
FORCED_TERMINAL = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "GITHUB_ACTIONS")


def headrace_command(*arguments, python=(), **environment):
    """Run `headrace` with `arguments` and wait for its end."""
    kept = {name: text for name, text in os.environ.items() if name not in FORCED_TERMINAL}
    return subprocess.run(
        [sys.executable, *python, "-m", "headrace", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=kept | environment,
        check=False,
    )


def test_the_version_is_the_one_installed():
    ended = headrace_command("--version")
    assert (ended.returncode, ended.stdout) == (0, f"headrace {headrace.__version__}\n")
    assert importlib.metadata.version("headrace") == headrace.__version__


@pytest.mark.parametrize("word", verbs.LINES)
def test_help_says_of_each_command_what_its_own_help_begins_with(word):
    own = typer.Typer()
    verbs.load(word).register(own)
    own.callback()(lambda: None)
    (command,) = typer.main.get_group(own).commands.values()
    said = inspect.cleandoc(command.help).split("\n\n")[0].replace("\n", " ")
    assert (command.name, said) == (word, verbs.LINES[word])


# What a page of help imports, and nothing else: no Arrow, no node, no client, no command.
HELP_IMPORTS = {
    "headrace",
    "headrace.__main__",
    "headrace.cli",
    "headrace.cli.main",
    "headrace.cli.terminal",
    "headrace.cli.terminal.exits",
    "headrace.cli.verbs",
    "headrace.errors",
    "headrace.model",
    "headrace.model.ids",
    "headrace.model.revisions",
    "headrace_lab",  # adds commands: a small table, too
    "headrace_lab.verbs",
}
# What a page of help is made with; the last ones are tried by these, and mostly not there.
HELP_PACKAGES = {"typer", "rich", "markdown_it", "pygments", "mdurl", "shellingham"} | {
    *("annotated_doc", "attr", "linkify_it", "colorama"),
}


def imports_of(*words):
    """The modules that `headrace` imports for these words, without those of Python itself."""
    unseen = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", ""],
        capture_output=True,
        text=True,
        check=True,
    )
    ended = headrace_command(*words, python=("-X", "importtime"))
    began, after = (imported(each.stderr) for each in (unseen, ended))
    return {
        name
        for name in after - began
        if name.split(".")[0] not in {*sys.stdlib_module_names, "org", "importedpackage"}
    }


def imported(trace):
    lines = [line for line in trace.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.parametrize("words", [["--help"], ["--version"], [], ["unheard-of"]])
def test_what_needs_no_command_loads_none(words):
    """A page of help is there at once. Who adds an import here makes every command wait."""
    found = imports_of(*words)
    assert "headrace.cli.verbs" in found
    ours = {name for name in found if name.split(".")[0].startswith("headrace")}
    assert ours <= HELP_IMPORTS
    assert {name.split(".")[0] for name in found - ours} <= HELP_PACKAGES


@pytest.mark.parametrize("words", [["--version"], ["topic", "--help"]])
def test_commands_of_other_distributions_are_looked_for_only_where_they_may_be_meant(words):
    ended = headrace_command(*words, python=("-X", "importtime"))
    assert ended.returncode == 0
    assert not {name for name in imported(ended.stderr) if name.startswith("headrace_lab")}


def test_the_version_needs_no_console():
    assert not {name for name in imports_of("--version") if name.startswith("rich")}


def test_bench_alone_lists_each_bench_on_a_line():
    ended = headrace_command("bench")
    assert ended.returncode == 0
    assert any(line.startswith("disk ") for line in ended.stdout.splitlines())


def test_bench_json_goes_to_stdout_and_progress_to_stderr(tmp_path):
    ended = headrace_command(
        *("bench", "disk", "--json", "--rounds", "1", "--scale", "0", "--data", str(tmp_path))
    )
    assert ended.returncode == 0
    told = json.loads(ended.stdout)
    assert list(told) == ["bench", "cases"]
    assert told["bench"] == "disk"
    assert [list(case) for case in told["cases"]] == [
        ["name", "ours", "unit", "reference", "reference_value", "ratio", "spread"]
    ] * 3
    assert "round 1 of 1" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_bench_prints_a_table_without_colour_when_nobody_watches(tmp_path):
    ended = headrace_command(
        *("bench", "disk", "--rounds", "1", "--scale", "0", "--data", str(tmp_path))
    )
    assert ended.returncode == 0
    for word in ("ours", "limit", "ratio", "spread", "floor", "4 KiB blocks, growing file"):
        assert word in ended.stdout
    assert "\x1b" not in ended.stdout + ended.stderr


def test_an_unknown_bench_is_told_without_a_traceback():
    ended = headrace_command("bench", "nosuch")
    assert ended.returncode == Exit.USAGE
    assert ended.stdout == ""
    assert ended.stderr.startswith(
        "headrace: there is no bench called 'nosuch'. The benches are: "
    )
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [("nosuch",), ("bench", "disk", "--rounds", "0"), ("bench", "--nosuch")]
)
def test_a_wrong_command_line_exits_with_2(arguments):
    ended = headrace_command(*arguments)
    assert ended.returncode == Exit.USAGE
    assert "Traceback" not in ended.stderr


def test_an_interrupt_exits_with_130_and_leaves_nothing_behind(tmp_path):
    command = [sys.executable, "-m", "headrace", "bench", "disk", "--rounds", "100000"]
    with subprocess.Popen(
        [*command, "--data", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        while b"round 1 of" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == Exit.INTERRUPTED
    assert b"Traceback" not in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("python", "environment"), [(("-O",), {}), (("-OO",), {}), ((), {"PYTHONOPTIMIZE": "1"})]
)
def test_headrace_refuses_to_run_without_its_assertions(python, environment):
    ended = headrace_command("--version", python=python, **environment)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.startswith("headrace: headrace does not run under python -O")
    assert ended.stderr.count("\n") == 1


_LOADED = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except RuntimeError as error:
        if "does not run under python -O" in str(error):
            continue
    print(name)
"""


SPARK = (
    "headrace.spark.source.data_source",
    "headrace.spark.sink.data_sink",
)  # by pyspark_headrace, in workers


def test_no_way_in_loads_without_its_assertions():
    """The command, its children, workers and harnesses, the plugins, Spark's data source."""
    started = [
        ".".join(path.relative_to(source).with_suffix("").parts)
        for source in (ROOT / "src", ROOT / "lab" / "src")
        for path in source.rglob("*.py")
        if "__main__" in path.read_text() or path.parent.name == "worker"
    ]
    ways = {
        "headrace.__main__",
        "headrace.partition.segments.sealing_child",
        "headrace_lab.counter.sweep",
    }
    assert ways <= set(started)
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plugins = script["entry-points"]["pytest11"].values()
    commands = [one.partition(":")[0] for one in script["scripts"].values()]
    ended = subprocess.run(
        [sys.executable, "-O", "-c", _LOADED, *started, *plugins, *commands, *SPARK],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Rejected("x"), 2),
        (errors.BodyTooLarge(2, 1), 2),
        (errors.Unavailable("x"), 5),
        (errors.DiskFull("p", "write"), 5),
        (errors.Corrupt("x", path="p"), 6),
        (errors.CorruptEntry("x", path="p"), 6),
        (errors.StorageFailed("p", "write", OSError(5, "I/O error")), 1),
        (errors.Unknown("x"), 1),
        (errors.HeadraceError("x"), 1),
    ],
)
def test_an_error_becomes_the_code_of_its_branch(error, code):
    assert exit_code(error) == code


class ABench:
    """A bench with one case of made-up rates."""

    def __init__(self, ours, limit, floor=None):
        self.case = Case(
            name="made up",
            unit="1/s",
            ours=lambda: nullcontext(ours),
            reference="x",
            limit=lambda: nullcontext(limit),
            floor=floor,
        )

    def cases(self, directory, scale, /):
        return [self.case]


def test_run_gives_one_result_per_case_and_cleans_up(tmp_path):
    (result,) = bench.run(
        ABench(lambda: 3.0, lambda: 4.0), rounds=2, scale=1.0, data=tmp_path, check=False
    )
    assert (result.ratio, result.spread) == (0.75, 0.0)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_under_a_bench_is_a_storage_failure(tmp_path):
    def full():
        raise OSError(28, "No space left on device")

    with pytest.raises(errors.StorageFailed, match="bench failed: No space left"):
        bench.run(ABench(full, full), rounds=1, scale=1.0, data=tmp_path, check=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("floor", "code"), [(0.8, Exit.FAILURE), (0.75, Exit.OK)])
def test_check_exits_with_1_when_a_floor_is_missed(tmp_path, monkeypatch, floor, code):
    if place.fsync_is_free(tmp_path):
        pytest.skip("temporary files are in memory here")
    monkeypatch.setitem(BENCHES, "made-up", ABench(lambda: 3.0, lambda: 4.0, floor=floor))
    arguments = ["bench", "made-up", "--data", str(tmp_path)]
    assert CliRunner().invoke(app, arguments).exit_code == Exit.OK
    checked = CliRunner().invoke(app, [*arguments, "--check"])
    assert checked.exit_code == code
    assert ("MISSED" in checked.stdout) == (code is Exit.FAILURE)


def test_a_missed_floor_is_named(capsys):
    met = Result("fast", "1/s", 9.0, "x", 10.0, 0.9, 0.0, floor=0.8)
    missed = Result("slow", "1/s", 5.0, "x", 10.0, 0.5, 0.0, floor=0.8)
    assert bench.floors_are_met([met])
    assert not bench.floors_are_met([met, missed])
    assert capsys.readouterr().err == "slow: the ratio 0.500 is below the floor 0.8\n"


def test_a_bench_in_memory_warns_and_its_check_is_refused():
    memory = Path("/dev/shm")
    if not (os.access(memory, os.W_OK) and place.fsync_is_free(memory)):
        pytest.skip("this machine has no tmpfs at /dev/shm")
    arguments = ("bench", "disk", "--rounds", "1", "--scale", "0", "--data", str(memory))
    measured = headrace_command(*arguments)
    assert measured.returncode == Exit.OK
    assert "WARNING: /dev/shm is in memory" in measured.stderr
    assert headrace_command(*arguments, "--check").returncode == Exit.USAGE
