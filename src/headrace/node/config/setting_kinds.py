"""The types of settings: each parses text or a TOML value, and writes a TOML value.

An invalid value raises BadConfig without a key; `node/config/config.py` adds the setting's name
and the source of the value.
"""

import json
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, Protocol

from headrace.errors import BadConfig
from headrace.model.units import (
    SHOWN_MAX,
    Duration,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)

MASK: Final = "********"
TEXT_SIZE_MAX: Final = 4096  # characters: the longest path that Linux takes
TOKEN_SIZE_MIN: Final = 16  # a shorter one can be guessed from one overheard handshake
TOKEN_SIZE_MAX: Final = 1024
HOST_SIZE_MAX: Final = 253  # of a name that resolves
PORT_MAX: Final = 2**16 - 1

_WHOLE = re.compile(r"[0-9]{1,19}", re.ASCII)
_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z_.-]+):([0-9]{1,5})", re.ASCII)
_LABEL = re.compile(r"[0-9A-Za-z_](?:[0-9A-Za-z_-]{0,61}[0-9A-Za-z_])?", re.ASCII)
# Resolvers accept `127.1`, `0` and `0x7f000001` as addresses: here they are refused as obscure.
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class AddressKind:
    """A host and a port. In text, an IPv6 address is in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Reachable from this machine only. No name but `localhost` counts as loopback."""
        number = _ip(self.host)
        return number.is_loopback if number else self.host.lower() == "localhost"

    @property
    def is_wildcard(self) -> bool:
        """Every interface of the machine: valid to listen on, not to connect to."""
        number = _ip(self.host)
        return number is not None and number.is_unspecified


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    """Parse `host` as an IP address, or return None; IPv4-mapped IPv6 becomes IPv4."""
    number = _parsed(host)
    if isinstance(number, IPv6Address) and number.ipv4_mapped:
        return number.ipv4_mapped
    return number


class SettingKind(Protocol):
    """The type of a setting."""

    def read(self, raw: object) -> object:
        """Parse text or a TOML value. Raises BadConfig without a key."""

    def toml(self, value: object) -> str:
        """Return the TOML that `read` parses back to `value`."""

    def range(self) -> str:
        """Describe the valid values."""


@dataclass(frozen=True, slots=True)
class Switch:
    """True or false."""

    def read(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and raw.lower() in ("true", "false"):
            return raw.lower() == "true"
        raise BadConfig("", f"must be true or false, got {shown(raw)}")

    def toml(self, value: object) -> str:
        return "true" if value else "false"

    def range(self) -> str:
        return "true or false"


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number between two bounds, inclusive."""

    least: int
    most: int

    def read(self, raw: object) -> int:
        if isinstance(raw, str) and _WHOLE.fullmatch(raw):
            raw = int(raw)
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise BadConfig("", f"{shown(raw)} is not a whole number")
        if not self.least <= raw <= self.most:
            raise BadConfig("", f"{shown(raw)} is outside the range {self.range()}")
        return raw

    def toml(self, value: object) -> str:
        return str(value)

    def range(self) -> str:
        return f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes between two bounds, inclusive; a TOML integer counts bytes."""

    least: int
    most: int
    multiple: int = 1

    def read(self, raw: object) -> int:
        if isinstance(raw, str):
            size = parse_size(raw)
        elif isinstance(raw, int) and not isinstance(raw, bool):
            size = raw
        else:
            raise BadConfig("", f"{shown(raw)} is not a valid size", hint="Write it as 64MiB")
        if not self.least <= size <= self.most:
            raise BadConfig("", f"{shown(raw)} is outside the range {self._bounds()}")
        if size % self.multiple:
            raise BadConfig("", f"{shown(raw)} is not a multiple of {self.multiple} bytes")
        return size

    def toml(self, value: object) -> str:
        assert isinstance(value, int)
        return quoted(format_size(value))

    def range(self) -> str:
        unit = f", a multiple of {format_size(self.multiple)}" if self.multiple > 1 else ""
        return self._bounds() + unit

    def _bounds(self) -> str:
        return f"{format_size(self.least)} to {format_size(self.most)}"


@dataclass(frozen=True, slots=True)
class SpanKind:
    """A duration between two bounds, inclusive."""

    least: Duration
    most: Duration

    def read(self, raw: object) -> Duration:
        if not isinstance(raw, str):
            flaw = f"{shown(raw)} is not a valid duration"
            raise BadConfig("", flaw, hint="Write it as '30s'")
        span = parse_duration(raw)
        if not self.least <= span <= self.most:
            raise BadConfig("", f"{shown(raw)} is outside the range {self.range()}")
        return span

    def toml(self, value: object) -> str:
        assert isinstance(value, Duration)
        return quoted(format_duration(value))

    def range(self) -> str:
        return f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]

    def read(self, raw: object) -> str:
        if not isinstance(raw, str) or raw not in self.words:
            raise BadConfig("", f"must be {self.range()}, got {shown(raw)}")
        return raw

    def toml(self, value: object) -> str:
        return quoted(str(value))

    def range(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"


@dataclass(frozen=True, slots=True)
class Text:
    """One line without control characters, so that messages can quote it."""

    def read(self, raw: object) -> str:
        if not isinstance(raw, str):
            raise BadConfig("", f"{shown(raw)} is not text")
        if len(raw) > TEXT_SIZE_MAX:
            raise BadConfig("", f"is longer than {TEXT_SIZE_MAX} characters")
        if not raw.isprintable():
            raise BadConfig("", f"{shown(raw)} has unprintable characters")
        return raw

    def toml(self, value: object) -> str:
        return quoted(str(value))

    def range(self) -> str:
        return "text"


@dataclass(frozen=True, slots=True)
class PathKind:
    """A host and a port; where empty is allowed, it means none."""

    port_least: int = 0  # 0: any free port
    may_be_empty: bool = False

    def read(self, raw: object) -> AddressKind | None:
        if raw == "" and self.may_be_empty:
            return None
        match = _PLACE.fullmatch(raw) if isinstance(raw, str) else None
        if match is None:
            raise BadConfig(
                "",
                f"{shown(raw)} is not a valid address",
                hint="Write host:port, such as 127.0.0.1:7654 or [::1]:7654",
            )
        host, port = match.group(1), int(match.group(2))
        if not self.port_least <= port <= PORT_MAX:
            flaw = f"port {port} is outside the range {self.port_least} to {PORT_MAX}"
            raise BadConfig("", flaw)
        if not _is_host(host):
            raise BadConfig("", f"{shown(host)} is not a valid host")
        return AddressKind(host.strip("[]"), port)

    def toml(self, value: object) -> str:
        return quoted("" if value is None else str(value))

    def range(self) -> str:
        return "host:port, or empty" if self.may_be_empty else "host:port"


@dataclass(frozen=True, slots=True)
class Secret:
    """A token. It never appears in a message or in a file that Headrace writes."""

    def read(self, raw: object) -> str:
        if not isinstance(raw, str):
            raise BadConfig("", "is not text")
        if raw == MASK:
            raise BadConfig("", "is masked", hint="Set the token itself, or use token_file")
        if raw and not TOKEN_SIZE_MIN <= len(raw) <= TOKEN_SIZE_MAX:
            raise BadConfig("", f"has {len(raw)} characters, must have {self.range()}")
        if not (raw.isascii() and raw.isprintable()):
            raise BadConfig("", "has characters other than printable ASCII")
        return raw

    def toml(self, value: object) -> str:
        return quoted(MASK if value else "")

    def range(self) -> str:
        return f"{TOKEN_SIZE_MIN} to {TOKEN_SIZE_MAX}"


def shown(raw: object) -> str:
    """Format a value for an error message: short, and on one line."""
    if isinstance(raw, str):
        return repr(raw[:SHOWN_MAX])
    if isinstance(raw, bool):
        return "true" if raw else "false"
    if isinstance(raw, int):  # Python refuses to format thousands of digits
        return str(raw) if raw.bit_length() <= 128 else "a very large number"
    if isinstance(raw, float):
        return repr(raw)
    if isinstance(raw, dict | list):
        return "a table" if isinstance(raw, dict) else "a list"
    return "a date or time"


def quoted(text: str) -> str:
    """Return printable text as a TOML string."""
    assert text.isprintable()
    return json.dumps(text, ensure_ascii=False)


def _is_host(host: str) -> bool:
    if host.startswith("["):
        return isinstance(_parsed(host[1:-1]), IPv6Address)
    labels = host.removesuffix(".").split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return isinstance(_parsed(host), IPv4Address)
    return len(host) <= HOST_SIZE_MAX and all(map(_LABEL.fullmatch, labels))


def _parsed(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
