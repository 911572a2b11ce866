"""Notifies the service manager of a node's state: systemd's notification protocol.

    datagram := line (newline line)*          READY=1   STOPPING=1   STATUS=text

It is sent to the socket in NOTIFY_SOCKET: a path, or `@` and an abstract name. If the variable
is not set, nothing is sent.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

from headrace.node.events import event
from headrace.server.connections.traffic import Traffic

VARIABLE: Final = "NOTIFY_SOCKET"
READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
TIMEOUT: Final = 1.0  # seconds: a manager that does not read must not hold up a node


def status(text: str) -> str:
    """Return a status line for the manager to display."""
    return "STATUS=" + " ".join(text.split())


def notify(*lines: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send `lines`; return whether they were sent. A failure is logged, not raised."""
    name = environ.get(VARIABLE, "")
    if not name:
        return False
    address = f"\0{name[1:]}" if name.startswith("@") else name
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(TIMEOUT)
            sender.sendto("\n".join(lines).encode(), address)
    except OSError as error:
        event("server.notify.failed", level=logging.WARNING, socket=name, error=str(error))
        return False
    return True


_LOOKS = 20  # checks per idle period: its precision


async def until_idle(traffic: Traffic, seconds: float) -> None:
    """Wait until there has been no connection for this long."""
    clock = asyncio.get_running_loop().time
    came, since = traffic.connections_total, clock()
    while True:
        await asyncio.sleep(seconds / _LOOKS)
        if traffic.connections_open or traffic.connections_total != came:
            came, since = traffic.connections_total, clock()
        elif clock() - since >= seconds:
            return
