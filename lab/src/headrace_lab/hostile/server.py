"""A real server process seen from outside: its port, its memory, its last output."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

MIB: Final = 1024 * 1024

START_SECONDS: Final = 60.0  # a busy machine is no failure
STOP_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.05
# No defect that is looked for may take the machine with it.
MEMORY_MAX: Final = 2_560 * MIB
QUEUE_SIZE: Final = 128 * MIB

# Seals and checkpoints come every few seconds, and nobody is waited for long.
SETTINGS: Final = {
    "listen.http": "",
    "listen.socket": "false",
    "log.format": "json",
    "journal.file_size": "4MiB",
    "journal.slots": "16384",
    "seal.size": "64MiB",
    "seal.age": "3s",
    "seal.children": "1",
    "limits.queue_size": str(QUEUE_SIZE),
    "limits.handshake_timeout": "5s",
    "limits.stall_timeout": "10s",
    "request.timeout": "10s",
    "request.timeout_max": "10s",
}
SERVE: Final = (sys.executable, "-m", "headrace")
_BAD_ENDS: Final = (".failed", ".refused", ".crashed", ".late", ".diverged")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class Gone(Exception):
    """The server is not there, or does not answer: nothing more can be asked of it."""


@dataclass(slots=True)
class Memory:
    """What the process was seen to take, in bytes."""

    peak: int = 0
    is_too_much: bool = False  # it was killed for it


@dataclass(slots=True)
class ServerProcess:
    """`headrace serve` in `data`. Use it as a context: it never outlives the block."""

    data: Path
    command: Sequence[str] = SERVE
    settings: Mapping[str, str] = field(default_factory=dict)  # instead of some of ours
    memory: Memory = field(default_factory=Memory)
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _watch: threading.Thread | None = None

    def __enter__(self) -> "ServerProcess":
        chosen = {**SETTINGS, **self.settings}
        settings = [f"--set={key}={value}" for key, value in chosen.items()]
        where = ["serve", "--data", str(self.data), "--listen", "127.0.0.1:0"]
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [*self.command, *where, *settings],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                process_group=0,  # an interrupt from the keyboard is for us
            )
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        try:
            self.port = self._await_port()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    @property
    def is_alive(self) -> bool:
        assert self._process is not None
        return self._process.poll() is None

    @property
    def resident(self) -> int:
        """Bytes of memory that it takes now; 0 once it is gone."""
        assert self._process is not None
        with suppress(OSError, IndexError):
            text = Path(f"/proc/{self._process.pid}/statm").read_text()
            return int(text.split()[1]) * _PAGE
        return 0

    def settled(self, seconds: float = 1.5) -> int:
        """Return the least memory that it takes within a quiet moment."""
        least = self.resident
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
            least = min(least, self.resident)
        return least

    def stop(self) -> str:
        """Ask it to stop; return what is wrong with how it did."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return f"the server did not stop within {STOP_SECONDS:.0f} s"
        return "" if code == 0 else f"the server stopped with exit code {code}"

    def complaints(self) -> list[str]:
        """Return what it wrote that no server should: anything but events, and crashes."""
        return [line for line in self._said.read_text("utf-8").splitlines() if _is_bad(line)]

    @property
    def _said(self) -> Path:
        return self.data.with_name(f"{self.data.name}.log")

    def _await_port(self) -> int:
        end = time.monotonic() + START_SECONDS
        while self.is_alive and time.monotonic() < end:
            for line in self._said.read_text("utf-8").splitlines():
                if '"node.listening"' in line and line.endswith("}"):
                    return int(json.loads(line)["addresses"].rpartition(":")[2])
            time.sleep(LOOK_SECONDS)
        raise Gone(f"the server did not start: {self._said.read_text('utf-8')[-1_000:]}")

    def _look(self) -> None:
        """In a thread of its own."""
        while self.is_alive:
            found = self.resident
            self.memory.peak = max(self.memory.peak, found)
            if found > MEMORY_MAX:
                self.memory.is_too_much = True
                self._kill()
            time.sleep(LOOK_SECONDS)

    def _kill(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()


def _is_bad(line: str) -> bool:
    try:
        said = json.loads(line)
    except ValueError:
        return True
    # These are about this node's own disk or code, never about a peer.
    return (
        "error_trace" in said
        or said.get("level") not in ("info", "debug")
        or str(said.get("event")).endswith(_BAD_ENDS)
    )
