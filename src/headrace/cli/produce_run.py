"""Sending rows to a topic: batches into a producer, and a count of what is on disk.

All rows before one that does not fit are sent and acknowledged; none after it is.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

import headrace
from headrace.client.values import Range, merged
from headrace.errors import HeadraceError

FLUSH_ROWS: Final = 1_000_000  # between two looks at what is acknowledged
FLUSH_SIZE: Final = 32 * 1024 * 1024  # bytes on their way: what memory holds of a large file
_TRIES: Final = 3  # to learn what landed: each failure is told once, and may hide another


@dataclass(slots=True)
class Sent:
    """What became of the rows so far."""

    ranges: tuple[Range, ...] = ()  # acknowledged, sorted
    row_count: int = 0  # given to the producer
    failure: HeadraceError | None = None
    _flushed: int = field(default=0)

    @property
    def acknowledged(self) -> int:
        return sum(each.row_count for each in self.ranges)

    @property
    def partitions(self) -> int:
        return len({each.partition for each in self.ranges})


def send_all(
    producer: headrace.Producer,
    batches: Iterable[pa.RecordBatch],
    sent: Sent,
    on_progress: Callable[[Sent], None],
) -> None:
    """Send all batches, and wait until they are on disk. What fails is kept in `sent`."""
    flushed = size = 0
    try:
        for batch in batches:
            producer.send(batch)
            sent.row_count += batch.num_rows
            size += batch.nbytes
            if sent.row_count - flushed >= FLUSH_ROWS or size >= FLUSH_SIZE:
                flush(producer, sent)
                flushed, size = sent.row_count, 0
            on_progress(sent)
        flush(producer, sent)
    except HeadraceError as error:
        sent.failure = error
        settle(producer, sent)
    on_progress(sent)


def flush(producer: headrace.Producer, sent: Sent) -> None:
    """Wait for what was sent, and count it."""
    sent.ranges = merged([*sent.ranges, *producer.flush().ranges])


def settle(producer: headrace.Producer, sent: Sent) -> None:
    """After a failure, learn what landed all the same."""
    for _ in range(_TRIES):
        try:
            flush(producer, sent)
        except HeadraceError as error:
            sent.failure = sent.failure or error
        else:
            return
