"""One log, four ways in: embedded or remote, sync or async. Tests await both alike."""

import asyncio
import inspect
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import headrace
from headrace.client.connect.embedded import config_of
from headrace.client.connect.loop_thread import LoopThread
from headrace.server.serve import serve

TOKEN = "open-sesame-1234"


async def it(found):
    """Wait for what the async API gives; take what the sync one gives as it is."""
    return await found if inspect.isawaitable(found) else found


async def each(batches, count=None):
    """Collect batches, all or the first few."""
    found = []
    if hasattr(batches, "__aiter__"):
        async for batch in batches:
            found.append(batch)
            if len(found) == count:
                break
        return found
    for batch in batches:
        found.append(batch)
        if len(found) == count:
            break
    return found


async def table(rows):
    return await it(rows.to_table())


@asynccontextmanager
async def within(manager):
    """Enter whatever kind of block there is."""
    found = await it(manager)
    if hasattr(found, "__aenter__"):
        async with found as inner:
            yield inner
    else:
        with found as inner:
            yield inner


class RunningNode:
    """A node that listens on a free port, in a thread of its own."""

    def __init__(self, path: Path, **settings: object) -> None:
        self._path = path
        self._settings = {"listen__address": "127.0.0.1:0", "listen__http": "", **settings}
        self._runner = LoopThread("node")
        config = config_of(self._settings)
        self._serving = self._runner.run(serve(str(path), config, release="test"))
        self.address = next(each for each in self._serving.addresses if "unix" not in each)
        self.socket = next(each for each in self._serving.addresses if "unix" in each)

    @property
    def http_port(self) -> int:
        return self._serving.http.port

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self) -> None:
        self._runner.run(self._serving.stop())
        self._runner.stop()


@dataclass
class Door:
    """A way in. `log` opens it for as long as the block lasts."""

    place: str  # embedded or remote
    api: str  # sync or async
    path: Path
    address: str = ""

    @asynccontextmanager
    async def log(self, **options):
        if self.place == "embedded":
            way = headrace.open if self.api == "sync" else headrace.open_async
            log = await it(way(self.path, **options))
        else:
            way = headrace.connect if self.api == "sync" else headrace.connect_async
            log = await it(way(self.address, **options))
        try:
            yield log
        finally:
            await it(log.close())


def soon(seconds=20.0):
    return asyncio.timeout(seconds)
