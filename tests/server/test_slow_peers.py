"""Peers that are slow, silent or deaf: they are cut off, and the others do not notice."""

import asyncio
from collections import Counter
from contextlib import suppress

import pytest
from tests.server.builders import (
    LOOPS,
    TOKEN,
    Desk,
    Ledger,
    Peer,
    PretendTransport,
    a_fetch,
    a_hello,
    a_listener,
    a_peer,
    a_stranger,
    an_append,
    cost_of,
    run,
    some_limits,
    to_bytes,
    until,
)

from headrace.model.results import AppendResult
from headrace.server.connections.limits import PROGRESS_SIZE_MIN
from headrace.server.connections.traffic import Traffic
from headrace.server.connections.write_queue import WriteQueue
from headrace.wire.frames import HEADER_SIZE
from headrace.wire.greeting import Ping, Pong
from headrace.wire.read_messages import Fetch, FetchReply

MIB = 1024 * 1024


async def _send_slowly(peer: Peer, data: bytes, size: int, pause: float) -> None:
    for start in range(0, len(data), size):
        await peer.send_bytes(data[start : start + size])
        await asyncio.sleep(pause)


async def _read_slowly(peer: Peer, size: int) -> int:
    """Read at about 10 MiB a second: the system passes progress on in steps of some MiB."""
    clock, got = asyncio.get_running_loop(), 0
    while got < size and (data := await clock.sock_recv(peer.sock, MIB // 2)):
        got += len(data)
        await asyncio.sleep(0.05)
    return got


@pytest.mark.parametrize("loop", LOOPS)
def test_strangers_who_do_not_shake_hands_are_cut_off(loop):
    """Nothing, part of a Hello, and a Hello without its Proof: three ways to stay outside."""

    async def scene():
        limits = some_limits(handshake_timeout=1.0)
        hello = to_bytes(a_hello(), 1)
        async with a_listener(Ledger(), limits, token=TOKEN) as listener:
            good = await a_peer(listener, TOKEN)
            start = asyncio.get_running_loop().time()
            strangers = [await a_stranger(listener) for _ in range(30)]
            for number, stranger in enumerate(strangers):
                await stranger.send_bytes((b"", hello[:20], hello)[number % 3])
            for number, stranger in enumerate(strangers):
                assert len(await stranger.until_end()) == (number % 3 == 2)
                stranger.sock.close()
            assert asyncio.get_running_loop().time() - start >= 1.0
            assert listener.traffic.cut_offs == {"handshake": 30}
            assert await good.is_alive()
            good.sock.close()

    run(scene(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_silent_peer_is_closed_and_one_that_talks_is_not(loop):
    async def scene():
        limits = some_limits(idle_timeout=1.0)
        async with (
            a_listener(Ledger(), limits) as listener,
            await a_peer(listener) as silent,
            await a_peer(listener) as talking,
        ):
            ending = asyncio.ensure_future(silent.until_end())
            while not ending.done():
                assert await talking.is_alive()
                await asyncio.sleep(0.05)
            assert await ending == []
            assert listener.traffic.cut_offs == {"idle": 1}
            assert listener.traffic.connections_open == 1

    run(scene(), loop)


def test_a_peer_that_waits_for_an_answer_is_not_idle():
    async def scene():
        desk = Desk()
        limits = some_limits(idle_timeout=0.1, stall_timeout=0.1, frame_timeout=0.1)
        async with a_listener(desk, limits) as listener, await a_peer(listener) as peer:
            await peer.send(Ping(), 1)
            await asyncio.sleep(0.5)
            desk.answer_all()
            assert await peer.receive() == (1, Pong())
            assert listener.traffic.cut_offs == {}

    run(scene())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_byte_now_and_then_is_no_progress(loop):
    async def scene():
        limits = some_limits(stall_timeout=0.3)
        frame = to_bytes(an_append(), 1, [bytes(MIB)])
        async with a_listener(Ledger(), limits) as listener, await a_peer(listener) as peer:
            start = asyncio.get_running_loop().time()
            with pytest.raises(ConnectionError):
                await _send_slowly(peer, frame, size=1, pause=0.01)
            assert 0.2 <= asyncio.get_running_loop().time() - start < 10
            assert listener.traffic.cut_offs == {"stalled": 1}

    run(scene(), loop)


def test_a_slow_frame_that_moves_is_waited_for_but_not_for_ever():
    """128 KiB each tenth of a second is no stall; but 32 MiB of it would take too long."""

    async def scene():
        limits = some_limits(stall_timeout=1.0, frame_timeout=4.0)
        ledger = Ledger()
        async with a_listener(ledger, limits) as listener:
            size = 2 * PROGRESS_SIZE_MIN
            async with await a_peer(listener) as peer:
                await _send_slowly(peer, to_bytes(an_append(), 1, [bytes(2 * MIB)]), size, 0.1)
                assert await peer.receive() == (1, AppendResult(0, 1, False))
            async with await a_peer(listener) as peer:
                frame = to_bytes(an_append(), 1, [bytes(32 * MIB)])
                with pytest.raises(ConnectionError):
                    await _send_slowly(peer, frame, size, 0.1)
            assert listener.traffic.cut_offs == {"stalled": 1}
            assert len(ledger.bodies) == 1

    run(scene())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_peer_that_we_do_not_read_from_is_not_blamed(loop):
    async def scene():
        desk = Desk()
        limits = some_limits(in_flight_max=1, stall_timeout=0.6, frame_timeout=0.6)
        async with a_listener(desk, limits) as listener, await a_peer(listener) as peer:
            one, two = to_bytes(Ping(), 1), to_bytes(an_append(), 2, [b"rows"])
            await peer.send_bytes(one + two[:10])
            await until(lambda: len(desk.open) == 1)
            await asyncio.sleep(1.0)
            desk.answer_all()
            assert await peer.receive() == (1, Pong())
            await asyncio.sleep(0.1)  # it is read from again, and has its whole time
            await peer.send_bytes(two[10:])
            await until(lambda: len(desk.open) == 1)
            desk.answer_all()
            assert (await peer.receive())[0] == 2
            assert listener.traffic.cut_offs == {}

    run(scene(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_peer_that_never_reads_is_cut_off_while_a_good_one_goes_on(loop):
    async def scene():
        ledger = Ledger()
        limits = some_limits(stall_timeout=0.5)
        async with a_listener(ledger, limits) as listener:
            deaf = await a_peer(listener, receive_size=4096)
            good = await a_peer(listener)

            async def ask_for_ever() -> None:
                request_id = 0
                while True:
                    await deaf.send(a_fetch(MIB), request_id)
                    request_id += 1

            asking = asyncio.ensure_future(ask_for_ever())
            traffic = listener.traffic
            while not traffic.cut_offs:
                assert await good.is_alive()
            assert traffic.cut_offs == {"unread": 1}
            kinds = Counter(map(type, ledger.requests))
            assert kinds[Ping] > 10
            assert 0 < kinds[Fetch] < 20  # of 1 MiB each, before reading from it stopped
            with pytest.raises(ConnectionError):
                await asking
            assert traffic.pauses >= 1
            assert traffic.connections_open == 1
            for peer in (deaf, good):
                peer.sock.close()

    run(scene(), loop)


def test_a_peer_that_reads_slowly_but_steadily_is_kept():
    async def scene():
        limits = some_limits(stall_timeout=1.0)
        async with (
            a_listener(Ledger(), limits) as listener,
            await a_peer(listener, receive_size=MIB) as peer,
        ):
            clock = asyncio.get_running_loop()
            start = clock.time()
            await peer.send(a_fetch(32 * MIB), 1)
            assert await _read_slowly(peer, 32 * MIB) >= 32 * MIB
            assert clock.time() - start > 2.0
            assert listener.traffic.cut_offs == {}

    run(scene())


def test_a_peer_that_always_has_something_to_read_is_kept():
    """Each answer is taken in time, though at no sweep is there nothing left to take."""
    limits = some_limits(stall_timeout=1.0, frame_timeout=3.0)
    outbox = WriteQueue(Traffic())
    transport = PretendTransport(asyncio.BufferedProtocol())
    for second in range(20):
        outbox.add(second, FetchReply(0, 0, 0, ()), [bytes(MIB)])
        outbox.write(transport)
        transport.unsent_size = MIB // 2
        assert not outbox.is_stuck(transport, float(second), limits)
    assert not outbox.is_stuck(transport, 19.5, limits)
    assert outbox.is_stuck(transport, 20.5, limits)  # and now it takes nothing


def test_a_slow_reader_has_a_limit_too():
    """At a pace that is no stall, what it asked for would stay here too long."""

    async def scene():
        limits = some_limits(stall_timeout=1.0, frame_timeout=1.5)
        async with (
            a_listener(Ledger(), limits) as listener,
            await a_peer(listener, receive_size=MIB) as peer,
        ):
            clock = asyncio.get_running_loop()
            start = clock.time()
            await peer.send(a_fetch(60 * MIB), 1)
            with suppress(ConnectionError):
                assert await _read_slowly(peer, 60 * MIB) < 60 * MIB
            assert listener.traffic.cut_offs == {"unread": 1}
            assert clock.time() - start >= 1.4

    run(scene())


def test_a_peer_that_ends_badly_and_stays_is_not_kept():
    """It is told why and that this was all, and then it just goes on sending."""

    async def scene():
        async with a_listener(Ledger()) as listener, await a_peer(listener) as peer:
            await peer.send_bytes(b"what?")
            with pytest.raises(ConnectionError):
                await _send_slowly(peer, bytes(MIB), size=1000, pause=0.01)
            await until(lambda: listener.traffic.connections_open == 0)
            assert listener.traffic.cut_offs == {"bad_frame": 1}

    run(scene())


def test_a_crowd_that_sends_a_byte_at_a_time_does_not_slow_a_good_peer_by_half():
    """200 peers, of which each sends a byte for 500 requests of the good one.

    That is every 100 ms or so, and half of them are within a frame of 1 MiB. What 500 requests
    cost this process is measured before the crowd comes, beside it, and after it was cut off;
    a machine that became slower meanwhile is slow in the last of the three, too.
    """

    async def scene():
        limits = some_limits(stall_timeout=3.0, handshake_timeout=3.0)
        async with a_listener(Ledger(), limits) as listener, await a_peer(listener) as good:
            acts, turn = 0, asyncio.Event()

            async def act() -> None:
                nonlocal acts
                assert await good.ask(an_append(), 1, [bytes(1024)]) is not None
                acts += 1
                if acts % 500 == 0:
                    turn.set()

            before = await cost_of(act, 500, rounds=10)
            crowd = [
                await (a_peer(listener) if number % 2 else a_stranger(listener))
                for number in range(200)
            ]
            sent = 0

            async def dribble() -> None:
                nonlocal sent
                hello, frame = to_bytes(a_hello(), 1), to_bytes(an_append(), 1, [bytes(MIB)])
                for place in range(HEADER_SIZE):
                    for number, peer in enumerate(crowd):
                        with suppress(ConnectionError):
                            peer.sock.send((hello, frame)[number % 2][place : place + 1])
                            sent += 1
                        if number % 20 == 0:
                            await asyncio.sleep(0)
                    turn.clear()
                    await turn.wait()

            dribbling = asyncio.ensure_future(dribble())
            try:
                beside = await cost_of(act, 500, rounds=10)
                assert sent > 400
                await until(lambda: listener.traffic.cut_offs.total() == 200)
                assert listener.traffic.cut_offs == {"handshake": 100, "stalled": 100}
                await until(lambda: listener.traffic.connections_open == 1)
                after = await cost_of(act, 500, rounds=10)
                assert beside < 2 * max(before, after)
            finally:
                dribbling.cancel()
                for peer in crowd:
                    peer.sock.close()

    run(scene())


def test_a_deaf_peer_does_not_keep_a_listener_from_closing():
    async def scene():
        async with (
            a_listener(Ledger()) as listener,
            await a_peer(listener, receive_size=4096) as deaf,
        ):
            await deaf.send(a_fetch(32 * MIB), 1)
            await until(lambda: listener.traffic.bytes_out > 32 * MIB)
            start = asyncio.get_running_loop().time()
            await listener.close(0.3)
            assert asyncio.get_running_loop().time() - start < 5
            assert listener.traffic.connections_open == 0

    run(scene())


def test_what_a_peer_asked_before_it_was_slow_is_answered_whole():
    async def scene():
        async with (
            a_listener(Ledger()) as listener,
            await a_peer(listener, receive_size=4096) as peer,
        ):
            for request_id in range(10):
                await peer.send(a_fetch(MIB), request_id)
            await asyncio.sleep(0.2)
            for request_id in range(10):
                frame = await peer.receive_frame()
                assert (frame.id, frame.kind, len(frame.body)) == (
                    request_id,
                    FetchReply.kind,
                    MIB,
                )

    run(scene())
