"""`headrace` as tests run it: here, where it is fast, or as a process of its own."""

import io
import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from headrace.cli.main import main

SECONDS_MAX = 60


@dataclass
class Ended:
    """A command that has ended."""

    code: int
    raw: bytes
    err: str

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def json(self):
        """The one object that it printed, and nothing else."""
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def rows(self):
        return [json.loads(line) for line in self.out.splitlines()]


def headrace_here(*arguments, given: bytes | str = b"") -> Ended:
    """Run a command in this process: its own streams, its own exit code."""
    data = given.encode() if isinstance(given, str) else given
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    before = sys.argv, sys.stdin, sys.stdout, sys.stderr
    sys.argv = ["headrace", *map(str, arguments)]
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)), "utf-8")
    sys.stdout, sys.stderr = out, err
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = before
    out.flush()
    err.flush()
    return Ended(int(code), out.buffer.getvalue(), err.buffer.getvalue().decode())


def command(*arguments) -> list[str]:
    return [sys.executable, "-m", "headrace", *map(str, arguments)]


@contextmanager
def a_node(path):
    """Run a node in its own process, and give where it listens."""
    options = ["--listen", "127.0.0.1:0", "--set", "listen.http="]
    options += ["--set", "journal.file_size=4MiB"]
    with subprocess.Popen(
        command("serve", "--data", path, *options), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            for line in process.stderr:
                if "node.listening" in line:
                    yield line.rpartition(" ")[2].strip().strip('"')
                    break
            else:
                pytest.fail("the node did not start")
        finally:
            process.kill()
