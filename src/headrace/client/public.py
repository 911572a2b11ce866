"""Entry points: `open` a log in this process, or `connect` to a node."""

import asyncio
import atexit
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from os import PathLike
from pathlib import Path
from typing import Final

from headrace.client.connect.loop_thread import LoopThread
from headrace.client.connect.remote import LockHolder, RemoteChannel
from headrace.client.connect.retry import now
from headrace.client.log import AsyncLog
from headrace.client.read.consumer import AsyncConsumer
from headrace.client.read.rows import AsyncRows
from headrace.client.sync import Log, Topic
from headrace.client.sync_streams import Consumer, Producer, Rows, Transaction
from headrace.client.topic import AsyncTopic
from headrace.client.values.answers import (
    Appended,
    Bounds,
    Cursor,
    Published,
    Range,
    Retention,
    TopicSummary,
    Trimmed,
    Unerased,
)
from headrace.client.values.parse import duration, path_of, word
from headrace.client.write.producer import AsyncProducer
from headrace.client.write.transaction import AsyncTransaction
from headrace.errors import (
    BadConfig,
    BadRequest,
    ConnectionLost,
    DirectoryHeld,
    HeadraceError,
    TimedOut,
)
from headrace.wire.address import SOCKET_NAME

__all__ = [
    "Appended",
    "AsyncConsumer",
    "AsyncLog",
    "AsyncProducer",
    "AsyncRows",
    "AsyncTopic",
    "AsyncTransaction",
    "Bounds",
    "Consumer",
    "Cursor",
    "Log",
    "Producer",
    "Published",
    "Range",
    "Retention",
    "Rows",
    "Topic",
    "TopicSummary",
    "Transaction",
    "Trimmed",
    "Unerased",
    "connect",
    "connect_async",
    "open",
    "open_async",
]

TIMEOUT: Final = "30s"  # of one operation, retries included
VISIT_SECONDS: Final = 0.5  # then check whether the process that held the directory has ended

_open_logs: set[Log] = set()  # until closed: their producers may have rows to send


def open(  # noqa: A001
    path: str | PathLike[str], *, timeout: str | float = TIMEOUT, **settings: object
) -> Log:
    """Open the log in directory `path`; create it if it does not exist.

    Opening it twice in one process returns the same log. If another process of this user holds
    the directory, the log is reached through that process's socket. Settings are those of a
    node, written as `commit__group_size="16MiB"` for `commit.group_size`.
    """
    # A program that only connects does not need a node.
    from headrace.client.connect.embedded_nodes import Guest, enter

    seconds, place = _seconds(timeout), path_of(path, "path")
    end = time.monotonic() + seconds
    while True:
        try:
            home = enter(place, settings, _release())
        except DirectoryHeld as held:
            if (log := _visit(place, held, settings, seconds, end)) is not None:
                return log
        else:
            return _opened(AsyncLog(Guest(home), seconds), home.runner, home.leave)


async def open_async(
    path: str | PathLike[str],
    *,
    timeout: str | float = TIMEOUT,  # noqa: ASYNC109
    **settings: object,
) -> AsyncLog:
    """Open the log in directory `path`, for asyncio. See `open`."""
    from headrace.client.connect.embedded_nodes import Guest, enter

    seconds, place = _seconds(timeout), path_of(path, "path")
    end = time.monotonic() + seconds
    while True:
        try:
            home = await asyncio.to_thread(enter, place, settings, _release())
        except DirectoryHeld as held:
            if (log := await _visit_async(place, held, settings, seconds, end)) is not None:
                return log
        else:
            return AsyncLog(Guest(home), seconds)


def _visit(
    path: str, held: DirectoryHeld, settings: dict[str, object], seconds: float, end: float
) -> Log | None:
    """Connect to a log through the process that holds it. See `_visit_async`."""
    runner = LoopThread(f"headrace {path}")
    core: AsyncLog | None = None
    try:
        core = runner.run(_visit_async(path, held, settings, seconds, end))
    finally:
        if core is None:
            runner.stop()
    return None if core is None else _opened(core, runner, runner.stop)


async def _visit_async(
    path: str, held: DirectoryHeld, settings: dict[str, object], seconds: float, end: float
) -> AsyncLog | None:
    """Connect to a log through the process that holds it; None if it does not answer now.

    It may still be starting, or have ended, in which case the directory can be opened.
    """
    if held.pid is not None and not held.socket:  # it is configured not to listen there
        raise held
    if settings:
        hint = "Stop that process, or open it without settings"
        raise BadConfig(
            "", f"{held.path} runs with the settings of process {held.pid}", hint=hint
        )
    channel = RemoteChannel(_socket_in(path), None, _release(), LockHolder(path))
    left = end - time.monotonic()
    try:
        await channel.connect(now() + min(left, VISIT_SECONDS))
    except (ConnectionLost, TimedOut):
        await channel.close()
        if left <= VISIT_SECONDS:
            raise held from None
        return None
    return AsyncLog(channel, seconds)


def _socket_in(path: str) -> str:
    """Return the socket's address: absolute, so that chdir does not matter."""
    return f"unix:{Path(path).absolute() / SOCKET_NAME}"


def connect(address: str, token: str | None = None, timeout: str | float = TIMEOUT) -> Log:
    """Connect to a node: `host:port`, several separated by commas, or `unix:/path`."""
    runner = LoopThread(f"headrace {address}")
    try:
        core = runner.run(connect_async(address, token, timeout))
    except BaseException:
        runner.stop()
        raise
    return _opened(core, runner, runner.stop)


async def connect_async(
    address: str,
    token: str | None = None,
    timeout: str | float = TIMEOUT,  # noqa: ASYNC109
) -> AsyncLog:
    """Connect to a node, for asyncio. See `connect`."""
    seconds = _seconds(timeout)
    word(address, "address")
    if token is not None:
        word(token, "token")
    channel = RemoteChannel(address, token, _release())
    await channel.connect(now() + seconds)
    return AsyncLog(channel, seconds)


def _opened(core: AsyncLog, runner: LoopThread, leave: Callable[[], None]) -> Log:
    """Return a log that is closed when the program ends, if not before."""

    def leave_and_forget() -> None:
        _open_logs.discard(log)
        leave()

    log = Log(core, runner, leave_and_forget)
    _open_logs.add(log)
    return log


def _seconds(timeout: str | float) -> float:
    seconds = duration(timeout, "timeout").seconds
    if seconds <= 0:
        raise BadRequest(
            f"timeout must be longer than 0, got {timeout!r}", hint='Use "30s", for example'
        )
    return seconds


def _release() -> str:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version("headrace")
    return "unknown"


def _close_all(logs: Callable[[], list[Log]] = lambda: list(_open_logs)) -> None:
    """Close the logs that an exiting program left open. Acknowledged rows are on disk."""
    for log in logs():
        with suppress(HeadraceError, RuntimeError):
            log.close()


atexit.register(_close_all)
