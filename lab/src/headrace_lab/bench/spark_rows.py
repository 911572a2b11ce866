"""The rows of the Spark benches, records of 1 KiB and events with a map, and a log of them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from headrace.client.public import connect
from headrace_lab.bench.bare import MIB
from headrace_lab.bench.rows import SCHEMA, Rows
from headrace_lab.bench.serving import a_server

PARTITIONS: Final = 2
BATCH_SIZE: Final = 4 * MIB
TOPIC: Final = "bench/rows"
UNSEALED: Final = ("seal.size=64GiB", "seal.age=1d")  # all of it stays in the journal
SEALED: Final = ("seal.age=5s",)  # segments as large as with the defaults, but soon
_TIMEOUT: Final = 300.0
_EVENT_ROWS: Final = 8192
_BODY_SIZE: Final = 200
_DISTINCT: Final = 16

EVENTS: Final = pa.schema(
    [
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("service", pa.string()),
        pa.field("severity", pa.int32()),
        pa.field("body", pa.string()),
        pa.field("attributes", pa.map_(pa.string(), pa.string())),
        pa.field("latency", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows of one kind."""

    name: str
    schema: pa.Schema
    batches: Callable[[], list[pa.RecordBatch]]  # distinct ones, of about BATCH_SIZE


@contextmanager
def a_log(path: Path, shape: Shape, size: int, *settings: str) -> Iterator[str]:
    """Serve a topic of rows of about `size` bytes in all, and give the address."""
    with a_server(path, *settings) as address:
        fill(address, shape, size)
        yield address


def fill(address: str, shape: Shape, size: int) -> int:
    """Make the topic, and append rows to all its partitions; return how many."""
    batches, row_count, sent = shape.batches(), 0, 0
    with connect(address, timeout=_TIMEOUT) as log:
        topic = log.create_topic(TOPIC, shape.schema, partitions=PARTITIONS)
        producers = [log.producer(topic, partition=number) for number in range(PARTITIONS)]
        number = 0
        while sent < size:
            batch = batches[number % len(batches)]
            producers[number % PARTITIONS].send(batch)
            number, sent, row_count = number + 1, sent + batch.nbytes, row_count + len(batch)
        for producer in producers:
            producer.close()
    return row_count


def _records() -> list[pa.RecordBatch]:
    return list(Rows.of(BATCH_SIZE).batches)


def _events() -> list[pa.RecordBatch]:
    return [_event_batch(number) for number in range(_DISTINCT)]


def _event_batch(number: int) -> pa.RecordBatch:
    rows = range(_EVENT_ROWS)
    digits = os.urandom((_EVENT_ROWS + 1) * _BODY_SIZE // 2).hex()
    keys = pa.array([f"key{one}" for one in range(4)] * _EVENT_ROWS)
    values = pa.array([digits[one % 4096 : one % 4096 + 12] for one in range(4 * _EVENT_ROWS)])
    first = number * _EVENT_ROWS
    return pa.record_batch(
        [
            pa.array([1_700_000_000_000_000 + 1_000 * (first + row) for row in rows]).cast(
                EVENTS.field("at").type
            ),
            pa.array([f"service-{row % 23}" for row in rows]),
            pa.array([row % 7 for row in rows], pa.int32()),
            pa.array([digits[row * _BODY_SIZE : (row + 1) * _BODY_SIZE] for row in rows]),
            pa.MapArray.from_arrays(pa.array(range(0, 4 * _EVENT_ROWS + 1, 4)), keys, values),
            pa.array([row * 0.25 for row in rows]),
        ],
        schema=EVENTS,
    )


RECORDS_OF_1_KIB: Final = Shape("records of 1 KiB", SCHEMA, _records)
EVENTS_WITH_A_MAP: Final = Shape("events with a map", EVENTS, _events)
