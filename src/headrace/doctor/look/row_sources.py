"""The rows of one partition that can be read and proven, in order, and the gaps between them.

Each row has at most three homes: a piece, whose entry is in the journal or a carry file; a
segment, in its place, under another name, or set aside; and an older snapshot's record of the
entries that a segment was written from. The first home that proves itself supplies the row.
Where the state was rebuilt without a snapshot, segments that no snapshot names supply the rows
that no entry has. Offsets only rise, so no row can come twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.doctor.examine import segment_tasks
from headrace.doctor.look.orphan_segment import LoneState
from headrace.doctor.look.readonly import ReadonlyDirectory
from headrace.doctor.look.segments import (
    SegmentState,
    SegmentTask,
    check_segment,
    digest_of,
    rows_in,
)
from headrace.doctor.look.shard_look import ShardSight, is_of
from headrace.errors import BadBatch, Corrupt
from headrace.journal.entry import Entry
from headrace.model import batch
from headrace.model.ids import Offset
from headrace.model.schema import SYSTEM_FIELDS
from headrace.partition.checkpoint_files import info_of
from headrace.partition.machine.state import Partition, Piece, Run, Segment, Unplaced
from headrace.partition.segments.entry_rows import Schemas, rows_of
from headrace.partition.segments.segment import OFFSET, TIMESTAMP
from headrace.storage.seam import Buffer

_NOWHERE: Final = "in no readable file"
# Limit of a new entry: no reader of the new log gets a larger piece than from a producer.
BODY_SIZE_MAX: Final = 4 * 1024 * 1024


class RowOrigin(StrEnum):
    """Where rows were read from."""

    JOURNAL = "journal"
    CARRY = "carry"
    SEGMENT = "segments"


@dataclass(frozen=True, slots=True)
class Salvaged:
    """Rows of one old entry, or of a part of it, as the body of a new one."""

    start: Offset  # in the old log
    end: Offset
    version: int  # of the schema in force
    timestamp: int
    schema_id: int  # of the body
    rows: pa.RecordBatch  # the user's columns, in `schema_id`
    body: Buffer
    home: RowOrigin = RowOrigin.SEGMENT


@dataclass(frozen=True, slots=True)
class Missing:
    """Rows that no home has."""

    start: Offset
    end: Offset
    why: str


Step = Salvaged | Missing


@dataclass(slots=True)
class RowSource:
    """One partition of an examined log."""

    shard: ShardSight
    partition: Partition
    schemas: Schemas
    states: Mapping[str, tuple[SegmentTask, SegmentState]]  # by the segment's own name

    def steps(self) -> Iterator[Step]:
        """Yield every retained row that can be proven, and every range that cannot."""
        for step in self._known_steps():
            if isinstance(step, Missing):
                yield from self._alone(step)
            else:
                yield step

    def _known_steps(self) -> Iterator[Step]:
        offset = self.partition.first
        for place in _places(self.partition):
            for step in self._steps_of(place):
                clipped = _clipped(step, offset)
                if clipped is None:
                    continue
                if clipped.start > offset:  # only where the state was rebuilt
                    yield Missing(offset, clipped.start, _NOWHERE)
                yield clipped
                offset = clipped.end
        if offset < self.partition.end:
            yield Missing(offset, self.partition.end, _NOWHERE)

    def _alone(self, missing: Missing, tried: frozenset[int] = frozenset()) -> Iterator[Step]:
        """Yield rows that the state does not place, from segments that prove themselves."""
        offset, why = missing.start, missing.why
        key = (self.partition.namespace, self.partition.created)
        for one in self.shard.lone.get(key, []):
            if id(one) in tried or one.first >= missing.end or one.end <= offset:
                continue
            if one.why:
                why = f"segment: {one.why}"
            for step in _lone_rows(one):
                clipped = _clipped(step, offset, missing.end)
                if clipped is None:
                    continue
                if clipped.start > offset:
                    gap = Missing(offset, clipped.start, why)
                    yield from self._alone(gap, tried | {id(one)})
                yield clipped
                offset = clipped.end
            why = why if one.why and one.end > offset else missing.why
        if offset < missing.end:
            yield Missing(offset, missing.end, why)

    def _steps_of(self, place: Run | Segment) -> Iterator[Step]:
        if isinstance(place, Run):
            yield from self._pieces(place.pieces, place.version)
        elif isinstance(place.place, Unplaced) and place.place.pieces:
            yield from self._pieces(place.place.pieces, place.version)
        elif isinstance(place.place, Unplaced):
            yield from self._older(place, place.first, place.end, place.place.flaw)
        else:
            yield from self._segment(place)

    def _pieces(self, pieces: Sequence[Piece], version: int) -> Iterator[Step]:
        for piece in pieces:
            yield from self._piece(piece, version, f"op {piece.op:,} has no intact copy")

    def _piece(self, piece: Piece, version: int, why: str) -> Iterator[Step]:
        for found in self.shard.entries.copies(piece.op):
            if not isinstance(found, Entry) or not is_of(piece, self.partition, found.header):
                continue
            schema_id = found.header.schema_id
            try:
                rows = rows_of(found, self.schemas, schema_id, f"op {piece.op}")
            except KeyError:
                why = f"op {piece.op:,} is intact, but its schema is unknown"
                continue
            except Corrupt:
                continue
            home = (
                RowOrigin.JOURNAL
                if self.shard.entries.is_journaled(piece.op)
                else RowOrigin.CARRY
            )
            for one in _salvaged(rows, piece.first, version, piece.timestamp, schema_id):
                yield replace(one, home=home)
            return
        yield Missing(piece.first, piece.end, why)

    def _segment(self, segment: Segment) -> Iterator[Step]:
        name = info_of(segment, self.shard.group.identity).name
        task, state = self.states[name]
        offset, why = segment.first, state.flaw
        try:
            for rows in proven_rows(task, state):
                start = Offset(rows.column(OFFSET)[0].as_py())
                yield from self._older(segment, offset, start, why)
                yield from _by_time(rows, start, segment.version)
                offset = Offset(start + rows.num_rows)
        except (Corrupt, OSError) as error:  # it went bad after it was checked
            why = str(error)
        yield from self._older(segment, offset, segment.end, why)

    def _older(self, segment: Segment, start: int, end: int, why: str) -> Iterator[Step]:
        """Yield rows of a lost part of a segment from the entries it was written from."""
        offset = Offset(start)
        for piece in self.shard.older_pieces(segment):
            if piece.end <= offset or piece.first >= end or offset >= end:
                continue
            if piece.first > offset:
                yield Missing(offset, piece.first, f"segment: {why}")
                offset = piece.first
            for step in self._piece(piece, segment.version, f"segment: {why}"):
                clipped = _clipped(step, offset, Offset(end))
                if clipped is not None:
                    yield clipped
                    offset = clipped.end
        if offset < end:
            yield Missing(offset, Offset(end), f"segment: {why}")


def located(
    shard: ShardSight, states: Mapping[str, SegmentState]
) -> dict[str, tuple[SegmentTask, SegmentState]]:
    """Find the file with each segment's rows, whatever its name."""
    found = {}
    for task in segment_tasks(shard):
        state = states[task.name]
        if not state.is_whole:
            for other in _elsewhere(shard, task):
                again = check_segment(other)
                if again.is_whole:
                    found[task.name] = (other, again)
        found.setdefault(task.name, (task, state))
    return found


def _elsewhere(shard: ShardSight, task: SegmentTask) -> Iterator[SegmentTask]:
    """Yield the files under other names that have exactly the bytes of a segment."""
    for room in (shard.segments, shard.quarantine):
        for name in room.names():
            is_itself = (room.path, name) == (task.directory, task.name)
            if is_itself or room.size_of(name) != task.digests.size:
                continue
            if digest_of(room.path, name) == task.digests.file:
                yield replace(task, directory=room.path, name=name)


def proven_rows(task: SegmentTask, state: SegmentState) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a segment that a check found readable, proven again."""
    if not state.readable:
        return
    storage = ReadonlyDirectory(task.directory).open(task.name)
    try:
        yield from rows_in(storage, task, state)
    finally:
        storage.close()


def _lone_rows(one: LoneState) -> Iterator[Salvaged]:
    """Yield the provable rows of a segment that no state names."""
    if one.task is None or one.state is None:
        return
    with suppress(Corrupt, OSError):  # it went bad after it was checked
        for rows in proven_rows(one.task, one.state):
            start = Offset(rows.column(OFFSET)[0].as_py())
            yield from _by_time(rows, start, one.task.info.schema_id)


def _places(partition: Partition) -> list[Run | Segment]:
    places: list[Run | Segment] = [*partition.segments, *partition.runs]
    return sorted(places, key=lambda one: one.first)


def _by_time(rows: pa.RecordBatch, first: Offset, version: int) -> Iterator[Salvaged]:
    """Split rows of a segment into the entries that they came from, by their times."""
    times = rows.column(TIMESTAMP).cast(pa.int64())
    user = rows.select(rows.schema.names[len(SYSTEM_FIELDS) :])
    start = 0
    for end in pc.run_end_encode(times).run_ends.to_pylist():
        part = user.slice(start, end - start)
        offset = Offset(first + start)
        yield from _salvaged(part, offset, version, times[start].as_py(), version)
        start = end


def _salvaged(
    rows: pa.RecordBatch, first: Offset, version: int, timestamp: int, schema_id: int
) -> Iterator[Salvaged]:
    """Yield rows as one body, or as several where one would be too large."""
    body = batch.encode(rows)
    if len(body) > BODY_SIZE_MAX and rows.num_rows > 1:
        half = rows.num_rows // 2
        second = Offset(first + half)
        yield from _salvaged(rows.slice(0, half), first, version, timestamp, schema_id)
        yield from _salvaged(rows.slice(half), second, version, timestamp, schema_id)
        return
    end = Offset(first + rows.num_rows)
    yield Salvaged(first, end, version, timestamp, schema_id, rows, body)


def _clipped(step: Step, start: Offset, end: Offset | None = None) -> Step | None:
    """Return the part of a step from `start` to before `end`."""
    first = max(step.start, start)
    last = step.end if end is None else min(step.end, end)
    if first >= last:
        return None
    if (first, last) == (step.start, step.end):
        return step
    if isinstance(step, Missing):
        return Missing(first, last, step.why)
    rows = step.rows.slice(first - step.start, last - first)
    try:
        body = batch.encode(rows)
    except BadBatch as error:
        return Missing(first, last, str(error))
    return replace(step, start=first, end=last, rows=rows, body=body)
