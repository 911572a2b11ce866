"""A node with its sockets, as run by `headrace serve` and by an embedded log."""

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.node.bootstrap import Boot, begin
from headrace.node.config.settings import Config
from headrace.node.events import event
from headrace.node.node import Node
from headrace.server.connections.limits import PeerLimits
from headrace.server.connections.listener import Listener
from headrace.server.connections.tcp import TcpPort, bind_tcp, listen_tcp
from headrace.server.connections.traffic import Traffic
from headrace.server.connections.unix import listen_unix, refuse_if_blocked
from headrace.server.http import Health, HttpServer, node_pages, serve_http
from headrace.server.metrics import Metrics
from headrace.server.readings import readings
from headrace.wire.address import SOCKET_NAME


@dataclass(slots=True)
class Serving:
    """A listening node. `stop` ends it cleanly."""

    boot: Boot
    service: Node
    traffic: Traffic
    listeners: list[Listener] = field(default_factory=list)
    http: HttpServer | None = None

    @property
    def addresses(self) -> list[str]:
        return [listener.address for listener in self.listeners]

    async def stop(self) -> None:
        """Stop accepting, answer requests in flight, then stop the groups."""
        if self.boot.node is not None:
            self.boot.node.begin_stop()
        limit = self.boot.config.stop.timeout.seconds
        ends_at = self.boot.loop.time() + limit
        try:
            await asyncio.gather(*(listener.close(limit) for listener in self.listeners))
            if self.http is not None:
                await self.http.stop()
        finally:
            await self.boot.stop(max(1.0, ends_at - self.boot.loop.time()))


async def serve(
    path: str, config: Config, *, release: str, tcp: bool = True, strict: bool = False
) -> Serving:
    """Start the node in `path` and listen. On failure, nothing is left running.

    Health is served from the first step on, the log only after all steps.

    The conditions of a start are checked in this order; nothing is created before all are met:

        the lock, if there is one      DirectoryHeld names its process
        the HTTP port, the TCP port    BadConfig names the setting, also if another file is
        and the socket's path          in the place of the socket
        the directory, LOCK, a log     Boot.run creates them

    So a start that fails or is killed before the last line leaves the directory unchanged, or
    missing; only the text in LOCK may differ, which is void once its process has ended.
    """
    boot, traffic = begin(path, config, strict=strict), Traffic()
    boot.release = release
    metrics = Metrics(lambda: readings(boot, traffic))
    await boot.claim()
    http: HttpServer | None = None
    port: TcpPort | None = None
    try:
        if tcp:
            http = await _serve_health(boot, metrics)
            port = await bind_tcp(config.listen.address.host, config.listen.address.port)
        if config.listen.socket:
            refuse_if_blocked(Path(path) / SOCKET_NAME)
        started = await boot.started()
    except BaseException:
        boot.unclaim()
        if port is not None:
            port.close()
        if http is not None:
            await http.stop()
        raise
    for driver in started.node.drivers:
        driver.on_group = started.node.calls.counters.group_ops.add
    serving = Serving(boot, started.node, traffic, http=http)
    try:
        await _listen(serving, config, release, port)
    except BaseException:
        if port is not None:
            port.close()
        await serving.stop()
        raise
    return serving


async def _serve_health(boot: Boot, metrics: Metrics) -> HttpServer | None:
    where = boot.config.listen.http
    if where is None:
        return None
    pages = node_pages(lambda: Health(boot.is_ready, boot.describe()), metrics.render)
    server = await serve_http(where.host, where.port, pages)
    event("node.health.listening", address=str(replace(where, port=server.port)))
    return server


async def _listen(serving: Serving, config: Config, release: str, port: TcpPort | None) -> None:
    limits = limits_of(config)
    service, traffic, boot = serving.service, serving.traffic, serving.boot
    if config.listen.socket:
        path = Path(boot.path) / SOCKET_NAME
        unix = await listen_unix(service, path, limits, release=release, traffic=traffic)
        serving.listeners.append(unix)
    if port is not None:
        token = config.auth.token.encode() or None
        serving.listeners.append(
            await listen_tcp(service, port, limits, token, release=release, traffic=traffic)
        )
    boot.steps["listen"] = ", ".join(serving.addresses)
    event("node.listening", addresses=boot.steps["listen"])


def limits_of(config: Config) -> PeerLimits:
    """Return the limits on peers from the config."""
    limits, request = config.limits, config.request
    return PeerLimits(
        connection_count_max=limits.connections,
        in_flight_max=limits.in_flight,
        in_flight_size_max=limits.in_flight_size,
        queue_size_max=limits.queue_size,
        body_size_max=limits.body_size,
        fetch_size_max=limits.fetch_size,
        handshake_timeout=limits.handshake_timeout.seconds,
        stall_timeout=limits.stall_timeout.seconds,
        idle_timeout=limits.idle_timeout.seconds,
        request_timeout=request.timeout.seconds,
        request_timeout_max=request.timeout_max.seconds,
    )
