"""One connection: frames come in, requests go to the service, answers leave in any order.

A connection has no task and no timer: the transport's callbacks receive bytes, and the set of
all connections writes answers and checks timeouts.

Reading pauses while the peer has its maximum of open requests, or does not read its answers;
frames received by then wait here. It also pauses before a large body for which the node has no
room. A connection ends with the reason, then the end of its stream; further input is discarded
for a moment, so that the peer reads the reason instead of a reset.
"""

import asyncio
import ipaddress
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, ParamSpec, TypeVar, cast, get_args

from headrace.errors import (
    BadFrame,
    Busy,
    HeadraceError,
    NotReady,
    Unauthorized,
    VersionUnknown,
)
from headrace.node.events import event
from headrace.server.connections.budget import Arrival, PeerBudget, Pending
from headrace.server.connections.connection_set import ConnectionSet
from headrace.server.connections.handshake import Handshake
from headrace.server.connections.limits import (
    HANDSHAKE_META_SIZE_MAX,
    LINGER_TIMEOUT,
    UNSENT_SIZE_MAX,
)
from headrace.server.connections.write_queue import Progress, Said, WriteQueue, encode_answer
from headrace.wire.frames import (
    BODY_BUFFER_SIZE,
    Frame,
    FrameReader,
    check_body,
    decode_message,
)
from headrace.wire.messages import Request
from headrace.wire.msgpack import Buffer
from headrace.wire.ticket import Claims
from headrace.wire.write_messages import AppendRequest, StageRequest

ROOM_SIZE: Final = 512 * 1024


def keep_room_small(transport: asyncio.Transport) -> None:
    """Limit the send buffer, if the peer is on this machine."""
    found: socket.socket | None = transport.get_extra_info("socket")
    if found is not None and _is_near(found.family, transport.get_extra_info("peername")):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM_SIZE)


def _is_near(family: int, peer: object) -> bool:
    if family == socket.AF_UNIX:
        return True
    if not isinstance(peer, tuple) or not peer:
        return False
    host = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    mapped = getattr(host, "ipv4_mapped", None)
    return host.is_loopback or (mapped is not None and mapped.is_loopback)


NO_REQUEST: Final = 0  # the ID of an answer about the connection itself
CHECKSUM_SIZE: Final = 16  # of a body that the node checks itself, with xxh3-128

_REQUESTS: Final = frozenset(get_args(Request))

_logger = logging.getLogger("headrace")
_P = ParamSpec("_P")
_T = TypeVar("_T")


class ServerConnection(asyncio.BufferedProtocol):
    """One peer. Everything happens on the loop's thread."""

    __slots__ = (
        "_active_at",
        "_arrival",
        "_claims",
        "_crowd",
        "_ended_at",
        "_handshake",
        "_has_ended",
        "_in_flight",
        "_incoming",
        "_is_awake",
        "_is_ending",
        "_is_paused",
        "_is_unread",
        "_opened_at",
        "_outbox",
        "_reader",
        "_received_size",
        "_transport",
        "_waiting",
    )

    def __init__(self, crowd: ConnectionSet) -> None:
        self._crowd = crowd
        self._transport: asyncio.Transport | None = None  # None: not yet, or closed
        self._reader: FrameReader | None = None  # None: input is discarded
        self._handshake: Handshake | None = None  # None: done
        self._claims: Claims | None = None  # of a peer with a ticket instead of the token
        self._waiting: deque[tuple[Frame, float]] = deque()  # requests and their deadlines
        self._in_flight = PeerBudget(crowd.limits, crowd.traffic)
        self._arrival = Arrival(crowd.limits, crowd.traffic)
        self._outbox = WriteQueue(crowd.traffic)
        self._is_awake = False  # to be flushed in this loop turn
        self._is_paused = False  # reading is paused
        self._is_unread = False  # the peer does not read its answers
        self._has_ended = False  # the peer has sent its last byte
        self._is_ending = False  # no more requests are begun
        self._ended_at: float | None = None  # when our last byte was written
        self._opened_at = self._active_at = 0.0
        self._received_size = 0
        self._incoming: Progress | None = None  # of the incomplete frame

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a peer, or refuse it."""
        self._transport = cast(asyncio.Transport, transport)
        self._guarded(self._open, self._transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        if self._reader is None:
            return self._crowd.scratch
        return self._guarded(self._reader.get_buffer, sizehint) or self._crowd.scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Handle received bytes."""
        self._guarded(self._on_bytes, nbytes)

    def eof_received(self) -> bool:
        """Keep a half-closed connection until its requests are answered."""
        self._has_ended = True
        self._incoming = None
        if not self._waiting:  # drop the partial body
            self._arrival.end()
        return self._is_owing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the peer. Its requests in flight continue; their answers are dropped."""
        self._transport = None
        self._reader = None
        self._waiting.clear()
        self._arrival.end()
        self._in_flight.release(self._outbox.clear())
        self._crowd.leave(self)

    def pause_writing(self) -> None:
        """Begin nothing more for a peer that does not read its answers."""
        self._is_unread = True
        self._guarded(self._throttle)

    def resume_writing(self) -> None:
        """Continue, now that the peer has caught up."""
        self._is_unread = False
        self._in_flight.release(self._outbox.taken())
        self._wake()

    # Called by the connection set.

    def flush(self, now: float) -> None:
        """Write all pending answers, and resume reading if that makes room."""
        self._is_awake = False
        if self._transport is not None:
            self._guarded(self._flush, self._transport, now)

    def sweep(self, now: float) -> None:
        """Cut the peer off if it is too slow."""
        if self._transport is not None:
            self._guarded(self._sweep, self._transport, now)

    def stop(self) -> None:
        """Begin no more requests; end once those in flight are answered."""
        self._is_ending = True
        if self._handshake is not None:
            self.abort()
        else:
            self._wake()

    def abort(self) -> None:
        """End the connection at once, without an answer."""
        if self._transport is not None:
            self._transport.abort()

    def _guarded(self, act: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T | None:
        """Catch all exceptions of a callback: they end this connection and no other."""
        try:
            return act(*args, **kwargs)
        except Exception:
            _logger.exception("server.connection.crashed")
            self._crowd.traffic.cut_offs["crashed"] += 1
            self._reader = None
            self._waiting.clear()
            self.abort()
            return None

    # Requests.

    def _open(self, transport: asyncio.Transport) -> None:
        crowd, limits, traffic = self._crowd, self._crowd.limits, self._crowd.traffic
        traffic.connections_total += 1
        if crowd.is_stopping:  # accepted just before the stop
            transport.abort()
            return
        if crowd.is_full:
            busy = Busy(f"{len(crowd.members)} connections are open", limits.retry_after_ms)
            traffic.cut_offs["too_many"] += 1
            transport.write(b"".join(encode_answer(traffic, NO_REQUEST, busy)))
            transport.close()
            return
        self._opened_at = self._active_at = crowd.loop.time()
        self._handshake = Handshake(limits, crowd.token, crowd.release)
        self._reader = FrameReader(meta_size_max=HANDSHAKE_META_SIZE_MAX, body_size_max=0)
        transport.set_write_buffer_limits(high=UNSENT_SIZE_MAX, low=UNSENT_SIZE_MAX // 4)
        keep_room_small(transport)
        crowd.enter(self)

    def _on_bytes(self, size: int) -> None:
        traffic, reader = self._crowd.traffic, self._reader
        traffic.bytes_in += size
        if reader is None:
            return
        now = self._active_at = self._crowd.loop.time()
        self._received_size += size
        try:
            frames = reader.received(size)
        except BadFrame as error:
            self._end("bad_frame", error, None)
            return
        if reader.is_idle:
            self._incoming = None
        elif frames or self._incoming is None:
            self._incoming = Progress.begin(now, self._received_size)
        traffic.frames_in += len(frames)
        for frame in frames:
            if self._handshake is not None:
                self._greet(self._handshake, reader, frame)
            else:
                self._waiting.append((frame, self._deadline(frame, now)))
        self._expect(reader)
        if frames or self._arrival.is_waiting:
            self._pump()

    def _expect(self, reader: FrameReader) -> None:
        """Reserve room for the rest of a large body, before reading it."""
        is_next = self._reader is not None and not self._waiting
        if is_next and reader.room_size > BODY_BUFFER_SIZE:
            self._arrival.grow(reader.room_size, self._wake)

    def _greet(self, handshake: Handshake, reader: FrameReader, frame: Frame) -> None:
        if self._is_ending:
            return  # the peer sent more before it received the refusal
        try:
            word = handshake.hear(decode_message(frame), self._crowd.service.cluster)
        except Unauthorized as error:
            self._end("unauthorized", error, frame.id)
        except VersionUnknown as error:
            self._end("version", error, frame.id)
        except BadFrame as error:
            self._end("bad_message", error, frame.id)
        else:
            self._say(frame.id, word)
            if handshake.is_done:
                self._handshake = None
                self._claims = handshake.claims
                self._outbox.needs_crc = handshake.needs_crc
                reader.meta_size_max = self._crowd.limits.meta_size_max
                reader.body_size_max = self._crowd.limits.body_size_max

    def _deadline(self, frame: Frame, now: float) -> float:
        limits = self._crowd.limits
        wanted = frame.deadline_ms / 1000 or limits.request_timeout
        return now + min(wanted, limits.request_timeout_max)

    def _pump(self) -> None:
        """Begin waiting requests while there is room; then resume or pause reading."""
        while self._waiting and self._has_room():
            frame, deadline = self._waiting.popleft()
            if self._arrival.size:
                self._arrival.end()  # it counts as in flight from here on
            self._begin(frame, deadline)
        self._throttle()

    def _begin(self, frame: Frame, deadline: float) -> None:
        try:
            request = _request(frame)
        except BadFrame as error:
            self._end("bad_message", error, frame.id)
            return
        size = len(frame.body)
        if size and not _is_checked_by_node(request):
            try:
                check_body(frame)
            except BadFrame as error:
                self._end("bad_body", error, frame.id)
                return
        if self._claims is not None:
            try:
                self._claims.refuse_other(request)
            except Unauthorized as error:
                self._say(frame.id, error)
                return
        if self._is_ending:
            hint = "Retry at another node, or later"
            self._say(frame.id, NotReady("this node is stopping", hint=hint))
            return
        answer_size = self._in_flight.answer_size(request)
        if busy := self._in_flight.busy(size + answer_size):
            self._say(frame.id, busy)
            return
        pending = Pending(self._in_flight, frame.id, size, answer_size, self._say)
        try:
            self._crowd.service.submit(request, frame.body, deadline, pending)
        except Exception:
            pending.forget()
            raise

    # Room.

    def _has_room(self) -> bool:
        return (
            self._in_flight.has_room
            and self._outbox.size < UNSENT_SIZE_MAX
            and not self._is_unread
        )

    def _throttle(self) -> None:
        """Resume or pause reading, depending on the room."""
        has_room = self._reader is None or (
            not self._waiting and not self._arrival.is_waiting and self._has_room()
        )
        if has_room is not self._is_paused:
            return
        transport = self._transport
        if transport is None or transport.is_closing() or self._has_ended:
            return
        if has_room:
            self._is_paused = False
            if self._incoming is not None:  # the pause was ours, not the peer's
                now = self._crowd.loop.time()
                self._incoming = Progress.begin(now, self._received_size)
            transport.resume_reading()
        else:
            self._is_paused = True
            self._crowd.traffic.pauses += 1
            transport.pause_reading()

    # Answers and endings.

    def _say(
        self,
        request_id: int,
        said: Said,
        body: Sequence[Buffer] = (),
        counted_size: int = 0,
    ) -> None:
        if self._transport is not None and self._ended_at is None:
            self._outbox.add(request_id, said, body, counted_size)
            self._wake()
        else:
            self._in_flight.release(counted_size)

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._crowd.wake(self)

    def _flush(self, transport: asyncio.Transport, now: float) -> None:
        if self._outbox:
            self._active_at = now
            self._write(transport)
        was_waiting = self._arrival.is_waiting
        self._arrival.look()
        has_more_room = was_waiting and not self._arrival.is_waiting
        if self._is_paused and (has_more_room or self._in_flight.is_calm):
            self._pump()
        if (self._is_ending or self._has_ended) and not self._is_owing():
            self._conclude(transport, now)

    def _write(self, transport: asyncio.Transport) -> None:
        """Write while the peer keeps up; the rest waits, and counts, until it does again."""
        while self._outbox and not self._is_unread:
            self._outbox.write(transport)
        if not self._is_unread:
            self._in_flight.release(self._outbox.taken())

    def _is_owing(self) -> bool:
        return bool(self._in_flight.count or self._waiting or self._outbox)

    def _end(self, reason: str, error: HeadraceError, request_id: int | None) -> None:
        """End with an error; a peer that does not speak the protocol gets no answer."""
        self._crowd.traffic.cut_offs[reason] += 1
        event("server.connection.refused", level=logging.DEBUG, reason=reason, error=error)
        self._is_ending = True
        self._reader = None
        self._incoming = None
        self._waiting.clear()
        self._arrival.end()
        if self._handshake is not None and request_id is None:
            self.abort()
        else:
            self._say(NO_REQUEST if request_id is None else request_id, error)
            self._throttle()

    def _conclude(self, transport: asyncio.Transport, now: float) -> None:
        """End the stream, now that everything is answered."""
        if transport.is_closing():
            return
        if self._has_ended:
            transport.close()
        elif self._ended_at is None:
            self._ended_at = now
            self._reader = None
            self._arrival.end()
            self._throttle()
            transport.write_eof()

    def _sweep(self, transport: asyncio.Transport, now: float) -> None:
        if self._ended_at is not None and not transport.get_write_buffer_size():
            if now - self._ended_at >= LINGER_TIMEOUT:
                transport.abort()
        elif (reason := self._overdue(transport, now)) is not None:
            self._crowd.traffic.cut_offs[reason] += 1
            event("server.connection.cut", level=logging.DEBUG, reason=reason)
            transport.abort()

    def _overdue(self, transport: asyncio.Transport, now: float) -> str | None:
        limits = self._crowd.limits
        if self._handshake is not None and now - self._opened_at >= limits.handshake_timeout:
            return "handshake"
        if self._outbox.is_stuck(transport, now, limits):
            return "unread"
        if self._incoming is not None and not self._is_paused:
            is_stuck = self._incoming.is_stuck(now, self._received_size, limits)
            return "stalled" if is_stuck else None
        is_idle = not self._is_owing() and now - self._active_at >= limits.idle_timeout
        return "idle" if is_idle else None


def _request(frame: Frame) -> Request:
    message = decode_message(frame)
    if type(message) not in _REQUESTS:
        raise BadFrame(f"{type(message).__name__} is not a request, or comes too late")
    return cast(Request, message)


def _is_checked_by_node(request: Request) -> bool:
    return (
        isinstance(request, (AppendRequest, StageRequest))
        and len(request.checksum) == CHECKSUM_SIZE
    )
