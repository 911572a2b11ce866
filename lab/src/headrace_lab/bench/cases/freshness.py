"""The time to the table of a pipeline on local Spark that gets 10,000 rows a second.

A round sends a batch every tenth of a second and waits until all are in the table. The figures
are those that the driver reports: the seconds from the append of a row to the commit with it.
The rate is how often the time of 99 % of the rows goes into a second; the goal is 5 seconds.
"""

import secrets
import shutil
import statistics
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

import headrace
from headrace.client.public import connect
from headrace.errors import Unavailable
from headrace_lab.bench.frame import Case, Round, scaled
from headrace_lab.bench.serving import a_server

GOAL_SECONDS: Final = 5.0
_BATCHES: Final = 180  # of a round: 18 seconds
_BATCH_ROWS: Final = 1_000
_EVERY_SECONDS: Final = 0.1
_WAIT_SECONDS: Final = 300.0
_TOPIC: Final = "bench/rows"
_SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.float64())])
_SQL: Final = "select id, upper(name) as name, _hr_partition, _hr_offset from source"


def cases(directory: Path, scale: float) -> list[Case]:
    """Give the copy and the SQL, each with the target that the driver paces itself by."""
    made = []
    for name, sql in (("a copy", ""), ("SQL", _SQL)):
        load = _FreshnessLoad(directory, scaled(_BATCHES, scale), sql)
        made.append(
            Case(
                name=f"10,000 rows per second, {name}",
                unit="1/s",
                ours=load.running,
                reference=f"the goal: 99 % within {GOAL_SECONDS:g} s",
                limit=_goal,
                floor=1.0,
                figures=load.figures,
            )
        )
    return made


@contextmanager
def _goal() -> Iterator[Round]:
    yield lambda: 1 / GOAL_SECONDS


@dataclass(slots=True)
class _FreshnessLoad:
    directory: Path
    batch_count: int
    sql: str
    halves: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)

    def figures(self) -> Mapping[str, float]:
        measured = slice(1, None)  # the first one is to warm up
        return {
            "p50 seconds": statistics.median(self.halves[measured]),
            "p99 seconds": statistics.median(self.highs[measured]),
        }

    @contextmanager
    def running(self) -> Iterator[Round]:
        from headrace.spark import session
        from headrace.spark.pipeline.definition import define
        from headrace.spark.pipeline.pipeline import opened

        spark = session("headrace bench", spark__log__level="OFF")
        path = self.directory / f"freshness-{secrets.token_hex(4)}"
        path.mkdir()
        given = {"name": "bench", "topic": _TOPIC, "table": "table", "sql": self.sql}
        ends, taken = threading.Event(), _TakenRows()
        try:
            with a_server(path / "node") as address, connect(address) as log:
                topic = log.create_topic(_TOPIC, _SCHEMA, partitions=2)
                definition = define(
                    {**given, "address": address, "freshness": f"{GOAL_SECONDS:g}s"}, path
                )
                with opened(spark, definition) as pipeline:

                    def drive() -> None:
                        with taken.failing():
                            for done in pipeline.run(once=False):
                                taken.count += done.row_count
                                if ends.is_set():
                                    return

                    thread = threading.Thread(target=drive, daemon=True)
                    thread.start()

                    def one_round() -> float:
                        pipeline.times.rounds.clear()
                        self._send(topic, taken)
                        self.halves.append(pipeline.times.quantile(0.5) or 0.0)
                        self.highs.append(pipeline.times.quantile(0.99) or 0.0)
                        return 1 / self.highs[-1]

                    yield one_round
                    ends.set()
                    topic.append(_rows(0), partition=0)  # the last round
                    thread.join(_WAIT_SECONDS)
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def _send(self, topic: headrace.Topic, taken: "_TakenRows") -> None:
        """Send the batches of a round at their times, and wait until the table has them."""
        wanted, began = taken.count + self.batch_count * _BATCH_ROWS, time.monotonic()
        for number in range(self.batch_count):
            time.sleep(max(0.0, began + number * _EVERY_SECONDS - time.monotonic()))
            topic.append(_rows(number * _BATCH_ROWS), partition=number % 2)
        until = time.monotonic() + _WAIT_SECONDS
        while taken.count < wanted:
            if taken.failure or time.monotonic() > until:
                raise Unavailable(f"the pipeline ended or stands still: {taken.failure}")
            time.sleep(0.05)


@dataclass(slots=True)
class _TakenRows:
    """What the driver has brought into the table, and why it ended."""

    count: int = 0
    failure: str = ""

    @contextmanager
    def failing(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.failure = f"{type(error).__name__}: {error}"
            raise


def _rows(first: int) -> pa.Table:
    ids = range(first, first + _BATCH_ROWS)
    names = pa.array([f"customer {number % 997}" for number in ids])
    return pa.table({"id": pa.array(ids), "name": names, "at": pa.array(map(float, ids))})
