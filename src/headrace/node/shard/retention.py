"""What retention may remove from a partition: a function of its rows, cursors and the time.

Only whole segments and whole pieces are removed, so that a Trim frees all the space that it
hides. Up to one such unit more than configured may be kept, never less.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from typing import Final

from headrace.metadata.state import RetentionLimits
from headrace.model.ids import Offset
from headrace.partition.machine.operations import Trim
from headrace.partition.machine.state import Partition

MAX_HOLD_MS: Final = 30 * 24 * 3600 * 1000  # a month to repair a pipeline
_US_PER_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Unit:
    """Rows that are removed or kept together."""

    first: Offset
    end: Offset
    timestamp: int  # of the newest of them, microseconds
    size: int


def due_trim(
    partition: Partition, retention: RetentionLimits, now: int, max_hold_ms: int = MAX_HOLD_MS
) -> Trim | None:
    """Return the Trim to propose at `now` microseconds; None if it would change nothing.

    Rows that a held cursor has not read are kept until they are older than `max_hold_ms`; only
    for such rows is `past_hold` set.
    """
    first = max(_past_age(partition, retention.age_ms, now), _past_size(partition, retention))
    if first <= partition.first:
        return None
    held = min((one.next for one in partition.cursors.values() if one.hold), default=first)
    if held >= first:
        return Trim(first, past_hold=False)
    forsaken = min(first, _past_age(partition, max_hold_ms, now))
    if forsaken > max(held, partition.first):
        return Trim(forsaken, past_hold=True)
    below = _whole_below(partition, held)
    return Trim(below, past_hold=False) if below > partition.first else None


def _past_age(partition: Partition, age_ms: int | None, now: int) -> Offset:
    """Return the end of the leading units that are all older than `age_ms`."""
    end = partition.first
    if age_ms is None:
        return end
    oldest = now - age_ms * _US_PER_MS
    for unit in _units(partition):
        if unit.timestamp >= oldest:
            break
        end = unit.end
    return end


def _past_size(partition: Partition, retention: RetentionLimits) -> Offset:
    """Return the end of the leading units without which the size is still reached."""
    end = partition.first
    if retention.size is None:
        return end
    size = partition.size
    for unit in _units(partition):
        size -= unit.size
        if size < retention.size:
            break
        end = unit.end
    return end


def _whole_below(partition: Partition, offset: Offset) -> Offset:
    """Return the last end of a unit at or below `offset`."""
    end = partition.first
    for unit in _units(partition):
        if unit.end > offset:
            break
        end = unit.end
    return end


def _units(partition: Partition) -> Iterator[_Unit]:
    """Yield segments and pieces by offset; an unsealed run may lie between segments."""
    segments = (
        _Unit(one.first, one.end, one.last_timestamp, one.size) for one in partition.segments
    )
    pieces = (
        _Unit(piece.first, piece.end, piece.timestamp, piece.size)
        for run in partition.runs
        for piece in run.pieces
    )
    return merge(segments, pieces, key=lambda unit: unit.first)
