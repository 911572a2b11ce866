"""The part of the demo where the user kills: `n` the node, `d` the driver, `b` both."""

import os
import select
import sys
import termios
import time
import tty
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from rich.status import Status

from headrace.cli.demo.child_process import Silent
from headrace.cli.demo.pipeline_process import DemoDriver
from headrace.cli.demo.steps import DemoStage
from headrace.cli.demo.transcript import Transcript

END = "\x04"  # returned when the terminal has gone away


class Keys:
    """Single keys from the terminal. A context manager: it restores the terminal."""

    def __enter__(self) -> Self:
        self._terminal = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._terminal)
        tty.setcbreak(self._terminal, termios.TCSADRAIN)  # keys pressed earlier count
        return self

    def __exit__(self, *_: object) -> None:
        termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)

    def pressed(self) -> str:
        """Return the next key pressed, in lower case, or an empty string."""
        if not select.select([self._terminal], [], [], 0)[0]:
            return ""
        return os.read(self._terminal, 1).decode(errors="replace").lower() or END


def has_terminal() -> bool:
    """Return whether input and output are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


LOOK_SECONDS = 0.1
_LEGEND = "n kills the node, d the driver, b both; q stops and proves the result"
_SHORT = "keys n d b q:"  # short enough to share one line of a small terminal


class Game:
    """A node, a driver, and their replacements."""

    def __init__(
        self, transcript: Transcript, stage: DemoStage, file: Path, table: Path
    ) -> None:
        self._transcript, self._stage, self._file, self._table = transcript, stage, file, table
        self._node_began = time.monotonic()
        self._is_told = True  # the driver was sent `go`

    def play(self, exits: ExitStack, driver: DemoDriver) -> DemoDriver:
        """Let the user kill until `q`; return the driver that runs then."""
        with Keys() as keys, Status("", console=self._transcript.console) as status:
            self._transcript.line("keys", _LEGEND, "bold")
            while (key := keys.pressed()) not in ("q", END):
                if key in ("n", "b"):
                    self._kill_node()
                if key in ("d", "b"):
                    driver = exits.enter_context(self._kill_driver(driver))
                self._attend(driver)
                told = driver.testimony.told if driver.testimony.rounds else "a driver starts"
                status.update(f"{_SHORT} {told}")
            if not self._is_told:
                status.update("waiting for a session")
                driver.until("a session", lambda found: "warm" in found.events)
                driver.say("go")
        return driver

    def _attend(self, driver: DemoDriver) -> None:
        """Read from both for a moment; start a new driver once it is warm."""
        driver.listen(LOOK_SECONDS)
        self._stage.node.listen(LOOK_SECONDS / 10)
        if not driver.is_alive or not self._stage.node.is_alive:
            who = "node" if driver.is_alive else "driver"
            raise Silent(f"the {who} ended by itself, without a key")
        if not self._is_told and "warm" in driver.testimony.events:
            driver.say("go")
            self._is_told = True

    def _kill_node(self) -> None:
        self._stage.kill_node(time.monotonic() - self._node_began)
        self._node_began = time.monotonic()

    def _kill_driver(self, driver: DemoDriver) -> DemoDriver:
        pid = driver.pid
        driver.kill()
        from headrace.spark.tables.leftovers import orphans_of  # which needs Spark

        left = len(orphans_of(str(self._table)))
        self._transcript.killed_driver(pid, "at an arbitrary point")
        following = DemoDriver(self._file)
        self._is_told = False
        self._transcript.line(
            "", f"{left} files are in no version of the table; driver {following.pid} starts"
        )
        return following
