"""Results of commands: a closed set of values, equal on every replica.

A refusal is a normal result: it commits, and it changes nothing. Its message is not part of it:
replicas of different releases may word it differently and must still be equal.
"""

from enum import StrEnum
from typing import Final

import msgspec

from headrace.model.ids import Revision
from headrace.model.namespace import StreamId, TopicId
from headrace.model.revisions import shown


class MetadataCode(StrEnum):
    """Why a command was refused. A name never changes its meaning, and is never reused."""

    MALFORMED = "malformed"
    OPERATION_UNKNOWN = "operation_unknown"
    BAD_NAME = "bad_name"
    BAD_SCHEMA = "bad_schema"
    BAD_PARTITION_COUNT = "bad_partition_count"
    BAD_SHARD = "bad_shard"
    BAD_RETENTION = "bad_retention"
    BAD_OPTION = "bad_option"
    STREAM_EXISTS = "stream_exists"
    STREAM_UNKNOWN = "stream_unknown"
    STREAM_NOT_EMPTY = "stream_not_empty"
    STREAM_PERMANENT = "stream_permanent"
    TOPIC_EXISTS = "topic_exists"
    TOPIC_UNKNOWN = "topic_unknown"
    RECREATED = "recreated"
    PARTITIONS_NOT_NEXT = "partitions_not_next"
    SCHEMA_NOT_NEXT = "schema_not_next"
    SCHEMA_REPEATED = "schema_repeated"
    LIMIT_REACHED = "limit_reached"
    LEVEL_UNKNOWN = "level_unknown"
    LEVEL_TOO_LOW = "level_too_low"
    NAMESPACE_UNKNOWN = "namespace_unknown"
    LIFE_WANTED = "life_wanted"
    NOT_ADOPTED = "not_adopted"


MESSAGES: dict[MetadataCode, str] = {
    MetadataCode.MALFORMED: "cannot decode the body of operation {operation}",
    MetadataCode.OPERATION_UNKNOWN: "unknown metadata operation {operation}",
    MetadataCode.BAD_NAME: "{name!r} is not a valid {what} name",
    MetadataCode.BAD_SCHEMA: "a schema must have 1 to {max} bytes, got {size}",
    MetadataCode.BAD_PARTITION_COUNT: "{count} is not a valid number of partitions",
    MetadataCode.BAD_SHARD: "group {shard} cannot hold partitions",
    MetadataCode.BAD_RETENTION: "{value} is not a valid retention {what}",
    MetadataCode.BAD_OPTION: "option {name!r} {flaw}",
    MetadataCode.STREAM_EXISTS: "stream {stream!r} already exists",
    MetadataCode.STREAM_UNKNOWN: "stream {stream!r} does not exist",
    MetadataCode.STREAM_NOT_EMPTY: "stream {stream!r} still has {topic_count} topics",
    MetadataCode.STREAM_PERMANENT: "stream {stream!r} cannot be deleted; delete its topics "
    "instead",
    MetadataCode.TOPIC_EXISTS: "topic {topic!r} already exists, created at revision {created}",
    MetadataCode.TOPIC_UNKNOWN: "topic {topic!r} does not exist in stream {stream!r}",
    MetadataCode.RECREATED: "topic {topic!r} was deleted and recreated: "
    "expected revision {expected}, found {found}",
    MetadataCode.PARTITIONS_NOT_NEXT: "the next partition of topic {topic!r} is {found}, "
    "not {expected}",
    MetadataCode.SCHEMA_NOT_NEXT: "the next schema version of topic {topic!r} is {found}, "
    "not {expected}",
    MetadataCode.SCHEMA_REPEATED: "topic {topic!r} already has this schema as version "
    "{version}",
    MetadataCode.LIMIT_REACHED: "there can be at most {max} {what}",
    MetadataCode.LEVEL_UNKNOWN: "unknown level {found}; the highest is {max}",
    MetadataCode.LEVEL_TOO_LOW: "this needs level {expected}, and the log is at level {found}",
    MetadataCode.NAMESPACE_UNKNOWN: "{namespace:x} is not a valid namespace in this cluster",
    MetadataCode.LIFE_WANTED: "partition {namespace:x} of revision {created} belongs to a "
    "topic",
    MetadataCode.NOT_ADOPTED: "{what} cannot be adopted: {flaw}",
}


# Fields that are revisions: messages show only their change count.
_REVISIONS: Final[dict[MetadataCode, frozenset[str]]] = {
    MetadataCode.TOPIC_EXISTS: frozenset({"created"}),
    MetadataCode.RECREATED: frozenset({"expected", "found"}),
    MetadataCode.LIFE_WANTED: frozenset({"created"}),
}


class _Result(msgspec.Struct, frozen=True):
    pass


class Created(_Result, frozen=True):
    """A stream was created; with a topic ID, a topic, whose `created` is `revision`."""

    revision: Revision
    stream_id: StreamId
    topic_id: TopicId | None


class Altered(_Result, frozen=True):
    """A topic has new settings, more partitions or one more schema version."""

    revision: Revision
    stream_id: StreamId
    topic_id: TopicId


class Deleted(_Result, frozen=True):
    """A topic was deleted; without a topic ID, a stream with all its content."""

    revision: Revision
    stream_id: StreamId
    topic_id: TopicId | None


class Levelled(_Result, frozen=True):
    """The log is at this level now, or already was."""

    level: int


class Forgotten(_Result, frozen=True):
    """A deletion is recorded for a life, or for a later one in its place."""

    revision: Revision


class Adopted(_Result, frozen=True):
    """The shards' orphans now belong to the metadata."""

    revision: Revision


class MetadataRefusal(_Result, frozen=True):
    """Nothing changed, and repeating the command against this state changes nothing."""

    code: MetadataCode
    fields: dict[str, int | str]  # named in the message of `code`, in that order

    @property
    def message(self) -> str:
        return MESSAGES[self.code].format_map(
            {
                name: shown(int(field)) if name in _REVISIONS.get(self.code, ()) else field
                for name, field in self.fields.items()
            }
        )


class Unchanged(_Result, frozen=True):
    """An operation of the group itself, such as a Seal: not handled by this machine."""


Result = (
    Created | Altered | Deleted | Levelled | Forgotten | Adopted | MetadataRefusal | Unchanged
)


def refuse(code: MetadataCode, **fields: int | str) -> MetadataRefusal:
    return MetadataRefusal(code, fields)
