"""The writer rule: a repeated append gets its earlier offsets again and adds no rows."""

from typing import Final

from headrace.journal.entry import Header
from headrace.model.ids import Offset
from headrace.model.results import AppendResult
from headrace.partition.machine.results import Refusal, RefusalCode, refuse
from headrace.partition.machine.state import Partition, Writer, Written

# The number that a producer may have in flight: older ones were answered and are not repeated.
WINDOW: Final = 64
WRITER_COUNT_MAX: Final = 65_536  # of one partition: all are in each snapshot
IDLE_MAX_US: Final = 7 * 24 * 3600 * 1_000_000  # a producer that slept a week is a new writer


def judge(partition: Partition, header: Header) -> AppendResult | Refusal | None:
    """Answer an append from the writer's window; None if it is new and next."""
    writer = partition.writers.get(header.writer)
    if writer is None:
        return _judge_new(partition, header.version)
    version = header.version
    newest, oldest = writer.window[-1].version, writer.window[0].version
    if version == newest + 1:
        return None
    if version > newest:
        return refuse(RefusalCode.OUT_OF_ORDER, version=version, expected=newest + 1)
    if version < oldest:
        return refuse(RefusalCode.TOO_OLD, version=version, first=oldest)
    known = writer.window[version - oldest]
    if known.checksum != header.body_checksum:
        return refuse(RefusalCode.WRITER_CONFLICT, version=version)
    return AppendResult(known.start, Offset(known.start + known.row_count), repeated=True)


def _judge_new(partition: Partition, version: int) -> Refusal | None:
    if version != 1:
        return refuse(RefusalCode.WRITER_UNKNOWN, version=version)
    if len(partition.writers) >= WRITER_COUNT_MAX:
        return refuse(RefusalCode.WRITERS_FULL, max=WRITER_COUNT_MAX)
    return None


def remember(partition: Partition, header: Header, start: Offset) -> None:
    """Keep the result of a new append."""
    written = Written(header.version, start, header.row_count, header.body_checksum)
    writer = partition.writers.get(header.writer)
    if writer is None:
        partition.writers[header.writer] = Writer([written], header.timestamp)
        return
    writer.window.append(written)
    if len(writer.window) > WINDOW:
        del writer.window[0]
    writer.timestamp = header.timestamp


def expire(partition: Partition, now: int) -> int:
    """Drop the writers that were idle too long, and return how many."""
    idle = [
        key for key, writer in partition.writers.items() if now - writer.timestamp > IDLE_MAX_US
    ]
    for key in idle:
        del partition.writers[key]
    return len(idle)
