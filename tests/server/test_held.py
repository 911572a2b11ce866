"""What peers can make a node hold: answers they do not read, and bodies they do not finish."""

import asyncio
import socket
import struct
import tracemalloc
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
from tests.server.builders import (
    LOOPS,
    Desk,
    Ledger,
    Peer,
    a_fetch,
    a_listener,
    a_peer,
    an_append,
    run,
    some_limits,
    to_bytes,
    until,
)

from headrace.model.results import AppendResult
from headrace.server.connections.traffic import Traffic
from headrace.wire.file_messages import FetchFile
from headrace.wire.frames import HEADER_SIZE
from headrace.wire.greeting import Ping
from headrace.wire.read_messages import FetchReply

MIB = 1024 * 1024
A_FILE_FETCH = FetchFile(bytes(16), 1, 1, 0, 9, bytes(16), 0, MIB)


@dataclass(slots=True)
class Shelf(Desk):
    """Answers every request with as many bytes, when it is told to."""

    size: int = MIB

    def answer(self, place: int = 0) -> None:
        _, answer = self.open.pop(place)
        answer(FetchReply(0, 0, 0, ()), [bytes(self.size)])


def _a_waiting_fetch(size: int):
    return replace(a_fetch(size), wait_ms=1000)


async def _ask_for_many(peer: Peer, fetch, count: int) -> None:
    await peer.send_bytes(b"".join(to_bytes(fetch, number) for number in range(1, count + 1)))


@pytest.mark.parametrize("loop", LOOPS)
def test_an_answer_counts_before_it_is_made_until_it_is_taken(loop):
    """50 fetches and nothing read: four are begun, and then as many as were taken."""

    async def scene():
        shelf, limits = Shelf(), some_limits(in_flight_size_max=4 * MIB, fetch_size_max=MIB)
        async with (
            a_listener(shelf, limits) as listener,
            await a_peer(listener, receive_size=4096) as peer,
        ):
            traffic = listener.traffic
            await _ask_for_many(peer, a_fetch(64 * MIB), 50)
            await until(lambda: len(shelf.open) == 4)
            await asyncio.sleep(0.05)
            assert (shelf.seen, traffic.in_flight_size) == (4, 4 * MIB)
            for _ in range(100):
                shelf.answer_all()
                await asyncio.sleep(0.002)
            assert shelf.seen < 20  # what the system's own buffers took, and the room
            assert 0 < traffic.in_flight_size <= 4 * MIB
            for _ in range(50):
                frame = asyncio.ensure_future(peer.receive_frame())
                while not frame.done():
                    shelf.answer_all()
                    await asyncio.sleep(0)
                assert len((await frame).body) == MIB
            await until(lambda: traffic.in_flight_size == 0)
            assert traffic.in_flight == 0

    run(scene(), loop)


@pytest.mark.parametrize("fetch", [a_fetch(MIB), A_FILE_FETCH], ids=["rows", "file"])
def test_fetches_that_fill_the_node_make_it_busy(fetch):
    async def scene():
        shelf, limits = Shelf(), some_limits(queue_size_max=4 * MIB)
        async with (
            a_listener(shelf, limits) as listener,
            await a_peer(listener) as one,
            await a_peer(listener) as two,
        ):
            await _ask_for_many(one, fetch, 4)
            await until(lambda: len(shelf.open) == 4)
            assert (await two.ask(fetch)).code == "Busy"
            assert (await two.ask(an_append(), 8, [b"rows"])).code == "Busy"
            shelf.answer_all()
            for _ in range(4):
                assert type((await one.receive())[1]) is FetchReply
            await two.send(fetch, 9)
            await until(lambda: len(shelf.open) == 1)
            shelf.answer_all()
            assert type((await two.receive())[1]) is FetchReply

    run(scene())


def test_the_largest_fetch_fits_into_a_small_node():
    async def scene():
        limits = some_limits(queue_size_max=1000, in_flight_size_max=1000)
        async with a_listener(Ledger(), limits) as listener, await a_peer(listener) as peer:
            for size in (0, 5000):
                await peer.send(a_fetch(size), 1)
                assert len((await peer.receive_frame()).body) == size

    run(scene())


@pytest.mark.parametrize("size_max", [-5, 0, 1])
def test_an_answer_may_be_larger_than_asked_but_not_than_the_room(size_max):
    """Rows that lie together come together: who asks for one byte may be given 3 MiB."""

    async def scene():
        shelf = Shelf(size=3 * MIB)
        limits = some_limits(queue_size_max=8 * MIB, in_flight_size_max=8 * MIB)
        async with (
            a_listener(shelf, limits) as listener,
            await a_peer(listener, receive_size=4096) as peer,
        ):
            await _ask_for_many(peer, a_fetch(size_max), 40)
            await until(lambda: len(shelf.open) == 40)
            shelf.answer_all()
            assert listener.traffic.in_flight_size == 6 * MIB
            answers = [await peer.receive_frame() for _ in range(40)]
            assert sum(len(frame.body) for frame in answers) == 6 * MIB
            assert listener.traffic.refused == {"Busy": 38}
            await until(lambda: listener.traffic.in_flight_size == 0)

    run(scene())


def test_those_who_wait_for_rows_keep_nobody_out_and_count_when_rows_come():
    async def scene():
        shelf = Shelf()
        limits = some_limits(queue_size_max=8 * MIB, in_flight_size_max=8 * MIB)
        async with (
            a_listener(shelf, limits) as listener,
            await a_peer(listener, receive_size=4096) as waiting,
            await a_peer(listener) as good,
        ):
            await _ask_for_many(waiting, _a_waiting_fetch(4 * MIB), 100)
            await until(lambda: len(shelf.open) == 100)
            await good.send(an_append(), 1, [bytes(MIB)])
            await until(lambda: len(shelf.open) == 101)
            del shelf.open[100]
            shelf.answer_all()
            assert listener.traffic.in_flight_size == 8 * MIB
            answers = [await waiting.receive_frame() for _ in range(100)]
            assert sum(len(frame.body) for frame in answers) == 7 * MIB

    run(scene())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_peer_that_leaves_takes_nothing_of_the_room_along(loop):
    """Answers that are made, written and to come, and half a body: all are let go."""

    async def scene():
        shelf, limits = Shelf(), some_limits(in_flight_size_max=64 * MIB)
        async with a_listener(shelf, limits) as listener:
            traffic = listener.traffic
            async with await a_peer(listener, receive_size=4096) as peer:
                await _ask_for_many(peer, a_fetch(MIB), 30)
                await until(lambda: len(shelf.open) == 30)
                body = to_bytes(an_append(), 99, [bytes(3 * MIB)])
                await peer.send_bytes(body[: 2 * MIB])
                await until(lambda: traffic.arriving_size == 3 * MIB)
                for _ in range(20):
                    shelf.answer()
                await asyncio.sleep(0.05)
                assert traffic.held_size > 12 * MIB
                assert traffic.bytes_out < 10 * MIB  # others are made, but not written
            await until(lambda: traffic.connections_open == 0)
            assert traffic.held_size == 10 * MIB
            shelf.answer_all()
            assert (traffic.in_flight, traffic.held_size) == (0, 0)
            assert not traffic.queue

    run(scene(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_bodies_that_are_never_whole_hold_no_more_than_the_room(loop):
    """30 peers send all but a little of 8 MiB; small requests go on, and a large one too.

    Their buffers have 1, 4 and 8 MiB; one of them more than there is room for.
    """

    async def scene():
        limits = some_limits(queue_size_max=16 * MIB, stall_timeout=3.0)
        async with a_listener(Ledger(), limits) as listener, await a_peer(listener) as good:
            traffic, data = listener.traffic, to_bytes(an_append(), 1, [bytes(8 * MIB)])
            part = memoryview(data)[: 7 * MIB]
            peers = [await a_peer(listener) for _ in range(30)]
            tracemalloc.start()
            sending = [asyncio.ensure_future(peer.send_bytes(part)) for peer in peers]
            await until(lambda: traffic.overdrawn_by is not None)
            await asyncio.sleep(0.3)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < (16 + 8 + 30 * 1.5) * MIB  # a MiB each before there is room
            assert 12 * MIB < traffic.arriving_size <= (16 + 8) * MIB
            assert len(traffic.queue) >= 26
            # Their room is taken, and small requests have room of their own.
            assert type(await good.ask(an_append(), 2, [bytes(1000)])) is AppendResult
            for task in sending:
                task.cancel()
            for peer in peers:
                peer.sock.close()
            assert type(await good.ask(an_append(), 3, [bytes(8 * MIB)])) is AppendResult
            await until(lambda: traffic.connections_open == 1)
            assert traffic.held_size == 0
            for task in sending:
                with suppress(asyncio.CancelledError, OSError):
                    await task

    run(scene(), loop)


def test_who_stops_within_a_large_body_is_cut_off_and_the_next_comes_in():
    async def scene():
        limits = some_limits(queue_size_max=4 * MIB, stall_timeout=0.5)
        async with a_listener(Ledger(), limits) as listener, await a_peer(listener) as good:
            data = to_bytes(an_append(), 1, [bytes(4 * MIB)])
            peers = [await a_peer(listener) for _ in range(3)]
            for peer in peers:
                await peer.send_bytes(data[: 2 * MIB])
            await until(lambda: len(listener.traffic.queue) == 1)
            assert type(await good.ask(an_append(), 2, [bytes(4 * MIB)])) is AppendResult
            await until(lambda: listener.traffic.connections_open == 1)
            assert listener.traffic.cut_offs == {"stalled": 3}
            assert (listener.traffic.held_size, listener.traffic.overdrawn_by) == (0, None)
            for peer in peers:
                peer.sock.close()

    run(scene())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_promise_holds_nothing(loop):
    """Peers that promise more than all the room, and send next to none of it."""

    async def scene():
        limits = some_limits(queue_size_max=8 * MIB, stall_timeout=30.0)
        async with a_listener(Ledger(), limits) as listener, await a_peer(listener) as good:
            data = to_bytes(an_append(), 1, [bytes(60 * MIB)])
            peers = [await a_peer(listener) for _ in range(20)]
            for peer in peers:
                await peer.send_bytes(data[: MIB // 2])
            await until(lambda: listener.traffic.bytes_in > 10 * MIB)
            assert (listener.traffic.arriving_size, len(listener.traffic.queue)) == (0, 0)
            for number in range(2, 6):
                assert (
                    type(await good.ask(an_append(), number, [bytes(6 * MIB)])) is AppendResult
                )
            assert listener.traffic.pauses == 0
            for peer in peers:
                peer.sock.close()

    run(scene(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_many_large_bodies_through_a_small_room_all_come_through(loop):
    async def scene():
        limits, most = some_limits(queue_size_max=6 * MIB), 0
        async with a_listener(Ledger(), limits) as listener:
            traffic = listener.traffic
            peers = [await a_peer(listener) for _ in range(8)]

            async def append(peer: Peer) -> None:
                nonlocal most
                for number in range(1, 5):
                    await peer.send(an_append(), number, [bytes(2 * MIB + number)])
                    most = max(most, traffic.held_size)
                for number in range(1, 5):
                    request_id, answer = await peer.receive()
                    assert (request_id, type(answer)) == (number, AppendResult)

            await asyncio.gather(*map(append, peers))
            assert 0 < most <= (6 + 2) * MIB + 8
            assert (traffic.held_size, traffic.refused) == (0, {})
            for peer in peers:
                peer.sock.close()

    run(scene(), loop)


def test_two_listeners_share_the_room_for_bodies():
    async def scene():
        limits, traffic = some_limits(queue_size_max=4 * MIB), Traffic()
        data = to_bytes(an_append(), 1, [bytes(3 * MIB)])
        async with (
            a_listener(Ledger(), limits, traffic=traffic) as first,
            a_listener(Ledger(), limits, traffic=traffic) as second,
        ):
            async with await a_peer(first) as one, await a_peer(second) as two:
                await one.send_bytes(data[: 2 * MIB])
                await until(lambda: traffic.arriving_size == 3 * MIB)
                await two.send_bytes(data[: 2 * MIB])
                await until(lambda: traffic.arriving_size == 6 * MIB)
                assert traffic.overdrawn_by is not None  # by the second
                async with await a_peer(first) as three:
                    await three.send_bytes(data[: 2 * MIB])
                    await until(lambda: len(traffic.queue) == 1)
                    await one.send_bytes(data[2 * MIB :])
                    assert type((await one.receive())[1]) is AppendResult
                    await two.send_bytes(data[2 * MIB :])
                    assert type((await two.receive())[1]) is AppendResult
                    await three.send_bytes(data[2 * MIB :])
                    assert type((await three.receive())[1]) is AppendResult
            await until(lambda: traffic.connections_open == 0)

    run(scene())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_peer_that_has_said_everything_holds_no_room_for_what_it_did_not(loop):
    """It half-closes within a large body, while an earlier question waits for its answer."""

    async def scene():
        shelf, limits = Shelf(), some_limits(queue_size_max=8 * MIB)
        async with a_listener(shelf, limits) as listener, await a_peer(listener) as peer:
            traffic = listener.traffic
            await peer.send(_a_waiting_fetch(MIB), 1)
            await peer.send_bytes(to_bytes(an_append(), 2, [bytes(4 * MIB)])[: 2 * MIB])
            await until(lambda: traffic.arriving_size == 4 * MIB)
            peer.sock.shutdown(socket.SHUT_WR)
            await until(lambda: traffic.arriving_size == 0)
            shelf.answer_all()
            assert (await peer.receive())[0] == 1

    run(scene(), loop)


def test_a_request_has_a_small_meta():
    async def scene():
        async with a_listener(Ledger()) as listener, await a_peer(listener) as peer:
            header = bytearray(to_bytes(Ping(), 1)[:HEADER_SIZE])
            struct.pack_into("<I", header, 20, MIB + 1)
            await peer.send_bytes(bytes(header))
            ((_, failed),) = await peer.until_end()
            assert failed.code == "BadFrame"
            assert str(MIB) in failed.message

    run(scene())
