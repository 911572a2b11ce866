"""A ticket: a few hours of access to one topic, for tasks that do not get the token.

    ticket := "HRT1"  expires:u64  first:u64  end:u64
    key    := HMAC-SHA256(token, "headrace ticket" 00  ticket)

`expires` is in seconds since 1970. The partitions are those whose namespace is at least `first`
and below `end`. Any process with the token can make a ticket; the node remembers none. A peer
that has ticket and key can fetch and stage rows of the topic, fetch leased files of it, and
store its cursors, and nothing else; it can learn neither the token nor another ticket's key
from them.
"""

import hmac
import struct
from dataclasses import dataclass, field
from typing import Final, Self

from headrace.errors import Unauthorized
from headrace.wire.file_messages import FetchFile
from headrace.wire.greeting import Ping
from headrace.wire.messages import Request
from headrace.wire.read_messages import Fetch, StoreCursorRequest
from headrace.wire.write_messages import StageRequest

TICKET_SECONDS: Final = 24 * 60 * 60

_PERMITTED: Final = (Fetch, FetchFile, StageRequest, StoreCursorRequest)
_MAGIC: Final = b"HRT1"
_TICKET: Final = struct.Struct("<4sQQQ")
_LABEL: Final = b"headrace ticket\0"
_FOREVER: Final = 2**64 - 1
_EXPIRED: Final = (
    "Start the query again: it gets a new ticket. Tasks that take longer need the token: set "
    "HEADRACE_TOKEN_FILE on executors"
)


@dataclass(frozen=True, slots=True)
class Claims:
    """What a ticket permits, and until when."""

    expires: int  # seconds since 1970
    first: int  # namespace
    end: int

    @classmethod
    def of(cls, ticket: bytes) -> Self:
        """Decode an untrusted ticket. Raises Unauthorized."""
        if len(ticket) != _TICKET.size or not ticket.startswith(_MAGIC):
            raise Unauthorized(
                "this is not a ticket", hint="Use the same release on both sides"
            )
        return cls(*_TICKET.unpack(ticket)[1:])

    def refuse_expired(self, now: float) -> None:
        """Raise Unauthorized if the ticket is too old."""
        if now >= self.expires:
            raise Unauthorized(
                f"the ticket expired {int(now - self.expires)} s ago, by this node's clock",
                hint=_EXPIRED,
            )

    def refuse_other(self, request: Request) -> None:
        """Raise Unauthorized for a request that the ticket does not permit."""
        if isinstance(request, Ping):
            return
        if isinstance(request, _PERMITTED) and self.first <= request.namespace < self.end:
            return
        raise Unauthorized(
            f"a ticket does not permit this {type(request).__name__.removesuffix('Request')}",
            hint="It is for tasks that read or stage rows of one topic. Use the token",
        )


@dataclass(frozen=True, slots=True)
class Ticket:
    """A ticket with its key, as a task has it."""

    text: bytes
    key: bytes = field(repr=False)  # a secret until the ticket expires

    @classmethod
    def made(cls, token: bytes, now: float, namespaces: range) -> Self:
        """Make a ticket for the partitions of one topic."""
        expires = min(int(now) + TICKET_SECONDS, _FOREVER)
        text = _TICKET.pack(_MAGIC, expires, namespaces.start, namespaces.stop)
        return cls(text, key_of(token, text))


def key_of(token: bytes, ticket: bytes) -> bytes:
    """Return the key of a ticket."""
    return hmac.digest(token, _LABEL + ticket, "sha256")
