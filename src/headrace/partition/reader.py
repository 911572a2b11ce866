"""Reading committed rows: by offsets, by time, the last few, next for a consumer group.

A bounded read is complete or an error. Each step looks its place up again: a row may move from
the journal to a carry file or a segment during the read, and is the same row in all three. A
row missing from its place is damage only if a second lookup still finds it there. Memory is
bounded by one entry or one row group, and by what `row_group_cache` keeps between two answers.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

import pyarrow as pa

from headrace.errors import (
    BadRequest,
    Behind,
    Corrupt,
    CorruptSegment,
    Expired,
    PartitionUnknown,
    Recreated,
)
from headrace.journal.journal import Journal
from headrace.model.ids import Offset, Revision
from headrace.model.namespace import Namespace
from headrace.model.revisions import shown
from headrace.model.schema import SYSTEM_FIELDS, upgrade
from headrace.partition.checkpoint_files import CheckpointFiles
from headrace.partition.machine.partitions_machine import PartitionsMachine
from headrace.partition.machine.state import Partition, Piece, Placed, Run, Segment, Unplaced
from headrace.partition.segments.entry_rows import EntryPlace, Schemas, placed, rows_of
from headrace.partition.segments.segment import segment_schema
from headrace.storage.seam import joined

_OFFSET: Final = SYSTEM_FIELDS[1].name
_SYSTEM_NAMES: Final = frozenset(each.name for each in SYSTEM_FIELDS)


@dataclass(frozen=True, slots=True)
class Key:
    """One life of one partition, which every read names."""

    namespace: Namespace
    created: Revision

    def __str__(self) -> str:
        return f"{self.namespace:x} (created at revision {shown(self.created)})"


@dataclass(frozen=True, slots=True)
class _RowShape:
    """The shape of the rows: a schema version and its wanted columns."""

    schemas: Schemas
    version: int
    schema: pa.Schema  # of the answer

    @property
    def user(self) -> pa.Schema:
        """The user's columns of the answer."""
        return pa.schema([each for each in self.schema if each.name not in _SYSTEM_NAMES])


@dataclass(slots=True)
class Reader:
    """Reads one shard. Any thread may use it; batches are created as they are consumed."""

    machine: PartitionsMachine
    journal: Journal
    keeper: CheckpointFiles
    decoded: dict[tuple[int, Revision, int], Schemas] = field(default_factory=dict)

    def partition(self, key: Key) -> Partition:
        """Return the partition, in exactly this life."""
        found = self.machine.state.partitions.get(key.namespace)
        if found is None:
            raise PartitionUnknown(str(key))
        if found.created != key.created:
            raise Recreated(str(key), key.created, found.created)
        return found

    def schemas(self, key: Key) -> Schemas:
        """Return the schema versions of the partition's topic in the log."""
        return self._schemas(self.partition(key))

    def bounds(self, key: Key) -> tuple[Offset, Offset]:
        """Return the first offset retained, and the end."""
        partition = self.partition(key)
        return partition.first, partition.end

    def read(
        self,
        key: Key,
        start: Offset,
        end: Offset,
        *,
        columns: Sequence[str] | None = None,
        version: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows `start` to before `end`, all of them or an error.

        `columns` are names, including the system's; None means all. `version` is the schema
        version of the rows, by default the newest; columns that an older row lacks are null.
        """
        partition = self.partition(key)
        if not 0 <= start <= end:
            raise BadRequest(f"offsets {start} to {end} are not a valid range")
        if start < partition.first:
            raise Expired(str(key), start, partition.first)
        if end > partition.end:
            raise Behind(str(key), end, partition.end)
        shape = self._shape(partition, start, end, columns, version)
        return self._rows(key, start, end, shape)

    def offset_at(self, key: Key, timestamp: int) -> Offset:
        """Return the first retained offset appended at `timestamp` or later, or the end."""
        while True:
            partition = self.partition(key)
            first, end = partition.first, partition.end
            try:
                found = self._offset_at(partition, timestamp)
            except Corrupt:
                if self.partition(key).first == first:
                    raise
                continue
            if partition.first == first:  # otherwise rows were trimmed meanwhile: retry
                return end if found is None else max(found, first)

    def _offset_at(self, partition: Partition, timestamp: int) -> Offset | None:
        runs, segments = partition.runs, partition.segments  # in this order: see `_locate`
        index = bisect_left(segments, timestamp, key=lambda one: one.last_timestamp)
        candidates: list[Segment | Run] = [*segments[index : index + 1], *runs]
        for one in sorted(candidates, key=lambda each: each.first):
            if isinstance(one, Segment):
                found = self._offset_in(one, timestamp)
            else:
                found = _piece_at(one.pieces, timestamp)
            if found is not None:
                return found
        return None

    def _offset_in(self, segment: Segment, timestamp: int) -> Offset | None:
        place = segment.place
        if isinstance(place, Unplaced):
            return _piece_at(place.pieces, timestamp) if place.pieces else segment.first
        info = self.keeper.info(segment)
        with self.keeper.files.hold(info.name):
            return self.keeper.files.segment(info, place).offset_at(timestamp)

    def _shape(
        self,
        partition: Partition,
        start: Offset,
        end: Offset,
        columns: Sequence[str] | None,
        version: int | None,
    ) -> _RowShape:
        schemas = self._schemas(partition)
        chosen = max(schemas.versions) if version is None else version
        if chosen not in schemas.versions:
            raise BadRequest(f"schema version {chosen} does not exist")
        if start < end and chosen < partition.version_at(Offset(end - 1)):
            newer = partition.version_at(Offset(end - 1))
            raise BadRequest(
                f"rows up to {end} have schema version {newer}, which version {chosen} "
                "cannot show",
                hint=f"Read with version {newer}, and choose columns",
            )
        whole = segment_schema(schemas.user(chosen))
        if columns is None:
            return _RowShape(schemas, chosen, whole)
        if not columns or len(set(columns)) < len(columns):
            raise BadRequest(
                "no columns" if not columns else "a column is asked for twice",
                hint="Name each one once, or leave columns out for all",
            )
        for name in columns:
            if name not in whole.names:
                near = get_close_matches(name, whole.names, 1)
                raise BadRequest(
                    f"there is no column {name!r}",
                    hint=f"Did you mean {near[0]!r}?" if near else "",
                )
        return _RowShape(schemas, chosen, pa.schema([whole.field(name) for name in columns]))

    def _schemas(self, partition: Partition) -> Schemas:
        number = self.machine.state.topic_number(partition.namespace)
        topic = self.machine.state.topics.get(number)
        if topic is None or topic.created != partition.topic_created:  # closed meanwhile
            raise PartitionUnknown(str(Key(partition.namespace, partition.created)))
        schemas = topic.schemas
        key = (topic.number, topic.created, schemas[-1].version)
        known = self.decoded.get(key)
        if known is None:
            # One per topic is kept: older versions and older lives are dropped.
            for old in [each for each in list(self.decoded) if each[0] == topic.number]:
                self.decoded.pop(old, None)
            path = self.journal.directory.path
            known = Schemas.decode({each.version: each.schema for each in schemas}, path)
            self.decoded[key] = known
        return known

    def _rows(
        self, key: Key, start: Offset, end: Offset, shape: _RowShape
    ) -> Iterator[pa.RecordBatch]:
        offset = start
        while offset < end:
            partition, place = self.place(key, offset)
            if isinstance(place, Piece):
                found = self._from_piece(place, partition, offset, end, shape)
            else:
                found = self._from_segment(place, offset, end, shape)
            try:
                for rows in found:
                    yield rows
                    offset = Offset(offset + rows.num_rows)
            except Corrupt:
                if self.place(key, offset)[1] == place:
                    raise

    def place(self, key: Key, offset: Offset) -> tuple[Partition, Piece | Segment]:
        """Find where a row is now. A missing row was trimmed meanwhile."""
        partition = self.partition(key)
        place = _locate(partition, offset)
        if offset < partition.first:  # raised before a Trim drops anything, so checked after
            raise Expired(str(key), offset, partition.first)
        assert place is not None
        return partition, place

    def _from_piece(
        self, piece: Piece, partition: Partition, start: Offset, end: Offset, shape: _RowShape
    ) -> Iterator[pa.RecordBatch]:
        entry = self.keeper.read(piece.op, self.journal)
        path = self.journal.directory.path
        rows = rows_of(entry, shape.schemas, shape.version, path)
        number = self.machine.state.partition_id(partition.namespace)
        whole = placed(rows, EntryPlace(number, piece.first, piece.timestamp))
        first = start - piece.first
        yield whole.slice(first, min(end, piece.end) - start).select(shape.schema.names)

    def _from_segment(
        self, segment: Segment, start: Offset, end: Offset, shape: _RowShape
    ) -> Iterator[pa.RecordBatch]:
        info = self.keeper.info(segment)
        if isinstance(segment.place, Unplaced):
            raise CorruptSegment(
                f"offsets {segment.first} to {segment.end} are lost: {segment.place.flaw}",
                path=joined(self.keeper.files.segments.path, info.name),
            )
        sealed = shape.schemas.user(segment.version)
        names = [
            name for name in shape.schema.names if name in _SYSTEM_NAMES or name in sealed.names
        ]
        with self.keeper.files.hold(info.name):
            file = self.keeper.files.segment(info, segment.place)
            for rows in file.read(start, Offset(min(end, segment.end)), names or [_OFFSET]):
                yield _shaped(rows, shape)


def _shaped(rows: pa.RecordBatch, shape: _RowShape) -> pa.RecordBatch:
    """Turn rows of a segment into the requested shape, with nulls for newer columns."""
    if rows.schema.equals(shape.schema):
        return rows
    have = [name for name in rows.schema.names if name not in _SYSTEM_NAMES]
    user = upgrade(rows.select(have), shape.user)
    columns = [
        rows.column(name) if name in _SYSTEM_NAMES else user.column(name)
        for name in shape.schema.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=shape.schema)


def _locate(partition: Partition, offset: Offset) -> Piece | Segment | None:
    """Find the piece or the placed segment that holds `offset`; None if it was trimmed.

    A Seal moves rows from runs to segments. In this order, they are found in one of them.
    """
    runs, segments = partition.runs, partition.segments
    index = bisect_right(segments, offset, key=lambda one: one.first) - 1
    if index >= 0 and offset < segments[index].end:
        segment = segments[index]
        place = segment.place
        if isinstance(place, Placed) or not place.pieces:
            return segment
        return _piece_of(place.pieces, offset)
    index = bisect_right(runs, offset, key=lambda one: one.first) - 1
    return _piece_of(runs[index].pieces, offset) if index >= 0 else None


def _piece_of(pieces: Sequence[Piece], offset: Offset) -> Piece | None:
    index = bisect_right(pieces, offset, key=lambda one: one.first) - 1
    return pieces[index] if index >= 0 and offset < pieces[index].end else None


def _piece_at(pieces: Sequence[Piece], timestamp: int) -> Offset | None:
    index = bisect_left(pieces, timestamp, key=lambda one: one.timestamp)
    return pieces[index].first if index < len(pieces) else None
