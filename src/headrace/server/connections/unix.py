"""The framed protocol over a Unix socket, for processes of the same user on this machine.

Access to the file grants full access: it has mode 0600 from the start, which replaces a token.
A stale socket file is replaced; any other kind of file is left alone.
"""

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.errors import BadConfig
from headrace.node.events import event
from headrace.server.connections.limits import PeerLimits
from headrace.server.connections.listener import Listener
from headrace.server.connections.service import Service
from headrace.server.connections.traffic import Traffic
from headrace.wire.address import SOCKET_PATH_SIZE_MAX

BACKLOG: Final = 1024
MODE: Final = 0o600

_SETTING: Final = "listen.socket"


async def listen_unix(
    service: Service,
    path: Path,
    limits: PeerLimits,
    *,
    release: str = "",
    traffic: Traffic | None = None,
) -> Listener:
    """Listen on a socket file, which exists until the listener is closed."""
    listener = Listener(service, limits, release=release, traffic=traffic)
    try:
        bound, inode = _bind(path)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise BadConfig(_SETTING, f"cannot listen on {path}: {error}") from error
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(listener.connect, sock=bound, backlog=BACKLOG)
    listener.begin([server], f"unix:{path}", lambda: _remove(path, inode))
    return listener


@contextmanager
def short_address(path: Path) -> Iterator[str]:
    """Yield a name for a socket file that is short enough for the system."""
    if len(os.fsencode(path)) <= SOCKET_PATH_SIZE_MAX:
        yield str(path)
        return
    parent = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{parent}/{path.name}"
    finally:
        os.close(parent)


def refuse_if_blocked(path: Path) -> None:
    """Raise BadConfig if `path` exists and is not a socket. Changes nothing."""
    try:
        mode = path.lstat().st_mode
    except OSError:  # missing; other problems show when the directory is opened
        return
    if not stat.S_ISSOCK(mode):
        raise BadConfig(
            _SETTING,
            f"{path} exists and is not a socket",
            hint="Move it away; nothing was changed",
        )


def _bind(path: Path) -> tuple[socket.socket, int]:
    """Return a listening socket, and its file's inode."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The file takes its mode from the socket: no other user can ever open it.
        os.fchmod(bound.fileno(), MODE)
        with short_address(path) as address:
            _clear(path, address)
            bound.bind(address)
        bound.listen(BACKLOG)
        bound.setblocking(False)
        return bound, path.lstat().st_ino
    except BaseException:
        bound.close()
        raise


def _clear(path: Path, address: str) -> None:
    """Remove the socket file of a dead process."""
    refuse_if_blocked(path)
    if not path.is_socket():
        return
    if _is_heard(address):
        raise BadConfig(
            _SETTING,
            f"another process listens on {path}",
            hint="Stop that process, or connect to it instead",
        )
    path.unlink()


def _is_heard(address: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            return True  # its backlog is full, but it is alive
        return True


def _remove(path: Path, inode: int) -> None:
    """Remove our own file, but not one that has replaced it."""
    try:
        if path.lstat().st_ino == inode:
            path.unlink()
    except OSError as error:
        event("server.socket.left", level=logging.WARNING, path=path, error=error)
