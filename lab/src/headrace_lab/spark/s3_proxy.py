"""A proxy before an S3, in a process of its own, that breaks what passes by its rules.

It is an HTTP server on a real socket. It loses answers, answers with an error before or after
the real request was carried out, waits, takes out conditions, or is not there at all for a
while. `python -m headrace_lab.spark.s3_proxy UPSTREAM PORT` obeys commands on its standard
input, each a JSON object with `word`, and answers each with a line. It has a process of its own
because a library that calls a store may hold the interpreter's lock: a thread of the same
process could then not answer it.
"""

import http.client
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self
from urllib.parse import unquote

import msgspec

from headrace.cli.demo.child_process import Silent
from headrace_lab.spark.s3_server import CALL_SECONDS, HOST, LOOK_SECONDS, free_port

_CONDITION: Final = "if-none-match"
_OF_ONE_HOP: Final = frozenset({"connection", "transfer-encoding", "content-length", "date"})
END_SECONDS: Final = 10.0


class S3Proxy:
    """A running proxy. Use it as a context: it does not outlive the block."""

    def __init__(self, upstream: str) -> None:
        self.port = free_port()
        self._lock = threading.Lock()
        command = [sys.executable, "-m", "headrace_lab.spark.s3_proxy", upstream]
        self._process = subprocess.Popen(
            [*command, str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
        )
        self._asked: list[Exchange] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # it ends then
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def asked(self) -> "list[Exchange]":
        """What came through so far, in order."""
        found = self._tell("asked", since=len(self._asked))
        self._asked += msgspec.convert(found, list[Exchange])
        return list(self._asked)

    def add(self, fault: "Fault", method: str = "PUT", **more: object) -> None:
        """Add a rule; the first one that matches applies, as often as it says."""
        self._tell("add", rule=Rule(fault, method, **more))  # type: ignore[arg-type]

    def clear(self) -> None:
        """Forget all rules."""
        self._tell("clear")

    def start(self) -> None:
        """Listen on the port, if it does not yet."""
        self._tell("start")

    def stop(self) -> None:
        """Refuse connections, and cut those that are there."""
        self._tell("stop")

    def away(self, seconds: float) -> None:
        """Refuse connections for a while, without waiting for it to end."""
        self._tell("away", seconds=seconds)

    def _tell(self, word: str, **more: object) -> object:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(msgspec.json.encode({"word": word, **more}) + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise Silent("the proxy before the S3 ended by itself")
        return msgspec.json.decode(line)


class Fault(Enum):
    """What the proxy does to a request that a rule matches."""

    ANSWER = "answer with an error; the request is not carried out"
    ANSWER_AFTER = "carry it out, and answer with an error"
    LOSE = "carry it out, and close the connection without an answer"
    CUT = "close the connection; the request is not carried out"
    HANG = "carry it out, and never answer"
    HOLD = "neither carry it out nor answer"
    OVERTAKE = "put another body there first, and then carry it out"
    IGNORE_CONDITION = "carry it out without its If-None-Match"


_NOT_CARRIED_OUT: Final = frozenset({Fault.ANSWER, Fault.CUT, Fault.HOLD})


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
    other: str = ""  # what another writer puts there first


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request that came through, and what was done to it."""

    method: str
    target: str  # path and query, as a person would write them
    headers: Mapping[str, str]
    fault: Fault | None


@dataclass(slots=True)
class ProxyServer:
    """Stands before an S3 as an endpoint of its own, in the process `S3Proxy` starts."""

    upstream: str
    port: int
    rules: list[Rule] = field(default_factory=list)
    asked: list[Exchange] = field(default_factory=list)
    _server: "_Listener | None" = None
    # moto looks whether a name is free and then takes it: in between, another could.
    turn: threading.Lock = field(default_factory=threading.Lock)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def obey(self, given: dict[str, Any]) -> object:
        """Carry out one word of the control channel and return what to answer."""
        match given["word"]:
            case "add":
                with self._lock:
                    self.rules.append(msgspec.convert(given["rule"], Rule))
            case "clear":
                with self._lock:
                    self.rules.clear()
            case "asked":
                with self._lock:
                    return self.asked[given["since"] :]
            case "start":
                self.start()
            case "stop":
                self.stop()
            case "away":
                self.away(given["seconds"])
            case word:
                raise ValueError(f"{word!r} is not a word of the control channel")
        return None

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

    def away(self, seconds: float) -> None:
        """Refuse connections for a while, without waiting for it to end."""
        self.stop()
        back = threading.Timer(seconds, self.start)
        back.daemon = True
        back.start()

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

    def __init__(self, proxy: ProxyServer) -> None:
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
        if rule is None:
            self._reply(*self._forward(headers, body))
        else:
            self._break(rule, headers, body)

    def _break(self, rule: Rule, headers: dict[str, str], body: bytes) -> None:
        """Do to a request what a rule says."""
        fault = rule.fault
        if fault not in _NOT_CARRIED_OUT:
            if rule.other:
                self._forward({}, rule.other.encode())
            if fault == Fault.IGNORE_CONDITION:
                headers.pop(_CONDITION, None)
            answer = self._forward(headers, body)
            if fault in (Fault.IGNORE_CONDITION, Fault.OVERTAKE):
                self._reply(*answer)
                return
        if fault in (Fault.HANG, Fault.HOLD):
            self.server.proxy.hang()
        if fault in (Fault.ANSWER, Fault.ANSWER_AFTER):
            self._fail(rule)
        else:
            self._cut()

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

    def _fail(self, rule: Rule) -> None:
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


def main(upstream: str, port: str) -> None:
    """Serve until standard input ends."""
    proxy = ProxyServer(upstream, int(port))
    for line in sys.stdin.buffer:
        found = msgspec.json.encode(proxy.obey(msgspec.json.decode(line)))
        sys.stdout.buffer.write(found + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
