"""Connections, against a tiny node on a real socket that does what it is told."""

import asyncio
import time

import pytest
from tests.client.frame_server import TinyNode, listening

from headrace.client.connect import client_connection
from headrace.client.connect.remote import RemoteChannel
from headrace.client.connect.retry import Caller
from headrace.errors import (
    BadRequest,
    Busy,
    ConnectionLost,
    Refused,
    TimedOut,
    Unauthorized,
    Unknown,
    VersionUnknown,
)
from headrace.model.ids import KEEP_NEXT
from headrace.wire.address import Address, parse_addresses
from headrace.wire.erase_messages import EraseDeleted
from headrace.wire.file_messages import GetFileDigests
from headrace.wire.frames import encode_frame
from headrace.wire.greeting import ErrorReply, Hello, Ping, Pong
from headrace.wire.lease_messages import ReleaseLease
from headrace.wire.read_messages import StoreCursorRequest
from headrace.wire.topic_messages import CreateStreamRequest, ListTopics, Topics

TOPICS = Topics(("default/a",), ("default",))


def a_channel(address, token=None):
    return RemoteChannel(address, token, "test")


def answering(peer, frame, message):
    peer.say(TOPICS if isinstance(message, ListTopics) else Pong(), frame.id)


async def test_answers_find_their_questions_in_any_order():
    held = []

    def backwards(peer, frame, message):
        held.append(frame)
        if len(held) == 3:
            for each in reversed(held):
                peer.say(Topics((str(each.id),), ()), each.id)

    async with listening(TinyNode(backwards)) as address:
        channel = a_channel(address)
        calls = [channel.call(ListTopics(), timeout=5) for _ in range(3)]
        replies = [reply.topics for reply, _ in await asyncio.gather(*calls)]
        assert replies == [(str(frame.id),) for frame in held]
        await channel.close()


async def test_bodies_go_and_come_whole():
    def echo(peer, frame, message):
        peer.say(Pong(), frame.id, (frame.body,))

    async with listening(TinyNode(echo)) as address:
        channel = a_channel(address)
        parts = [memoryview(bytes([n]) * (n * 100_000)) for n in range(1, 6)]
        _, body = await channel.call(Ping(), parts, timeout=5)
        assert bytes(body) == b"".join(parts)
        await channel.close()


async def test_the_token_is_proven_both_ways_and_never_sent():
    node = TinyNode(answering, token=b"sesame")
    async with listening(node) as address:
        channel = a_channel(address, "sesame")
        assert (await channel.call(ListTopics(), timeout=5))[0] == TOPICS
        assert not any("sesame" in repr(each) for each in node.heard)
        await channel.close()


@pytest.mark.parametrize(
    ("has", "gives", "knows", "words"),
    [
        (b"sesame", "wrong", True, "not this node's"),
        (b"sesame", None, True, "requires a token"),
        (None, "sesame", True, "does not ask for a token"),
        (b"sesame", "sesame", False, "does not know the token"),
    ],
)
async def test_a_token_that_does_not_match_ends_at_once(has, gives, knows, words):
    node = TinyNode(answering, token=has)
    node.knows_token = knows
    async with listening(node) as address:
        channel = a_channel(address, gives)
        before = time.monotonic()
        with pytest.raises(Unauthorized, match=words):
            await channel.call(ListTopics(), timeout=5)
        assert time.monotonic() - before < 2
        assert not any(isinstance(each, ListTopics) for each in node.heard)


async def test_another_version_of_the_protocol_ends_at_once():
    async with listening(TinyNode(answering, version=99)) as address:
        with pytest.raises(VersionUnknown, match="99"):
            await a_channel(address).call(ListTopics(), timeout=5)


@pytest.mark.parametrize(
    ("version", "request_", "what"),
    [
        (1, ReleaseLease(bytes(16)), "leases; version 2 does"),
        (3, GetFileDigests(bytes(16)), "fetching files; version 4 does"),
        (2, EraseDeleted(0), "erasing; version 3 does"),
        (
            2,
            StoreCursorRequest(1, 1, "billing", KEEP_NEXT, 5, hold=False),
            "consumer takeover; version 3 does",
        ),
    ],
)
async def test_an_older_node_is_spoken_to_and_not_asked_for_more(version, request_, what):
    node = TinyNode(answering, token=b"sesame", version=version)
    async with listening(node) as address:
        channel = a_channel(address, "sesame")
        assert isinstance((await channel.call(ListTopics(), timeout=5))[0], Topics)
        said = f"protocol version {version}, which does not support {what}"
        with pytest.raises(VersionUnknown, match=said):
            await channel.call(request_, timeout=5)
        assert request_ not in node.heard


async def test_a_lost_connection_tells_what_may_have_happened():
    def hang_up(peer, frame, message):
        if isinstance(message, CreateStreamRequest):
            peer.transport.abort()

    async with listening(TinyNode(hang_up)) as address:
        channel = a_channel(address)
        looking = asyncio.create_task(channel.call(ListTopics(), timeout=5))
        await asyncio.sleep(0.05)
        with pytest.raises(Unknown, match="may have taken effect"):
            await channel.call(CreateStreamRequest("shop"), timeout=5)
        with pytest.raises(ConnectionLost):
            await looking
        await channel.close()


async def test_nothing_is_written_to_a_connection_that_is_gone(caplog):
    async with listening(TinyNode(answering)) as address:
        channel = a_channel(address)
        await channel.call(ListTopics(), timeout=5)
        link = channel._connection
        link._transport.abort()  # `connection_lost` is called in the loop's next turn
        for _ in range(10):
            with pytest.raises(ConnectionLost, match=f"to {address} was lost"):
                link.call(CreateStreamRequest("shop"), timeout=5).send(None)
        await channel.close()
    assert not caplog.records  # asyncio warns of whoever goes on writing


async def test_an_answer_that_does_not_come_in_time_tells_what_may_have_happened():
    async with listening(TinyNode()) as address:
        channel = a_channel(address)
        with pytest.raises(TimedOut):
            await channel.call(ListTopics(), timeout=0.1)
        with pytest.raises(Unknown):
            await channel.call(CreateStreamRequest("shop"), timeout=0.1)
        await channel.close()


async def test_a_refusal_is_the_error_it_names():
    def busy(peer, frame, message):
        peer.say(ErrorReply("Busy", "full", "Come again", (("what", "full"),), 250), frame.id)

    async with listening(TinyNode(busy)) as address:
        channel = a_channel(address)
        with pytest.raises(Busy, match="full") as caught:
            await channel.call(ListTopics(), timeout=5)
        assert caught.value.retry_after_ms == 250
        await channel.close()


async def test_no_more_requests_are_open_than_the_node_allows():
    open_now, most = set(), []

    def slow(peer, frame, message):
        open_now.add(frame.id)
        most.append(len(open_now))

        def answer():
            open_now.discard(frame.id)
            peer.say(TOPICS, frame.id)

        asyncio.get_running_loop().call_later(0.005, answer)

    async with listening(TinyNode(slow, in_flight_max=3)) as address:
        channel = a_channel(address)
        calls = [channel.call(ListTopics(), timeout=5) for _ in range(20)]
        replies = await asyncio.gather(*calls)
        assert [reply for reply, _ in replies] == [TOPICS] * 20
        assert max(most) == 3
        await channel.close()


async def test_a_call_given_up_counts_as_open_until_it_is_answered():
    held, second = [], asyncio.Event()

    def hold(peer, frame, message):
        held.append((peer, frame.id))
        if len(held) == 2:
            second.set()

    async with listening(TinyNode(hold, in_flight_max=1)) as address:
        channel = a_channel(address)
        with pytest.raises(TimedOut):
            await channel.call(ListTopics(), timeout=0.1)
        with pytest.raises(TimedOut, match="busy"):
            await channel.call(ListTopics(), timeout=0.1)
        peer, request_id = held[0]
        peer.say(TOPICS, request_id)
        waiting = asyncio.create_task(channel.call(ListTopics(), timeout=5))
        async with asyncio.timeout(5):
            await second.wait()
        held[1][0].say(TOPICS, held[1][1])
        assert (await waiting)[0] == TOPICS
        await channel.close()


async def test_a_channel_connects_again():
    node = TinyNode(answering)
    async with listening(node) as address:
        channel = a_channel(address)
        await channel.call(ListTopics(), timeout=5)
        node.peers[0].transport.abort()
        await asyncio.sleep(0.05)
        assert (await channel.call(ListTopics(), timeout=5))[0] == TOPICS
        assert len(node.peers) == 2
        await channel.close()


async def test_calls_that_were_begun_are_sent_in_their_order_and_told_once():
    node = TinyNode(answering, in_flight_max=2)
    told, over = [], asyncio.Event()
    async with listening(node) as address:
        channel = a_channel(address)
        deadline = asyncio.get_running_loop().time() + 5

        def begin(number):
            def done(answer):
                told.append((number, answer))
                if len(told) == 20:
                    over.set()
                elif number < 10:  # these find a connection; some of the first do not yet
                    begin(number + 10)

            channel.begin(CreateStreamRequest(f"s{number}"), (), deadline=deadline, done=done)
            begun.append(f"s{number}")

        begun = []
        for number in range(10):
            begin(number)
        await asyncio.wait_for(over.wait(), 5)
        await channel.close()
    assert [each.name for each in node.heard[1:]] == begun
    assert sorted(number for number, _ in told) == list(range(20))
    assert {type(answer) for _, answer in told} == {Pong}


async def test_a_call_that_was_begun_tells_what_may_have_happened():
    def hang_up(peer, frame, message):
        if message.name == "cut":
            peer.transport.abort()
        elif message.name == "late":
            asyncio.get_running_loop().call_later(0.3, peer.say, Pong(), frame.id)

    async with listening(TinyNode(hang_up)) as address:
        channel = a_channel(address)
        await channel.connect(asyncio.get_running_loop().time() + 5)
        loop, told = asyncio.get_running_loop(), []

        def begin(name, timeout):
            return channel.begin(
                CreateStreamRequest(name), (), deadline=loop.time() + timeout, done=told.append
            )

        begin("late", 0.1)
        begin("over", -1)
        begin("given up", 0.2)()
        assert told == []  # never before it has returned
        await asyncio.sleep(0.5)
        assert [type(each) for each in told] == [TimedOut, Unknown]
        begin("cut", 5)
        await asyncio.sleep(0.2)
        assert type(told[2]) is Unknown
        assert len(told) == 3
        await channel.close()


async def test_a_node_of_another_cluster_is_refused_at_once_and_asked_nothing():
    node = TinyNode(answering, token=b"sesame")
    async with listening(node) as address:
        channel = a_channel(address, "sesame")
        await channel.call(ListTopics(), timeout=5)
    other = TinyNode(answering, token=b"sesame")
    other.cluster = b"d" * 16
    async with listening(other, int(address.split(":")[1])):
        await asyncio.sleep(0.05)
        for _ in range(2):
            before = time.monotonic()
            with pytest.raises(Refused, match="cluster") as told:
                await Caller(channel, 5.0).get(ListTopics(), Topics)
            assert told.value.code == "another_cluster"
            assert told.value.hint == "Connect again"
            assert time.monotonic() - before < 2
        assert {type(each) for each in other.heard} == {Hello}
        other.cluster = node.cluster  # the right one is back
        assert (await channel.call(ListTopics(), timeout=5))[0] == TOPICS
        await channel.close()


async def test_a_channel_waits_for_a_node_that_starts_late():
    async with listening(TinyNode()) as address:
        pass  # a port that nobody listens on now
    port = int(address.split(":")[1])
    channel = a_channel(address)
    asking = asyncio.create_task(channel.call(ListTopics(), timeout=10))
    await asyncio.sleep(0.2)
    async with listening(TinyNode(answering), port):
        assert (await asking)[0] == TOPICS
        await channel.close()


async def test_the_second_address_serves_if_the_first_is_silent():
    async with listening(TinyNode()) as nobody:
        pass
    async with listening(TinyNode(answering)) as address:
        channel = a_channel(f"{nobody},{address}")
        assert (await channel.call(ListTopics(), timeout=5))[0] == TOPICS
        await channel.close()


async def test_connecting_ends_at_the_deadline_and_names_the_address():
    async with listening(TinyNode()) as address:
        pass
    before = time.monotonic()
    with pytest.raises(ConnectionLost, match=address):
        await a_channel(address).call(ListTopics(), timeout=0.3)
    assert time.monotonic() - before < 1


@pytest.mark.parametrize(
    "noise",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes(encode_frame(Pong(), 999)[0]),  # an answer to nothing
        bytes(encode_frame(Hello(1, 1, "", b""), 2)[0]),  # no answer at all
    ],
)
async def test_what_is_not_the_protocol_ends_the_connection_not_the_client(noise):
    async with listening(
        TinyNode(lambda peer, frame, _: peer.transport.write(noise))
    ) as address:
        channel = a_channel(address)
        with pytest.raises((ConnectionLost, client_connection.BadFrame)):
            await channel.call(ListTopics(), timeout=2)
        await channel.close()


async def test_a_body_that_changed_on_its_way_is_not_taken():
    def flipped(peer, frame, message):
        head, _ = encode_frame(Pong(), frame.id, (b"rows",))
        peer.transport.write(bytes(head) + b"Rows")

    async with listening(TinyNode(flipped)) as address:
        channel = a_channel(address)
        with pytest.raises(ConnectionLost, match="CRC"):
            await channel.call(Ping(), timeout=2)
        await channel.close()


async def test_a_node_that_falls_silent_is_pinged_and_then_given_up(monkeypatch):
    monkeypatch.setattr(client_connection, "PING_AFTER", 0.05)
    monkeypatch.setattr(client_connection, "SILENCE_MAX", 0.3)
    node = TinyNode()
    async with listening(node) as address:
        channel = a_channel(address)
        with pytest.raises(Unknown, match="sent nothing"):
            await channel.call(CreateStreamRequest("shop"), timeout=5)
        assert any(isinstance(each, Ping) for each in node.heard)
        await channel.close()


async def test_a_slow_node_that_answers_pings_is_waited_for(monkeypatch):
    monkeypatch.setattr(client_connection, "PING_AFTER", 0.05)
    monkeypatch.setattr(client_connection, "SILENCE_MAX", 0.3)

    def slow(peer, frame, message):
        wait = 0 if isinstance(message, Ping) else 0.8
        answer = Pong() if isinstance(message, Ping) else TOPICS
        asyncio.get_running_loop().call_later(wait, peer.say, answer, frame.id)

    async with listening(TinyNode(slow)) as address:
        channel = a_channel(address)
        assert (await channel.call(ListTopics(), timeout=5))[0] == TOPICS
        await channel.close()


async def test_a_closed_channel_says_so():
    async with listening(TinyNode(answering)) as address:
        channel = a_channel(address)
        await channel.call(ListTopics(), timeout=5)
        await channel.close()
        with pytest.raises(ConnectionLost, match="closed"):
            await channel.call(ListTopics(), timeout=5)


def test_addresses_are_read():
    assert parse_addresses("a:1, [::1]:2,unix:/tmp/x") == (
        Address("a", 1),
        Address("::1", 2),
        Address("", 0, "/tmp/x"),
    )
    assert [str(each) for each in parse_addresses("a:1,[::1]:2,unix:/x")] == [
        *("a:1", "[::1]:2", "unix:/x"),
    ]


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:x", "host:70000", "a:1,", "unix:"]
)
def test_what_is_no_address_is_told(text):
    with pytest.raises(BadRequest):
        parse_addresses(text)
