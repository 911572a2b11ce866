"""What one connection makes of any bytes, and of more requests than it may have open."""

import asyncio
import random
import struct
import tracemalloc
from zlib import crc32

import pytest
from tests.server.builders import (
    LOOPS,
    Desk,
    Ledger,
    PretendTransport,
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

from headrace.model.results import AppendResult
from headrace.server.connections.traffic import Traffic
from headrace.wire.frames import HEADER_SIZE, MAGIC
from headrace.wire.greeting import Ping, Pong, Welcome
from headrace.wire.messages import Message

MIB = 1024 * 1024
_META_SIZE_AT, _BODY_SIZE_AT = 20, 24  # where a header has its sizes


def test_bytes_may_come_cut_anywhere():
    async def scene():
        ledger = Ledger()
        said = to_bytes(a_hello(), 1)
        asked = to_bytes(an_append(), 2, [b"some rows of a batch"]) + to_bytes(Ping(), 3)
        count = max(len(said), len(asked)) + 1
        async with a_listener(ledger) as listener:
            for cut in range(count):
                transport = PretendTransport(listener.connect())
                for part in (said[:cut], said[cut:], asked[:cut], asked[cut:]):
                    transport.feed(part)
                    await asyncio.sleep(0)
                answers = transport.answers()
                assert [request_id for request_id, _ in answers] == [1, 2, 3]
                assert type(answers[0][1]) is Welcome
                assert type(answers[1][1]) is AppendResult
                transport.abort()
            assert ledger.bodies == [b"some rows of a batch"] * count
            assert listener.traffic.cut_offs == {}

    run(scene())


@pytest.mark.parametrize("loop", LOOPS)
def test_bytes_may_come_one_by_one(loop):
    async def scene():
        ledger = Ledger()
        async with a_listener(ledger) as listener, await a_peer(listener) as peer:
            for byte in to_bytes(an_append(), 2, [b"rows"]):
                await peer.send_bytes(bytes((byte,)))
                await asyncio.sleep(0)
            assert await peer.receive() == (2, AppendResult(0, 1, False))
            assert ledger.bodies == [b"rows"]

    run(scene(), loop)


def _with_size(data: bytes, place: int, size: int) -> bytes:
    return data[:place] + struct.pack("<I", size) + data[place + 4 :]


@pytest.mark.parametrize("place", [_META_SIZE_AT, _BODY_SIZE_AT])
@pytest.mark.parametrize("is_greeted", [True, False])
def test_a_size_that_is_only_declared_costs_no_memory(place, is_greeted):
    """100 peers declare 4 GiB each; strangers get no reason, others one, and all are ended."""

    async def scene():
        async with a_listener(Ledger()) as listener:
            peers = [await a_stranger(listener) for _ in range(100)]
            for peer in peers if is_greeted else ():
                await peer.greet()
            header = _with_size(to_bytes(an_append(), 2, [b"rows"]), place, 2**32 - 1)
            tracemalloc.start()
            for peer in peers:
                await peer.send_bytes(header[:HEADER_SIZE])
            for peer in peers:
                codes = [failed.code for _, failed in await peer.until_end()]
                assert codes == (["BadFrame"] if is_greeted else [])
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 16 * MIB
            assert listener.traffic.cut_offs == {"bad_frame": 100}
            for peer in peers:
                peer.sock.close()

    run(scene())


def test_a_stranger_cannot_make_the_node_hold_a_body():
    async def scene():
        async with a_listener(Ledger()) as listener, await a_stranger(listener) as peer:
            await peer.send_bytes(to_bytes(an_append(), 1, [bytes(MIB)])[:HEADER_SIZE])
            assert await peer.until_end() == []
            assert listener.traffic.cut_offs == {"bad_frame": 1}

    run(scene())


@pytest.mark.parametrize("loop", LOOPS)
def test_who_sends_too_large_a_body_reads_why_instead_of_a_reset(loop):
    async def scene():
        limits = some_limits(body_size_max=MIB)
        async with a_listener(Ledger(), limits) as listener, await a_peer(listener) as peer:
            assert peer.welcome.body_size_max == MIB
            await peer.send(an_append(), 2, [bytes(16 * MIB)])  # all of it can be sent
            ((request_id, failed),) = await peer.until_end()
            assert (request_id, failed.code) == (0, "BadFrame")
            assert str(MIB) in failed.message

    run(scene(), loop)


def test_a_body_is_compared_with_its_crc_unless_it_brings_a_checksum_for_the_node():
    async def scene():
        ledger = Ledger()
        async with a_listener(ledger) as listener:
            own = to_bytes(an_append(checksum=b"x" * 16), 2, [b"rows"])
            async with await a_peer(listener) as peer:
                await peer.send_bytes(own[:-1] + b"?")
                assert await peer.receive() == (2, AppendResult(0, 1, False))
            assert ledger.bodies == [b"row?"]
            unsure = (an_append(), an_append(checksum=b"x" * 15), Ping())
            for message in unsure:
                async with await a_peer(listener) as peer:
                    await peer.send_bytes(to_bytes(message, 3, [b"rows"])[:-1] + b"?")
                    ((request_id, failed),) = await peer.until_end()
                    assert (request_id, failed.code) == (3, "BadFrame")
            assert ledger.bodies == [b"row?"]
            assert listener.traffic.cut_offs == {"bad_body": len(unsure)}

    run(scene())


def test_an_error_in_one_request_leaves_those_before_it_their_answers():
    async def scene():
        desk = Desk()
        async with a_listener(desk) as listener, await a_peer(listener) as peer:
            await peer.send(an_append(version=8), 8, [b"rows"])
            await until(lambda: len(desk.open) == 1)
            await peer.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
            request_id, failed = await peer.receive()
            assert (request_id, failed.code) == (0, "BadFrame")
            desk.answer_all()
            assert await peer.until_end() == [(8, AppendResult(8, 9, False))]

    run(scene())


def test_garbage_ends_its_connection_and_nothing_else():
    """100,000 strangers say random bytes; the service sees none, and a good peer stays."""
    count, chance = 100_000, random.Random(4)

    async def scene():
        ledger = Ledger()
        async with a_listener(ledger) as listener, await a_peer(listener) as good:
            still_waiting = 0
            for number in range(count):
                data = chance.randbytes(chance.randint(1, 64))
                if number % 4 == 0:
                    data = b"HRW1"[: chance.randint(1, 4)] + data
                transport = PretendTransport(listener.connect())
                transport.feed(data)
                if not transport.is_closing():
                    still_waiting += 1
                    transport.abort()
                assert not transport.said
                if number % 100 == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
            cut_offs = listener.traffic.cut_offs
            assert set(cut_offs) == {"bad_frame"}
            assert cut_offs["bad_frame"] + still_waiting == count
            assert cut_offs["bad_frame"] > count * 0.7
            assert ledger.requests == []
            assert await good.is_alive()

    run(scene())


def test_garbage_over_real_sockets_ends_its_connections():
    chance = random.Random(5)

    async def scene():
        async with a_listener(Ledger()) as listener, await a_peer(listener) as good:
            for number in range(300):
                greeted = number % 2
                peer = await (a_peer(listener) if greeted else a_stranger(listener))
                async with peer:
                    await peer.send_bytes(b"\0" + chance.randbytes(chance.randint(1, 2000)))
                    assert len(await peer.until_end()) == greeted
            assert listener.traffic.cut_offs == {"bad_frame": 300}
            assert await good.is_alive()

    run(scene())


def _a_talk() -> list[tuple[Message, list[bytes]]]:
    return [
        (an_append(version=1), [b"rows of one"]),
        (Ping(), []),
        (an_append(version=2), [b"rows of two"]),
        (a_fetch(10), []),
    ]


def test_a_changed_byte_never_reaches_the_service():
    """Every byte of a talk is changed in 24 ways; every change ends it or leaves it waiting."""
    chance = random.Random(6)
    talk = _a_talk()
    valid = b"".join(to_bytes(each, at, body) for at, (each, body) in enumerate(talk, start=2))
    honest = [message for message, _ in talk]

    async def scene():
        ended = waiting = 0
        async with a_listener(ledger := Ledger()) as listener:
            for place in range(len(valid)):
                for _ in range(24):
                    flip = chance.randint(1, 255)
                    data = bytearray(valid)
                    data[place] ^= flip
                    ledger.requests.clear()
                    ledger.bodies.clear()
                    transport = PretendTransport(listener.connect())
                    transport.feed(to_bytes(a_hello(), 1))
                    transport.feed(bytes(data))
                    await asyncio.sleep(0)
                    assert ledger.requests == honest[: len(ledger.requests)]
                    assert len(ledger.requests) < len(honest)
                    assert set(ledger.bodies) <= {b"rows of one", b"rows of two"}
                    ended += transport.has_ended
                    waiting += not transport.has_ended
                    transport.abort()
            counted = listener.traffic.cut_offs
            assert ended + waiting == 24 * len(valid)
            assert counted.total() == ended
            assert set(counted) == {"bad_frame", "bad_body"}
            assert min(counted.values()) > 100
            assert waiting > 0  # a frame that seems longer than it is

    run(scene())


def test_a_whole_frame_with_any_kind_and_meta_is_answered_or_ends_the_connection():
    """Frames with right checksums around random metas: the codec is what they reach."""
    chance = random.Random(7)

    def a_frame(kind: int, meta: bytes) -> bytes:
        head = struct.pack("<4sHHQIIIII", MAGIC, kind, 0, 9, 0, len(meta), 0, 0, 0)
        return head + struct.pack("<I", crc32(meta, crc32(head))) + meta

    async def scene():
        answered = ended = 0
        async with a_listener(Ledger()) as listener:
            for _ in range(10_000):
                meta = bytearray(to_bytes(an_append(), 1)[HEADER_SIZE:])
                for _ in range(chance.randint(0, 3)):
                    meta[chance.randrange(len(meta))] = chance.randrange(256)
                kind = chance.choice((1, 3, 6, 8, 16, 18, 48, 48, 48, 50, 72, 80, 999))
                transport = PretendTransport(listener.connect())
                transport.feed(to_bytes(a_hello(), 1) + a_frame(kind, bytes(meta)))
                await asyncio.sleep(0)
                assert [each for each, _ in transport.answers()] == [1, 9]
                ended += transport.has_ended
                answered += not transport.has_ended
                transport.abort()
            assert listener.traffic.cut_offs == {"bad_message": ended}
            assert min(answered, ended) > 1000

    run(scene())


@pytest.mark.parametrize("loop", LOOPS)
def test_no_more_requests_are_open_than_may_be_and_none_is_lost(loop):
    async def scene():
        desk = Desk()
        limits = some_limits(in_flight_max=8)
        async with a_listener(desk, limits) as listener, await a_peer(listener) as peer:
            assert peer.welcome.in_flight_max == 8
            for request_id in range(100):
                await peer.send(an_append(version=request_id), request_id, [b"rows"])
            await until(lambda: len(desk.open) == 8)
            await asyncio.sleep(0.05)
            assert (desk.seen, listener.traffic.pauses) == (8, 1)
            for _ in range(3):
                desk.answer()
            await asyncio.sleep(0.05)
            assert desk.seen == 8  # five are open: more than half
            desk.answer()
            await until(lambda: desk.seen == 12)
            most = 0
            while desk.seen < 100 or desk.open:
                most = max(most, len(desk.open))
                desk.answer_all()
                await asyncio.sleep(0)
            assert most == 8
            answers = [await peer.receive() for _ in range(100)]
            assert answers == [(n, AppendResult(n, n + 1, False)) for n in range(100)]

    run(scene(), loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_no_more_bytes_are_open_than_may_be(loop):
    async def scene():
        desk = Desk()
        limits = some_limits(in_flight_size_max=4 * MIB)
        async with a_listener(desk, limits) as listener, await a_peer(listener) as peer:

            async def send_all():
                for request_id in range(20):
                    await peer.send(an_append(version=request_id), request_id, [bytes(MIB)])

            sending = asyncio.ensure_future(send_all())
            await until(lambda: len(desk.open) == 4)
            await asyncio.sleep(0.05)
            assert listener.traffic.in_flight_size == 4 * MIB
            most = 0
            while desk.seen < 20 or desk.open:
                most = max(most, listener.traffic.in_flight_size)
                if desk.open:
                    desk.answer()
                await asyncio.sleep(0.001)
            assert most == 4 * MIB
            await sending
            assert [(await peer.receive())[0] for _ in range(20)] == list(range(20))
            assert listener.traffic.in_flight_size == 0

    run(scene(), loop)


def test_a_body_larger_than_the_room_still_comes_alone():
    async def scene():
        limits = some_limits(in_flight_size_max=1000)
        async with a_listener(Ledger(), limits) as listener, await a_peer(listener) as peer:
            for _ in range(3):
                assert type(await peer.ask(an_append(), body=[bytes(5000)])) is AppendResult

    run(scene())


def test_a_full_node_tells_every_connection_when_to_come_again():
    async def scene():
        desk, traffic = Desk(), Traffic()
        limits = some_limits(queue_size_max=1000, retry_after_ms=70)
        async with a_listener(desk, limits, traffic=traffic) as listener:
            async with await a_peer(listener) as one, await a_peer(listener) as two:
                await one.send(an_append(), 1, [bytes(600)])
                await until(lambda: len(desk.open) == 1)
                busy = await two.ask(an_append(), 2, [bytes(600)])
                assert (busy.code, busy.retry_after_ms, desk.seen) == ("Busy", 70, 1)
                await two.send(Ping(), 3)  # has no body
                await until(lambda: len(desk.open) == 2)
                desk.answer_all()
                assert await one.receive() == (1, AppendResult(1, 2, False))
                assert await two.receive() == (3, Pong())
                await two.send(an_append(), 4, [bytes(600)])
                await until(lambda: len(desk.open) == 1)
                desk.answer_all()
                assert await two.receive() == (4, AppendResult(1, 2, False))
            assert traffic.refused == {"Busy": 1}
            assert traffic.in_flight_size == 0

    run(scene())


def test_answers_that_nobody_takes_yet_keep_more_from_being_made():
    """One write of 64 fetches of 1 MiB: they are not all made before the first is sent."""

    async def scene():
        ledger = Ledger()
        async with a_listener(ledger) as listener, await a_peer(listener) as peer:
            await peer.send_bytes(b"".join(to_bytes(a_fetch(MIB), n) for n in range(64)))
            await asyncio.sleep(0.1)
            assert len(ledger.requests) < 20
            for request_id in range(64):
                assert (await peer.receive())[0] == request_id
            assert listener.traffic.pauses > 0

    run(scene())
