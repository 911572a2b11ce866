"""One writer of a shard seen from outside: what it said, and what of it is still alive."""

import os
import selectors
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from headrace.sim.shard_audit import Found
from headrace.sim.shard_writer import ShardFindings, ShardJob
from headrace.sim.testimony import Silent, Testimony, Writer

# In the environment of a process and, by it, of all its children, whoever their parent is now.
MARK: Final = "HEADRACE_SIM_LIFE"
LOOK_SECONDS: Final = 0.01
# A child that was just started notices its parent's death once Python and Arrow are loaded.
ORPHAN_SECONDS_MAX: Final = 20.0


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


class ShardProcess(Writer):
    """A running process. Use it as a context: it never outlives the block."""

    testimony: ShardTestimony

    def __init__(self, job: ShardJob, paths: Paths) -> None:
        self.testimony = ShardTestimony()
        self.mark = f"{MARK}={os.getpid()}-{job.life}-{time.monotonic_ns()}"
        self._rest = b""
        self._ended = False
        text = msgspec.json.encode(job).decode()
        module = [sys.executable, "-m", "headrace.sim.shard_writer"]
        name, _, value = self.mark.partition("=")
        self._process = subprocess.Popen(
            [*module, paths.data, paths.ledger, text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, name: value},
            process_group=0,  # an interrupt from the keyboard is for us; our end ends it too
        )
        assert self._process.stdout is not None
        self._pipe = self._process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pipe, selectors.EVENT_READ)

    @property
    def is_alive(self) -> bool:
        return not self._ended

    def await_recovery(self) -> None:
        """Hear until recovery has begun."""
        said = self.testimony
        self.await_that("recovery", lambda _: said.is_recovering or said.recovered is not None)

    def await_orphans(self) -> float:
        """Return how many seconds its children outlived it."""
        began = time.monotonic()
        while living(self.mark):
            if time.monotonic() - began > ORPHAN_SECONDS_MAX:
                raise Silent(f"children outlive their parent: {living(self.mark)}")
            time.sleep(LOOK_SECONDS)
        return time.monotonic() - began


def living(mark: str) -> list[int]:
    """Return the processes that have `mark` in their environment; a dead one has none."""
    found: list[int] = []
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            with suppress(OSError):
                if mark.encode() in (one / "environ").read_bytes().split(b"\0"):
                    found.append(int(one.name))
    return found
