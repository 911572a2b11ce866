"""A node and its producers seen from outside: start them, hear them, end them."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from headrace.cli.demo.child_process import MARK, ChildProcess, MarkedProcess, Silent
from headrace.cli.demo.node_process import NodeTestimony
from headrace.storage.atomic import is_leftover
from headrace_lab.node.producers import ProducersJob

# Small enough that rolls, Seals and segments come several times in each life.
SETTINGS: Final = (
    "listen.http=",
    "journal.file_size=1MiB",
    "journal.slots=1024",
    "journal.metadata_slots=256",
    "commit.pipeline=64",
    "limits.body_size=256KiB",
    "seal.size=256KiB",
    "seal.age=1s",
    "stop.timeout=20s",
    "log.format=json",
)


class NodeProcess(MarkedProcess):
    """A running node. Use it as a context: it never outlives the block."""

    testimony: NodeTestimony

    def __init__(self, data: str, address: str, plant: str = "") -> None:
        self.testimony = NodeTestimony()
        self.mark = f"{MARK}={os.getpid()}-node-{time.monotonic_ns()}"
        self.groups = Path(data, "groups")
        self._before = set(self._leftovers())
        settings = [word for one in SETTINGS for word in ("--set", one)]
        module = ["headrace_lab.node.plants", plant] if plant else ["headrace"]
        name, _, value = self.mark.partition("=")
        self._start(
            [*module, "serve", "--data", data, "--listen", address, *settings],
            {name: value},
        )

    def _start(self, arguments: Sequence[str], environment: dict[str, str]) -> None:
        self.began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment, "PYTHONFAULTHANDLER": "1"},
            process_group=0,  # an interrupt from the keyboard is for us, and we end it
        )
        self._attend(process, process.stderr)

    @property
    def seconds(self) -> float:
        """How long ago it was started."""
        return time.monotonic() - self.began

    @property
    def is_at_checkpoint(self) -> bool:
        """Say whether a file of a checkpoint is half written, by this life."""
        return any(one not in self._before for one in self._leftovers())

    @property
    def phase(self) -> str:
        """What the node is at just now."""
        said = self.testimony
        if not said.is_locked:
            return "start"
        stage = "serving" if said.is_listening else "recovery"
        if said.is_stopping:
            stage = "stop"
        return f"{stage}, checkpoint" if self.is_at_checkpoint else stage

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Wait for its end. One that hangs is aborted, so that it says where it does."""
        try:
            return super().wait()
        except Silent as silent:
            self.testimony.problems.append(str(silent))
            self._process.send_signal(signal.SIGABRT)
            return super().wait()

    def _leftovers(self) -> list[tuple[str, int]]:
        """Names and inodes of files that are being written, or were left so."""
        found: list[tuple[str, int]] = []
        for folder in (*self.groups.glob("*"), *self.groups.glob("*/s*/")):
            try:
                with os.scandir(folder) as entries:
                    found += [
                        (one.path, one.inode()) for one in entries if is_leftover(one.name)
                    ]
            except OSError:  # gone meanwhile, or not there yet
                continue
        return found


@dataclass(slots=True)
class ProducersTestimony:
    """What the process of the producers said; `node_producers.py` has the grammar."""

    is_running: bool = False
    paused_count: int = 0
    created_count: int = 0
    is_stopped: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def hear(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        match word:
            case "running":
                self.is_running = True
            case "paused":
                self.paused_count += 1
                self.counts = Counter(msgspec.json.decode(rest, type=dict[str, int]))
            case "created":
                self.created_count += 1
            case "problem":
                self.problems.append(f"source {rest}")
            case "stopped":
                self.is_stopped = True
            case _:
                self.problems.append(f"the producers said {line!r}")


class ProducersProcess(ChildProcess):
    """The producers. Use it as a context: they never outlive the block."""

    testimony: ProducersTestimony

    def __init__(self, job: ProducersJob) -> None:
        self.testimony = ProducersTestimony()
        text = msgspec.json.encode(job).decode()
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace_lab.node.producers", text],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        assert process.stdin is not None
        self._orders = process.stdin
        self._attend(process, process.stdout)

    def __exit__(self, *raised: object) -> None:
        self._orders.close()
        super().__exit__(*raised)

    def order(self, word: str) -> None:
        """Tell them something. That they are gone is a problem, not an error."""
        try:
            self._orders.write(f"{word}\n".encode())
        except BrokenPipeError:
            self.testimony.problems.append(f"the producers ended before {word!r}")

    def pause(self, seconds: float) -> bool:
        """Let everything come to rest. False if it does not within so many seconds."""
        said = self.testimony
        wanted = said.paused_count + 1
        self.order("pause")
        self.listen(seconds, lambda _: said.paused_count == wanted)
        return said.paused_count == wanted
