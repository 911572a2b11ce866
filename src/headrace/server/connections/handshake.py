"""The handshake before a peer's first request: Hello, and a proof if a token is required."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.errors import BadFrame, Unauthorized, VersionUnknown
from headrace.server.connections.limits import PeerLimits
from headrace.wire.greeting import (
    TICKETS_SINCE,
    VERSION,
    VERSION_MIN,
    Accepted,
    Hello,
    TicketProof,
    TokenProof,
    Welcome,
)
from headrace.wire.messages import Message
from headrace.wire.ticket import Claims, key_of
from headrace.wire.token_proof import NONCE_SIZE, client_mac, matches, node_mac


@dataclass(slots=True)
class Handshake:
    """The node's side of the handshake."""

    limits: PeerLimits
    token: bytes | None
    release: str
    clock: Callable[[], float] = time.time  # that tickets expire by
    is_done: bool = False
    claims: Claims | None = None  # of a peer with a ticket; None: it may request anything
    _nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_SIZE))
    _hello: Hello | None = None
    _version: int = VERSION  # that Welcome chose

    @property
    def needs_crc(self) -> bool:
        """Whether every body to this peer must have a CRC-32."""
        return self._hello is None or self._hello.needs_crc

    def hear(self, message: Message, cluster: bytes) -> Welcome | Accepted:
        """Handle the peer's next message, and return the reply. An error ends the handshake."""
        assert not self.is_done
        if self._hello is None:
            return self._welcome(message, cluster)
        return self._accept(message, self._hello)

    def _welcome(self, message: Message, cluster: bytes) -> Welcome:
        if not isinstance(message, Hello):
            raise BadFrame(f"{type(message).__name__} before Hello")
        if len(message.nonce) != NONCE_SIZE:
            raise BadFrame(f"a nonce must have {NONCE_SIZE} bytes, got {len(message.nonce)}")
        version = min(VERSION, message.version_max)
        if version < max(VERSION_MIN, message.version_min):
            raise VersionUnknown(
                f"the peer supports protocol versions {message.version_min} to "
                f"{message.version_max}, this node {VERSION_MIN} to {VERSION}",
                hint="Upgrade the older side",
            )
        self._hello = message
        self._version = version
        self.is_done = self.token is None
        return Welcome(
            version=version,
            release=self.release,
            cluster=cluster,
            nonce=self._nonce,
            needs_proof=self.token is not None,
            body_size_max=self.limits.body_size_max,
            in_flight_max=self.limits.in_flight_max,
        )

    def _accept(self, message: Message, hello: Hello) -> Accepted:
        assert self.token is not None
        match message:
            case TokenProof(mac):
                key = self.token
                wrong = Unauthorized(
                    "the token is not this node's", hint="Check the client's token"
                )
            case TicketProof(ticket, mac) if self._version >= TICKETS_SINCE:
                self.claims = Claims.of(ticket)
                key = key_of(self.token, ticket)
                wrong = Unauthorized(
                    "the ticket is not of this node's token",
                    hint="Check the token of the driver; after a new token, start it again",
                )
            case _:
                raise Unauthorized("this node requires a token", hint="Give it to the client")
        nonces = (hello.nonce, self._nonce)
        if not matches(mac, client_mac(key, *nonces, version=self._version)):
            raise wrong
        if self.claims is not None:
            self.claims.refuse_expired(self.clock())
        self.is_done = True
        return Accepted(node_mac(key, *nonces, version=self._version))
