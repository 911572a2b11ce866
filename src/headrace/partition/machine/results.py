"""The results of operations on partitions: a closed list of values, equal on every replica.

A refusal is a result like any other: it commits, and it changes nothing. Its text is not part
of it: replicas of two releases may word it differently and must still be equal.
"""

from enum import StrEnum

from headrace.model.ids import Offset
from headrace.model.results import (
    AppendResult,
    CursorDeleted,
    CursorStored,
    DiscardResult,
    PublishResult,
    StageResult,
    TrimResult,
)
from headrace.model.revisions import shown
from headrace.partition.machine.operations import PartitionValue


class RefusalCode(StrEnum):
    """Why an operation was refused. A name never changes its meaning and is never reused."""

    MALFORMED = "malformed"
    OPERATION_UNKNOWN = "operation_unknown"
    STALE = "stale"
    PARTITION_UNKNOWN = "partition_unknown"
    RECREATED = "recreated"
    TOPIC_UNKNOWN = "topic_unknown"
    SCHEMA_UNKNOWN = "schema_unknown"
    SCHEMA_NOT_NEXT = "schema_not_next"
    EMPTY = "empty"
    WRITER_UNKNOWN = "writer_unknown"
    WRITER_CONFLICT = "writer_conflict"
    WRITERS_FULL = "writers_full"
    TOO_OLD = "too_old"
    OUT_OF_ORDER = "out_of_order"
    SUPERSEDED = "superseded"
    STAGE_MISSING = "stage_missing"
    STAGE_REPEATED = "stage_repeated"
    STAGES_FULL = "stages_full"
    FENCED = "fenced"
    CURSOR_UNKNOWN = "cursor_unknown"
    CURSORS_FULL = "cursors_full"
    BAD_NAME = "bad_name"
    OUT_OF_RANGE = "out_of_range"


# Codes whose `expected` and `found` are revisions: people see them as change counts.
_WITH_REVISIONS = frozenset({RefusalCode.STALE, RefusalCode.RECREATED})

# Codes whose operation may be repeated unchanged: the missing part may be on its way.
RETRYABLE = frozenset(
    {RefusalCode.PARTITION_UNKNOWN, RefusalCode.SCHEMA_UNKNOWN, RefusalCode.OUT_OF_ORDER}
)

MESSAGES: dict[RefusalCode, str] = {
    RefusalCode.MALFORMED: "the body of operation {operation} cannot be read",
    RefusalCode.OPERATION_UNKNOWN: "the partitions machine knows no operation {operation}",
    RefusalCode.STALE: "planned with metadata revision {found}, but revision {expected} "
    "was already seen",
    RefusalCode.PARTITION_UNKNOWN: "partition {namespace:x} does not exist here, or not yet",
    RefusalCode.RECREATED: "partition {namespace:x} was deleted and created again: "
    "meant for revision {expected}, found {found}",
    RefusalCode.TOPIC_UNKNOWN: "topic {topic:x} does not exist here, or is a different one now",
    RefusalCode.SCHEMA_UNKNOWN: "schema {schema_id} is not known here yet; the newest is "
    "{newest}",
    RefusalCode.SCHEMA_NOT_NEXT: "schema {version} does not follow the newest, {newest}",
    RefusalCode.EMPTY: "a batch without rows",
    RefusalCode.WRITER_UNKNOWN: "an unknown writer must begin with version 1, not {version}: "
    "its appends in flight may have happened; continue as a new writer",
    RefusalCode.WRITER_CONFLICT: "version {version} was already written with different content",
    RefusalCode.WRITERS_FULL: "there are {max} writers already",
    RefusalCode.TOO_OLD: "version {version} is below {first}, the oldest still remembered",
    RefusalCode.OUT_OF_ORDER: "version {version} arrived before {expected}",
    RefusalCode.SUPERSEDED: "version {version} is not above the published {published}",
    RefusalCode.STAGE_MISSING: "stage {stage_id} is missing, has expired or has different "
    "content",
    RefusalCode.STAGE_REPEATED: "stage {stage_id} is named twice",
    RefusalCode.STAGES_FULL: "there are {max} stages already",
    RefusalCode.FENCED: "generation {found} of the consumer group has ended; the current one "
    "is {expected}",
    RefusalCode.CURSOR_UNKNOWN: "consumer group {group!r} has no cursor here",
    RefusalCode.CURSORS_FULL: "there are {max} cursors already",
    RefusalCode.BAD_NAME: "{name!r} is not a valid name for a consumer group",
    RefusalCode.OUT_OF_RANGE: "offset {offset} is not between {first} and {end}",
}


class Refusal(PartitionValue, frozen=True):
    """Nothing changed."""

    code: RefusalCode
    fields: dict[str, int | str]  # the fields in the message of `code`, in order

    @property
    def message(self) -> str:
        if self.code not in _WITH_REVISIONS:
            return MESSAGES[self.code].format_map(self.fields)
        revisions = {name: shown(int(self.fields[name])) for name in ("expected", "found")}
        return MESSAGES[self.code].format_map({**self.fields, **revisions})

    @property
    def is_retryable(self) -> bool:
        return self.code in RETRYABLE


class Opened(PartitionValue, frozen=True):
    """The partition exists, now or already."""

    end: Offset


class SchemaSet(PartitionValue, frozen=True):
    """The topic has this version in force."""

    version: int


class Closed(PartitionValue, frozen=True):
    """The partition is closed, now or already."""


class Sealed(PartitionValue, frozen=True):
    """The number of runs that become segments; the rest is carried."""

    segment_count: int
    expired_writers: int
    expired_stages: int


Result = (
    Refusal
    | Opened
    | SchemaSet
    | Closed
    | AppendResult
    | StageResult
    | PublishResult
    | DiscardResult
    | CursorStored
    | CursorDeleted
    | TrimResult
    | Sealed
)


def refuse(code: RefusalCode, **fields: int | str) -> Refusal:
    return Refusal(code, fields)
