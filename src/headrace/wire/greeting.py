"""The first words of a connection, and those that any request may be answered with."""

from dataclasses import dataclass
from typing import ClassVar

VERSION = 3  # of the protocol, as negotiated by Hello and Welcome
VERSION_MIN = 1  # the oldest that is still spoken
LEASES_SINCE = 2  # the version that brought the requests of lease_messages.py
ERASING_SINCE = 3  # and the one of erase_messages.py
CLAIMS_SINCE = 3  # from which on a StoreCursorRequest may keep the offset


@dataclass(frozen=True, slots=True)
class Hello:
    """The client's first word. Answered by Welcome.

    `nonce` is 16 random bytes, new for each connection.
    """

    kind: ClassVar[int] = 1
    version_min: int
    version_max: int
    release: str
    nonce: bytes
    needs_crc: bool = True  # it knows no xxh3-128: every body must have its CRC-32


@dataclass(frozen=True, slots=True)
class Welcome:
    """The node's first word: the version chosen, who it is, and its limits."""

    kind: ClassVar[int] = 2
    version: int
    release: str
    cluster: bytes
    nonce: bytes
    needs_proof: bool  # a token is wanted: the next word must be TokenProof
    body_size_max: int
    in_flight_max: int  # requests that one connection may have open


@dataclass(frozen=True, slots=True)
class TokenProof:
    """Shows that the client has the token, without sending it. Answered by Accepted."""

    kind: ClassVar[int] = 3
    mac: bytes


@dataclass(frozen=True, slots=True)
class Accepted:
    """Shows that the node has the token, too."""

    kind: ClassVar[int] = 4
    mac: bytes


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """The answer to any request that was not done. See wire/error_codes.py."""

    kind: ClassVar[int] = 5
    code: str  # the name of an error in errors.py
    message: str
    hint: str
    fields: tuple[tuple[str, int | str | None], ...]
    retry_after_ms: int | None  # Busy: when to come again


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks whether anybody is there. Answered by Pong."""

    kind: ClassVar[int] = 6


@dataclass(frozen=True, slots=True)
class Pong:
    """Somebody is."""

    kind: ClassVar[int] = 7


@dataclass(frozen=True, slots=True)
class GetStatus:
    """Asks how the node is. Answered by StatusReply."""

    kind: ClassVar[int] = 8


@dataclass(frozen=True, slots=True)
class StatusReply:
    """How the node is: JSON, as `/health/ready` shows it, with the recovery reports."""

    kind: ClassVar[int] = 9
    text: str
