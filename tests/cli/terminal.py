"""A command on a terminal of its own, as a person sees it."""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9])")


class Terminal:
    """Runs `headrace` with arguments. Use it as a context: the command does not outlive it."""

    def __init__(self, *arguments: str, height: int = 30, width: int = 100) -> None:
        self.raw = b""
        self.returncode: int | None = None
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:  # the child
            os.execv(sys.executable, [sys.executable, "-m", "headrace", *arguments])
        size = struct.pack("HHHH", height, width, 0, 0)
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, size)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.returncode is None:
            os.kill(self.pid, 9)
            self.wait()
        os.close(self.descriptor)

    @property
    def text(self) -> str:
        """All that it has written, without what moves and colours."""
        return _ESCAPES.sub("", self.raw.decode(errors="replace"))

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def read_until(self, wanted: str, seconds: float = 60.0) -> str:
        """Return what it wrote since the last call of this, once `wanted` is in it."""
        start, deadline = len(self.text), time.monotonic() + seconds
        while wanted not in self.text[start:]:
            if time.monotonic() > deadline or not self._read(0.1):
                raise AssertionError(f"no {wanted!r} in {self.text[start:]!r}")
        return self.text[start:]

    def wait(self, seconds: float = 60.0) -> int:
        """Wait for its end, and return its exit code."""
        deadline = time.monotonic() + seconds
        while self._read(0.1):
            if time.monotonic() > deadline:
                raise AssertionError(f"it does not end: {self.text[-500:]!r}")
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def _read(self, seconds: float) -> bool:
        """Take in what comes within so many seconds. False once the command has ended."""
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return True
        try:
            piece = os.read(self.descriptor, 65_536)
        except OSError:  # the other end is closed
            return False
        self.raw += piece
        return bool(piece)
