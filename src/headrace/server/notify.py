"""Tells the service manager how a node is: systemd's notification protocol.

    datagram := line (newline line)*          READY=1   STOPPING=1   STATUS=text

It goes to the socket that NOTIFY_SOCKET names: a path, or `@` and a name without a file. Where
nobody set it, nobody listens, and nothing is sent.
"""

import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

from headrace.node.events import event

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
