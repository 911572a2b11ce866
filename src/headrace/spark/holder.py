"""The process that holds a log's directory: whoever does, or one that is started for Spark.

Only one process opens a directory; others ask it through its socket. If there is none, a node
is started that listens on that socket alone, and ends when nobody has been connected for a
while. Drivers that come at once may start several: one gets the directory, and all use it.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Final

from headrace.errors import BadRequest, Unavailable
from headrace.wire.address import SOCKET_NAME

IDLE_EXIT: Final = "60s"
_START_SECONDS: Final = 120.0  # a large journal takes its time to recover
_LOOK_SECONDS: Final = 0.05
_AGAIN_SECONDS: Final = 0.5
_HELD: Final = 5  # how `headrace serve` ends if another process holds the directory
_CONNECT_SECONDS: Final = 5.0
_SOCKET_SIZE_MAX: Final = 107  # bytes that the system takes as a socket's address

_started: "list[subprocess.Popen[bytes]]" = []  # by this process, and perhaps still there


def address_at(path: str) -> str:
    """Return where the log in directory `path` answers; start a node there if need be."""
    place = Path(path, SOCKET_NAME).absolute()
    if len(os.fsencode(place)) > _SOCKET_SIZE_MAX:
        raise BadRequest(
            f"the path of {place} is too long for a socket",
            hint='Serve it, and name the node: .option("address", "HOST:PORT")',
        )
    if not _answers(place):
        _start(path, place)
    return f"unix:{place}"


def _start(path: str, place: Path) -> None:
    """Start a node, unless another process gets the directory first, and wait for it."""
    end = time.monotonic() + _START_SECONDS
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as words:
        process = _node(path, words)
        while not _answers(place):
            code = process.poll()
            if code not in (None, _HELD) or time.monotonic() > end:
                raise Unavailable(
                    f"no process holds {path}, and a node that was started for it did not "
                    f"come: {_last(words)}",
                    hint=f"Start one: headrace serve --data {path}",
                )
            time.sleep(_LOOK_SECONDS)
            if code == _HELD:  # its holder is about to listen, or to end
                time.sleep(_AGAIN_SECONDS)
                process = process if _answers(place) else _node(path, words)


def _node(path: str, words: IO[str]) -> "subprocess.Popen[bytes]":
    """Start one that outlives this process, and ends by itself."""
    command = [sys.executable, "-m", "headrace", "serve", "--data", str(Path(path).absolute())]
    command += ["--embedded", "--idle-exit", IDLE_EXIT]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=words, stderr=words, start_new_session=True
    )
    _started[:] = [process, *(one for one in _started if one.poll() is None)]
    return process


def _answers(place: Path) -> bool:
    """Tell whether somebody listens; a process that was killed leaves its socket's file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(str(place))
        except OSError:
            return False
        return True


def _last(words: IO[str]) -> str:
    words.seek(0)
    said = [line.strip() for line in words if line.strip()]
    return said[-1].removeprefix("headrace: ") if said else "it said nothing"
