"""What a setting may be: each kind reads text or a TOML value, and writes a TOML value.

A value that does not fit raises BadConfig without a key; `node/config/config.py` adds which
setting it is and where it came from.
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
# A resolver takes `127.1`, `0` and `0x7f000001` for addresses: written so, they only hide one.
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class AddressKind:
    """A host and a port. As text an IPv6 address stands in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Only this machine reaches it. A name other than `localhost` may be anywhere."""
        number = _ip(self.host)
        return number.is_loopback if number else self.host.lower() == "localhost"

    @property
    def is_wildcard(self) -> bool:
        """Every interface of the machine: an address to listen on, and none to connect to."""
        number = _ip(self.host)
        return number is not None and number.is_unspecified


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    """Return the number that `host` is; an IPv4 one that is written as IPv6 is IPv4."""
    number = _parsed(host)
    if isinstance(number, IPv6Address) and number.ipv4_mapped:
        return number.ipv4_mapped
    return number


class SettingKind(Protocol):
    """One kind of value."""

    def read(self, raw: object) -> object:
        """Return the value of a text or a TOML value, or raise BadConfig without a key."""

    def toml(self, value: object) -> str:
        """Return what `read` reads back as `value`."""

    def range(self) -> str:
        """Say in words what is allowed."""


@dataclass(frozen=True, slots=True)
class Switch:
    """True or false."""

    def read(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and raw.lower() in ("true", "false"):
            return raw.lower() == "true"
        raise BadConfig("", f"{shown(raw)} is neither true nor false")

    def toml(self, value: object) -> str:
        return "true" if value else "false"

    def range(self) -> str:
        return "true or false"


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number between two others, both included."""

    least: int
    most: int

    def read(self, raw: object) -> int:
        if isinstance(raw, str) and _WHOLE.fullmatch(raw):
            raw = int(raw)
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise BadConfig("", f"{shown(raw)} is no whole number")
        if not self.least <= raw <= self.most:
            raise BadConfig("", f"{shown(raw)} is not within {self.range()}")
        return raw

    def toml(self, value: object) -> str:
        return str(value)

    def range(self) -> str:
        return f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes, between two sizes, both included; a number in TOML counts bytes too."""

    least: int
    most: int
    multiple: int = 1

    def read(self, raw: object) -> int:
        if isinstance(raw, str):
            size = parse_size(raw)
        elif isinstance(raw, int) and not isinstance(raw, bool):
            size = raw
        else:
            raise BadConfig("", f"{shown(raw)} is no size", hint="Write it as 64MiB")
        if not self.least <= size <= self.most:
            raise BadConfig("", f"{shown(raw)} is not within {self._bounds()}")
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
    """A length of time, between two others, both included."""

    least: Duration
    most: Duration

    def read(self, raw: object) -> Duration:
        if not isinstance(raw, str):
            raise BadConfig("", f"{shown(raw)} is no duration", hint="Write it as '30s'")
        span = parse_duration(raw)
        if not self.least <= span <= self.most:
            raise BadConfig("", f"{shown(raw)} is not within {self.range()}")
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
            raise BadConfig("", f"{shown(raw)} is not {self.range()}")
        return raw

    def toml(self, value: object) -> str:
        return quoted(str(value))

    def range(self) -> str:
        return f"{', '.join(self.words[:-1])} or {self.words[-1]}"


@dataclass(frozen=True, slots=True)
class Text:
    """One line without control characters, so that it can be shown wherever it is named."""

    def read(self, raw: object) -> str:
        if not isinstance(raw, str):
            raise BadConfig("", f"{shown(raw)} is no text")
        if len(raw) > TEXT_SIZE_MAX:
            raise BadConfig("", f"is longer than {TEXT_SIZE_MAX} characters")
        if not raw.isprintable():
            raise BadConfig("", f"{shown(raw)} has characters that cannot be shown")
        return raw

    def toml(self, value: object) -> str:
        return quoted(str(value))

    def range(self) -> str:
        return "text"


@dataclass(frozen=True, slots=True)
class PathKind:
    """A host and a port; empty, where that is allowed, is none."""

    port_least: int = 0  # 0 takes any port that is free
    may_be_empty: bool = False

    def read(self, raw: object) -> AddressKind | None:
        if raw == "" and self.may_be_empty:
            return None
        match = _PLACE.fullmatch(raw) if isinstance(raw, str) else None
        if match is None:
            raise BadConfig(
                "",
                f"{shown(raw)} is no address",
                hint="Write a host and a port, such as 127.0.0.1:7654 or [::1]:7654",
            )
        host, port = match.group(1), int(match.group(2))
        if not self.port_least <= port <= PORT_MAX:
            raise BadConfig("", f"port {port} is not within {self.port_least} to {PORT_MAX}")
        if not _is_host(host):
            raise BadConfig("", f"{shown(host)} is no host")
        return AddressKind(host.strip("[]"), port)

    def toml(self, value: object) -> str:
        return quoted("" if value is None else str(value))

    def range(self) -> str:
        return "host:port, or empty" if self.may_be_empty else "host:port"


@dataclass(frozen=True, slots=True)
class Secret:
    """A token. No message and no file of ours ever repeats it."""

    def read(self, raw: object) -> str:
        if not isinstance(raw, str):
            raise BadConfig("", "is no text")
        if raw == MASK:
            raise BadConfig("", "is masked", hint="Give the token itself, or a token_file")
        if raw and not TOKEN_SIZE_MIN <= len(raw) <= TOKEN_SIZE_MAX:
            raise BadConfig("", f"has {len(raw)} characters, not {self.range()}")
        if not (raw.isascii() and raw.isprintable()):
            raise BadConfig("", "has characters other than printable ASCII")
        return raw

    def toml(self, value: object) -> str:
        return quoted(MASK if value else "")

    def range(self) -> str:
        return f"{TOKEN_SIZE_MIN} to {TOKEN_SIZE_MAX}"


def shown(raw: object) -> str:
    """Return a value as a message repeats it: short, and on one line."""
    if isinstance(raw, str):
        return repr(raw[:SHOWN_MAX])
    if isinstance(raw, bool):
        return "true" if raw else "false"
    if isinstance(raw, int):  # of thousands of digits, Python refuses to make text
        return str(raw) if raw.bit_length() <= 128 else "a number of many digits"
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
