"""What changes metadata, as bytes: an operation in the entry's header, and a body.

    body := [field, …]

The body is one msgpack array with exactly the command's fields, in the order of this page. A
command never changes: another field is another operation. All that depends on where a command
came from (the shard, the life of the topic it is meant for) is a field, filled by the primary.
"""

from typing import ClassVar, Final, get_args

import msgspec

from headrace.metadata.results import MetadataCode, MetadataRefusal, refuse
from headrace.metadata.state import MetadataValue, RetentionLimits
from headrace.model.ids import GroupId, Revision
from headrace.model.namespace import Namespace, PartitionId, StreamId, TopicId

OPERATION_FIRST: Final = 16  # those below belong to the group itself, and are not commands


class CreateStream(MetadataValue, frozen=True):
    """Make an empty stream under the lowest free id."""

    operation: ClassVar[int] = 16
    name: str


class DeleteStream(MetadataValue, frozen=True):
    """Remove a stream; one with topics only if that was said."""

    operation: ClassVar[int] = 17
    name: str
    with_topics: bool


class CreateTopic(MetadataValue, frozen=True):
    """Make a topic under the lowest free id, with its first schema and partitions."""

    operation: ClassVar[int] = 18
    stream: str
    name: str
    schema: bytes
    partition_count: int
    shard: GroupId
    retention: RetentionLimits
    options: tuple[tuple[str, str], ...]


class AlterTopic(MetadataValue, frozen=True):
    """Change what is named, keep the rest: two changes of different things do not collide."""

    operation: ClassVar[int] = 19
    stream: str
    topic: str
    created: Revision
    retention: RetentionLimits | None  # None: as it is
    options: tuple[tuple[str, str | None], ...]  # None: without this option


class AddPartitions(MetadataValue, frozen=True):
    """Add partitions `first` to `first + count - 1`; `first` makes a repeat harmless."""

    operation: ClassVar[int] = 20
    stream: str
    topic: str
    created: Revision
    first: int
    count: int


class AddSchema(MetadataValue, frozen=True):
    """Add schema `version`, which the primary has checked against `version - 1`.

    `created` and `version` hold that check true until apply: a race or a repeat is refused.
    """

    operation: ClassVar[int] = 21
    stream: str
    topic: str
    created: Revision
    version: int
    schema: bytes


class DeleteTopic(MetadataValue, frozen=True):
    """Remove a topic; `created` keeps a late repeat from removing its successor."""

    operation: ClassVar[int] = 22
    stream: str
    topic: str
    created: Revision


class Level(MetadataValue, frozen=True):
    """Begin with the rules of a level: entries before this one keep those that they had.

    Every new log begins with it; of an older one the first start of a release that knows the
    level proposes it.
    """

    operation: ClassVar[int] = 23
    number: int


class ForgetLife(MetadataValue, frozen=True):
    """Record that an operator gave up a life that metadata does not know: an orphan."""

    operation: ClassVar[int] = 24
    namespace: Namespace
    created: Revision


class AdoptedStream(MetadataValue, frozen=True):
    """A stream under the id that it had, where it is gone."""

    id: StreamId
    name: str


class AdoptedPartition(MetadataValue, frozen=True):
    """A partition in the life that its shard has."""

    id: PartitionId
    created: Revision


class AdoptedTopic(MetadataValue, frozen=True):
    """A topic under the ids that it had, in the life that its shard has."""

    stream_id: StreamId
    id: TopicId
    name: str
    created: Revision
    shard: GroupId
    schemas: tuple[bytes, ...]  # from version 1 on
    partitions: tuple[AdoptedPartition, ...]  # by id; those between are made new


class AdoptedMore(MetadataValue, frozen=True):
    """What a shard has of a topic that metadata knows in part."""

    stream_id: StreamId
    topic_id: TopicId
    created: Revision
    schemas: tuple[bytes, ...]  # behind those that are known
    partitions: tuple[AdoptedPartition, ...]  # behind those that are known, by id


class AdoptedEnd(MetadataValue, frozen=True):
    """A topic whose deletion its shard has followed, and metadata has lost."""

    stream_id: StreamId
    topic_id: TopicId
    created: Revision


class Adopt(MetadataValue, frozen=True):
    """Take what shards have for metadata's own, as an operator decided.

    The revision rises above `floor`, the newest of any shard, and what was remembered of the
    history ends: from here on it is that of all of them. The log is at level 2 after it, and no
    topic has a limit of retention: what was known of that may be of an earlier moment.
    """

    operation: ClassVar[int] = 25
    floor: Revision
    ended: tuple[AdoptedEnd, ...]  # first: their ids may be those of what follows
    streams: tuple[AdoptedStream, ...]
    topics: tuple[AdoptedTopic, ...]
    more: tuple[AdoptedMore, ...]


TopicChange = AlterTopic | AddPartitions | AddSchema | DeleteTopic
Command = CreateStream | DeleteStream | CreateTopic | TopicChange | Level | ForgetLife | Adopt

_DECODERS: Final = {kind.operation: msgspec.msgpack.Decoder(kind) for kind in get_args(Command)}
assert sorted(_DECODERS) == list(range(OPERATION_FIRST, OPERATION_FIRST + 10))


def encode(command: Command) -> bytes:
    """Return the body of the entry whose operation is `command.operation`."""
    return msgspec.msgpack.encode(command)


def decode(operation: int, body: bytes | bytearray | memoryview) -> Command | MetadataRefusal:
    """Read a command from any bytes. The library's own words stay out of the result."""
    decoder = _DECODERS.get(operation)
    if decoder is None:
        return refuse(MetadataCode.OPERATION_UNKNOWN, operation=operation)
    try:
        command: Command = decoder.decode(body)
    # msgspec lets the error of a string that is not UTF-8 pass as it is.
    except (msgspec.DecodeError, UnicodeDecodeError):
        return refuse(MetadataCode.MALFORMED, operation=operation)
    return command
