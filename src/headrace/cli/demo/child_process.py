"""A child process seen from outside: start it, hear what it says, end it and its children."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, Protocol, Self

SECONDS_MAX: Final = 60.0  # no step of a healthy child takes nearly as long
# In the environment of a process and, by it, of all its children, whoever their parent is now.
MARK: Final = "HEADRACE_CHILD"
LOOK_SECONDS: Final = 0.01
# A child that was just started notices its parent's death once Python and Arrow are loaded.
ORPHAN_SECONDS_MAX: Final = 20.0
_PIECE_SIZE: Final = 64 * 1024


class Silent(Exception):
    """A process said nothing for too long, or not what was awaited. The text says what."""


class Broken(Silent):
    """A process said what must never be. The text says what."""


class Hearer(Protocol):
    """Takes in what one process says. Only what was read counts."""

    def hear(self, line: str) -> None: ...


class ChildProcess:
    """A running process. Use it as a context: it never outlives the block."""

    testimony: Hearer

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

    def __exit__(self, *_: object) -> None:
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

    def listen(self, seconds: float, until: Callable[[Any], bool] | None = None) -> None:
        """Hear for `seconds`, or until it ends, or until the testimony is such."""
        deadline = time.monotonic() + seconds
        while not self._ended and (left := deadline - time.monotonic()) > 0:
            if until is not None and until(self.testimony):
                return
            self._hear_some(left)

    def await_that(self, what: str, until: Callable[[Any], bool]) -> bool:
        """Hear until the testimony is such. False if the process ended before."""
        self.listen(SECONDS_MAX, until)
        if not until(self.testimony) and not self._ended:
            raise Silent(f"no sign of {what} within {SECONDS_MAX:.0f} s")
        return until(self.testimony)

    def kill(self) -> bool:
        """Kill it with SIGKILL and hear what it had still said. True if that ended it."""
        self._process.send_signal(signal.SIGKILL)
        return self.wait() == -signal.SIGKILL

    def wait(self) -> int:
        """Hear all until it ends by itself, and return its exit status."""
        self.listen(SECONDS_MAX)
        if not self._ended:
            raise Silent(f"a process did not end within {SECONDS_MAX:.0f} s")
        return self._process.wait(SECONDS_MAX)

    def _hear_some(self, seconds: float) -> None:
        if not self._selector.select(seconds):
            return
        piece = os.read(self._pipe.fileno(), _PIECE_SIZE)
        self._ended = not piece
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self.testimony.hear(line.decode())


class MarkedProcess(ChildProcess):
    """A running process whose children can be found after its death."""

    mark: str  # NAME=VALUE, of its environment

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
