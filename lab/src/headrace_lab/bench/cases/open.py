"""How long a node takes to serve again: with many partitions, and after kill -9.

One log has 1,000 topics of 4 partitions and was stopped cleanly. The other was killed with 256
MiB in its journal that no segment holds; each round opens a fresh copy of it. A round ends when
the node is ready. The reference is the promised time: a ratio of 1 is just in time, 2 is half
of it.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.client.connect.remote import RemoteChannel
from headrace.client.log import AsyncLog
from headrace.node.bootstrap import StartedNode, start
from headrace.node.config.settings import Config
from headrace_lab.bench.bare import MIB
from headrace_lab.bench.frame import Case, Round, rate, scaled
from headrace_lab.bench.rows import SCHEMA, Rows
from headrace_lab.bench.serving import a_server

TOPIC_COUNT = 1_000
PARTITION_COUNT = 4
UNSEALED_COUNT = 256  # MiB
_CLEAN_SECONDS = 1.0
_KILLED_SECONDS = 3.0
TIMEOUT = 300.0


def cases(directory: Path, scale: float) -> list[Case]:
    """After a clean stop, and after a kill."""
    topics, unsealed = scaled(TOPIC_COUNT, scale), scaled(UNSEALED_COUNT, scale)
    return [
        Case(
            name=f"{topics:,} topics of {PARTITION_COUNT} partitions, clean stop",
            unit="opens/s",
            ours=lambda: _opening(directory / "clean", lambda log: _many(log, topics)),
            reference="one open in a second",
            limit=lambda: _promised(_CLEAN_SECONDS),
            floor=1.0,
        ),
        Case(
            name=f"{unsealed} MiB unsealed, kill -9",
            unit="opens/s",
            ours=lambda: _opening(
                directory / "killed", lambda log: _fill(log, unsealed), is_killed=True
            ),
            reference="one open in three seconds",
            limit=lambda: _promised(_KILLED_SECONDS),
            floor=1.0,
        ),
    ]


@contextmanager
def _opening(
    path: Path, fill: Callable[[AsyncLog], Awaitable[None]], *, is_killed: bool = False
) -> Iterator[Round]:
    """Fill a log through a node of its own, end that node, and open what it left."""
    made = path.with_suffix(".made")
    with a_server(made, "listen.socket=false", is_killed=is_killed) as address:
        asyncio.run(_filled(address, fill))

    def one_round() -> float:
        shutil.copytree(made, path)
        with asyncio.Runner() as runner:
            opened: list[StartedNode] = []
            found = rate(1, lambda: opened.append(runner.run(start(str(path), Config()))))
            runner.run(opened[0].stop())
        shutil.rmtree(path)
        return found

    yield one_round
    shutil.rmtree(made)


async def _filled(address: str, fill: Callable[[AsyncLog], Awaitable[None]]) -> None:
    log = AsyncLog(RemoteChannel(address, None, "bench"), TIMEOUT)
    await fill(log)
    await log.close()


async def _many(log: AsyncLog, count: int) -> None:
    topics = [
        await log.create_topic(f"bench/t{number}", SCHEMA, partitions=PARTITION_COUNT)
        for number in range(count)
    ]
    for topic in topics:
        await topic.bounds()


async def _fill(log: AsyncLog, count: int) -> None:
    topic = await log.create_topic("bench/unsealed", SCHEMA)
    rows = Rows.of(MIB)
    for number in range(count):
        await topic.append(rows[number])


@contextmanager
def _promised(seconds: float) -> Iterator[Round]:
    yield lambda: 1 / seconds
