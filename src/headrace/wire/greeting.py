"""Handshake messages, and answers that any request may get."""

from dataclasses import dataclass
from typing import ClassVar

VERSION = 4  # of the protocol, as negotiated by Hello and Welcome
VERSION_MIN = 1  # the oldest supported
LEASES_SINCE = 2  # the first version with lease_messages.py
ERASING_SINCE = 3  # the first version with erase_messages.py
CLAIMS_SINCE = 3  # the first version whose StoreCursorRequest may keep the offset
FILES_SINCE = 4  # the first version with file_messages.py
TICKETS_SINCE = 4  # the first version with TicketProof


@dataclass(frozen=True, slots=True)
class Hello:
    """The client's first message. Answered by Welcome.

    `nonce` is 16 random bytes, new for each connection.
    """

    kind: ClassVar[int] = 1
    version_min: int
    version_max: int
    release: str
    nonce: bytes
    needs_crc: bool = True  # it does not support xxh3-128: every body must have a CRC-32


@dataclass(frozen=True, slots=True)
class Welcome:
    """The node's first message: the chosen version, its identity and its limits."""

    kind: ClassVar[int] = 2
    version: int
    release: str
    cluster: bytes
    nonce: bytes
    needs_proof: bool  # a token is required: the next message must be TokenProof or TicketProof
    body_size_max: int
    in_flight_max: int  # requests that one connection may have open


@dataclass(frozen=True, slots=True)
class TokenProof:
    """Proves that the client has the token, without sending it. Answered by Accepted."""

    kind: ClassVar[int] = 3
    mac: bytes


@dataclass(frozen=True, slots=True)
class TicketProof:
    """Proves that the client has the key of a ticket. Answered by Accepted.

    The node computes the key from its token and the ticket. See wire/ticket.py.
    """

    kind: ClassVar[int] = 10
    ticket: bytes
    mac: bytes


@dataclass(frozen=True, slots=True)
class Accepted:
    """Proves that the node has the token, too, or can compute the key of the ticket."""

    kind: ClassVar[int] = 4
    mac: bytes


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """The answer to any failed request. See wire/error_codes.py."""

    kind: ClassVar[int] = 5
    code: str  # the name of an error in errors.py
    message: str
    hint: str
    fields: tuple[tuple[str, int | str | None], ...]
    retry_after_ms: int | None  # Busy: when to retry


@dataclass(frozen=True, slots=True)
class Ping:
    """Checks that the node is alive. Answered by Pong."""

    kind: ClassVar[int] = 6


@dataclass(frozen=True, slots=True)
class Pong:
    """The node is alive."""

    kind: ClassVar[int] = 7


@dataclass(frozen=True, slots=True)
class GetStatus:
    """Requests the node's status. Answered by StatusReply."""

    kind: ClassVar[int] = 8


@dataclass(frozen=True, slots=True)
class StatusReply:
    """The node's status: JSON, as in `/health/ready`, with the recovery reports."""

    kind: ClassVar[int] = 9
    text: str
