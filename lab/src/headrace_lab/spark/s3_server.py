"""An S3 on this machine: moto's server as a process of its own, and a proxy that breaks it.

The proxy is an HTTP server on a real socket. By its rules it loses answers, answers with an
error before or after the real request was carried out, waits, takes out conditions, or is not
there at all for a while.
"""

import http.client
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Self
from urllib.parse import unquote

from headrace.cli.demo.child_process import Silent

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 60.0
CALL_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.02
REGION: Final = "us-east-1"
# What moto takes for credentials: it knows nobody.
KEYS: Final = {"AWS_ACCESS_KEY_ID": "headrace", "AWS_SECRET_ACCESS_KEY": "headrace-secret"}
_CONDITION: Final = "if-none-match"
_OF_ONE_HOP: Final = frozenset({"connection", "transfer-encoding", "content-length", "date"})


class S3Server:
    """A running moto. Use it as a context: it does not outlive the block."""

    def __init__(self) -> None:
        self.port = free_port()
        self._count = 0
        command = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(self.port)]
        # Objects stay in memory: so large that no test spills them.
        env = {**os.environ, "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(2**30)}
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
        )

    def __enter__(self) -> Self:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with suppress(OSError):
                socket.create_connection((HOST, self.port), 1.0).close()
                return self
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise Silent("moto's server does not start")
            time.sleep(LOOK_SECONDS)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def make_bucket(self) -> str:
        """Make an empty bucket and return its name."""
        self._count += 1
        name = f"bucket-{self._count}"
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=CALL_SECONDS).close()
        return name


@contextmanager
def an_s3() -> Iterator[S3Server]:
    """Give a running S3, without any bucket so far."""
    with S3Server() as server:
        yield server


def settings_of(endpoint: str, **more: object) -> dict[str, object]:
    """Return the settings of a location at an endpoint of this machine."""
    return {"endpoint": endpoint, "allow_http": True, "region": REGION, "timeout": 10.0, **more}


def free_port() -> int:
    with socket.create_server((HOST, 0)) as found:
        port: int = found.getsockname()[1]
        return port


class Fault(Enum):
    """What the proxy does to a request that a rule matches."""

    ANSWER = "answer with an error; the request is not carried out"
    ANSWER_AFTER = "carry it out, and answer with an error"
    LOSE = "carry it out, and close the connection without an answer"
    CUT = "close the connection; the request is not carried out"
    HANG = "carry it out, and never answer"
    IGNORE_CONDITION = "carry it out without its If-None-Match"


@dataclass(slots=True)
class Rule:
    """What to do with the next requests of a kind."""

    fault: Fault
    method: str = "PUT"
    target: str = ""  # a regular expression, found in path and query
    times: int = 1
    status: int = 503
    code: str = "SlowDown"  # in the body, as S3 names it
    body: str = ""  # instead of one with the code
    location: str = ""  # where a redirect leads to


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request that came through, and what was done to it."""

    method: str
    target: str  # path and query, as a person would write them
    headers: Mapping[str, str]
    fault: Fault | None


@dataclass(slots=True)
class S3Proxy:
    """Stands before an S3 as an endpoint of its own. Use it as a context."""

    upstream: str
    rules: list[Rule] = field(default_factory=list)
    asked: list[Exchange] = field(default_factory=list)
    port: int = field(default_factory=free_port)
    _server: "_Listener | None" = None
    # moto looks whether a name is free and then takes it: in between, another could.
    turn: threading.Lock = field(default_factory=threading.Lock)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.stop()

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def add(self, fault: Fault, method: str = "PUT", **more: object) -> None:
        """Add a rule; the first one that matches applies, as often as it says."""
        with self._lock:
            self.rules.append(Rule(fault, method, **more))  # type: ignore[arg-type]

    def start(self) -> None:
        """Listen on the port, if it does not yet."""
        if self._server is not None:
            return
        self._server = _Listener(self)
        threading.Thread(
            target=self._server.serve_forever, args=(LOOK_SECONDS,), daemon=True
        ).start()

    def stop(self) -> None:
        """Refuse connections, and cut those that are there."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            server.cut()

    def away(self, seconds: float) -> threading.Timer:
        """Refuse connections for a while, without waiting for it to end."""
        self.stop()
        back = threading.Timer(seconds, self.start)
        back.daemon = True
        back.start()
        return back

    def fault_of(self, method: str, target: str, headers: Mapping[str, str]) -> Rule | None:
        """Return the rule of a request, and record both."""
        with self._lock:
            for rule in self.rules:
                if rule.times and rule.method == method and re.search(rule.target, target):
                    rule.times -= 1
                    break
            else:
                rule = None
            self.asked.append(Exchange(method, target, headers, rule.fault if rule else None))
            return rule

    def hang(self) -> None:
        """Wait until the proxy ends."""
        self._is_over.wait()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, proxy: S3Proxy) -> None:
        self.proxy = proxy
        self.open: set[socket.socket] = set()
        super().__init__((HOST, proxy.port), _Handler)

    def process_request(self, request: object, client_address: object) -> None:
        assert isinstance(request, socket.socket)
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: object) -> None:
        assert isinstance(request, socket.socket)
        self.open.discard(request)
        super().shutdown_request(request)

    def cut(self) -> None:
        """End every connection."""
        for each in list(self.open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a connection that broke: that is what this is for."""


class _Handler(BaseHTTPRequestHandler):
    """Serves one connection."""

    protocol_version = "HTTP/1.1"
    timeout = CALL_SECONDS
    server: _Listener

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        rule = self.server.proxy.fault_of(self.command, unquote(self.path), headers)
        match rule.fault if rule else None:
            case Fault.ANSWER:
                self._fail(rule)
            case Fault.CUT:
                self._cut()
            case Fault.ANSWER_AFTER:
                self._forward(headers, body)
                self._fail(rule)
            case Fault.LOSE:
                self._forward(headers, body)
                self._cut()
            case Fault.HANG:
                self._forward(headers, body)
                self.server.proxy.hang()
                self._cut()
            case Fault.IGNORE_CONDITION:
                headers.pop(_CONDITION, None)
                self._reply(*self._forward(headers, body))
            case None:
                self._reply(*self._forward(headers, body))

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle  # noqa: N815

    def _forward(
        self, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        address = self.server.proxy.upstream.partition("://")[2]
        upstream = http.client.HTTPConnection(address, timeout=CALL_SECONDS)
        try:
            kept = {name: each for name, each in headers.items() if name != "connection"}
            with self.server.proxy.turn if _CONDITION in headers else nullcontext():
                upstream.request(self.command, self.path, body, kept)
                answer = upstream.getresponse()
                found = {name.lower(): value for name, value in answer.getheaders()}
                return answer.status, found, answer.read()
        finally:
            upstream.close()

    def _fail(self, rule: Rule | None) -> None:
        assert rule is not None
        text = f"<Error><Code>{rule.code}</Code><Message>planted</Message></Error>"
        body = (rule.body or text).encode()
        headers = {"content-type": "application/xml"}
        if rule.location:
            headers["location"] = rule.location
        self._reply(rule.status, headers, body)

    def _reply(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
        is_head = self.command == "HEAD"
        size = headers.get("content-length", "0") if is_head else str(len(content))
        self.send_response(status)
        for name, value in headers.items():
            if name not in _OF_ONE_HOP:
                self.send_header(name, value)
        self.send_header("content-length", size)
        self.end_headers()
        if not is_head:
            self.wfile.write(content)

    def _cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
