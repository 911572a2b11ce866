"""Listeners on loopback, services in memory, and peers that may do anything."""

import asyncio
import socket
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from headrace.model.results import AppendResult
from headrace.server.connections.limits import PeerLimits
from headrace.server.connections.listener import Listener
from headrace.server.connections.service import Answer
from headrace.server.connections.tcp import bind_tcp, listen_tcp
from headrace.server.connections.traffic import Traffic
from headrace.wire.frames import Frame, FrameReader, decode_message, encode_frame
from headrace.wire.greeting import Accepted, Hello, Ping, Pong, TokenProof, Welcome
from headrace.wire.messages import Message, Request
from headrace.wire.msgpack import Buffer
from headrace.wire.read_messages import Fetch, FetchReply
from headrace.wire.token_proof import client_mac
from headrace.wire.write_messages import AppendRequest

CLUSTER = b"cluster-of-tests"
TOKEN = b"a token of the tests"
CLIENT_NONCE = b"client's nonce.."
PATIENCE = 20.0  # seconds until a test gives up waiting; a busy machine is no failure
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run(scene: Coroutine[Any, Any, None], loop: str = "uvloop") -> None:
    """Play a scene. What a failed one leaves open makes no other trouble."""
    runner = asyncio.Runner(loop_factory=LOOPS[loop])
    try:
        runner.run(asyncio.wait_for(scene, 10 * PATIENCE))
    except BaseException:
        # uvloop waits for ever for a server whose warning, that it is open, became an error.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runner.close()
        raise
    runner.close()


def some_limits(**changes) -> PeerLimits:
    """Defaults, but swept often, and patient enough for a busy machine."""
    return PeerLimits(**({"sweep_interval": 0.02, "handshake_timeout": PATIENCE} | changes))


@dataclass(slots=True)
class Ledger:
    """Keeps what is appended, and answers at once."""

    cluster: bytes = CLUSTER
    bodies: list[bytes] = field(default_factory=list)
    deadlines: list[float] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    row_count: int = 0

    def submit(self, request: Request, body: Buffer, deadline: float, answer: Answer) -> None:
        self.requests.append(request)
        self.deadlines.append(deadline)
        match request:
            case AppendRequest(row_count=row_count):
                self.bodies.append(bytes(body))
                start, self.row_count = self.row_count, self.row_count + row_count
                answer(AppendResult(start, self.row_count, repeated=False), ())
            case Fetch(size_max=size_max):
                answer(FetchReply(0, 0, 0, ()), [bytes(size_max)])
            case _:
                answer(Pong(), ())


@dataclass(slots=True)
class Desk:
    """Answers when it is told to, in any order."""

    cluster: bytes = CLUSTER
    open: list[tuple[Request, Answer]] = field(default_factory=list)
    seen: int = 0

    def submit(self, request: Request, body: Buffer, deadline: float, answer: Answer) -> None:
        self.seen += 1
        self.open.append((request, answer))

    def answer(self, place: int = 0) -> None:
        request, answer = self.open.pop(place)
        if isinstance(request, AppendRequest):
            answer(AppendResult(request.version, request.version + 1, repeated=False), ())
        else:
            answer(Pong(), ())

    def answer_all(self) -> None:
        while self.open:
            self.answer()


@asynccontextmanager
async def a_listener(
    service: Ledger | Desk | Any,
    limits: PeerLimits | None = None,
    token: bytes | None = None,
    traffic: Traffic | None = None,
) -> AsyncIterator[Listener]:
    port = await bind_tcp("127.0.0.1", 0)
    listener = await listen_tcp(
        service, port, limits or some_limits(), token, release="test", traffic=traffic
    )
    try:
        yield listener
    finally:
        await listener.close(0.5)
        assert listener.traffic.connections_open == 0


class Peer:
    """The other side, by hand. Whoever opens one closes it: use `async with`."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.welcome: Welcome | None = None
        self._reader = FrameReader()
        self._frames: list[Frame] = []

    async def __aenter__(self) -> "Peer":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.sock.close()

    async def send(
        self,
        message: Message,
        request_id: int,
        body: Sequence[Buffer] = (),
        deadline_ms: int = 0,
    ) -> None:
        await self.send_bytes(to_bytes(message, request_id, body, deadline_ms))

    async def send_bytes(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def receive_frame(self) -> Frame | None:
        """Return the next frame, or None at the end of the stream, however that came."""
        loop = asyncio.get_running_loop()
        while not self._frames:
            place = self._reader.get_buffer(-1)
            try:
                size = await asyncio.wait_for(loop.sock_recv_into(self.sock, place), PATIENCE)
            except ConnectionError:
                return None
            if not size:
                return None
            self._frames += self._reader.received(size)
        return self._frames.pop(0)

    async def receive(self) -> tuple[int, Message] | None:
        frame = await self.receive_frame()
        return None if frame is None else (frame.id, decode_message(frame))

    async def ask(
        self, message: Message, request_id: int = 7, body: Sequence[Buffer] = ()
    ) -> Message:
        await self.send(message, request_id, body)
        answer = await self.receive()
        assert answer is not None, "the stream ended"
        assert answer[0] == request_id
        return answer[1]

    async def greet(self, token: bytes | None = None) -> None:
        answer = await self.ask(a_hello())
        assert isinstance(answer, Welcome)
        self.welcome = answer
        if token is not None:
            mac = client_mac(token, CLIENT_NONCE, answer.nonce, version=answer.version)
            assert isinstance(await self.ask(TokenProof(mac)), Accepted)

    async def is_alive(self) -> bool:
        try:
            return await self.ask(Ping(), 99) == Pong()
        except (AssertionError, ConnectionError):
            return False

    async def until_end(self) -> list[tuple[int, Message]]:
        """Return everything that comes until the stream ends."""
        answers = []
        while (answer := await self.receive()) is not None:
            answers.append(answer)
        return answers


async def a_stranger(listener: Listener, receive_size: int = 0) -> Peer:
    """Connect, and say nothing yet."""
    if listener.address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX)
        address: Any = listener.address.removeprefix("unix:")
    else:
        sock = socket.socket(socket.AF_INET)
        host, _, port = listener.address.rpartition(":")
        address = (host, int(port))
    if receive_size:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_size)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)
    except OSError:
        sock.close()
        raise
    return Peer(sock)


async def a_peer(listener: Listener, token: bytes | None = None, receive_size: int = 0) -> Peer:
    """Connect and shake hands."""
    peer = await a_stranger(listener, receive_size)
    await peer.greet(token)
    return peer


async def until(claim: Callable[[], bool], what: str = "") -> None:
    for _ in range(int(PATIENCE / 0.005)):
        if claim():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"never came true: {what or claim}")


async def cost_of(act: Callable[[], Awaitable[object]], count: int, rounds: int) -> float:
    """Seconds of this process's time that `count` acts take, one after the other.

    It is the least of some rounds: what others on the machine add, they add to some of them.
    """
    costs = []
    for _ in range(rounds):
        busy = time.process_time()
        for _ in range(count):
            await act()
        costs.append(time.process_time() - busy)
    return min(costs)


def to_bytes(
    message: Message, request_id: int, body: Sequence[Buffer] = (), deadline_ms: int = 0
) -> bytes:
    return b"".join(encode_frame(message, request_id, body, deadline_ms))


def a_hello(version_min: int = 1, version_max: int = 1, nonce: bytes = CLIENT_NONCE) -> Hello:
    return Hello(version_min, version_max, "test", nonce)


def an_append(version: int = 1, row_count: int = 1, checksum: bytes = b"") -> AppendRequest:
    return AppendRequest(
        namespace=1,
        created=1,
        writer=b"w" * 16,
        version=version,
        schema_id=1,
        row_count=row_count,
        checksum=checksum,
    )


def a_fetch(size: int) -> Fetch:
    return Fetch(
        namespace=1,
        created=1,
        start=0,
        end=None,
        size_max=size,
        wait_ms=0,
        columns=None,
        version=1,
    )


def a_dead_socket_file(path: Path) -> None:
    """What a process leaves that was killed while it listened."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


class PretendTransport(asyncio.Transport):
    """A transport without a socket, for hostile input by the hundred thousand."""

    def __init__(self, protocol: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.said = bytearray()
        self.is_paused = False
        self.has_ended = False  # the end of the stream was written
        self.unsent_size = 0  # of what was written
        self._is_closing = False
        protocol.connection_made(self)

    def feed(self, data: bytes) -> None:
        """Let bytes arrive, in as many pieces as the protocol has places for."""
        while data and not self._is_closing:
            assert not self.is_paused
            place = memoryview(self.protocol.get_buffer(-1))
            size = min(len(place), len(data))
            place[:size] = data[:size]
            self.protocol.buffer_updated(size)
            data = data[size:]

    def answers(self) -> list[tuple[int, Message]]:
        reader, data, frames = FrameReader(), bytes(self.said), []
        while data:
            place = reader.get_buffer(-1)
            size = min(len(place), len(data))
            place[:size] = data[:size]
            frames += reader.received(size)
            data = data[size:]
        return [(frame.id, decode_message(frame)) for frame in frames]

    def write(self, data: Buffer) -> None:
        assert not self._is_closing
        assert not self.has_ended
        self.said += data

    def write_eof(self) -> None:
        self.has_ended = True

    def set_write_buffer_limits(self, high=None, low=None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unsent_size

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)
