"""Tells the service manager how a node is: systemd's notification protocol.

    datagram := line (newline line)*          READY=1   STOPPING=1   STATUS=text

It goes to the socket that NOTIFY_SOCKET names: a path, or `@` and a name without a file. Where
nobody set it, nobody listens, and nothing is sent.
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
    """Return a line that the manager shows to people."""
    return "STATUS=" + " ".join(text.split())


def notify(*lines: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send `lines`, and return whether they were sent. What fails is an event, and no error."""
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


_LOOKS = 20  # in the time that is waited: so exact is its end


async def until_idle(traffic: Traffic, seconds: float) -> None:
    """Wait until nobody has been connected for so long."""
    clock = asyncio.get_running_loop().time
    came, since = traffic.connections_total, clock()
    while True:
        await asyncio.sleep(seconds / _LOOKS)
        if traffic.connections_open or traffic.connections_total != came:
            came, since = traffic.connections_total, clock()
        elif clock() - since >= seconds:
            return
