"""The sending process: `python -m headrace_lab.bench.producers ADDRESS N SIZE WINDOW
BATCHES`.

It prints a number when it is ready. For each line of its input it sends all batches and prints
the seconds until the last was acknowledged.
"""

import asyncio
import secrets
import sys
import time

import pyarrow as pa
import uvloop

from headrace.client.connect.remote import RemoteChannel
from headrace.client.log import AsyncLog
from headrace.client.topic import AsyncTopic
from headrace_lab.bench.rows import SCHEMA, Rows
from headrace_lab.bench.serving import ProducerLoad

TIMEOUT = 300.0


async def main(address: str, load: ProducerLoad) -> None:
    """Serve rounds until the input ends."""
    rows = Rows.of(load.size)
    name = f"bench/t{secrets.token_hex(4)}"
    logs = [
        AsyncLog(RemoteChannel(address, None, "bench"), TIMEOUT) for _ in range(load.producers)
    ]
    await logs[0].create_topic(name, SCHEMA, partitions=load.producers)
    topics = [await log.topic(name) for log in logs]
    for number, topic in enumerate(topics):  # connected, and the partition is there
        await topic.append(rows[0].slice(0, 1), partition=number)
    loop = asyncio.get_running_loop()
    _say(0.0)
    while await loop.run_in_executor(None, sys.stdin.readline):
        began = time.perf_counter()
        share = load.count // load.producers
        if load.window:
            sending = [
                _produce(topic, n, rows, load.window, share) for n, topic in enumerate(topics)
            ]
        else:
            sending = [_stream(log, name, rows, share) for log in logs]
        await asyncio.gather(*sending)
        _say(time.perf_counter() - began)
    for log in logs:
        await log.close()


async def _produce(
    topic: AsyncTopic, partition: int, rows: Rows, window: int, count: int
) -> None:
    """Send `count` batches to one partition, `window` at a time."""
    numbers = iter(range(count))

    async def one_after_the_other() -> None:
        for number in numbers:
            batch: pa.RecordBatch = rows[number]
            await topic.append(batch, partition=partition)

    await asyncio.gather(*(one_after_the_other() for _ in range(window)))


async def _stream(log: AsyncLog, topic: str, rows: Rows, count: int) -> None:
    """Send `count` batches through a producer, and wait for the last of them."""
    async with await log.producer(topic) as producer:
        for number in range(count):
            await producer.send(rows[number])


def _say(seconds: float) -> None:
    sys.stdout.write(f"{seconds}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], ProducerLoad(*map(int, sys.argv[2:6]))))
