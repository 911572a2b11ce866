"""Processes that benches of a node need: a node that serves, and producers beside it.

Producers run in a process of their own, so that neither side has the other's interpreter. They
make their batches first, connect, and say so; then each line on their input is one round.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headrace.errors import Unavailable

_LISTENING = "node.listening"
_LOCAL = "127.0.0.1:0"
STOP_SECONDS = 60.0


@contextmanager
def a_server(path: Path, *settings: str, is_killed: bool = False) -> Iterator[str]:
    """Run `headrace serve` in `path`, and give its address. `is_killed`: it ends by kill -9."""
    command = [sys.executable, "-m", "headrace", "serve", "--data", str(path)]
    command += ["--listen", _LOCAL, "--set", "listen.http="]
    for setting in settings:
        command += ["--set", setting]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield _address(process.stderr)
        finally:
            if is_killed:
                process.kill()
            else:
                process.terminate()
            process.communicate(timeout=STOP_SECONDS)


def _address(events: IO[str]) -> str:
    said = []
    for line in events:
        said.append(line)
        if _LISTENING in line:
            return re.split(r'[ "=]', line.strip().strip('"'))[-1]
    raise Unavailable(f"the node did not start: {''.join(said[-5:])}")


@dataclass(frozen=True, slots=True)
class ProducerLoad:
    """What producers send: `count` batches of `size` in all, `window` of each in flight."""

    producers: int
    size: int
    window: int
    count: int


@contextmanager
def producers(address: str, load: ProducerLoad) -> Iterator["Producers"]:
    """Run producers until the end of this context."""
    counts = (load.producers, load.size, load.window, load.count)
    with a_client("producers", address, *map(str, counts)) as made:
        yield made


@contextmanager
def a_client(module: str, *words: str) -> Iterator["Producers"]:
    """Run a module of this package until the end of this context."""
    command = [sys.executable, "-m", f"headrace_lab.bench.{module}", *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        made = Producers(process.stdin, process.stdout)
        made.wait()
        try:
            yield made
        finally:
            process.stdin.close()


@dataclass(frozen=True, slots=True)
class Producers:
    """A process that sends when it is told to."""

    stdin: IO[str]
    stdout: IO[str]

    def send_all(self) -> float:
        """Have everything sent and acknowledged; return the seconds that took."""
        self.stdin.write("go\n")
        self.stdin.flush()
        return self.wait()

    def wait(self) -> float:
        line = self.stdout.readline()
        if not line:
            raise Unavailable("the producers ended before their answer")
        return float(line)
