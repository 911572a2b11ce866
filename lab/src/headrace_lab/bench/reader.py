"""The reading process: `python -m headrace_lab.bench.reader ADDRESS`.

For each line of its input it reads every topic completely and prints the seconds that took.
"""

import asyncio
import sys
import time

import uvloop

from headrace.client.connect.remote import RemoteChannel
from headrace.client.log import AsyncLog

TIMEOUT = 300.0


async def main(address: str) -> None:
    """Serve rounds until the input ends."""
    log = AsyncLog(RemoteChannel(address, None, "bench"), TIMEOUT)
    loop = asyncio.get_running_loop()
    names = list(await log.topics())
    _say(0.0)
    while await loop.run_in_executor(None, sys.stdin.readline):
        began = time.perf_counter()
        for name in names:
            topic = await log.topic(name)
            async for _ in await topic.read():
                pass
        _say(time.perf_counter() - began)
    await log.close()


def _say(seconds: float) -> None:
    sys.stdout.write(f"{seconds}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1]))
