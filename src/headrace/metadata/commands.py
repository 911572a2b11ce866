"""The metadata commands as bytes: an operation in the entry's header, and a body.

    body := [field, …]

The body is one msgpack array of exactly the command's fields, in the order below. A command
never changes: a different field needs a new operation. Everything that depends on the origin of
a command (the shard, the life of its topic) is a field, set by the primary.
"""

from typing import ClassVar, Final, get_args

import msgspec

from headrace.metadata.results import MetadataCode, MetadataRefusal, refuse
from headrace.metadata.state import MetadataValue, RetentionLimits
from headrace.model.ids import GroupId, Revision
from headrace.model.namespace import Namespace, PartitionId, StreamId, TopicId

OPERATION_FIRST: Final = 16  # lower ones belong to the group itself, and are not commands


class CreateStream(MetadataValue, frozen=True):
    """Create an empty stream with the lowest free ID."""

    operation: ClassVar[int] = 16
    name: str


class DeleteStream(MetadataValue, frozen=True):
    """Delete a stream; with topics only if `with_topics` is set."""

    operation: ClassVar[int] = 17
    name: str
    with_topics: bool


class CreateTopic(MetadataValue, frozen=True):
    """Create a topic with the lowest free ID, its first schema and its partitions."""

    operation: ClassVar[int] = 18
    stream: str
    name: str
    schema: bytes
    partition_count: int
    shard: GroupId
    retention: RetentionLimits
    options: tuple[tuple[str, str], ...]


class AlterTopic(MetadataValue, frozen=True):
    """Change only the given settings, so that changes of different settings do not conflict."""

    operation: ClassVar[int] = 19
    stream: str
    topic: str
    created: Revision
    retention: RetentionLimits | None  # None: unchanged
    options: tuple[tuple[str, str | None], ...]  # None: remove this option


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

    `created` and `version` keep that check valid until apply: a race or a repeat is refused.
    """

    operation: ClassVar[int] = 21
    stream: str
    topic: str
    created: Revision
    version: int
    schema: bytes


class DeleteTopic(MetadataValue, frozen=True):
    """Delete a topic; `created` keeps a late repeat from deleting its successor."""

    operation: ClassVar[int] = 22
    stream: str
    topic: str
    created: Revision


class Level(MetadataValue, frozen=True):
    """Switch to the rules of a level: earlier entries keep their old rules.

    Every new log begins with it; in an older log, the first start of a release that knows the
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
    """A lost stream, with its old ID."""

    id: StreamId
    name: str


class AdoptedPartition(MetadataValue, frozen=True):
    """A partition, in the life that its shard has.

    A negative `created` is that of a life that the shard has closed: if metadata still has that
    life, it ends, and the partition is new and empty unless the shard has a later life of it.
    """

    id: PartitionId
    created: Revision


class AdoptedTopic(MetadataValue, frozen=True):
    """A lost topic with its old IDs, in the life that its shard has."""

    stream_id: StreamId
    id: TopicId
    name: str
    created: Revision
    shard: GroupId
    schemas: tuple[bytes, ...]  # from version 1 on
    partitions: tuple[AdoptedPartition, ...]  # by ID; gaps are filled with new ones


class AdoptedMore(MetadataValue, frozen=True):
    """The parts of a topic that a shard has but metadata has lost."""

    stream_id: StreamId
    topic_id: TopicId
    created: Revision
    schemas: tuple[bytes, ...]  # following the known ones
    partitions: tuple[AdoptedPartition, ...]  # following the known ones, by ID


class AdoptedEnd(MetadataValue, frozen=True):
    """A topic whose deletion its shard has applied, but metadata has lost."""

    stream_id: StreamId
    topic_id: TopicId
    created: Revision


class Adopt(MetadataValue, frozen=True):
    """Adopt the shards' orphans into the metadata, as an operator decided.

    The revision rises above `floor`, the newest of any shard, and the recorded history is
    reset: from here on, all shards share one history. Afterwards the log is at level 2 at
    least, and no topic has a retention limit, since recorded limits may be out of date.
    """

    operation: ClassVar[int] = 25
    floor: Revision
    ended: tuple[AdoptedEnd, ...]  # first: the others may reuse their IDs
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
    """Decode a command from untrusted bytes. The result never contains library messages."""
    decoder = _DECODERS.get(operation)
    if decoder is None:
        return refuse(MetadataCode.OPERATION_UNKNOWN, operation=operation)
    try:
        command: Command = decoder.decode(body)
    # msgspec passes on the error of a string that is not valid UTF-8.
    except (msgspec.DecodeError, UnicodeDecodeError):
        return refuse(MetadataCode.MALFORMED, operation=operation)
    return command
