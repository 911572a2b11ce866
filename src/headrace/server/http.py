"""Health and metrics over HTTP: a few GET pages, and nothing else.

Every peer gets one short response, then the connection ends. A connection has one deadline for
everything; the size of requests and the number of connections are limited.
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from headrace.errors import BadConfig
from headrace.node.events import event
from headrace.server.metrics import CONTENT_TYPE

CONNECTIONS_MAX: Final = 64  # more are closed at once: probes and scrapers are few
HEADER_SIZE_MAX: Final = 8 * 1024
LINE_SIZE_MAX: Final = 4 * 1024  # of the request line
TIMEOUT: Final = 5.0  # seconds, from the first byte to the last
# Closing with unread bytes resets the connection, and the response may be lost.
LINGER_TIMEOUT: Final = 1.0
LINGER_SIZE_MAX: Final = 64 * 1024

_PIECE = 4096
_END = b"\r\n\r\n"
_REQUEST_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~]+) HTTP/1\.([01])", re.ASCII)
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")


@dataclass(frozen=True, slots=True)
class Page:
    """One response."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the node serves, and the details for `/health/ready`, as JSON."""

    is_ready: bool
    details: Mapping[str, object]


Pages = Mapping[str, Callable[[], Page]]


def node_pages(health: Callable[[], Health], render: Callable[[], bytes]) -> Pages:
    """Return the pages of a node; each is rendered on request."""
    return {
        "/health/live": lambda: Page(b"live\n"),
        "/health/ready": lambda: _ready(health()),
        "/metrics": lambda: Page(render(), CONTENT_TYPE),
    }


@dataclass(slots=True)
class HttpServer:
    """A listener that serves `pages`. One loop owns it."""

    pages: Pages
    timeout: float = TIMEOUT
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def port(self) -> int:
        """The bound port, with the actual one for 0."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self, host: str, port: int) -> None:
        """Listen, or raise BadConfig."""
        assert self._server is None
        try:
            self._server = await asyncio.start_server(self._connected, host, port)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise BadConfig(
                "listen.http",
                f"cannot listen on {host} port {port}: {reason}",
                hint="Each node needs its own: set listen.http to another HOST:PORT, such as "
                "`--set listen.http=127.0.0.1:0` for any free port, or to '' to disable it",
            ) from error

    async def stop(self) -> None:
        """Close the listener and every connection. On return, no task runs."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            if len(self._tasks) < CONNECTIONS_MAX:
                self._tasks.add(task)
                await self._converse(reader, writer)
        except asyncio.CancelledError:
            pass  # by `stop` or the loop's end; asyncio logs a cancelled handler as an error
        finally:
            self._tasks.discard(task)
            writer.transport.abort()  # no effect if already closed

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Read one request and answer it. A slow or disconnected peer is not an error."""
        with suppress(OSError):  # the deadline's TimeoutError is one
            async with asyncio.timeout(self.timeout):
                request = await _hear(reader)
                if request is None:
                    return
                is_whole = not isinstance(request, Page)
                writer.write(self._answer(request))
                await writer.drain()
                if not is_whole and writer.can_write_eof():
                    writer.write_eof()
                    await _linger(reader)
                writer.close()
                await writer.wait_closed()

    def _answer(self, request: "_Request | Page") -> bytes:
        if isinstance(request, Page):
            return _response(request)
        make = self.pages.get(request.path)
        if make is None:
            page = _refusal(HTTPStatus.NOT_FOUND)
        elif request.method not in ("GET", "HEAD"):
            page = _refusal(HTTPStatus.METHOD_NOT_ALLOWED)
        else:
            page = _made(request.path, make)
        return _response(page, has_body=request.method != "HEAD")


async def serve_http(host: str, port: int, pages: Pages) -> HttpServer:
    """Start serving. The caller ends it with `stop`."""
    server = HttpServer(pages)
    await server.start(host, port)
    return server


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str  # without its query


async def _hear(reader: asyncio.StreamReader) -> _Request | Page | None:
    """Return a request, the response to an invalid one, or None if nothing was sent."""
    data = bytearray()
    while True:
        piece = await reader.read(_PIECE)
        if not piece:
            return _refusal(HTTPStatus.BAD_REQUEST) if data else None
        data += piece
        end = data.find(_END)
        status = _flaw(data, end)
        if status is not None:
            return _refusal(status)
        if end >= 0:
            is_alone = len(data) == end + len(_END)  # bodies are not accepted
            request = _parse(bytes(data[:end])) if is_alone else None
            return request or _refusal(HTTPStatus.BAD_REQUEST)


def _flaw(data: bytearray, end: int) -> HTTPStatus | None:
    """Check the received part by its size and its lines."""
    header = data[:end] if end >= 0 else data
    line_end = header.find(b"\r\n")
    if (line_end if line_end >= 0 else len(header)) > LINE_SIZE_MAX:
        return HTTPStatus.REQUEST_URI_TOO_LONG
    if len(header) > HEADER_SIZE_MAX - len(_END):
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    if header.count(b"\n") != header.count(b"\r\n"):  # the end would never match
        return HTTPStatus.BAD_REQUEST
    return None


def _parse(header: bytes) -> _Request | None:
    """Parse a request line and its headers; None if they are not a valid request."""
    line, *rest = header.decode("latin-1").split("\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        return None
    method, target, minor = match.groups()
    names = []
    for each in rest:
        found = _HEADER.fullmatch(each)
        if found is None:
            return None
        name = found.group(1).lower()
        if name == "transfer-encoding" or (name == "content-length" and found.group(2) != "0"):
            return None
        names.append(name)
    hosts = names.count("host")
    if hosts > 1 or (minor == "1" and not hosts):
        return None
    return _Request(method, target.partition("?")[0])


def _made(path: str, make: Callable[[], Page]) -> Page:
    try:
        return make()
    except Exception as error:  # noqa: BLE001  a page ends alone
        why = f"{type(error).__name__}: {error}"
        event("server.page.failed", level=logging.ERROR, path=path, error=why)
        return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR)


def _ready(health: Health) -> Page:
    said = {"ready": health.is_ready, **health.details}
    status = HTTPStatus.OK if health.is_ready else HTTPStatus.SERVICE_UNAVAILABLE
    return Page(json.dumps(said).encode() + b"\n", "application/json", status)


def _refusal(status: HTTPStatus) -> Page:
    return Page(f"{status.value} {status.phrase}\n".encode(), status=status)


def _response(page: Page, *, has_body: bool = True) -> bytes:
    lines = [
        f"HTTP/1.1 {page.status.value} {page.status.phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        "Connection: close",
    ]
    if page.status == HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    head = "\r\n".join(lines).encode("ascii") + _END
    return head + page.body if has_body else head


async def _linger(reader: asyncio.StreamReader) -> None:
    """Drain what a refused peer still sends, within bounds, so that it gets its response."""
    left = LINGER_SIZE_MAX
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_TIMEOUT):
            while left > 0 and (piece := await reader.read(_PIECE)):
                left -= len(piece)
