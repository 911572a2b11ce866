"""The framed protocol over TCP."""

import asyncio
import os
from typing import Final

from headrace.errors import BadConfig
from headrace.server.limits import Limits
from headrace.server.listener import Listener
from headrace.server.service import Service
from headrace.server.traffic import Traffic

BACKLOG: Final = 1024  # connections that wait to be accepted; the system may allow fewer


async def listen_tcp(
    service: Service,
    host: str,
    port: int,
    limits: Limits,
    token: bytes | None,
    *,
    release: str = "",
    traffic: Traffic | None = None,
) -> Listener:
    """Listen at `host` and `port`, or at any free port if that is 0.

    With a token, every peer must prove that it has it. Give all listeners of a node the same
    `traffic`: its bytes in flight are bounded together.
    """
    assert token != b""
    listener = Listener(service, limits, token=token, release=release, traffic=traffic)
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(listener.connect, host, port, backlog=BACKLOG)
    except (OSError, UnicodeError, OverflowError) as error:
        raise BadConfig(
            "listen.address",
            f"cannot listen at {_shown(host, port)}: {_reason(error)}",
            hint="Check the address, and that nobody else listens there",
        ) from error
    found_host, found_port = server.sockets[0].getsockname()[:2]
    listener.begin(server, _shown(found_host, found_port))
    return listener


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reason(error: Exception) -> str:
    """Say it in the system's words; uvloop adds the address, which is said already."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number is not None and number > 0 else str(error)
