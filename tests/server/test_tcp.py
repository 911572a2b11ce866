"""A listener on loopback: handshake, pipelining, deadlines, bounds on connections, closing."""

import asyncio
import errno
import socket

import pytest
from tests.server.builders import (
    CLIENT_NONCE,
    CLUSTER,
    LOOPS,
    TOKEN,
    Desk,
    Ledger,
    a_fetch,
    a_hello,
    a_listener,
    a_peer,
    a_stranger,
    an_append,
    run,
    some_limits,
    to_bytes,
    until,
)

from headrace.errors import BadConfig, TopicUnknown
from headrace.model.results import AppendResult
from headrace.server.connections.tcp import bind_tcp, listen_tcp
from headrace.wire.frames import BODY_SIZE_MAX
from headrace.wire.greeting import (
    VERSION,
    Accepted,
    ErrorReply,
    Ping,
    Pong,
    TokenProof,
    Welcome,
)
from headrace.wire.read_messages import FetchReply
from headrace.wire.token_proof import client_mac, node_mac


@pytest.mark.parametrize("loop", LOOPS)
def test_a_peer_is_welcomed_and_its_rows_get_offsets(loop):
    async def scene():
        ledger = Ledger()
        async with a_listener(ledger) as listener, await a_peer(listener) as peer:
            welcome = peer.welcome
            assert (welcome.version, welcome.cluster, welcome.release) == (1, CLUSTER, "test")
            assert not welcome.needs_proof
            assert welcome.body_size_max == BODY_SIZE_MAX
            assert await peer.ask(an_append(row_count=3), body=[b"rows"]) == AppendResult(
                0, 3, False
            )
            assert await peer.ask(an_append(row_count=2), body=[b"more"]) == AppendResult(
                3, 5, False
            )
            assert ledger.bodies == [b"rows", b"more"]

    run(scene(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_large_body_comes_and_goes_unchanged(loop):
    async def scene():
        ledger, body = Ledger(), bytes(range(256)) * 4 * 4096
        async with a_listener(ledger) as listener, await a_peer(listener) as peer:
            for _ in range(3):
                await peer.ask(an_append(), body=[body])
            assert ledger.bodies == [body] * 3
            await peer.send(a_fetch(8 * 1024 * 1024), 5)
            frame = await peer.receive_frame()
            assert frame.id == 5
            assert len(frame.body) == 8 * 1024 * 1024

    run(scene(), loop)


@pytest.mark.parametrize(
    ("version_min", "version_max", "chosen"),
    [
        (1, 1, 1),
        (0, 9, VERSION),
        (1, 2, 2),
        (VERSION, VERSION + 1, VERSION),
        (VERSION + 1, VERSION + 2, None),
        (0, 0, None),
        (9, 1, None),
        (-5, -1, None),
    ],
)
def test_the_version_is_one_that_both_speak(version_min, version_max, chosen):
    async def scene():
        async with a_listener(Ledger()) as listener, await a_stranger(listener) as peer:
            answer = await peer.ask(a_hello(version_min, version_max))
            if chosen is None:
                assert isinstance(answer, ErrorReply)
                assert answer.code == "VersionUnknown"
                assert await peer.receive() is None
                assert listener.traffic.cut_offs == {"version": 1}
            else:
                assert isinstance(answer, Welcome)
                assert answer.version == chosen
                assert await peer.is_alive()

    run(scene())


@pytest.mark.parametrize("loop", LOOPS)
def test_who_has_the_token_is_accepted_and_sees_that_the_node_has_it(loop):
    async def scene():
        async with (
            a_listener(Ledger(), token=TOKEN) as listener,
            await a_stranger(listener) as peer,
        ):
            welcome = await peer.ask(a_hello())
            assert welcome.needs_proof
            mac = client_mac(TOKEN, CLIENT_NONCE, welcome.nonce, version=1)
            accepted = await peer.ask(TokenProof(mac))
            assert accepted == Accepted(node_mac(TOKEN, CLIENT_NONCE, welcome.nonce, version=1))
            assert await peer.is_alive()

    run(scene(), loop)


FALSE_WORDS = {
    "another token": lambda nonce: TokenProof(
        client_mac(b"another", CLIENT_NONCE, nonce, version=1)
    ),
    "the node's own proof": lambda nonce: TokenProof(
        node_mac(TOKEN, CLIENT_NONCE, nonce, version=1)
    ),
    "an earlier nonce": lambda nonce: TokenProof(
        client_mac(TOKEN, CLIENT_NONCE, b"n" * 16, version=1)
    ),
    "nonces swapped": lambda nonce: TokenProof(
        client_mac(TOKEN, nonce, CLIENT_NONCE, version=1)
    ),
    "nothing": lambda nonce: TokenProof(b""),
    "a part": lambda nonce: TokenProof(client_mac(TOKEN, CLIENT_NONCE, nonce, version=1)[:-1]),
    "a request instead": lambda nonce: an_append(),
    "a ping instead": lambda nonce: Ping(),
    "another hello": lambda nonce: a_hello(),
}


@pytest.mark.parametrize("word", FALSE_WORDS)
def test_who_does_not_have_the_token_is_refused_and_reaches_nothing(word):
    async def scene():
        ledger = Ledger()
        async with a_listener(ledger, token=TOKEN) as listener:
            async with await a_stranger(listener) as peer:
                welcome = await peer.ask(a_hello())
                # What follows in the same breath must not be heard either.
                both = to_bytes(FALSE_WORDS[word](welcome.nonce), 3) + to_bytes(an_append(), 4)
                await peer.send_bytes(both)
                ((request_id, failed),) = await peer.until_end()
                assert (request_id, failed.code) == (3, "Unauthorized")
            assert ledger.requests == []
            assert listener.traffic.cut_offs == {"unauthorized": 1}
            assert listener.traffic.refused == {"Unauthorized": 1}

    run(scene())


def test_a_proof_cannot_be_used_on_another_connection():
    async def scene():
        async with (
            a_listener(Ledger(), token=TOKEN) as listener,
            await a_stranger(listener) as one,
            await a_stranger(listener) as two,
        ):
            welcome = await one.ask(a_hello())
            assert (await two.ask(a_hello())).nonce != welcome.nonce
            mac = client_mac(TOKEN, CLIENT_NONCE, welcome.nonce, version=1)
            assert (await two.ask(TokenProof(mac))).code == "Unauthorized"
            assert isinstance(await one.ask(TokenProof(mac)), Accepted)

    run(scene())


@pytest.mark.parametrize("message", [Ping(), an_append(), TokenProof(b"m"), Pong()])
def test_whatever_comes_before_hello_is_refused(message):
    async def scene():
        ledger = Ledger()
        async with a_listener(ledger) as listener, await a_stranger(listener) as peer:
            assert (await peer.ask(message)).code == "BadFrame"
            assert await peer.receive() is None
            assert ledger.requests == []

    run(scene())


@pytest.mark.parametrize(
    "message", [a_hello(), TokenProof(b"m"), Pong(), AppendResult(0, 1, False)]
)
def test_what_is_no_request_ends_the_connection(message):
    async def scene():
        async with a_listener(Ledger()) as listener, await a_peer(listener) as peer:
            assert (await peer.ask(message)).code == "BadFrame"
            assert await peer.receive() is None
            assert listener.traffic.cut_offs == {"bad_message": 1}

    run(scene())


def test_a_nonce_of_another_size_is_refused():
    async def scene():
        async with a_listener(Ledger()) as listener, await a_stranger(listener) as peer:
            assert (await peer.ask(a_hello(nonce=b"short"))).code == "BadFrame"

    run(scene())


@pytest.mark.parametrize("loop", LOOPS)
def test_answers_leave_in_any_order_with_the_ids_of_their_requests(loop):
    async def scene():
        desk = Desk()
        async with a_listener(desk) as listener, await a_peer(listener) as peer:
            for request_id in range(10, 20):
                await peer.send(an_append(version=request_id), request_id, [b"rows"])
            await until(lambda: len(desk.open) == 10)
            for place in (9, 0, 4, 4, 0, 0, 0, 2, 1, 0):
                desk.answer(place)
            order = [19, 10, 15, 16, 11, 12, 13, 18, 17, 14]
            for request_id in order:
                found = AppendResult(request_id, request_id + 1, repeated=False)
                assert await peer.receive() == (request_id, found)

    run(scene(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_the_answers_of_one_turn_leave_in_one_write(loop):
    async def scene():
        desk = Desk()
        async with a_listener(desk) as listener, await a_peer(listener) as peer:
            await peer.send_bytes(b"".join(to_bytes(Ping(), each) for each in range(1, 101)))
            await until(lambda: len(desk.open) == 100)
            desk.answer_all()
            size = 100 * len(to_bytes(Pong(), 1))
            got = await asyncio.get_running_loop().sock_recv(peer.sock, 1024 * 1024)
            assert len(got) == size

    run(scene(), loop)


def test_a_deadline_is_the_peers_or_the_default_and_never_later_than_the_limit():
    async def scene():
        ledger, loop = Ledger(), asyncio.get_running_loop()
        limits = some_limits(request_timeout=30.0, request_timeout_max=100.0)
        async with a_listener(ledger, limits) as listener, await a_peer(listener) as peer:
            before = loop.time()
            for wanted_ms in (0, 2_000, 4_000_000_000):
                await peer.send(Ping(), 1, deadline_ms=wanted_ms)
                await peer.receive()
            spent = loop.time() - before
            for expected, found in zip((30.0, 2.0, 100.0), ledger.deadlines, strict=True):
                assert before + expected <= found <= before + expected + spent

    run(scene())


def test_an_error_of_the_service_is_an_answer():
    class Refusing(Ledger):
        def submit(self, request, body, deadline, answer):
            answer(TopicUnknown("there is no topic x", hint="Make it"), ())

    async def scene():
        async with a_listener(Refusing()) as listener, await a_peer(listener) as peer:
            failed = await peer.ask(Ping())
            assert (failed.code, failed.message, failed.hint) == (
                "TopicUnknown",
                "there is no topic x",
                "Make it",
            )
            assert await peer.ask(Ping()) == failed
            assert listener.traffic.refused == {"TopicUnknown": 2}

    run(scene())


def test_an_answer_that_no_frame_can_hold_is_an_error_and_the_connection_goes_on():
    class Generous(Ledger):
        def submit(self, request, body, deadline, answer):
            size = 4096 if isinstance(request, Ping) else BODY_SIZE_MAX + 1
            answer(FetchReply(0, 0, 0, ()), [bytes(size)])

    async def scene():
        async with a_listener(Generous()) as listener, await a_peer(listener) as peer:
            assert (await peer.ask(a_fetch(1))).code == "BodyTooLarge"
            assert isinstance(await peer.ask(Ping()), FetchReply)

    run(scene())


def test_a_service_that_raises_costs_one_connection_and_leaves_nothing_counted(caplog):
    class Faulty(Ledger):
        def submit(self, request, body, deadline, answer):
            if body == b"poison":
                raise RuntimeError("planted")
            Ledger.submit(self, request, body, deadline, answer)

    async def scene():
        async with a_listener(Faulty()) as listener:
            async with await a_peer(listener) as good, await a_peer(listener) as bad:
                await bad.send(an_append(), 1, [b"poison"])
                assert await bad.receive() is None
                assert await good.is_alive()
            traffic = listener.traffic
            assert (traffic.in_flight, traffic.in_flight_size) == (0, 0)
            assert traffic.cut_offs == {"crashed": 1}
            assert "planted" in caplog.text

    run(scene())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_connection_too_many_is_told_so(loop):
    async def scene():
        limits = some_limits(connection_count_max=3, retry_after_ms=250)
        async with a_listener(Ledger(), limits) as listener:
            peers = [await a_peer(listener) for _ in range(3)]
            async with await a_stranger(listener) as fourth:
                ((request_id, failed),) = await fourth.until_end()
                assert (request_id, failed.code, failed.retry_after_ms) == (0, "Busy", 250)
            traffic = listener.traffic
            assert (traffic.connections_open, traffic.connections_total) == (3, 4)
            assert traffic.cut_offs == {"too_many": 1}
            peers.pop().sock.close()
            await until(lambda: traffic.connections_open == 2)
            peers.append(await a_peer(listener))
            for peer in peers:
                assert await peer.is_alive()
                peer.sock.close()

    run(scene(), loop)


def test_traffic_counts_what_went_through():
    async def scene():
        async with a_listener(Ledger()) as listener, await a_peer(listener) as peer:
            await peer.ask(an_append(), body=[b"rows"])
            traffic = listener.traffic
            sent = len(to_bytes(a_hello(), 7)) + len(to_bytes(an_append(), 7, [b"rows"]))
            said = len(to_bytes(peer.welcome, 7)) + len(to_bytes(AppendResult(0, 1, False), 7))
            assert (traffic.frames_in, traffic.bytes_in) == (2, sent)
            assert (traffic.frames_out, traffic.bytes_out) == (2, said)
            assert (traffic.connections_open, traffic.connections_total) == (1, 1)

    run(scene())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_peer_that_says_no_more_still_gets_its_answers(loop):
    async def scene():
        desk = Desk()
        async with a_listener(desk) as listener, await a_peer(listener) as peer:
            for request_id in range(3):
                await peer.send(Ping(), request_id)
            peer.sock.shutdown(socket.SHUT_WR)
            await until(lambda: len(desk.open) == 3)
            await asyncio.sleep(0.05)
            desk.answer_all()
            assert await peer.until_end() == [(0, Pong()), (1, Pong()), (2, Pong())]
            await until(lambda: listener.traffic.connections_open == 0)

    run(scene(), loop)


def test_answers_to_a_peer_that_left_go_nowhere_and_are_counted_off():
    async def scene():
        desk = Desk()
        async with a_listener(desk) as listener:
            async with await a_peer(listener) as peer:
                await peer.send(an_append(), 1, [b"rows"])
                await until(lambda: len(desk.open) == 1)
                assert (listener.traffic.in_flight, listener.traffic.in_flight_size) == (1, 4)
                # A reset, so that nobody can take it for a peer that still listens.
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
                peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            await until(lambda: listener.traffic.connections_open == 0)
            desk.answer_all()
            assert (listener.traffic.in_flight, listener.traffic.in_flight_size) == (0, 0)

    run(scene())


@pytest.mark.parametrize("loop", LOOPS)
def test_closing_lets_what_is_in_flight_be_answered(loop):
    async def scene():
        desk = Desk()
        async with a_listener(desk) as listener:
            busy, idle, stranger = (
                await a_peer(listener),
                await a_peer(listener),
                await a_stranger(listener),
            )
            await busy.send(an_append(version=5), 5, [b"rows"])
            await until(lambda: desk.open and listener.traffic.connections_open == 3)
            closing = asyncio.ensure_future(listener.close(20))
            assert await idle.until_end() == []
            assert await stranger.until_end() == []
            # The busy one is still heard, and told that nothing new begins.
            refused = await busy.ask(Ping(), 6)
            assert (refused.code, desk.seen) == ("NotReady", 1)
            with pytest.raises(ConnectionRefusedError):
                await a_stranger(listener)
            assert not closing.done()
            desk.answer_all()
            assert await busy.until_end() == [(5, AppendResult(5, 6, False))]
            for peer in (busy, idle, stranger):
                peer.sock.close()
            await asyncio.wait_for(closing, 10)

    run(scene(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_closing_waits_no_longer_than_its_timeout(loop):
    async def scene():
        desk, clock = Desk(), asyncio.get_running_loop()
        async with a_listener(desk) as listener, await a_peer(listener) as peer:
            await peer.send(Ping(), 5)
            await until(lambda: len(desk.open) == 1)
            start = clock.time()
            await listener.close(0.2)
            assert 0.15 < clock.time() - start < 5  # uvloop counts whole milliseconds
            assert await peer.receive() is None
            assert listener.traffic.connections_open == 0
            desk.answer_all()  # to nobody

    run(scene(), loop)


def test_closing_does_not_wait_for_a_peer_that_ignores_the_end():
    async def scene():
        clock = asyncio.get_running_loop()
        async with a_listener(Ledger()) as listener, await a_peer(listener):
            start = clock.time()
            await listener.close(30)
            assert clock.time() - start < 10

    run(scene())


def test_an_address_that_is_taken_or_unknown_is_a_config_error():
    async def scene():
        async with a_listener(Ledger()) as listener:
            port = int(listener.address.rpartition(":")[2])
            for host, wanted in (("127.0.0.1", port), ("192.0.2.1", 0), ("a..b", 0)):
                with pytest.raises(BadConfig) as caught:
                    await bind_tcp(host, wanted)
                assert caught.value.key == "listen.address"
                assert host in str(caught.value)

    run(scene())


def test_a_bound_port_refuses_peers_until_it_listens():
    async def scene():
        port = await bind_tcp("127.0.0.1", 0)
        with socket.socket() as peer:
            assert peer.connect_ex(("127.0.0.1", port.addresses[0][1])) == errno.ECONNREFUSED
        listener = await listen_tcp(Ledger(), port, some_limits(), None)
        async with await a_peer(listener):
            pass
        await listener.close(0)

    run(scene())


@pytest.mark.parametrize("is_worn", [False, True], ids=["a fresh port", "in TIME_WAIT"])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_bound_port_is_taken_before_it_listens(host, is_worn):
    """While the first node recovers, a second one at the same port makes no log."""

    async def scene():
        number = 0
        if is_worn:  # as right after a restart
            with socket.create_server(("127.0.0.1", 0)) as old:
                number = old.getsockname()[1]
                with socket.create_connection(("127.0.0.1", number)) as peer:
                    old.accept()[0].close()
                    assert peer.recv(1) == b""
        port = await bind_tcp("127.0.0.1", number)
        number = port.addresses[0][1]
        for _ in range(2):
            with pytest.raises(BadConfig, match="in use"):
                await bind_tcp(host, number)
        listener = await listen_tcp(Ledger(), port, some_limits(), None)
        async with await a_peer(listener):
            with pytest.raises(BadConfig, match="in use"):
                await bind_tcp(host, number)
        await listener.close(0)
        (await bind_tcp(host, number)).close()

    run(scene())


def test_a_name_of_two_addresses_is_heard_at_both():
    async def scene():
        port = await bind_tcp("localhost", 0)
        if len(port.addresses) < 2:
            port.close()
            pytest.skip("localhost has one address here")
        listener = await listen_tcp(Ledger(), port, some_limits(), None)
        for where in port.addresses:
            socket.create_connection(where[:2], 5).close()
        await listener.close(0)

    run(scene())


def test_an_ipv6_address_stands_in_brackets():
    async def scene():
        try:
            listener = await listen_tcp(Ledger(), await bind_tcp("::1", 0), some_limits(), None)
        except BadConfig:
            pytest.skip("this machine has no IPv6")
        assert listener.address.startswith("[::1]:")
        await listener.close(0)

    run(scene())
