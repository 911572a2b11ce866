"""A proxy between Spark and a node: it holds a request or its answer during a kill.

It knows frame boundaries and request types, and changes nothing. It records the traffic, so
that a test can tell whether a request was repeated and how it was answered.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

from headrace.errors import BadFrame
from headrace.wire.frames import Frame, FrameReader, decode_message, encode_frame
from headrace.wire.messages import Message

HOST: Final = "127.0.0.1"
CONNECT_SECONDS: Final = 5.0
HOLD_SECONDS: Final = 900.0  # nobody waits longer for what is held


@dataclass(slots=True)
class Line:
    """One connection: to whoever asks, and to the node."""

    client: socket.socket
    node: socket.socket
    ports: tuple[int, int]  # of the one who asks, and ours
    waiting: dict[int, "Asked"] = field(default_factory=dict)  # by the id of the request

    def cut(self) -> None:
        """End it for both."""
        for each in (self.client, self.node):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.client.close()
        self.node.close()


@dataclass(slots=True)
class Asked:
    """One request that came through, and its answer once there is one."""

    line: Line
    request: Message
    answer: Message | None = None


class Hold:
    """Stops the first request that is such, or the answer to it, until it is let go."""

    def __init__(self, matches: Callable[[Asked], bool], *, answer: bool) -> None:
        self.matches = matches
        self.is_for_answer = answer
        self.caught: Asked | None = None
        self._is_free = threading.Event()

    def drop(self) -> None:
        """Cut the connection of what is held: it never arrives."""
        self._is_free.set()

    def take(self, asked: Asked) -> None:
        """Keep it until somebody lets go. Called by the thread of the connection."""
        self.caught = asked
        self._is_free.wait(HOLD_SECONDS)


class Proxy:
    """Listens on a port of its own. Use it as a context: no connection outlives it."""

    def __init__(
        self,
        node: str,
        kept: tuple[type, ...] = (object,),
        on_asked: Callable[[Asked], None] = lambda asked: None,
    ) -> None:
        """Make one that keeps these requests. `on_asked` sees each of all before it goes on."""
        self._kept, self._on_asked = kept, on_asked
        host, _, port = node.rpartition(":")
        self._node = (host, int(port))
        self._server = socket.create_server((HOST, 0))
        self._lock = threading.Lock()
        self._hold: Hold | None = None  # nothing was caught by it yet
        self._caught: list[Hold] = []
        self._lines: list[Line] = []
        self._is_closed = False
        self.asked: list[Asked] = []  # in the order in which requests came

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        self._hold = None
        for hold in self._caught:
            hold.drop()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for line in list(self._lines):
            line.cut()

    @property
    def address(self) -> str:
        return f"{HOST}:{self._server.getsockname()[1]}"

    def hold(self, matches: Callable[[Asked], bool], *, answer: bool = False) -> Hold:
        """Have the next such request held, or the answer to it; one at a time."""
        with self._lock:
            self._hold = Hold(matches, answer=answer)
            return self._hold

    def forget(self) -> None:
        """Do not wait any longer for something to hold."""
        with self._lock:
            self._hold = None

    def since(self, asked: Asked) -> list[Asked]:
        """Return what was asked after that."""
        with self._lock:
            place = next(n for n, each in enumerate(self.asked) if each is asked)
            return self.asked[place + 1 :]

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, peer = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client, peer[1]), daemon=True).start()

    def _serve(self, client: socket.socket, port: int) -> None:
        try:
            node = socket.create_connection(self._node, CONNECT_SECONDS)
        except OSError:  # the node is down, and whoever asks sees it at once
            client.close()
            return
        node.settimeout(None)
        for each in (client, node):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = Line(client, node, (port, self._server.getsockname()[1]))
        self._lines.append(line)
        answers = threading.Thread(target=self._bring_answers, args=(line,), daemon=True)
        answers.start()
        self._bring_requests(line)
        answers.join()
        line.close()
        self._lines.remove(line)

    def _bring_requests(self, line: Line) -> None:
        with suppress(OSError, BadFrame):
            for frame in _frames(line.client):
                asked = Asked(line, decode_message(frame))
                line.waiting[frame.id] = asked
                if isinstance(asked.request, self._kept):
                    with self._lock:
                        self.asked.append(asked)
                self._on_asked(asked)
                if self._is_held(asked, is_answer=False):
                    break
                _send(line.node, frame, asked.request)
        line.cut()

    def _bring_answers(self, line: Line) -> None:
        with suppress(OSError, BadFrame):
            for frame in _frames(line.node):
                answer = decode_message(frame)
                asked = line.waiting.pop(frame.id, None)
                if asked is not None:
                    asked.answer = answer
                    if self._is_held(asked, is_answer=True):
                        break
                _send(line.client, frame, answer)
        line.cut()

    def _is_held(self, asked: Asked, *, is_answer: bool) -> bool:
        """Wait while it is held. True: it was, and goes no further."""
        with self._lock:
            hold = self._hold
            if hold is None or hold.is_for_answer != is_answer or not hold.matches(asked):
                return False
            self._hold = None
            self._caught.append(hold)
        hold.take(asked)
        return True


def _frames(connection: socket.socket) -> Iterator[Frame]:
    reader = FrameReader()
    while count := connection.recv_into(reader.get_buffer(0)):
        yield from reader.received(count)


def _send(connection: socket.socket, frame: Frame, message: Message) -> None:
    body = (frame.body,) if len(frame.body) else ()
    has_crc = frame.body_crc is not None
    pieces = encode_frame(message, frame.id, body, frame.deadline_ms, has_crc=has_crc)
    for piece in pieces:
        connection.sendall(piece)
