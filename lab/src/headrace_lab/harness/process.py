"""A process to be killed: the lines that all such processes print, and the view from outside.

Only lines that were read count. One write per line, so that a death leaves whole lines:

    recovering                   the lock is held and recovery begins
    recovered FOUND              recovery ended; FOUND is JSON, specific to the machine
    sealing OP, sealed OP        around the steps of a checkpoint
    effect KIND NAME             a storage effect of this process is about to happen
    problem TEXT                 a wrong answer
    done                         nothing is left to do
    failed TEXT                  the reason why it ends
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from headrace.cli.demo.child_process import MARK, MarkedProcess, Silent
from headrace.errors import HeadraceError
from headrace.journal.journal_file import first_op_of
from headrace.model.ids import Op
from headrace.storage.file import FileDirectory
from headrace.storage.lock import DirectoryLock
from headrace.storage.seam import Directory
from headrace_lab.disk.tapped import FAILED_SYNC
from headrace_lab.harness.history import Broken

GROUP = "00001"
FAILED = 1


def say(*words: object) -> None:
    """Send one line. A pipe without a reader ends the process: nobody watches it."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def work(job: Callable[[], None]) -> None:
    """Do a job, and say how it ended."""
    try:
        job()
    except BrokenPipeError:
        sys.exit(FAILED)
    except Broken as problem:
        say("problem", problem)
        sys.exit(FAILED)
    except (HeadraceError, OSError) as error:
        say("failed", f"{type(error).__name__}: {error}".replace("\n", " "))
        sys.exit(FAILED)
    say("done")


@contextmanager
def a_group(data: str) -> Iterator[Directory]:
    """Lock a data directory and give that of its only group, which is recovered next."""
    with FileDirectory.open_root(data, create=True) as root, DirectoryLock.acquire(data):
        groups = root.child("groups", make=True)
        root.sync()
        directory = groups.child(GROUP, make=True)
        groups.sync()
        say("recovering")
        yield directory


@dataclass(slots=True)
class Testimony:
    """Everything one process said, whatever its machine is."""

    is_recovering: bool = False
    recovered: Any = None  # what its recovery found
    recovery_effects: int = 0  # that its recovery had
    sealing: Op | None = None  # the checkpoint under way
    sealed_count: int = 0
    effect_count: int = 0
    effect: tuple[str, str] | None = None  # the last one, kind and name
    rolled_count: int = 0  # journal files that got a live name
    has_failed_sync: bool = False  # of the journal: after it nothing may be acknowledged
    problems: list[str] = field(default_factory=list)
    is_done: bool = False
    failed: str | None = None

    recovered_as: ClassVar[Any] = object  # what `recovered` is

    @property
    def phase(self) -> str:
        """What the process was at, in few words."""
        if self.is_done:
            return "done"
        if self.recovered is not None:
            return self.at_work()
        return self.at_recovery() if self.is_recovering else "start"

    def at_recovery(self) -> str:
        return "recovery"

    def at_work(self) -> str:
        return "work"

    @property
    def ended_in_recovery(self) -> bool:
        """A recovery had begun, and could not end."""
        return self.recovered is None and self.failed is not None

    def hear(self, line: str) -> None:
        """Take one line in."""
        word, _, rest = line.partition(" ")
        match word:
            case "recovering":
                self.is_recovering = True
            case "recovered":
                self.is_recovering = False
                self.recovery_effects = self.effect_count
                self.recovered = msgspec.json.decode(rest, type=self.recovered_as)
                self.on_recovered()
            case "sealing":
                self.sealing = Op(int(rest))
            case "sealed":
                self.sealing, self.sealed_count = None, self.sealed_count + 1
            case "effect":
                self._hear_effect(*rest.split(" ", 1))
            case "problem":
                self.problems.append(rest)
            case "done":
                self.is_done = True
            case "failed":
                self.failed = rest
            case _:
                self.hear_more(word, rest)

    def on_recovered(self) -> None:
        """Take in what a recovery showed."""

    def hear_more(self, word: str, rest: str) -> None:
        """Take in what only this machine's processes say."""
        raise Silent(f"a process said what it never says: {word} {rest}")

    def _hear_effect(self, kind: str, name: str) -> None:
        if kind == FAILED_SYNC:
            self.has_failed_sync = True
            return
        self.effect_count += 1
        self.effect = (kind, name)
        self.rolled_count += kind == "rename" and first_op_of(name) is not None


T = TypeVar("T", bound=Testimony)


class LabProcess(MarkedProcess, Generic[T]):
    """A running process. Use it as a context: it never outlives the block."""

    testimony: T

    def __init__(self, testimony: T, module: str, *arguments: str) -> None:
        self.testimony = testimony
        name, value = MARK, f"{os.getpid()}-{time.monotonic_ns()}"
        self.mark = f"{name}={value}"
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
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
