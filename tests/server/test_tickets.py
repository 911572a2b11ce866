"""A ticket opens one topic for some hours, and nothing else."""

import dataclasses
import time

import pytest
from tests.server.builders import (
    CLIENT_NONCE,
    TOKEN,
    Ledger,
    a_listener,
    a_stranger,
    an_append,
    run,
)

from headrace.errors import Unauthorized
from headrace.server.connections.handshake import Handshake
from headrace.server.connections.limits import PeerLimits
from headrace.wire.file_messages import FetchFile, GetFileDigests
from headrace.wire.greeting import (
    TICKETS_SINCE,
    VERSION,
    Accepted,
    GetStatus,
    Hello,
    Ping,
    Pong,
    TicketProof,
    TokenProof,
)
from headrace.wire.read_messages import Fetch, GetBounds, StoreCursorRequest
from headrace.wire.ticket import TICKET_SECONDS, Claims, Ticket, key_of
from headrace.wire.token_proof import client_mac, node_mac
from headrace.wire.write_messages import DiscardRequest, PublishRequest, StageRequest

NOW = 1_800_000_000.0
NAMESPACES = range(100, 103)
TICKET = Ticket.made(TOKEN, NOW, NAMESPACES)


def a_handshake(now: float, version: int = VERSION) -> tuple[Handshake, bytes]:
    """Begin a handshake, and return it with the nonce of its Welcome."""
    handshake = Handshake(PeerLimits(), TOKEN, "test", clock=lambda: now)
    welcome = handshake.hear(Hello(1, version, "test", CLIENT_NONCE), b"c" * 16)
    return handshake, welcome.nonce


def a_proof(ticket: bytes, key: bytes, nonce: bytes, version: int = VERSION) -> TicketProof:
    return TicketProof(ticket, client_mac(key, CLIENT_NONCE, nonce, version=version))


def test_a_ticket_is_accepted_by_a_node_that_shows_its_key():
    handshake, nonce = a_handshake(NOW)
    accepted = handshake.hear(a_proof(TICKET.text, TICKET.key, nonce), b"c" * 16)
    mac = node_mac(TICKET.key, CLIENT_NONCE, nonce, version=VERSION)
    assert accepted == Accepted(mac)
    assert handshake.claims == Claims(int(NOW) + TICKET_SECONDS, 100, 103)


def test_a_ticket_is_refused_from_the_second_it_expires():
    for now, is_good in ((NOW + TICKET_SECONDS - 1, True), (NOW + TICKET_SECONDS, False)):
        handshake, nonce = a_handshake(now)
        proof = a_proof(TICKET.text, TICKET.key, nonce)
        if is_good:
            handshake.hear(proof, b"c" * 16)
        else:
            with pytest.raises(Unauthorized, match="the ticket expired 0 s ago"):
                handshake.hear(proof, b"c" * 16)
        assert handshake.is_done is is_good


def test_no_ticket_can_be_stretched():
    """Each changed byte of a ticket needs another key."""
    for place in range(len(TICKET.text)):
        text = bytearray(TICKET.text)
        text[place] ^= 1
        handshake, nonce = a_handshake(NOW)
        with pytest.raises(Unauthorized):
            handshake.hear(a_proof(bytes(text), TICKET.key, nonce), b"c" * 16)
        assert not handshake.is_done


@pytest.mark.parametrize("text", [b"", b"HRT1", TICKET.text[:-1], TICKET.text + b"\0"])
def test_what_is_no_ticket_is_refused_whatever_its_key(text):
    handshake, nonce = a_handshake(NOW)
    with pytest.raises(Unauthorized, match="not a ticket"):
        handshake.hear(a_proof(text, key_of(TOKEN, text), nonce), b"c" * 16)


def test_the_key_of_a_ticket_is_not_the_token():
    handshake, nonce = a_handshake(NOW)
    mac = client_mac(TICKET.key, CLIENT_NONCE, nonce, version=VERSION)
    with pytest.raises(Unauthorized, match="the token is not this node's"):
        handshake.hear(TokenProof(mac), b"c" * 16)


def test_an_older_protocol_has_no_tickets():
    version = TICKETS_SINCE - 1
    handshake, nonce = a_handshake(NOW, version)
    with pytest.raises(Unauthorized, match="requires a token"):
        handshake.hear(a_proof(TICKET.text, TICKET.key, nonce, version), b"c" * 16)


def fetch(namespace):
    return Fetch(namespace, 1, 0, None, 1, 0, None, 1)


CLAIMS = Claims(0, NAMESPACES.start, NAMESPACES.stop)
STAGE = StageRequest(101, 1, b"w", 1, 1, 1, b"s", 0, b"")


@pytest.mark.parametrize(
    "request_",
    [
        Ping(),
        *map(fetch, NAMESPACES),
        FetchFile(b"l" * 16, 100, 1, 0, 9, b"d" * 16, 0, 1),
        STAGE,
        StoreCursorRequest(100, 1, "g", 0, 1, False),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_ticket_permits_what_tasks_do(request_):
    CLAIMS.refuse_other(request_)


@pytest.mark.parametrize(
    "request_",
    [
        fetch(99),
        fetch(103),
        FetchFile(b"l" * 16, 99, 1, 0, 9, b"d" * 16, 0, 1),
        GetFileDigests(b"l" * 16),
        dataclasses.replace(STAGE, namespace=103),
        StoreCursorRequest(99, 1, "g", 0, 1, False),
        PublishRequest(100, 1, b"w", 1, ()),
        DiscardRequest(100, 1, b"w", ()),
        GetBounds(()),
        GetStatus(),
        an_append(),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_ticket_permits_nothing_else(request_):
    with pytest.raises(Unauthorized, match="a ticket does not permit this"):
        CLAIMS.refuse_other(request_)


def test_a_node_holds_a_connection_to_its_ticket():
    """Over a real socket: the refusal is an answer, and the connection stays."""

    async def scene():
        async with (
            a_listener(Ledger(), token=TOKEN) as listener,
            await a_stranger(listener) as peer,
        ):
            welcome = await peer.ask(Hello(1, VERSION, "test", CLIENT_NONCE))
            made = Ticket.made(TOKEN, time.time(), NAMESPACES)
            accepted = await peer.ask(a_proof(made.text, made.key, welcome.nonce))
            assert isinstance(accepted, Accepted)
            assert (await peer.ask(an_append())).code == "Unauthorized"
            assert (await peer.ask(GetStatus())).code == "Unauthorized"
            assert await peer.ask(Ping()) == Pong()

    run(scene())


def test_the_key_is_not_shown():
    assert TICKET.key.hex() not in repr(TICKET)
    assert repr(TICKET.key) not in repr(TICKET)
