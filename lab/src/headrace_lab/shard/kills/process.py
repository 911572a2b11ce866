"""One writer of a shard seen from outside: what it said, and what of it is still alive."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field

import msgspec

from headrace.cli.demo.child_process import MARK, MarkedProcess
from headrace_lab.counter.testimony import Testimony
from headrace_lab.shard.kills.audit import Found
from headrace_lab.shard.kills.writer import ShardFindings, ShardJob


@dataclass(slots=True)
class ShardTestimony(Testimony):
    """Everything one process said; `shard_writer.py` has the grammar."""

    recovered: ShardFindings | None = None
    found: Found | None = None
    recovery_effects: int = 0  # that its recovery had
    is_writing: bool = False  # its children are at work
    problems: list[str] = field(default_factory=list)

    def hear(self, line: str) -> None:
        """Take one line in."""
        word, _, rest = line.partition(" ")
        match word:
            case "recovered":
                self.is_recovering = False
                self.recovery_effects = self.effect_count
                self.recovered = msgspec.json.decode(rest, type=ShardFindings)
            case "writing" | "written":
                self.is_writing = word == "writing"
            case "audited":
                self.found = msgspec.json.decode(rest, type=Found)
            case "problem":
                self.problems.append(rest)
            case _:
                Testimony.hear(self, line)

    @property
    def phase(self) -> str:
        """What the process was at: its owning thread, and what went on beside."""
        if self.is_done:
            return "done"
        if self.recovered is None:
            if not self.is_recovering:
                return "start"
            return "recovery, sealing" if self.is_writing else "recovery"
        if self.sealing is None:
            return "appends alone"
        return "appends, sealing beside" if self.is_writing else "appends, checkpoint beside"


@dataclass(frozen=True, slots=True)
class Paths:
    """Where a shard is, and where its ledger is: not on the same disk if that one is cut."""

    data: str
    ledger: str


class ShardProcess(MarkedProcess):
    """A running process. Use it as a context: it never outlives the block."""

    testimony: ShardTestimony

    def __init__(self, job: ShardJob, paths: Paths) -> None:
        self.testimony = ShardTestimony()
        self.mark = f"{MARK}={os.getpid()}-{job.life}-{time.monotonic_ns()}"
        text = msgspec.json.encode(job).decode()
        module = [sys.executable, "-m", "headrace_lab.shard.kills.writer"]
        name, _, value = self.mark.partition("=")
        process = subprocess.Popen(
            [*module, paths.data, paths.ledger, text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, name: value},
            process_group=0,  # an interrupt from the keyboard is for us; our end ends it too
        )
        self._attend(process, process.stdout)

    def await_recovery(self) -> None:
        """Hear until recovery has begun."""
        said = self.testimony
        self.await_that("recovery", lambda _: said.is_recovering or said.recovered is not None)
