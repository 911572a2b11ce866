"""One writer process seen from outside: start it, hear what it says, end it."""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Self

import msgspec

from headrace.journal.file import first_op_of
from headrace.model.ids import Op
from headrace.sim.tapped import FAILED_SYNC
from headrace.sim.writer import Findings, Job

PATIENCE_SECONDS = 60.0  # no step of a healthy writer takes nearly as long
_PIECE_SIZE = 64 * 1024


class Silent(Exception):
    """A process said nothing for too long, or not what was awaited. The text says what."""


@dataclass(slots=True)
class Testimony:
    """Everything one process said. Only what was read counts."""

    is_recovering: bool = False
    findings: Findings | None = None
    tried: Op = Op(0)
    acknowledged: list[tuple[Op, str]] = field(default_factory=list)  # op and tip, in order
    sealing: Op | None = None  # the checkpoint under way
    sealed_count: int = 0
    effect_count: int = 0
    effect: tuple[str, str] | None = None  # the last one, kind and name
    rolled_count: int = 0  # journal files that got a live name
    entries: dict[Op, str] = field(default_factory=dict)  # checksums read back, by op
    is_done: bool = False
    failed: str | None = None
    is_dark: bool = False  # the power was cut: from here on nothing said is a promise
    promised: Op = Op(0)  # acknowledged, or shown by a recovery, while there was power
    has_failed_sync: bool = False  # of the journal: after it nothing may be acknowledged
    lies: list[Op] = field(default_factory=list)  # acknowledged all the same

    @property
    def is_appending(self) -> bool:
        """Something was on its way to the disk and not acknowledged yet."""
        return bool(self.tried) and self.tried != self.last_acknowledged

    @property
    def last_acknowledged(self) -> Op:
        return self.acknowledged[-1][0] if self.acknowledged else Op(0)

    @property
    def phase(self) -> str:
        """What the process was at, in one word."""
        if self.is_done:
            return "done"
        if self.findings is None:
            return "recovery" if self.is_recovering else "start"
        if self.sealing is not None:
            return "checkpoint"
        return "append" if self.is_appending else "between"

    def hear(self, line: str) -> None:
        """Take one line in; `writer.py` has the grammar."""
        word, _, rest = line.partition(" ")
        match word:
            case "effect":
                self._hear_effect(rest)
            case "trying":
                self.tried = Op(int(rest))
            case "acknowledged":
                op, _, tip = rest.partition(" ")
                self.acknowledged.append((Op(int(op)), tip))
                self._promise(Op(int(op)))
            case "entry":
                op, _, checksum = rest.partition(" ")
                self.entries[Op(int(op))] = checksum
            case "sealing":
                self.sealing = Op(int(rest))
            case "sealed":
                self.sealing, self.sealed_count = None, self.sealed_count + 1
            case _:
                self._hear_turn(word, rest)

    def _hear_effect(self, rest: str) -> None:
        kind, _, name = rest.partition(" ")
        if kind == FAILED_SYNC:
            self.has_failed_sync = True
            return
        self.effect_count += 1
        self.effect = (kind, name)
        self.rolled_count += kind == "rename" and first_op_of(name) is not None

    def _promise(self, op: Op) -> None:
        if self.has_failed_sync:
            self.lies.append(op)
        if not self.is_dark:
            self.promised = max(self.promised, op)

    def _hear_turn(self, word: str, rest: str) -> None:
        match word:
            case "recovering":
                self.is_recovering = True
            case "recovered":
                self.is_recovering = False
                self.findings = msgspec.json.decode(rest, type=Findings)
                self._promise(self.findings.head)
            case "done":
                self.is_done = True
            case "failed":
                self.failed = rest
            case _:
                raise Silent(f"a writer said what it never says: {word}")


class Writer:
    """A running process. Use it as a context: it never outlives the block."""

    def __init__(self, job: Job) -> None:
        self.testimony = Testimony()
        text = msgspec.json.encode(job).decode()
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.sim.writer", text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            process_group=0,  # an interrupt from the keyboard is for us; our end ends it too
        )
        self._attend(process, process.stdout)

    def _attend(self, process: subprocess.Popen[bytes], pipe: IO[bytes] | None) -> None:
        """Hear what `process` says through `pipe` from now on."""
        assert pipe is not None
        self._process, self._pipe = process, pipe
        self._rest = b""
        self._ended = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(pipe, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._selector.close()
        self._pipe.close()

    @property
    def is_alive(self) -> bool:
        return not self._ended

    @property
    def pid(self) -> int:
        return self._process.pid

    def listen(self, seconds: float, until: Callable[[Testimony], bool] | None = None) -> None:
        """Hear for `seconds`, or until it ends, or until the testimony is such."""
        deadline = time.monotonic() + seconds
        while not self._ended and (left := deadline - time.monotonic()) > 0:
            if until is not None and until(self.testimony):
                return
            self._hear_some(left)

    def await_that(self, what: str, until: Callable[[Testimony], bool]) -> bool:
        """Hear until the testimony is such. False if the process ended before."""
        self.listen(PATIENCE_SECONDS, until)
        if not until(self.testimony) and not self._ended:
            raise Silent(f"no sign of {what} within {PATIENCE_SECONDS:.0f} s")
        return until(self.testimony)

    def kill(self) -> bool:
        """Kill it with SIGKILL and hear what it had still said. True if that ended it."""
        self._process.send_signal(signal.SIGKILL)
        return self.wait() == -signal.SIGKILL

    def wait(self) -> int:
        """Hear all until it ends by itself, and return its exit status."""
        self.listen(PATIENCE_SECONDS)
        if not self._ended:
            raise Silent(f"a writer did not end within {PATIENCE_SECONDS:.0f} s")
        return self._process.wait(PATIENCE_SECONDS)

    def _hear_some(self, seconds: float) -> None:
        if not self._selector.select(seconds):
            return
        piece = os.read(self._pipe.fileno(), _PIECE_SIZE)
        self._ended = not piece
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self.testimony.hear(line.decode())
