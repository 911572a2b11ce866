"""The metadata machine's state as bytes, for snapshots and digests.

    image := [format:int, revision:int, [stream, …], [topic, …],
              [consumer group, …], [user, …], [permission, …], [[namespace, created], …],
              [[op, checksum, revision], …]]

One msgpack array; streams by id, topics by stream id and id, the next three lists are empty.
Deleted lives, by namespace, and the newest entries that changed anything, by op, come last,
from format 2 on. The format is the level.
Equal states have equal bytes, whatever happened before. Full story in docs/formats/metadata.md.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from headrace.errors import CorruptFile, UnsupportedFormat
from headrace.metadata.state import (
    LINEAGE_MAX,
    Change,
    MetadataState,
    MetadataValue,
    Stream,
    TopicMetadata,
    record_deletion,
)
from headrace.model.ids import Revision
from headrace.model.namespace import DEFAULT_STREAM, Namespace, NamespaceLayout

# A format is the level of the rules that produced the state.
FORMAT: Final = 3  # the newest; its fields are those of format 2
FORMAT_FIRST: Final = 1  # of level 1, without deleted lives
CHECKSUM_SIZE: Final = 16  # of an entry
_PLACE = "metadata image"  # in place of a path, since a snapshot contains it


class _MetadataOpening(msgspec.Struct, array_like=True):
    """The first field of an image of any format; the rest is skipped."""

    format: int


class _FirstImage(MetadataValue, frozen=True):
    format: int
    revision: Revision
    streams: tuple[Stream, ...]
    topics: tuple[TopicMetadata, ...]
    consumer_groups: tuple[()]
    users: tuple[()]
    permissions: tuple[()]


class _MetadataImage(_FirstImage, frozen=True):
    deleted: tuple[tuple[Namespace, Revision], ...]
    lineage: tuple[Change, ...]


_OPENING_DECODER = msgspec.msgpack.Decoder(_MetadataOpening)
_DECODERS: Final[dict[int, msgspec.msgpack.Decoder[Any]]] = {
    FORMAT_FIRST: msgspec.msgpack.Decoder(_FirstImage),
    2: msgspec.msgpack.Decoder(_MetadataImage),
    FORMAT: msgspec.msgpack.Decoder(_MetadataImage),
}


def genesis(layout: NamespaceLayout) -> MetadataState:
    """Return the state before op 1: only the default stream, for unqualified names."""
    state = MetadataState(layout, Revision(0), {}, {})
    state.add_stream(DEFAULT_STREAM, created_at=0)
    return state


def encode(state: MetadataState) -> bytes:
    """Return the state in the format of its level."""
    common = (
        state.level,
        state.revision,
        tuple(state.streams_in_order()),
        tuple(state.topics_in_order()),
        (),
        (),
        (),
    )
    if state.level == FORMAT_FIRST:
        return msgspec.msgpack.encode(_FirstImage(*common))
    deleted = tuple(
        (namespace, created)
        for namespace in sorted(state.deleted)
        for created in state.deleted[namespace]
    )
    return msgspec.msgpack.encode(_MetadataImage(*common, deleted, state.lineage))


def decode(data: bytes, layout: NamespaceLayout) -> MetadataState:
    """Decode an image; raise Corrupt if `encode` would not produce it."""
    image = _read(data)
    flaw = _flaw(image, layout)
    if flaw is not None:
        raise CorruptFile(flaw, path=_PLACE)
    state = MetadataState(
        layout,
        image.revision,
        {stream.id: stream for stream in image.streams},
        {topic.key: topic for topic in image.topics},
        image.format,
        _deleted(image) if isinstance(image, _MetadataImage) else {},
        image.lineage if isinstance(image, _MetadataImage) else (),
    )
    if any(state.is_deleted(key, one.created) for key, one in state.target().items()):
        raise CorruptFile("a deleted partition is still present", path=_PLACE)
    # Also detects duplicate or unordered IDs, and non-canonical numbers.
    if encode(state) != data:
        raise CorruptFile("not the canonical encoding of this state", path=_PLACE)
    return state


def _deleted(image: _MetadataImage) -> dict[Namespace, tuple[Revision, ...]]:
    found: dict[Namespace, tuple[Revision, ...]] = {}
    for namespace, created in image.deleted:
        record_deletion(found, namespace, created)
    return found


def _read(data: bytes) -> _FirstImage:
    try:
        found = _OPENING_DECODER.decode(data).format
        decoder = _DECODERS.get(found)
        if decoder is None:
            raise UnsupportedFormat("format", path=_PLACE, expected=FORMAT, found=found)
        image: _FirstImage = decoder.decode(data)
        return image
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptFile(f"cannot be decoded: {error}", path=_PLACE) from error


def _flaw(image: _FirstImage, layout: NamespaceLayout) -> str | None:
    """Return a flaw that would break the indexes; other values are harmless."""
    stream_ids = {stream.id for stream in image.streams}
    if len({stream.name for stream in image.streams}) != len(image.streams):
        return "two streams have the same name"
    if len({(topic.stream_id, topic.name) for topic in image.topics}) != len(image.topics):
        return "two topics of a stream have the same name"
    if not all(0 <= stream_id <= layout.stream_id_max for stream_id in stream_ids):
        return "a stream id has too many bits for this cluster"
    for topic in image.topics:
        flaw = _topic_flaw(topic, layout)
        if topic.stream_id not in stream_ids:
            flaw = "its stream does not exist"
        if flaw is not None:
            return f"topic {topic.name!r}: {flaw}"
    if not all(layout.holds(each) for each, _ in getattr(image, "deleted", ())):
        return "a deleted partition has too many bits for this cluster"
    return _lineage_flaw(image.lineage) if isinstance(image, _MetadataImage) else None


def _lineage_flaw(lineage: Sequence[Change]) -> str | None:
    ops = [change.op for change in lineage]
    if len(lineage) > LINEAGE_MAX or ops != sorted(set(ops)):
        return "its lineage has too many entries, or is out of order"
    if any(len(change.checksum) != CHECKSUM_SIZE for change in lineage):
        return f"an entry of its lineage has no checksum of {CHECKSUM_SIZE} bytes"
    return None


def _topic_flaw(topic: TopicMetadata, layout: NamespaceLayout) -> str | None:
    if not 0 <= topic.id <= layout.topic_id_max:
        return "its id has too many bits for this cluster"
    if not _dense([each.id for each in topic.partitions], first=0):
        return "its partitions are not numbered from 0"
    if topic.partitions[-1].id > layout.partition_id_max:
        return "a partition id has too many bits for this cluster"
    if not _dense([each.id for each in topic.schemas], first=1):
        return "its schema versions are not numbered from 1"
    return None


def _dense(numbers: Sequence[int], *, first: int) -> bool:
    return bool(numbers) and list(numbers) == list(range(first, first + len(numbers)))
