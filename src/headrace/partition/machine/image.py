"""The partitions machine's state as bytes: the replicated part of a shard's snapshot.

    image     := [format, revision, sealed_op, [[namespace, created], …], [topic, …],
                  [partition, …]]
    topic     := [number, created, [[version, schema], …], [publisher, …], [stage, …],
                  [[writer, timestamp], …]]
    publisher := [writer, version, content, [[namespace, start, end], …]]
    stage     := [stage_id, writer, version, [[op, namespace, row_count, size, checksum], …]]
    partition := [namespace, created, topic_created, first, end, [[version, offset], …],
                  [run, …], [segment, …], [[group, next, generation, hold], …],
                  [[writer, timestamp, [[version, start, row_count, checksum], …]], …]]
    run       := [version, waited, [[first, row_count, op, timestamp, size], …]]
    segment   := [first, end, version, first_op, seal_op, tip, first_timestamp,
                  last_timestamp, size]

One msgpack array; everything with a key is sorted by it. Equal states have equal bytes,
whatever their history. A writer with stages has the time of its last Stage, a writer of one
transaction that of its Publish; the format is 2 if there are any of the latter, otherwise 1.
Full story in docs/formats/partitions.md.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Final

import msgspec

from headrace.errors import CorruptFile, UnsupportedFormat
from headrace.model.ids import Offset, Op, Revision, is_once
from headrace.model.namespace import Namespace
from headrace.model.results import PartitionRange, StoredCursor
from headrace.model.revisions import is_past
from headrace.partition.machine.operations import PartitionValue, Schema
from headrace.partition.machine.state import (
    Partition,
    PartitionsState,
    Piece,
    Publisher,
    Run,
    Segment,
    Stage,
    StagedEntry,
    TopicState,
    Unplaced,
    Writer,
    Written,
)
from headrace.partition.machine.transactions import fold
from headrace.partition.machine.writer_rule import WINDOW

FORMAT: Final = 1
ONCE_FORMAT: Final = 2  # with times of writers of one transaction; older releases refuse it
_PLACE = "partitions image"  # it has no path of its own: it is part of a snapshot


# Bounds of everything encoded here; beyond them a later image could not be encoded.
_FIELD: Final = msgspec.Meta(ge=0)  # a u64 of an entry's header
_COUNT: Final = msgspec.Meta(ge=0, le=2**63 - 1)
_Field = Annotated[int, _FIELD]
_Op = Annotated[Op, _FIELD]
_Namespace = Annotated[Namespace, _FIELD]
_Revision = Annotated[Revision, _FIELD]
_Place = Annotated[Offset, _COUNT]
_Number = Annotated[int, _COUNT]
_Hash = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
_U32_MAX: Final = 2**32 - 1


class _Run(PartitionValue, frozen=True):
    version: _Number
    waited: _Number
    pieces: list[Piece]


class _Segment(PartitionValue, frozen=True):
    first: _Place
    end: _Place
    version: _Number
    first_op: _Op
    seal_op: _Op
    tip: _Hash
    first_timestamp: _Field
    last_timestamp: _Field
    size: _Number


class _Partition(PartitionValue, frozen=True):
    namespace: _Namespace
    created: _Revision
    topic_created: _Revision
    first: _Place
    end: _Place
    versions: tuple[tuple[int, _Place], ...]
    runs: list[_Run]
    segments: list[_Segment]
    cursors: Sequence[tuple[str, _Place, int, bool]]
    writers: list[tuple[_Hash, _Field, list[Written]]]


class _StageImage(PartitionValue, frozen=True):
    stage_id: _Hash
    writer: _Hash
    version: _Field
    entries: list[tuple[_Op, _Namespace, int, int, _Hash]]


class _Topic(PartitionValue, frozen=True):
    number: _Field
    created: _Revision
    schemas: tuple[Schema, ...]
    publishers: list[tuple[_Hash, _Field, _Hash, tuple[PartitionRange, ...]]]
    stages: list[_StageImage]
    staged_at: list[tuple[_Hash, _Field]]


class _ImageOpening(msgspec.Struct, array_like=True):
    """The first field of an image of any format; the rest is skipped."""

    format: int


class _Written(PartitionValue, frozen=True):
    """An image whose topics and partitions are already encoded."""

    format: int
    revision: _Revision
    sealed_op: _Op
    closed: list[tuple[_Namespace, _Revision]]
    topics: list[msgspec.Raw]
    partitions: list[msgspec.Raw]


class _PartitionImage(PartitionValue, frozen=True):
    format: int
    revision: _Revision
    sealed_op: _Op
    closed: list[tuple[_Namespace, _Revision]]
    topics: list[_Topic]
    partitions: list[_Partition]


_ENCODER = msgspec.msgpack.Encoder()
_OPENING_DECODER = msgspec.msgpack.Decoder(_ImageOpening)
_DECODER = msgspec.msgpack.Decoder(_PartitionImage)


def encode(state: PartitionsState) -> bytes:
    """Return the state as bytes; only parts changed since the last call are encoded again."""
    for topic in state.topics.values():
        if topic.image is None:
            topic.image = _ENCODER.encode(_topic(topic))
    for partition in state.partitions.values():
        if partition.image is None:
            partition.image = _ENCODER.encode(_partition(partition))
    has_once = any(topic.once_at for topic in state.topics.values())
    return _ENCODER.encode(
        _Written(
            ONCE_FORMAT if has_once else FORMAT,
            state.revision,
            state.sealed_op,
            sorted(state.closed.items()),
            [msgspec.Raw(state.topics[key].image or b"") for key in sorted(state.topics)],
            [
                msgspec.Raw(state.partitions[key].image or b"")
                for key in sorted(state.partitions)
            ],
        )
    )


def decode(data: bytes, partition_bits: int) -> PartitionsState:
    """Read an image; raise Corrupt on bytes that `encode` would not write."""
    image = _read(data)
    state = PartitionsState(partition_bits, image.revision, image.sealed_op)
    state.closed = dict(image.closed)
    state.topics = {one.number: _restored_topic(one) for one in image.topics}
    for one in image.partitions:
        state.partitions[one.namespace] = _restored_partition(one)
    flaw = _flaw(state)
    if flaw is not None:
        raise CorruptFile(flaw, path=_PLACE)
    for namespace in sorted(state.partitions):
        state.topics[state.topic_number(namespace)].members.append(namespace)
    # Also finds repeated or unordered keys, and numbers in a wider form.
    if encode(state) != data:
        raise CorruptFile("not the canonical encoding of this state", path=_PLACE)
    return state


def _topic(topic: TopicState) -> _Topic:
    return _Topic(
        topic.number,
        topic.created,
        topic.schemas,
        [
            (key, one.version, one.content, one.ranges)
            for key, one in sorted(topic.publishers.items())
        ],
        [_stage(topic.stages[key]) for key in sorted(topic.stages)],
        sorted((topic.staged_at | topic.once_at).items()),
    )


def _stage(stage: Stage) -> _StageImage:
    entries = [
        (one.op, one.namespace, one.row_count, one.size, one.checksum) for one in stage.entries
    ]
    return _StageImage(stage.stage_id, stage.writer, stage.version, entries)


def _partition(partition: Partition) -> _Partition:
    return _Partition(
        partition.namespace,
        partition.created,
        partition.topic_created,
        partition.first,
        partition.end,
        partition.versions,
        [_Run(run.version, run.waited, run.pieces) for run in partition.runs],
        [_segment(segment) for segment in partition.segments],
        sorted(partition.cursors.values()),
        [(key, one.timestamp, one.window) for key, one in sorted(partition.writers.items())],
    )


def _segment(segment: Segment) -> _Segment:
    return _Segment(
        segment.first,
        segment.end,
        segment.version,
        segment.first_op,
        segment.seal_op,
        segment.tip,
        segment.first_timestamp,
        segment.last_timestamp,
        segment.size,
    )


def _read(data: bytes) -> _PartitionImage:
    try:
        found = _OPENING_DECODER.decode(data).format
        if found not in (FORMAT, ONCE_FORMAT):
            raise UnsupportedFormat("format", path=_PLACE, expected=ONCE_FORMAT, found=found)
        return _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFile(f"cannot be read: {error}", path=_PLACE) from error


def _restored_topic(one: _Topic) -> TopicState:
    staging = {stage.writer for stage in one.stages}
    return TopicState(
        one.number,
        one.created,
        one.schemas,
        {
            key: Publisher(version, content, ranges)
            for key, version, content, ranges in one.publishers
        },
        {stage.stage_id: _restored_stage(stage) for stage in one.stages},
        {writer: at for writer, at in one.staged_at if writer in staging},
        {writer: at for writer, at in one.staged_at if writer not in staging},
    )


def _restored_stage(one: _StageImage) -> Stage:
    stage = Stage(one.stage_id, one.writer, one.version, [])
    for op, namespace, row_count, size, checksum in one.entries:
        stage.entries.append(StagedEntry(op, namespace, row_count, size, checksum))
        stage.row_count += row_count
        stage.digest = fold(stage.digest, checksum)
    return stage


def _restored_partition(one: _Partition) -> Partition:
    return Partition(
        one.namespace,
        one.created,
        one.topic_created,
        one.versions,
        one.first,
        one.end,
        [
            Run(run.version, run.pieces, sum(piece.size for piece in run.pieces), run.waited)
            for run in one.runs
        ],
        tuple(_restored_segment(one, each) for each in one.segments),
        {each[0]: StoredCursor(*each) for each in one.cursors},
        {key: Writer(window, timestamp) for key, timestamp, window in one.writers},
    )


def _restored_segment(partition: _Partition, one: _Segment) -> Segment:
    return Segment(
        namespace=partition.namespace,
        created=partition.created,
        first=one.first,
        end=one.end,
        version=one.version,
        first_op=one.first_op,
        seal_op=one.seal_op,
        tip=one.tip,
        first_timestamp=one.first_timestamp,
        last_timestamp=one.last_timestamp,
        size=one.size,
        place=Unplaced(()),
    )


def _flaw(state: PartitionsState) -> str | None:
    """Return a flaw that no log leads to: it would break an index, or hide or repeat rows."""
    for partition in state.partitions.values():
        topic = state.topics.get(state.topic_number(partition.namespace))
        if topic is None or topic.created != partition.topic_created:
            return f"partition {partition.namespace:x} has no topic"
        closed = state.closed.get(partition.namespace)
        if closed is not None and not is_past(partition.created, closed):
            return f"partition {partition.namespace:x} was already closed"
        flaw = _partition_flaw(partition, topic)
        if flaw is not None:
            return f"partition {partition.namespace:x}: {flaw}"
    inhabited = {state.topic_number(namespace) for namespace in state.partitions}
    for topic in state.topics.values():
        flaw = _topic_flaw(state, topic)
        if flaw is not None or topic.number not in inhabited:
            return f"topic {topic.number:x}: {flaw or 'it has no partition'}"
    return None


def _topic_flaw(state: PartitionsState, topic: TopicState) -> str | None:
    versions = [each.version for each in topic.schemas]
    if not versions or versions != list(range(1, len(versions) + 1)):
        return "its schema versions do not count up from 1"
    for stage in topic.stages.values():
        if not stage.entries or not all(_is_staged(state, topic, one) for one in stage.entries):
            return f"stage {stage.stage_id.hex()} belongs to another topic"
    if topic.staged_at.keys() != {stage.writer for stage in topic.stages.values()}:
        return "a writer with stages has no time"
    if not all(is_once(writer) and writer in topic.publishers for writer in topic.once_at):
        return "a writer without stages has a time"
    return None


def _is_staged(state: PartitionsState, topic: TopicState, entry: StagedEntry) -> bool:
    return (
        entry.namespace in state.partitions
        and state.topic_number(entry.namespace) == topic.number
        and 1 <= entry.row_count <= _U32_MAX
        and 0 <= entry.size <= _U32_MAX
    )


def _partition_flaw(partition: Partition, topic: TopicState) -> str | None:
    if not _are_versions(partition, topic):
        return "its schemas differ from those of its topic"
    if not all(_are_dense(run.pieces) for run in partition.runs):
        return "the pieces of a run are not contiguous"
    if not all(_is_window(writer.window) for writer in partition.writers.values()):
        return "a writer's versions are not consecutive"
    if any(one.end <= one.first for one in partition.segments):
        return "a segment has no rows"
    return _rows_flaw(partition)


def _rows_flaw(partition: Partition) -> str | None:
    """Return a flaw if a row between `first` and `end` is missing, or in two places."""
    if partition.first > partition.end:
        return f"its first row {partition.first} is beyond its end {partition.end}"
    places: list[Any] = [*partition.segments, *partition.runs]
    places.sort(key=lambda one: one.first)
    end = places[0].first if places else partition.end
    if end > partition.first:
        return f"rows {partition.first} to {end} are missing"
    for place in places:
        if place.first != end:
            return f"rows are not contiguous at {end}"
        end = place.end
    return None if end == partition.end else f"rows {end} to {partition.end} are missing"


def _are_versions(partition: Partition, topic: TopicState) -> bool:
    """Whether schemas of the topic are in force from `first` on, the newest at the end."""
    known = partition.versions
    return (
        bool(known and topic.schemas)
        and known[0][1] <= partition.first
        and known[-1][0] == topic.newest
        and known[-1][1] <= partition.end
        and all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(known))
        and known[0][0] >= 1
        and all(1 <= run.version <= topic.newest for run in partition.runs)
        and all(1 <= segment.version <= topic.newest for segment in partition.segments)
    )


def _are_dense(pieces: Sequence[Piece]) -> bool:
    end = pieces[0].first if pieces else Offset(-1)
    if end < 0:
        return False
    for piece in pieces:
        if piece.first != end or not 1 <= piece.row_count <= _U32_MAX:
            return False
        if not 0 <= piece.size <= _U32_MAX:
            return False
        end = piece.end
    return True


def _is_window(window: Sequence[Written]) -> bool:
    if not 1 <= len(window) <= WINDOW or window[0].version < 1:
        return False
    return all(one.version == window[0].version + index for index, one in enumerate(window))
