"""A blocking request/response connection from a task on an executor to a node.

It needs only the standard library and pyarrow. After a lost connection it reconnects and
repeats the request until the deadline, so requests must be idempotent.
"""

import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self, TypeVar

import pyarrow as pa

from headrace.errors import (
    BadFrame,
    BadRequest,
    Busy,
    ConnectionLost,
    HeadraceError,
    Unauthorized,
    Unavailable,
    Unknown,
)
from headrace.model.backoff import ExponentialBackoff
from headrace.spark.worker.sums import NEEDS_CRC, check
from headrace.wire.address import SOCKET_PATH_SIZE_MAX, Address, parse_addresses
from headrace.wire.error_codes import to_error
from headrace.wire.frames import (
    BODY_SIZE_MAX,
    Frame,
    FrameReader,
    decode_message,
    encode_frame,
)
from headrace.wire.greeting import (
    TICKETS_SINCE,
    VERSION,
    VERSION_MIN,
    Accepted,
    ErrorReply,
    Hello,
    TicketProof,
    TokenProof,
    Welcome,
)
from headrace.wire.messages import Message, Reply, refuse_if_too_new
from headrace.wire.msgpack import Buffer
from headrace.wire.ticket import Ticket
from headrace.wire.token_proof import NONCE_SIZE, client_mac, matches, node_mac
from headrace.wire.write_messages import StageRequest

CONNECT_SECONDS: Final = 5.0  # of one attempt; another address may work
ASK_SECONDS: Final = 120.0  # of one request with its retries: a node may restart
WAITS: Final = ExponentialBackoff(0.05, 2.0)  # seconds between attempts
# Of a process that has the token: executors of an operator who gives it to them, and drivers.
TOKEN_VARIABLE: Final = "HEADRACE_TOKEN"
TOKEN_FILE_VARIABLE: Final = "HEADRACE_TOKEN_FILE"

_UNHEARD: Final = "Check that the node runs, and that executors, too, can reach its address"

Answer = TypeVar("Answer")


class LogReplaced(BadRequest):
    """The log at this address is not the expected one."""


class Link:
    """A connection to the first address that answers. Not thread-safe."""

    def __init__(
        self,
        address: str,
        token_file: str | None,
        release: str,
        cluster: str = "",
        ticket: Ticket | None = None,
    ) -> None:
        self._addresses = parse_addresses(address)
        self._token_file = token_file
        self._ticket = ticket  # for a process that does not have the token
        self._release = release
        self._cluster = cluster  # the id of the expected log; "" for any
        self._socket: socket.socket | None = None
        self._reader = _reader()
        self._next_id = 1
        self._ahead: tuple[Message, int] | None = None  # a request sent ahead, and its id
        self._place = 0  # of the address to try next
        self.body_size_max = 0  # from the node's Welcome
        self.connection_count = 0  # so far
        self._version = VERSION  # of the protocol, that the node chose

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._ahead = None

    def ask_ahead(self, request: Message, *, seconds: float = ASK_SECONDS) -> None:
        """Send the next request early, so that the node works while the caller does.

        The next `ask` takes the answer. If it asks for something else, or the connection is
        lost, the answer is discarded.
        """
        if self._socket is None or self._ahead is not None:
            return
        try:
            request_id = self._send(self._socket, request, (), time.monotonic() + seconds)
        except OSError:
            self.close()
        else:
            self._ahead = request, request_id

    def ask(
        self,
        request: Message,
        expected: type[Answer],
        body: Sequence[Buffer] = (),
        *,
        seconds: float = ASK_SECONDS,
    ) -> tuple[Answer, Buffer]:
        """Send a request until it is answered. Raises the node's error, or Unavailable."""
        deadline = time.monotonic() + seconds
        failures = 0
        while True:
            try:
                reply, rows = self._ask(request, body, deadline)
            except (Unavailable, Unknown) as error:
                failures += 1
                pause = _pause(error, WAITS.after(failures))
                if time.monotonic() + pause >= deadline:
                    raise
                time.sleep(pause)
                continue
            if not isinstance(reply, expected):
                raise BadFrame(
                    f"expected {expected.__name__}, found {type(reply).__name__}",
                    hint="Use the same release on both sides",
                )
            return reply, rows

    def _ask(
        self, request: Message, body: Sequence[Buffer], deadline: float
    ) -> tuple[Reply, Buffer]:
        if self._ahead is not None and self._ahead[0] != request:
            self.close()  # its answer would come first
        if self._socket is None:
            self._connect()
        refuse_if_too_new(request, self._version, self._address)
        try:
            return self._exchange(request, body, deadline)
        except OSError as error:
            self.close()
            raise ConnectionLost(f"the connection was lost: {error}") from error
        except (BadFrame, ConnectionLost):
            self.close()
            raise

    def _connect(self) -> None:
        failure: HeadraceError | None = None
        for _ in self._addresses:
            address = self._addresses[self._place % len(self._addresses)]
            try:
                self._socket = _connected(address)
                self._reader = _reader()
                self._greet()
            except OSError as error:
                failure = ConnectionLost(
                    f"no node answers at {address}: {error}", hint=_UNHEARD
                )
            except Unavailable as error:
                failure = error
            except HeadraceError:
                self.close()
                raise
            else:
                self.connection_count += 1
                return
            self.close()
            self._place += 1
        assert failure is not None
        raise failure

    @property
    def _address(self) -> str:
        return str(self._addresses[self._place % len(self._addresses)])

    def _greet(self) -> None:
        deadline = time.monotonic() + CONNECT_SECONDS
        nonce = secrets.token_bytes(NONCE_SIZE)
        hello = Hello(VERSION_MIN, VERSION, self._release, nonce, NEEDS_CRC)
        welcome, _ = self._exchange(hello, (), deadline)
        if not isinstance(welcome, Welcome):
            raise BadFrame(f"expected Welcome, found {type(welcome).__name__}")
        if self._cluster not in ("", welcome.cluster.hex()):
            raise LogReplaced(
                f"expected log {self._cluster}, found log {welcome.cluster.hex()}",
                hint="This is a different log, so its offsets do not match. Start over with it",
            )
        self.body_size_max = welcome.body_size_max
        self._version = welcome.version
        if not welcome.needs_proof:
            return
        key, ticket = self._key(welcome.version)
        nonces, version = (nonce, welcome.nonce), welcome.version
        mac = client_mac(key, *nonces, version=version)
        proof = TokenProof(mac) if ticket is None else TicketProof(ticket, mac)
        accepted, _ = self._exchange(proof, (), deadline)
        mac = accepted.mac if isinstance(accepted, Accepted) else b""
        if not matches(mac, node_mac(key, *nonces, version=version)):
            raise Unauthorized("the node does not know the token", hint="Check the address")

    def _key(self, version: int) -> tuple[bytes, bytes | None]:
        """Return the token; or the key of the ticket, and the ticket."""
        token = token_here(self._token_file, os.environ)
        if token is not None:
            return token, None
        if self._ticket is None:
            raise Unauthorized(
                "the node requires a token",
                hint=f'Set {TOKEN_FILE_VARIABLE} or the option "tokenFile" on the driver',
            )
        if version < TICKETS_SINCE:
            raise Unauthorized(
                f"the node speaks protocol version {version}, which has no tickets for "
                "executors",
                hint=f"Upgrade the node, or set {TOKEN_FILE_VARIABLE} on every executor",
            )
        return self._ticket.key, self._ticket.text

    def _exchange(
        self, message: Message, body: Sequence[Buffer], deadline: float
    ) -> tuple[Reply, Buffer]:
        connection = self._socket
        assert connection is not None
        if self._ahead is None:
            request_id = self._send(connection, message, body, deadline)
        else:
            (_, request_id), self._ahead = self._ahead, None
        frame = self._receive(connection, lambda: deadline - time.monotonic())
        reply = decode_message(frame)
        check(frame, reply)
        if isinstance(reply, ErrorReply):
            raise to_error(reply)
        if frame.id != request_id:
            raise BadFrame(
                f"expected the answer to request {request_id}, found one to {frame.id}"
            )
        return reply, frame.body  # type: ignore[return-value]  # `ask` looks at its type

    def _send(
        self,
        connection: socket.socket,
        message: Message,
        body: Sequence[Buffer],
        deadline: float,
    ) -> int:
        """Send a request and return its id."""
        request_id, self._next_id = self._next_id, self._next_id + 1
        left = max(deadline - time.monotonic(), 0.001)
        connection.settimeout(left)
        has_crc = not (isinstance(message, StageRequest) and message.checksum)
        deadline_ms = int(left * 1_000)
        for piece in encode_frame(message, request_id, body, deadline_ms, has_crc=has_crc):
            connection.sendall(piece)
        return request_id

    def _receive(self, connection: socket.socket, left: Callable[[], float]) -> Frame:
        while True:
            connection.settimeout(max(left(), 0.001))
            count = connection.recv_into(self._reader.get_buffer(0))
            if not count:
                raise ConnectionLost("the node closed the connection")
            for frame in self._reader.received(count):
                return frame


def _reader() -> FrameReader:
    """Return a reader that receives bodies in place, into memory that is not cleared."""
    return FrameReader(
        reserved_size=BODY_SIZE_MAX,
        reserve=lambda size: memoryview(pa.allocate_buffer(size)).cast("B"),
    )


def _connect(made: socket.socket, path: str) -> None:
    """Connect to a socket file; by way of its directory if the path is too long."""
    if len(os.fsencode(path)) <= SOCKET_PATH_SIZE_MAX:
        made.connect(path)
        return
    parent = os.open(Path(path).parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        made.connect(f"/proc/self/fd/{parent}/{Path(path).name}")
    finally:
        os.close(parent)


def _connected(address: Address) -> socket.socket:
    if address.path:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(CONNECT_SECONDS)
        try:
            _connect(made, address.path)
        except OSError:
            made.close()
            raise
        return made
    made = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def token_here(token_file: str | None, environment: Mapping[str, str]) -> bytes | None:
    """Return the token that this process has; None if it has none.

    The file that the query names comes first: drivers have it, and executors that share it.
    """
    if token_file is not None:
        try:
            return _text_of(token_file)
        except OSError:  # on an executor; the driver has read it
            pass
    token = environment.get(TOKEN_VARIABLE, "").strip()
    if token:
        return token.encode()
    path = environment.get(TOKEN_FILE_VARIABLE)
    if not path:
        return None
    try:
        return _text_of(path)
    except OSError as error:
        raise Unauthorized(
            f"{TOKEN_FILE_VARIABLE}: {error}", hint=f"Check the file on {socket.gethostname()}"
        ) from error


def _text_of(path: str) -> bytes:
    with open(path, encoding="utf-8") as file:
        return file.read().strip().encode()


def _pause(error: HeadraceError, wait: float) -> float:
    if isinstance(error, Busy) and error.retry_after_ms:
        return error.retry_after_ms / 1_000
    return wait
