"""Health and metrics over HTTP: right pages, exact refusals, and bounds on every peer."""

import asyncio
import contextlib
import json
import logging
import socket

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as PrometheusHistogram
from prometheus_client.parser import text_string_to_metric_families

from headrace.errors import BadConfig
from headrace.node.counters import Distribution, NodeCounters
from headrace.server.http import (
    CONNECTIONS_MAX,
    HEADER_SIZE_MAX,
    LINE_SIZE_MAX,
    Health,
    HttpServer,
    Page,
    node_pages,
    serve_http,
)
from headrace.server.metrics import (
    CONTENT_TYPE,
    LABEL_VALUES_MAX,
    OTHER,
    Counter,
    Gauge,
    Histogram,
    Metrics,
)

HOST = "127.0.0.1"
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def broken() -> Page:
    raise KeyError("planted")


def pages(health=None, metrics=None):
    health = health or Health(True, {"shards": 2})
    metrics = metrics or Metrics(dict)
    large = {"/large": lambda: Page(b"x" * 5_000_000), "/broken": broken}
    return {**node_pages(lambda: health, metrics.render), **large}


@contextlib.asynccontextmanager
async def a_server(seconds=5.0, **given_pages):
    server = HttpServer(pages(**given_pages), timeout=seconds)
    await server.start(HOST, 0)
    try:
        yield server
    finally:
        await server.stop()


async def until(is_so) -> None:
    for _ in range(2_000):
        if is_so():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen in ten seconds")


async def ask(server, data: bytes, *, finish=False) -> bytes:
    reader, writer = await asyncio.open_connection(HOST, server.port)
    try:
        writer.write(data)
        if finish:
            writer.write_eof()
        return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def answer_to(data: bytes, *, loop=asyncio.new_event_loop, **rest) -> bytes:
    async def run():
        async with asyncio.timeout(30), a_server(**rest) as server:
            return await ask(server, data)

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(run())


def get(path: str, **rest) -> tuple[int, dict[str, str], bytes]:
    return split(answer_to(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), **rest))


def split(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body


@pytest.mark.parametrize("loop", LOOPS)
def test_a_live_node_says_so(loop):
    status, headers, body = get("/health/live", loop=loop)
    assert (status, body) == (200, b"live\n")
    assert headers["Content-Length"] == "5"
    assert headers["Connection"] == "close"
    assert headers["Cache-Control"] == "no-store"


def test_readiness_is_a_status_and_json():
    status, headers, body = get("/health/ready")
    assert (status, json.loads(body)) == (200, {"ready": True, "shards": 2})
    assert headers["Content-Type"] == "application/json"
    waiting = Health(False, {"step": "recover shards"})
    status, _, body = get("/health/ready", health=waiting)
    assert (status, json.loads(body)) == (503, {"ready": False, "step": "recover shards"})


def test_metrics_are_served_as_prometheus_reads_them():
    metrics = Metrics(lambda: {Counter.APPENDS: 3})
    status, headers, body = get("/metrics", metrics=metrics)
    assert (status, headers["Content-Type"]) == (200, CONTENT_TYPE)
    assert b"headrace_appends_total 3.0\n" in body


def test_a_query_is_ignored():
    assert get("/health/live?probe=1")[0] == 200


def test_head_has_the_headers_and_no_body():
    status, headers, body = split(answer_to(b"HEAD /health/live HTTP/1.0\r\n\r\n"))
    assert (status, headers["Content-Length"], body) == (200, "5", b"")


def test_a_page_that_raises_is_an_answer_and_an_event(caplog):
    with caplog.at_level(logging.ERROR, "headrace"):
        status, _, body = get("/broken")
    assert (status, body) == (500, b"500 Internal Server Error\n")
    assert [record.msg for record in caplog.records] == ["server.page.failed"]
    assert caplog.records[0].fields == {"path": "/broken", "error": "KeyError: 'planted'"}


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /nothing HTTP/1.0\r\n\r\n", 404),
        (b"GET /health HTTP/1.0\r\n\r\n", 404),
        (b"GET /health/live/../../etc/passwd HTTP/1.0\r\n\r\n", 404),
        (b"GET //health/live HTTP/1.0\r\n\r\n", 404),
        (b"GET http://x/metrics HTTP/1.0\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.0\r\n\r\n", 405),
        (b"DELETE /health/live HTTP/1.0\r\n\r\n", 405),
        (b"get /health/live HTTP/1.0\r\n\r\n", 405),
        (b"GET /health/live HTTP/1.1\r\n\r\n", 400),
        (b"GET /health/live HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /health/live HTTP/2.0\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /health/live\r\n\r\n", 400),
        (b"GET  /health/live HTTP/1.0\r\n\r\n", 400),
        (b"GET /health/li ve HTTP/1.0\r\n\r\n", 400),
        (b"GET /health/live\x00 HTTP/1.0\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.0\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\r\n", None),
        (b"GET /health/live HTTP/1.0\n\n", 400),
        (b"GET /health/live HTTP/1.0\r\nA: b\n\r\n", 400),
        (b"GET /health/live HTTP/1.0\r\nno colon\r\n\r\n", 400),
        (b"GET /health/live HTTP/1.0\r\n folded: x\r\n\r\n", 400),
        (b"GET /health/live HTTP/1.0\r\na : x\r\n\r\n", 400),
        (b"GET /health/live HTTP/1.0\r\na: x\x00\r\n\r\n", 400),
        (b"GET /health/live HTTP/1.0\r\na: x\ry\r\n\r\n", 400),
        (b"GET /health/live HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"GET /health/live HTTP/1.0\r\nContent-Length: 5\r\n\r\n", 400),
        (b"GET /health/live HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET /health/live HTTP/1.0\r\n\r\nGET /metrics HTTP/1.0\r\n\r\n", 400),
        (b"GET /health/live HTTP/1.0\r\nContent-Length: 0\r\n\r\n", 200),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\n" + bytes(500), 400),
        (b"GET /" + b"a" * LINE_SIZE_MAX, 414),
        (b"GET /" + b"a" * LINE_SIZE_MAX + b" HTTP/1.0\r\n\r\n", 414),
        (b"x" * 1_000_000, 414),
        (b"GET / HTTP/1.0\r\n" + b"a: b\r\n" * HEADER_SIZE_MAX, 431),
        (b"GET / HTTP/1.0\r\na: " + b"b" * HEADER_SIZE_MAX + b"\r\n\r\n", 431),
    ],
)
def test_a_bad_request_is_refused_exactly(data, status):
    answer = answer_to(data, seconds=0.3 if status is None else 5.0)
    assert (split(answer)[0] if answer else None) == status


def test_a_refused_peer_that_goes_on_sending_still_gets_its_answer():
    async def run():
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(10), a_server() as server:
            with socket.socket() as peer:
                peer.setblocking(False)
                await loop.sock_connect(peer, (HOST, server.port))
                for _ in range(3):
                    await loop.sock_sendall(peer, b"x" * (LINE_SIZE_MAX + 1))
                    await asyncio.sleep(0.1)
                answer = b""
                while piece := await loop.sock_recv(peer, 4096):
                    answer += piece
                return answer

    assert split(asyncio.run(run()))[0] == 414


def test_a_refused_method_says_which_are_served():
    assert split(answer_to(b"PUT /metrics HTTP/1.0\r\n\r\n"))[1]["Allow"] == "GET, HEAD"


def test_a_header_of_just_the_limit_is_served():
    start, end = b"GET /health/live HTTP/1.0\r\na: ", b"\r\n\r\n"
    filler = b"b" * (HEADER_SIZE_MAX - len(start) - len(end))
    assert split(answer_to(start + filler + end))[0] == 200
    assert split(answer_to(start + filler + b"b" + end))[0] == 431


def test_a_request_may_arrive_byte_by_byte():
    async def run():
        async with a_server() as server:
            reader, writer = await asyncio.open_connection(HOST, server.port)
            for byte in b"GET /health/live HTTP/1.0\r\n\r\n":
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            answer = await reader.read()
            writer.close()
            return answer

    assert split(asyncio.run(run()))[0] == 200


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.binary(max_size=300)
        | st.sampled_from([b"GET ", b"/metrics", b" HTTP/1.0\r\n", b"\r\n"]),
        max_size=6,
    )
)
def test_whatever_is_sent_is_answered_or_closed_and_the_next_one_is_served(pieces):
    failures = []

    async def run():
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: failures.append(context)
        )
        async with asyncio.timeout(30), a_server() as server:
            answer = await ask(server, b"".join(pieces), finish=True)
            assert answer == b"" or split(answer)[0] in (200, 400, 404, 405, 414, 431)
            after = await ask(server, b"GET /health/live HTTP/1.0\r\n\r\n")
            assert split(after)[0] == 200

    asyncio.run(run())
    assert failures == []


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("data", [b"", b"GET /hea", b"GET /health/live HTTP/1.0\r\n"])
def test_a_peer_that_stops_is_cut_off_by_the_deadline(data, loop):
    async def run():
        async with asyncio.timeout(4), a_server(seconds=0.2) as server:
            with contextlib.suppress(ConnectionResetError):
                assert await ask(server, data) == b""
            assert len(server._tasks) == 0

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_peer_that_does_not_read_is_cut_off_by_the_deadline(loop):
    async def run():
        async with asyncio.timeout(4), a_server(seconds=0.3) as server:
            _, writer = await asyncio.open_connection(HOST, server.port, limit=1024)
            writer.write(b"GET /large HTTP/1.0\r\n\r\n")
            await asyncio.sleep(0.1)
            assert len(server._tasks) == 1
            await until(lambda: len(server._tasks) == 0)
            writer.transport.abort()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


def test_a_large_page_arrives_whole():
    assert len(get("/large")[2]) == 5_000_000


def test_connections_beyond_the_bound_are_closed_and_their_places_come_back():
    async def run():
        async with asyncio.timeout(20), a_server(seconds=3.0) as server:
            held = [
                await asyncio.open_connection(HOST, server.port) for _ in range(CONNECTIONS_MAX)
            ]
            await until(lambda: len(server._tasks) == CONNECTIONS_MAX)
            request = b"GET /health/live HTTP/1.0\r\n\r\n"
            try:
                refused = await ask(server, request)
            except ConnectionError:
                refused = b""
            assert refused == b""
            assert len(server._tasks) == CONNECTIONS_MAX
            for _, writer in held:
                writer.close()
            await until(lambda: len(server._tasks) == 0)
            assert split(await ask(server, request))[0] == 200

    asyncio.run(run())


@pytest.mark.parametrize("loop", LOOPS)
def test_stop_ends_connections_and_the_listener(loop):
    failures = []

    async def run():
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: failures.append(context)
        )
        server = await serve_http(HOST, 0, pages())
        port = server.port
        reader, writer = await asyncio.open_connection(HOST, port)
        await until(lambda: len(server._tasks) == 1)
        async with asyncio.timeout(2):
            await server.stop()
        assert len(server._tasks) == 0
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        with pytest.raises(OSError, match=r"[Cc]onnect"):
            await asyncio.open_connection(HOST, port)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
    assert failures == []


@pytest.mark.parametrize("host", ["203.0.113.1", "no-such-host.invalid", "a" * 64])
def test_an_address_that_cannot_be_had_is_a_bad_config(host):
    with pytest.raises(BadConfig, match="cannot listen on") as caught:
        asyncio.run(serve_http(host, 0, pages()))
    assert caught.value.key == "listen.http"


def test_a_port_that_is_taken_is_a_bad_config():
    async def run():
        async with a_server() as server:
            with pytest.raises(BadConfig, match=r"[Aa]ddress already in use"):
                await serve_http(HOST, server.port, pages())

    asyncio.run(run())


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_every_metric_has_a_conventional_name_and_a_meaning():
    for counter in Counter:
        assert counter.startswith("headrace_")
        assert counter.endswith("_total")
    for other in (*Gauge, *Histogram):
        assert other.startswith("headrace_")
        assert not other.endswith("_total")
    everything = [*Counter, *Gauge, *Histogram]
    assert len(set(map(str, everything))) == len(everything)
    assert all(each.meaning.endswith(".") for each in everything)


def test_counters_begin_at_zero_so_that_the_first_failure_is_a_rise():
    found = samples(Metrics(dict))
    assert found[(Counter.APPENDS, ())] == 0
    assert not [name for name, _ in found if name.endswith("_created")]
    assert not [name for name, _ in found if name in list(Gauge)]


def test_what_is_read_is_shown_as_it_is_at_each_scrape():
    ops = Distribution((1.0, 2.0, 4.0))
    readings = {
        Gauge.READY: 1,
        "headrace_partitions": 12.0,
        Counter.CONNECTIONS: 5,
        Counter.CUT_OFFS: {"idle": 2, "stalled": 1},
        Histogram.COMMIT_GROUP_OPS: ops,
    }
    metrics = Metrics(lambda: readings)
    for number in (2, 3, 100):
        ops.add(number)
    found = samples(metrics)
    assert found[("headrace_ready", ())] == 1
    assert found[("headrace_partitions", ())] == 12
    assert found[("headrace_connections_total", ())] == 5
    assert found[("headrace_cut_off_connections_total", ("idle",))] == 2
    assert found[("headrace_cut_off_connections_total", ("stalled",))] == 1
    buckets = {"1.0": 0, "2.0": 1, "4.0": 2, "+Inf": 3}
    for bound, count in buckets.items():
        assert found[("headrace_commit_group_ops_bucket", (bound,))] == count
    assert found[("headrace_commit_group_ops_count", ())] == 3
    assert found[("headrace_commit_group_ops_sum", ())] == 105
    readings[Gauge.READY] = 0
    assert samples(metrics)[("headrace_ready", ())] == 0
    assert samples(metrics)[("headrace_connections_total", ())] == 5


def test_a_distribution_is_shown_as_prometheus_own_client_shows_it():
    numbers = (0.0, 0.0004, 0.0005, 0.3, 10.0, 31.0)
    ours, registry = NodeCounters().append_seconds, CollectorRegistry()
    name, meaning = Histogram.APPEND_SECONDS.value, Histogram.APPEND_SECONDS.meaning
    theirs = PrometheusHistogram(name, meaning, buckets=ours.bounds, registry=registry)
    for number in numbers:
        ours.add(number)
        theirs.observe(number)
    wanted = [
        line for line in generate_latest(registry).splitlines() if b"_created" not in line
    ]
    shown = Metrics(lambda: {Histogram.APPEND_SECONDS: ours}).render().splitlines()
    assert [line for line in shown if name.encode() in line] == wanted


def test_label_values_are_bounded_in_number_and_size():
    many = {f"{number}" + "x" * 10_000: 1 for number in range(10 * LABEL_VALUES_MAX)}
    metrics = Metrics(lambda: {Counter.FAILURES: many})
    found = {
        labels[0]: n
        for (name, labels), n in samples(metrics).items()
        if labels and name == Counter.FAILURES
    }
    assert len(found) == LABEL_VALUES_MAX + 1
    assert found[OTHER] == 9 * LABEL_VALUES_MAX
    assert sum(found.values()) == 10 * LABEL_VALUES_MAX
    assert max(map(len, found)) <= 100


@pytest.mark.parametrize("label", ['a"b', "a\nheadrace_appends_total 99", "a\\", "\udcff", "é"])
def test_a_hostile_label_cannot_forge_a_sample(label):
    metrics = Metrics(lambda: {Counter.FAILURES: {label: 1}})
    found = samples(metrics)
    assert found[(Counter.APPENDS, ())] == 0
    assert [labels for name, labels in found if name == Counter.FAILURES] == [
        (label.encode(errors="replace").decode(),)
    ]
