"""`headrace completion`: the scripts, and what the program answers to them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("headrace")


def run(*arguments, **environment):
    return subprocess.run(
        arguments,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_asks_the_program_by_its_variable(shell):
    ended = run(sys.executable, "-m", "headrace", "completion", shell)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"_HEADRACE_COMPLETE=complete_{shell}" in ended.stdout


def test_an_unknown_shell_is_refused_with_those_there_are():
    ended = run(sys.executable, "-m", "headrace", "completion", "tcsh")
    assert ended.returncode == 2
    assert "fish" in ended.stderr


def test_a_shell_that_loaded_the_script_completes_commands_and_options(tmp_path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("this machine has no bash")
    if not PROGRAM.exists():
        pytest.skip("headrace is not installed beside this interpreter")
    script = tmp_path / "completion"
    script.write_text(run(str(PROGRAM), "completion", "bash").stdout)
    ask = (
        f'source {script}; COMP_WORDS=({PROGRAM} "$@"); COMP_CWORD=$#; '
        f'_headrace_completion {PROGRAM}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    commands = run(bash, "--norc", "-c", ask, "bash", "s").stdout.split()
    assert "serve" in commands
    assert "bench" not in commands
    assert run(bash, "--norc", "-c", ask, "bash", "config", "v").stdout.split() == ["validate"]
    assert "--origin" in run(bash, "--norc", "-c", ask, "bash", "config", "show", "--o").stdout
