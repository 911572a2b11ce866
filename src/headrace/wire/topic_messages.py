"""Requests about streams and topics, and their answers."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class CreateStreamRequest:
    """Create a stream. Answered by Changed."""

    kind: ClassVar[int] = 16
    name: str


@dataclass(frozen=True, slots=True)
class DeleteStreamRequest:
    """Delete a stream. Answered by Changed."""

    kind: ClassVar[int] = 17
    name: str
    with_topics: bool


@dataclass(frozen=True, slots=True)
class CreateTopicRequest:
    """Create a topic, and its stream if it does not exist. Answered by TopicInfo."""

    kind: ClassVar[int] = 18
    topic: str  # `stream/topic`, or `topic` in the default stream
    schema: bytes  # an Arrow schema message
    partition_count: int
    retention_age_ms: int | None
    retention_size: int | None
    options: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class AlterTopicRequest:
    """Change settings of a topic. Answered by TopicInfo."""

    kind: ClassVar[int] = 19
    topic: str
    created: int
    retention: tuple[int | None, int | None] | None  # age in ms, bytes; None: unchanged
    options: tuple[tuple[str, str | None], ...]  # None: remove this option


@dataclass(frozen=True, slots=True)
class AddPartitionsRequest:
    """Add partitions `first` to `first + count - 1`. Answered by TopicInfo."""

    kind: ClassVar[int] = 20
    topic: str
    created: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class AddSchemaRequest:
    """Add a topic's next schema version. Answered by TopicInfo."""

    kind: ClassVar[int] = 21
    topic: str
    created: int
    version: int
    schema: bytes


@dataclass(frozen=True, slots=True)
class DeleteTopicRequest:
    """Delete a topic, in this very life. Answered by Changed."""

    kind: ClassVar[int] = 22
    topic: str
    created: int


@dataclass(frozen=True, slots=True)
class DescribeTopic:
    """Request a topic. Answered by TopicInfo."""

    kind: ClassVar[int] = 23
    topic: str


@dataclass(frozen=True, slots=True)
class ListTopics:
    """Request all topics. Answered by Topics."""

    kind: ClassVar[int] = 24


@dataclass(frozen=True, slots=True)
class AdoptOrphans:
    """Adopt orphans of the shards into the metadata, or preview that.

    Answered by Adoption.
    """

    kind: ClassVar[int] = 25
    is_dry: bool
    names: tuple[tuple[int, str], ...]  # of topics, by the namespace of any of their partitions


@dataclass(frozen=True, slots=True)
class ForgetOrphan:
    """Give up a partition that a shard has but metadata has lost. Answered by Changed."""

    kind: ClassVar[int] = 26
    namespace: int
    created: int


@dataclass(frozen=True, slots=True)
class DescribeOrphans:
    """Request partitions that shards have but metadata has lost. Answered by Orphans."""

    kind: ClassVar[int] = 27
    namespace: int  # of them; two shards may each have one


@dataclass(frozen=True, slots=True)
class Changed:
    """The metadata is now at this revision."""

    kind: ClassVar[int] = 32
    revision: int


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """One version of a topic's schema."""

    version: int  # dense from 1
    schema: bytes


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """One partition of a topic; its number is its index in `TopicInfo.partitions`."""

    namespace: int
    created: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic in committed metadata."""

    kind: ClassVar[int] = 33
    topic: str  # always `stream/topic`
    created: int
    created_at: int  # microseconds
    shard: int
    revision: int  # of the metadata that this comes from
    retention_age_ms: int | None
    retention_size: int | None
    options: tuple[tuple[str, str], ...]
    schemas: tuple[SchemaInfo, ...]  # by version, at least one
    partitions: tuple[PartitionInfo, ...]  # by number, at least one


@dataclass(frozen=True, slots=True)
class Topics:
    """The sorted names of all topics, and of all streams, including empty ones."""

    kind: ClassVar[int] = 34
    topics: tuple[str, ...]
    streams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Adoption:
    """The result, or the preview, of an adoption."""

    kind: ClassVar[int] = 35
    revision: int  # of the metadata now
    adopted: tuple[str, ...]  # in words, one topic each
    left: tuple[str, ...]  # in words: what cannot be adopted, and why


@dataclass(frozen=True, slots=True)
class OrphanInfo:
    """A partition that a shard has, but that metadata neither has nor has deleted."""

    shard: int
    namespace: int
    created: int
    row_count: int
    size: int  # body bytes
    first_at: int | None  # microseconds; None if it has no rows
    last_at: int | None
    schema: bytes  # the newest of its topic


@dataclass(frozen=True, slots=True)
class Orphans:
    """The requested partitions; empty if none is an orphan."""

    kind: ClassVar[int] = 36
    orphans: tuple[OrphanInfo, ...]
