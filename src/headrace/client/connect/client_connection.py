"""One connection to a node: the handshake, then many concurrent requests and answers."""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar, cast

import pyarrow as pa

from headrace.client.connect.channel import CHANGING, Done, OnHead, PendingCall
from headrace.errors import (
    BadFrame,
    ConnectionLost,
    HeadraceError,
    Refused,
    TimedOut,
    Unauthorized,
    Unknown,
    VersionUnknown,
)
from headrace.wire.error_codes import to_error
from headrace.wire.frames import (
    BODY_SIZE_MAX,
    Frame,
    FrameReader,
    check_body,
    decode_message,
    encode_frame,
)
from headrace.wire.greeting import (
    VERSION,
    VERSION_MIN,
    Accepted,
    ErrorReply,
    Hello,
    Ping,
    TokenProof,
    Welcome,
)
from headrace.wire.messages import Message, Reply, Request, refuse_if_too_new, word_of
from headrace.wire.msgpack import Buffer
from headrace.wire.read_messages import FetchReply
from headrace.wire.token_proof import NONCE_SIZE, client_mac, matches, node_mac
from headrace.wire.write_messages import AppendRequest, StageRequest

# The node gets slightly less time than the caller, so that its own answer comes in time.
NODE_SHARE: Final = 0.95
PING_AFTER: Final = 10.0  # seconds without a byte while waiting for an answer
SILENCE_MAX: Final = 30.0  # then the node or the network is considered down
WRITE_BUFFER_SIZE: Final = 8 * 1024 * 1024  # two batches wait while the socket sends a third
JOIN_SIZE_MAX: Final = 64 * 1024  # copying this little is cheaper than another call
ANOTHER_CLUSTER: Final = "another_cluster"  # the code of the refusal


_Word = TypeVar("_Word", Welcome, Accepted)


@dataclass(slots=True)
class _OpenCall:
    """A request that was sent. It stays open until its answer, even if the caller gave up."""

    is_change: bool
    answer: asyncio.Future[tuple[Message, Buffer]] | None  # if it came from `call`
    pending: PendingCall | None = None  # if it came from `begin`
    on_head: OnHead | None = None
    head: Message | None = None  # the answer, while its body is still arriving

    def settle(self, message: Message, body: Buffer) -> None:
        """Deliver the answer to the caller."""
        if self.pending is not None:
            try:
                self.pending.settle(_reply(message))
            except HeadraceError as error:
                self.pending.settle(error)
        elif self.answer is not None and not self.answer.done():
            self.answer.set_result((message, body))

    def fail(self, error: HeadraceError) -> None:
        if self.pending is not None:
            self.pending.settle(error)
        elif self.answer is not None and not self.answer.done():
            self.answer.set_exception(error)


class ClientConnection(asyncio.BufferedProtocol):
    """An asyncio protocol. Used only by the loop that created it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.body_size_max = 0  # sent by the node
        self.cluster = b""  # sent by the node
        self.version = VERSION  # protocol version that the node chose
        self.error: HeadraceError | None = None  # why the connection ended
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        # The answers are to our own requests: bodies are not moved, and pages need no clearing.
        self._reader = FrameReader(reserved_size=BODY_SIZE_MAX, reserve=_reserve)
        self._open: dict[int, _OpenCall] = {}
        self._next_id = 1
        self._in_flight_max = 1
        self._reserved = 0  # woken and about to send
        self._waiting: deque[asyncio.Future[None]] = deque()  # waiting to send, in order
        self._is_paused = False
        self._received_at = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None

    async def greet(
        self, token: bytes | None, release: str, deadline: float, cluster: bytes | None = None
    ) -> None:
        """Perform the handshake. Raise Unauthorized or VersionUnknown, which are final.

        A node of another cluster than `cluster` is refused as well, and gets no request.
        """
        nonce = secrets.token_bytes(NONCE_SIZE)
        hello = Hello(VERSION_MIN, VERSION, release, nonce, needs_crc=False)
        welcome = await self._say(hello, Welcome, deadline)
        if not VERSION_MIN <= welcome.version <= VERSION:
            raise VersionUnknown(
                f"{self.address} speaks protocol version {welcome.version}, "
                f"this client speaks {VERSION_MIN} to {VERSION}",
                hint="Use the same release on both sides",
            )
        self.version = welcome.version
        if cluster is not None and welcome.cluster != cluster:
            raise Refused(
                ANOTHER_CLUSTER,
                f"{self.address} now belongs to cluster {welcome.cluster.hex()}; "
                f"this log belongs to {cluster.hex()}",
                hint="Connect again",
            )
        if welcome.needs_proof or token is not None:
            await self._prove(token, nonce, welcome, deadline)
        self.cluster = welcome.cluster
        self.body_size_max = welcome.body_size_max
        self._in_flight_max = max(1, welcome.in_flight_max)
        self._watch = self._loop.call_later(PING_AFTER, self._look)

    async def _prove(
        self, token: bytes | None, nonce: bytes, welcome: Welcome, deadline: float
    ) -> None:
        if token is None:
            hint = 'Pass one: headrace.connect(…, token="…")'
            raise Unauthorized(f"{self.address} requires a token", hint=hint)
        if not welcome.needs_proof:
            hint = "Check the address; if it is right, connect without a token"
            raise Unauthorized(
                f"{self.address} does not ask for a token, so it has none", hint=hint
            )
        nonces = (nonce, welcome.nonce)
        mac = client_mac(token, *nonces, version=welcome.version)
        accepted = await self._say(TokenProof(mac), Accepted, deadline)
        if not matches(accepted.mac, node_mac(token, *nonces, version=welcome.version)):
            hint = "Check the address: something else is answering there"
            raise Unauthorized(f"{self.address} does not know the token", hint=hint)

    async def _say(
        self, word: Hello | TokenProof, expected: type[_Word], deadline: float
    ) -> _Word:
        reply, _ = await self._exchange(word, (), deadline)
        if isinstance(reply, ErrorReply):
            raise to_error(reply)
        if not isinstance(reply, expected):
            found = type(reply).__name__
            raise BadFrame(f"{self.address}: expected {expected.__name__}, found {found}")
        return reply

    async def call(
        self,
        request: Request,
        body: Sequence[Buffer] = (),
        *,
        timeout: float,  # noqa: ASYNC109
        on_head: OnHead | None = None,
    ) -> tuple[Reply, Buffer]:
        """Send a request once. See Channel.call."""
        self._refuse_if_too_new(request)
        deadline = self._loop.time() + timeout
        reply, rows = await self._exchange(request, body, deadline, on_head)
        return _reply(reply), rows

    @property
    def is_free(self) -> bool:
        """Say whether a request would be sent at once."""
        is_open = self.error is None and self._transport is not None
        return is_open and not self._is_queueing and self._has_room()

    def begin(
        self, request: Request, body: Sequence[Buffer], *, deadline: float, done: Done
    ) -> Callable[[], object]:
        """Send a request once, at once: the connection is free. See Channel.begin."""
        is_change = type(request) in CHANGING
        call = PendingCall(done, deadline, lambda: self._late(request, is_change))
        try:
            self._refuse_if_too_new(request)
            remaining = deadline - self._loop.time()
            if remaining <= 0:
                raise TimedOut(f"no time was left to send the request to {self.address}")
            deadline_ms = max(1, int(remaining * NODE_SHARE * 1_000))
            self._send(request, body, deadline_ms, _OpenCall(is_change, None, call))
        except HeadraceError as error:
            call.settle(error)
        return call.begun()

    def _refuse_if_too_new(self, request: Request) -> None:
        if self.version != VERSION:
            refuse_if_too_new(request, self.version, self.address)

    def abort(self, error: HeadraceError) -> None:
        """Close the connection and fail every open call; the first error is kept."""
        if self.error is None:
            self.error = error
        if self._watch is not None:
            self._watch.cancel()
        if self._transport is not None:
            self._transport.abort()
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(_lost(self.error, is_change=False))
        opened, self._open = self._open, {}
        for call in opened.values():
            call.fail(_lost(self.error, call.is_change))

    async def _exchange(
        self,
        message: Hello | TokenProof | Request,
        body: Sequence[Buffer],
        deadline: float,
        on_head: OnHead | None = None,
    ) -> tuple[Message, Buffer]:
        is_change = type(message) in CHANGING
        if self._is_queueing or not self._has_room():
            await self._turn(deadline)
        remaining = deadline - self._loop.time()
        if remaining <= 0:
            raise TimedOut(f"no time was left to send the request to {self.address}")
        answer: asyncio.Future[tuple[Message, Buffer]] = self._loop.create_future()
        deadline_ms = max(1, int(remaining * NODE_SHARE * 1_000))
        self._send(message, body, deadline_ms, _OpenCall(is_change, answer, on_head=on_head))
        try:
            async with asyncio.timeout_at(deadline):
                return await answer
        except TimeoutError:
            raise self._late(message, is_change) from None

    def _late(self, message: Message, is_change: bool) -> HeadraceError:
        text = f"{self.address} did not answer {word_of(message)} in time"
        return Unknown(text) if is_change else TimedOut(text)

    def _send(
        self, message: Message, body: Sequence[Buffer], deadline_ms: int, call: _OpenCall
    ) -> None:
        """Write a request. No await may come between `_turn` and this."""
        if self.error is not None:
            raise _lost(self.error, is_change=False)
        assert self._transport is not None
        if (
            self._transport.is_closing()
        ):  # `connection_lost` is called in the loop's next iteration
            raise ConnectionLost(f"the connection to {self.address} was lost")
        has_crc = not (isinstance(message, AppendRequest | StageRequest) and message.checksum)
        pieces = encode_frame(message, self._next_id, body, deadline_ms, has_crc=has_crc)
        if not self._open:
            self._received_at = self._loop.time()
        self._open[self._next_id] = call
        self._next_id += 1
        if sum([memoryview(piece).nbytes for piece in pieces]) <= JOIN_SIZE_MAX:
            self._transport.write(b"".join(pieces))
            return
        for piece in pieces:
            self._transport.write(memoryview(piece).cast("B"))

    async def _turn(self, deadline: float) -> None:
        """Wait until a request may be sent, in order of arrival."""
        if self.error is not None:
            raise _lost(self.error, is_change=False)
        waiter = self._loop.create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            raise TimedOut(f"{self.address} was too busy to take the request in time") from None
        finally:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._reserved -= 1
            else:
                with suppress(ValueError):
                    self._waiting.remove(waiter)
            self._loop.call_soon(self._admit)

    @property
    def _is_queueing(self) -> bool:
        """Say whether earlier requests are still waiting to be sent."""
        return bool(self._waiting or self._reserved)

    def _has_room(self) -> bool:
        return not self._is_paused and len(self._open) + self._reserved < self._in_flight_max

    def _admit(self) -> None:
        while self._waiting and self._has_room():
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._reserved += 1
                waiter.set_result(None)

    def _look(self) -> None:
        """Ping a node that owes an answer and is silent; eventually give up on it."""
        self._watch = self._loop.call_later(PING_AFTER, self._look)
        silence = self._loop.time() - self._received_at
        if not self._open or silence < PING_AFTER:
            return
        if silence >= SILENCE_MAX:
            self.abort(ConnectionLost(f"{self.address} sent nothing for {silence:.0f} s"))
            return
        with suppress(ConnectionLost):
            call = _OpenCall(is_change=False, answer=None)
            self._send(Ping(), (), int(SILENCE_MAX * 1_000), call)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface of asyncio's, but are not subclasses.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_SIZE)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        self._received_at = self._loop.time()
        try:
            for frame in self._reader.received(nbytes):
                self._take(frame)
            if (head := self._reader.take_head()) is not None:
                self._take_head(head)
        except BadFrame as error:
            self.abort(error)

    def _take_head(self, head: Frame) -> None:
        call = self._open.get(head.id)
        if call is not None and call.on_head is not None:
            call.head = decode_message(head)
            call.on_head(cast("Reply", call.head))

    def _take(self, frame: Frame) -> None:
        call = self._open.get(frame.id)
        message = None if call is None else call.head  # of this frame
        if message is None:
            message = decode_message(frame)
        if frame.body_crc is not None or not _is_covered(message):
            check_body(frame)
        if call is None:
            # A node that rejects our bytes answers no request, but sends the reason.
            if isinstance(message, ErrorReply):
                self.abort(to_error(message))
                return
            raise BadFrame(f"received an answer to request {frame.id}, which is not open")
        del self._open[frame.id]
        call.settle(message, frame.body)
        self._admit()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f": {exc}" if exc else ""
        self.abort(ConnectionLost(f"the connection to {self.address} was lost{reason}"))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._admit()


def _reply(message: Message) -> Reply:
    if isinstance(message, ErrorReply):
        raise to_error(message)
    if isinstance(message, Hello | Welcome | TokenProof | Accepted):
        raise BadFrame(f"{type(message).__name__} is not a valid answer")
    return message  # type: ignore[return-value]  # a request in its place: see `ask`


def _reserve(size: int) -> memoryview:
    return memoryview(pa.allocate_buffer(size)).cast("B")


def _lost(reason: HeadraceError, is_change: bool) -> HeadraceError:
    """Return the error for a call whose connection was lost."""
    text = Exception.__str__(reason)
    if is_change:
        return Unknown(f"{text}; the request may have taken effect")
    return reason if isinstance(reason, Unauthorized | VersionUnknown) else ConnectionLost(text)


def _is_covered(message: Message) -> bool:
    """Say whether an answer has a checksum for each piece of its body; the feed checks them."""
    return isinstance(message, FetchReply) and all(piece.checksum for piece in message.pieces)
