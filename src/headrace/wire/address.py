"""Addresses of nodes, as users write them."""

from dataclasses import dataclass
from typing import Final

from headrace.errors import BadRequest

SOCKET_NAME: Final = "headrace.sock"  # in the data directory
SOCKET_PATH_SIZE_MAX: Final = 107  # bytes; the system's limit for a socket address
_UNIX: Final = "unix:"


@dataclass(frozen=True, slots=True)
class Address:
    """The address of one node: a host and a port, or the path of a socket."""

    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"{_UNIX}{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Parse `host:port,host:port` or `unix:/path`."""
    return tuple(_parse(part.strip(), text) for part in text.split(","))


def _parse(part: str, text: str) -> Address:
    if part.startswith(_UNIX) and len(part) > len(_UNIX):
        return Address("", 0, part.removeprefix(_UNIX))
    host, colon, port = part.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit()) or len(port) > 5:
        raise BadRequest(
            f"{text[:200]!r} is not a valid address",
            hint="Use host:port, a comma-separated list of them, or unix:/path/to/socket",
        )
    if not 0 < int(port) < 2**16:
        raise BadRequest(f"{port} is not a valid port", hint="Use a port from 1 to 65535")
    return Address(host, int(port))
