"""The rows of a demo: their producers, and what the ledgers record about them.

source, number    identity of a row: each producer counts its own from 0
customer, amount  payload
"""

import asyncio
import json
import threading
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

import headrace
from headrace.cli.demo.checks import Claim, Told
from headrace.errors import HeadraceError

TOPIC: Final = "demo/orders"
PRODUCERS: Final = 4  # each with its own partition
BATCH: Final = 500  # rows sent at once
PAUSE_S: Final = 0.01  # after each batch: leaves CPU time to a starting node
ROWS_MAX: Final = 2_000_000  # per producer: enough for minutes, few enough to read back
PATIENCE: Final = "60s"  # how long a producer waits for a node that is down
END_S: Final = 5.0  # for the producers' thread to end

SCHEMA: Final = pa.schema(
    [
        pa.field("source", pa.int32(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("customer", pa.string()),
        pa.field("amount", pa.float64()),
    ]
)
_CUSTOMERS: Final = ("ann", "ben", "cho", "dee", "eli")


@dataclass(slots=True)
class DemoProducer:
    """One producer, with its own connection and ledger."""

    number: int
    address: str
    ledger: Path
    pause: float = PAUSE_S
    sent: int = 0
    is_ended: bool = False
    failure: HeadraceError | None = None

    async def run(self) -> None:
        """Send rows until `is_ended`; then wait until all of them are acknowledged.

        Closes nothing on a failure or a cancellation: closing waits for a node, and the fate of
        the rows no longer matters.
        """
        try:
            log = await headrace.connect_async(self.address, timeout=PATIENCE)
            producer = await log.producer(TOPIC, partition=self.number, ledger=self.ledger)
            while not self.is_ended and self.sent < ROWS_MAX:
                rows = rows_of(self.number, self.sent, self.sent + BATCH)
                self.sent += BATCH  # even if that fails: some of them may be there
                await producer.send(rows)
                await asyncio.sleep(self.pause)
            await producer.close()
            await log.close()
        except HeadraceError as error:
            self.failure = error


def rows_of(source: int, start: int, end: int) -> pa.RecordBatch:
    """Create a producer's rows from number `start` to before `end`."""
    numbers = range(start, end)
    return pa.record_batch(
        [
            pa.array([source] * len(numbers), pa.int32()),
            pa.array(numbers, pa.int64()),
            pa.array([_CUSTOMERS[each % len(_CUSTOMERS)] for each in numbers]),
            pa.array([each / 100 for each in numbers], pa.float64()),
        ],
        schema=SCHEMA,
    )


class Sources:
    """All producers of a demo, in one thread. A context manager: they do not outlive it."""

    def __init__(self, directory: Path, address: str, pause: float = PAUSE_S) -> None:
        self.all = [
            DemoProducer(number, address, directory / f"producer-{number}.ledger", pause)
            for number in range(PRODUCERS)
        ]
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._work())
        self._thread = threading.Thread(target=self._run, name="sources", daemon=True)

    def __enter__(self) -> "Sources":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Cancel the producers that have not finished."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(END_S)

    async def _work(self) -> None:
        await asyncio.gather(*(each.run() for each in self.all))

    def _run(self) -> None:
        with (
            asyncio.Runner(loop_factory=lambda: self._loop) as runner,
            suppress(CancelledError),
        ):
            runner.run(asyncio.wait_for(self._task, None))

    @property
    def failure(self) -> HeadraceError | None:
        return next((each.failure for each in self.all if each.failure), None)

    def finish(self) -> None:
        """Stop the producers, and wait until everything sent is acknowledged."""
        for each in self.all:
            each.is_ended = True
        self._thread.join()

    def claims(self) -> list[Claim]:
        """Return what was sent, and what the ledgers record about it so far."""
        return [
            Claim(each.number, each.sent, tuple(read_ledger(each.ledger))) for each in self.all
        ]


def read_ledger(path: Path) -> Iterator[Told]:
    """Yield the complete lines of a ledger; a cut line was never reported."""
    with suppress(FileNotFoundError):  # its producer has not started
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                found = json.loads(line)
                yield Told(found["start"], found["end"])
