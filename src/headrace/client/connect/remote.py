"""A channel to a remote node: connects when needed, and reconnects.

A channel through the socket of a process that holds a data directory gives up when that
process has ended and none has replaced it. It does not open the directory itself: a restarting
node would find it held.
"""

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from headrace.client.connect.channel import Done, HolderEnded, OnHead, begin_task
from headrace.client.connect.client_connection import ClientConnection
from headrace.client.connect.retry import Backoff
from headrace.errors import ConnectionLost, HeadraceError, TimedOut
from headrace.wire.address import SOCKET_PATH_SIZE_MAX, Address, parse_addresses
from headrace.wire.frames import BODY_SIZE_MAX
from headrace.wire.messages import Reply, Request
from headrace.wire.msgpack import Buffer

CONNECT_TIMEOUT: Final = 5.0  # of one attempt; another address may work
VACANT_SECONDS: Final = 3.0  # by then a restarted process holds the directory again
_LOCK_NAME: Final = "LOCK"
_LOCK_SIZE_MAX: Final = 4096


class LockHolder:
    """The process that holds a data directory, as named in its file LOCK.

    The lock itself is not touched: a starting process could find it taken.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = (
            Path(path).absolute() / _LOCK_NAME
        )  # absolute, so that chdir does not matter
        self._pid: int | None = None  # None: in another pid namespace, so not visible
        self._vacant_since: float | None = None

    def on_connected(self) -> None:
        """Note which process holds the directory, now that it answers."""
        self._vacant_since = None
        try:
            self._pid = self._running()
        except OSError:
            self._pid = None

    def ended(self, time: float, *, is_last: bool = False) -> HolderEnded | None:
        """Return what to raise if no process has held the directory for a while."""
        try:
            is_vacant = self._pid is not None and self._running() is None
        except OSError:
            is_vacant = False
        if not is_vacant:
            self._vacant_since = None
            return None
        if self._vacant_since is None:
            self._vacant_since = time
        if time - self._vacant_since < VACANT_SECONDS and not is_last:
            return None
        return HolderEnded(f"process {self._pid}, which held {self._path}, has ended")

    def _running(self) -> int | None:
        """Return the process named in LOCK, if running. A clean stop empties the file."""
        try:
            with self._lock.open("rb") as file:
                found = re.search(
                    rb"^pid=([0-9]{1,9})$", file.read(_LOCK_SIZE_MAX), re.MULTILINE
                )
        except FileNotFoundError:
            return None
        if found is None:
            return None
        pid = int(found[1])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:  # another user's process
            pass
        return pid


class RemoteChannel:
    """One connection at a time, to the first address that answers, all of one cluster."""

    def __init__(
        self, address: str, token: str | None, release: str, holder: LockHolder | None = None
    ) -> None:
        self.address = address
        self._addresses = parse_addresses(address)
        self._token = None if token is None else token.encode()
        self._release = release
        self._holder = holder  # if the address is the socket of an opened directory
        self._connection: ClientConnection | None = None
        self._lock = asyncio.Lock()  # held while connecting
        self._approaching: set[object] = set()  # begun calls that wait for a connection
        self._is_closed = False
        self._failure = f"no node has answered at {address} yet"  # the latest one
        self._cluster: bytes | None = None  # of the first node reached
        self._place = 0  # index of the address to try next

    @property
    def cluster(self) -> bytes:
        return self._cluster or b""

    @property
    def body_size_max(self) -> int:
        return BODY_SIZE_MAX if self._connection is None else self._connection.body_size_max

    async def call(
        self,
        request: Request,
        body: Sequence[Buffer] = (),
        *,
        timeout: float,  # noqa: ASYNC109
        on_head: OnHead | None = None,
    ) -> tuple[Reply, Buffer]:
        """Send a request once, connecting if needed. See Channel.call."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        connection = self._connection
        if connection is None or connection.error is not None:
            connection = await self._connected(deadline)
        return await connection.call(
            request, body, timeout=deadline - loop.time(), on_head=on_head
        )

    def begin(
        self, request: Request, body: Sequence[Buffer], *, deadline: float, done: Done
    ) -> Callable[[], object]:
        """Send a request once. See Channel.begin. Requests that await a connection go first."""
        connection = self._connection
        if not self._approaching and connection is not None and connection.is_free:
            return connection.begin(request, body, deadline=deadline, done=done)
        token = object()
        self._approaching.add(token)

        async def asking() -> tuple[Reply, Buffer]:
            connection = await self._connected(deadline)  # first come, first served
            self._approaching.discard(token)
            timeout = deadline - asyncio.get_running_loop().time()
            return await connection.call(request, body, timeout=timeout)

        def ended(answer: Reply | BaseException) -> None:
            self._approaching.discard(token)
            done(answer)

        return begin_task(asking(), ended)

    async def connect(self, deadline: float) -> None:
        """Connect now, so that a wrong address or token fails at once."""
        await self._connected(deadline)

    async def close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            reason = f"the connection to {self.address} is closed"
            self._connection.abort(ConnectionLost(reason))

    async def _connected(self, deadline: float) -> ClientConnection:
        try:
            async with asyncio.timeout_at(deadline), self._lock:
                return await self._connect(deadline)
        except TimeoutError:
            raise self._unreachable() from None

    async def _connect(self, deadline: float) -> ClientConnection:
        backoff = Backoff()
        while True:
            if self._is_closed:
                reason = f"the log at {self.address} is closed"
                raise ConnectionLost(reason, hint="Connect again")
            if self._connection is not None and self._connection.error is None:
                return self._connection
            for _ in self._addresses:
                address = self._addresses[self._place % len(self._addresses)]
                try:
                    self._connection = await self._open(address)
                except (ConnectionLost, TimedOut) as error:
                    self._failure = f"no node answers at {address}: {Exception.__str__(error)}"
                    self._place += 1
                else:
                    if self._holder is not None:
                        self._holder.on_connected()
                    return self._connection
            delay, time = backoff.next(), asyncio.get_running_loop().time()
            if time + delay >= deadline:
                raise self._unreachable()
            if self._holder is not None and (ended := self._holder.ended(time)) is not None:
                raise ended
            await asyncio.sleep(delay)

    def _unreachable(self) -> ConnectionLost:
        """Return the error for a timeout while connecting."""
        if self._holder is not None:
            time = asyncio.get_running_loop().time()
            if (ended := self._holder.ended(time, is_last=True)) is not None:
                return ended
        hint = "Check the address, and that the node is running: headrace serve"
        return ConnectionLost(self._failure, hint=hint)

    async def _open(self, address: Address) -> ClientConnection:
        connection = ClientConnection(str(address))
        deadline = asyncio.get_running_loop().time() + CONNECT_TIMEOUT
        try:
            async with asyncio.timeout_at(deadline):
                await _transport(address, connection)
                await connection.greet(self._token, self._release, deadline, self._cluster)
        except TimeoutError:
            connection.abort(ConnectionLost("given up"))
            raise ConnectionLost(f"no answer within {CONNECT_TIMEOUT:.0f} s") from None
        except (OSError, ValueError) as error:  # ValueError: an invalid host name
            raise ConnectionLost(_said(error)) from error
        except BaseException as error:
            connection.abort(
                error if isinstance(error, HeadraceError) else ConnectionLost("given up")
            )
            raise
        self._cluster = connection.cluster
        return connection


async def _transport(address: Address, connection: ClientConnection) -> None:
    loop = asyncio.get_running_loop()
    if address.path:
        with short_address(address.path) as path:
            await loop.create_unix_connection(lambda: connection, path)
    else:
        await loop.create_connection(lambda: connection, address.host, address.port)


@contextmanager
def short_address(path: str) -> Iterator[str]:
    """Yield a path to a socket that is short enough for the system, valid in the block."""
    if len(os.fsencode(path)) <= SOCKET_PATH_SIZE_MAX:
        yield path
        return
    parent = os.open(Path(path).parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{parent}/{Path(path).name}"
    finally:
        os.close(parent)


def _said(error: OSError | ValueError) -> str:
    if not isinstance(error, OSError):
        return str(error)
    # asyncio joins the errors of several attempts into one text; uvloop has only numbers.
    return os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
