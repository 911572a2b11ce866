"""One connection to a server under attack: it sends any bytes and reads every answer."""

import secrets
import select
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from headrace.errors import BadFrame, HeadraceError
from headrace.wire.error_codes import to_error
from headrace.wire.frames import Frame, FrameReader, check_body, decode_message, encode_frame
from headrace.wire.greeting import VERSION, ErrorReply, Hello, Welcome
from headrace.wire.messages import Message, Reply, Request
from headrace.wire.msgpack import Buffer
from headrace.wire.token_proof import NONCE_SIZE
from headrace_lab.hostile.server import Gone

# Longer than any deadline of the server: who is not answered by then never will be.
PATIENCE_SECONDS: Final = 20.0
DEADLINE_MS: Final = 5_000
_RESET: Final = struct.pack("ii", 1, 0)  # linger for no time: a close sends RST


@dataclass(frozen=True, slots=True)
class Said:
    """One answer."""

    id: int
    message: Message
    body: Buffer


@dataclass(slots=True)
class Heard:
    """What came back on one connection until it was over."""

    answers: list[Said] = field(default_factory=list)
    problem: str = ""  # an answer that is not the protocol, or none where one is owed

    @property
    def failures(self) -> list[ErrorReply]:
        return [one.message for one in self.answers if isinstance(one.message, ErrorReply)]

    @property
    def successes(self) -> list[Said]:
        return [one for one in self.answers if not isinstance(one.message, ErrorReply)]


class Peer:
    """A blocking socket. Use it as a context."""

    def __init__(self, port: int, patience: float = PATIENCE_SECONDS) -> None:
        self.patience = patience
        self.is_cut = False  # the server has ended the stream
        self._reader = FrameReader()
        self._frames: list[Frame] = []
        self._next_id = 1
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), patience)
        except OSError as error:
            raise Gone(f"no connection is taken: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def greet(self) -> "Peer":
        """Exchange the first words."""
        nonce = secrets.token_bytes(NONCE_SIZE)
        try:
            said = self._exchange(Hello(VERSION, VERSION, "hostile", nonce), ())
            if not isinstance(said.message, Welcome):
                raise Gone(f"Hello was answered by {said.message}")
        except Gone:
            self.close()
            raise
        return self

    def send(self, data: Buffer) -> bool:
        """Send bytes; say whether the server still takes them."""
        try:
            self._socket.sendall(data)
        except TimeoutError as error:
            raise Gone("the server does not read any more") from error
        except OSError:
            self.is_cut = True
        return not self.is_cut

    def finish(self) -> None:
        """Say that nothing more comes."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def look(self) -> bool:
        """Take in what came; say whether the server has cut the connection."""
        while not self.is_cut and self._poll.poll(0):
            self._receive()
        return self.is_cut

    def hear(self) -> Heard:
        """Take in everything until the server ends the stream."""
        heard = Heard()
        try:
            while not self.is_cut:
                self._receive()
            heard.answers = [_opened(frame) for frame in self._frames]
        except TimeoutError:
            heard.answers = [_opened(frame) for frame in self._frames]
            heard.problem = f"nothing more came for {self.patience:.0f} s, not even the end"
        except BadFrame as error:
            heard.problem = f"an answer that is not the protocol: {error}"
        return heard

    def ask(self, request: Request, body: Sequence[Buffer] = ()) -> tuple[Reply, Buffer]:
        """Ask as a client does, or raise the error that is the answer."""
        said = self.try_ask(request, body)
        if isinstance(said.message, ErrorReply):
            raise to_error(said.message)
        return said.message, said.body  # type: ignore[return-value]  # the caller compares

    def try_ask(self, request: Request, body: Sequence[Buffer] = ()) -> Said:
        """Ask, and return any answer, a failure too."""
        return self._exchange(request, body)

    def close(self, *, reset: bool = False) -> None:
        """Close; with a reset, nothing that is on its way counts any more."""
        with suppress(OSError):
            if reset:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self._socket.close()

    def send_request(self, request: Message, body: Sequence[Buffer] = ()) -> int:
        """Send a request and return its id; `next_answer` gives what comes back."""
        request_id = self._next_id
        self._next_id += 1
        self.send(b"".join(encode_frame(request, request_id, body, DEADLINE_MS)))
        return request_id

    def next_answer(self) -> Said:
        """Wait for the next answer, whichever it belongs to."""
        try:
            while not self._frames and not self.is_cut:
                self._receive()
        except TimeoutError as error:
            raise Gone(f"no answer within {self.patience:.0f} s") from error
        if not self._frames:
            raise Gone("the connection was cut instead of an answer")
        return _opened(self._frames.pop(0))

    def _exchange(self, message: Message, body: Sequence[Buffer]) -> Said:
        request_id = self.send_request(message, body)
        try:
            said = self.next_answer()
        except HeadraceError as error:
            raise Gone(f"an answer that is not the protocol: {error}") from error
        if said.id != request_id:
            raise Gone(f"request {request_id} was answered as {said.id}: {said.message}")
        return said

    def _receive(self) -> None:
        try:
            size = self._socket.recv_into(self._reader.get_buffer(0))
        except TimeoutError:
            raise
        except OSError:
            size = 0
        if size:
            self._frames += self._reader.received(size)
        else:
            self.is_cut = True


def _opened(frame: Frame) -> Said:
    check_body(frame)
    return Said(frame.id, decode_message(frame), frame.body)
