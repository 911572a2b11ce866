"""One writer process seen from outside: start it, hear what it says, end it."""

import subprocess
import sys
from dataclasses import dataclass, field

import msgspec

from headrace.cli.demo.child_process import ChildProcess, Silent
from headrace.journal.journal_file import first_op_of
from headrace.model.ids import Op
from headrace_lab.counter.writer import Findings, Job
from headrace_lab.disk.tapped import FAILED_SYNC


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


class Writer(ChildProcess):
    """A running writer. Use it as a context: it never outlives the block."""

    testimony: Testimony

    def __init__(self, job: Job) -> None:
        self.testimony = Testimony()
        text = msgspec.json.encode(job).decode()
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace_lab.counter.writer", text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            process_group=0,  # an interrupt from the keyboard is for us; our end ends it too
        )
        self._attend(process, process.stdout)
