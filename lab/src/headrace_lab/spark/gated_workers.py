"""Spark's Python workers with a gate: they stop inside a new file, to be killed there.

Spark starts this module instead of `pyspark.daemon`. A strike arms the gate, a directory that
both know; the next worker that has written a file, and not yet synced and named it, takes the
gate and waits. While `unseen` is there, workers do not see the node's disk, and ask the node
for its segments.
"""

import builtins
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, cast

from pyspark import daemon

from headrace.spark.worker import files, segment_copy
from headrace.spark.worker.files import PREFIX, Writing
from headrace_lab.harness.mutants import Mutant
from headrace_lab.spark.plants import planted

GATE: Final = "HEADRACE_CHAOS_GATE"  # of the environment: the directory
PLANT: Final = "HEADRACE_CHAOS_PLANT"  # a planted bug of workers
MODULE: Final = "headrace_lab.spark.gated_workers"
HELD_SECONDS: Final = 300.0  # nobody waits longer at a gate
_LOOK_SECONDS: Final = 0.02
_ARMED: Final = "armed"
_UNSEEN: Final = "unseen"
_HELD: Final = "held-"

_new_file = files.new_file


class Gate:
    """A gate that workers pass, unless it is armed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def arm(self) -> None:
        """Stop the next worker inside its file."""
        (self.directory / _ARMED).touch()

    def held(self) -> tuple[int, str] | None:
        """Return the worker that waits, and the file that it writes."""
        for one in self.directory.glob(f"{_HELD}*"):
            return int(one.name.removeprefix(_HELD)), one.read_text(encoding="utf-8")
        return None

    def free(self) -> None:
        """Let everybody pass."""
        for one in (self.directory / _ARMED, *self.directory.glob(f"{_HELD}*")):
            one.unlink(missing_ok=True)

    def hide_disk(self, *, is_hidden: bool) -> None:
        """Have workers see the node's disk, or not."""
        if is_hidden:
            (self.directory / _UNSEEN).touch()
        else:
            (self.directory / _UNSEEN).unlink(missing_ok=True)

    @property
    def is_disk_hidden(self) -> bool:
        return (self.directory / _UNSEEN).exists()

    def wait(self, name: str) -> None:
        """Wait here if the gate is armed: it stops one worker."""
        taken = self.directory / f".{os.getpid()}"
        with suppress(FileNotFoundError):
            (self.directory / _ARMED).rename(taken)
            taken.write_text(name, encoding="utf-8")
            held = taken.rename(self.directory / f"{_HELD}{os.getpid()}")
            deadline = time.monotonic() + HELD_SECONDS
            while held.exists() and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)


def main() -> None:
    """Be Spark's daemon, whose workers stop at the gate."""
    gate = Gate(Path(os.environ[GATE]))

    @contextmanager
    def gated(writing: Writing, name: str) -> Iterator[BinaryIO]:
        with _new_file(writing, name) as file:
            yield file
            gate.wait(name)

    def opened(path: str, mode: str) -> BinaryIO:
        if gate.is_disk_hidden and not Path(path).name.startswith(PREFIX):  # it is no copy
            raise FileNotFoundError(path)
        return cast("BinaryIO", builtins.open(path, mode))

    segment_copy.open = opened  # type: ignore[attr-defined]
    stops = Mutant(
        "", "worker", ((files, "new_file", gated), (segment_copy, "new_file", gated))
    )
    with stops.planted(), planted(os.environ.get(PLANT, "")):
        daemon.manager()


if __name__ == "__main__":
    main()
