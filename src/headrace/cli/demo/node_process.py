"""The node of a demo: `headrace serve` in its own process, started and killed."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Final

from headrace.cli.demo.child_process import MARK, MarkedProcess, Silent

HOST: Final = "127.0.0.1"
COMMAND: Final = (sys.executable, "-m", "headrace")
# Small enough to get rolls, Seals and segments within a few seconds.
SETTINGS: Final = (
    "listen.http=",
    "journal.file_size=8MiB",
    "seal.size=64MiB",
    "seal.age=2s",
    "log.format=json",
)
# What a recovery may report after a mere crash. Everything else is damage, or a lie.
_HARMLESS: Final = (
    "created a new group",
    "recovered after ",
    "cut the unfinished tail",
    "rewrote ",
)
_MENDED: Final = "(repaired)"
_ILL: Final = ("node.group.refused", "node.cursor.diverged", "node.stop.late")


@dataclass(slots=True)
class NodeTestimony:
    """The events of one life of a node."""

    events: list[str] = field(default_factory=list)  # their names
    recovered: list[str] = field(default_factory=list)  # what groups reported on recovery
    refused: list[str] = field(default_factory=list)  # groups that did not start, and why
    problems: list[str] = field(default_factory=list)

    def hear(self, line: str) -> None:
        """Process one line of its standard error."""
        try:
            found = json.loads(line)
            name, said = str(found["event"]), str(found.get("said", ""))
        except (ValueError, TypeError, KeyError):
            self.problems.append(f"a node logged {line!r}")
            return
        self.events.append(name)
        if name == "node.group.recovered":
            self.recovered.append(said)
            if not said.startswith(_HARMLESS) and not said.endswith(_MENDED):
                self.problems.append(f"after a mere crash, recovery reported: {said}")
        elif name in _ILL or name.endswith(".failed"):
            self.problems.append(f"a node logged {line}")
        if name == "node.group.refused":
            self.refused.append(
                f"group {found.get('group')} did not start: {found.get('error')}"
            )

    @property
    def is_locked(self) -> bool:
        return "node.lock.done" in self.events

    @property
    def is_listening(self) -> bool:
        return "node.listening" in self.events

    @property
    def is_stopping(self) -> bool:
        return "node.stopping" in self.events

    @property
    def is_stopped(self) -> bool:
        return "node.stopped" in self.events


def free_address() -> str:
    """Return a free address, so that a restarted node can take the same one again."""
    with socket.create_server((HOST, 0)) as probe:
        return f"{HOST}:{probe.getsockname()[1]}"


class DemoNode(MarkedProcess):
    """A running node. A context manager: neither it nor its children outlive the block."""

    testimony: NodeTestimony

    def __init__(self, data: str, address: str, command: tuple[str, ...] = COMMAND) -> None:
        self.testimony = NodeTestimony()
        self.mark = f"{MARK}={os.getpid()}-demo-{time.monotonic_ns()}"
        self.ready_seconds = 0.0
        name, _, value = self.mark.partition("=")
        settings = [word for one in SETTINGS for word in ("--set", one)]
        self._began = time.monotonic()
        process = subprocess.Popen(
            [*command, "serve", "--data", data, "--listen", address, *settings],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, name: value},
            process_group=0,  # Ctrl-C interrupts only us, and we end the node
        )
        self._attend(process, process.stderr)

    def __exit__(self, *error: object) -> None:
        super().__exit__(None, None, None)
        self.await_orphans()

    def await_ready(self) -> None:
        """Wait until it listens, or raise Silent with its output."""
        is_ready = self.await_that("a node that listens", lambda _: self.testimony.is_listening)
        if not is_ready:
            said = "; ".join(self.testimony.problems) or ", ".join(self.testimony.events)
            raise Silent(f"the node ended before it listened: {said or 'no output'}")
        self.ready_seconds = time.monotonic() - self._began
