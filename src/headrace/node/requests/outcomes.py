"""Translates refusals of the machines into the errors that clients get."""

import logging
from collections.abc import Sequence
from difflib import get_close_matches

from headrace.errors import (
    BadName,
    HeadraceError,
    NotReady,
    NotYet,
    PartitionUnknown,
    Recreated,
    Refused,
    TimedOut,
    TopicExists,
    TopicUnknown,
    WriterUnknown,
)
from headrace.metadata import results as metadata
from headrace.model.namespace import TopicName
from headrace.node.events import event
from headrace.partition.machine import results as partition

_COMPARED_MAX = 100  # names compared with an unknown one: each takes time
_HINTS = {
    partition.RefusalCode.WRITER_CONFLICT: "Use a new writer, or resend the original content",
    partition.RefusalCode.TOO_OLD: "It was answered long ago; continue with a new writer",
    partition.RefusalCode.WRITERS_FULL: "Reuse an existing writer, as txnAppId and "
    "txnVersion of Spark do. Idle producers expire after a week, writers of one "
    "transaction after a day",
    partition.RefusalCode.STAGES_FULL: "Publish or discard staged rows; idle stages expire "
    "after a day",
    partition.RefusalCode.STAGE_MISSING: "If this is a retry after a lost answer, check "
    "whether its rows exist. If not, stage them again, and publish those receipts",
    partition.RefusalCode.SUPERSEDED: "A later version was published; start a new one above it",
    partition.RefusalCode.FENCED: "Another consumer took over; rejoin the group",
}
_CHANGED = "It was changed concurrently: look up the topic again"
_METADATA_HINTS = {
    metadata.MetadataCode.BAD_PARTITION_COUNT: "Use at least 1",
    metadata.MetadataCode.BAD_RETENTION: "Use a value >= 1, or omit it to keep everything",
    metadata.MetadataCode.BAD_OPTION: "Remove it, or correct it",
    metadata.MetadataCode.STREAM_EXISTS: "Use it, or choose another name",
    metadata.MetadataCode.STREAM_NOT_EMPTY: "Delete its topics first, or delete them with it",
    metadata.MetadataCode.PARTITIONS_NOT_NEXT: _CHANGED,
    metadata.MetadataCode.SCHEMA_NOT_NEXT: _CHANGED,
    metadata.MetadataCode.SCHEMA_REPEATED: "Nothing to do",
    metadata.MetadataCode.LIMIT_REACHED: "Use fewer, or delete unused ones",
}


def metadata_error(refused: metadata.MetadataRefusal, topics: Sequence[str]) -> HeadraceError:
    """Return the error for a refusal by group 0. `topics` are candidates for a suggestion."""
    fields = refused.fields
    match refused.code:
        case metadata.MetadataCode.TOPIC_UNKNOWN:
            name = TopicName(str(fields["stream"]), str(fields["topic"]))
            return topic_unknown(name, topics)
        case metadata.MetadataCode.STREAM_UNKNOWN:
            return TopicUnknown(refused.message, hint="Create the stream, or check its name")
        case metadata.MetadataCode.TOPIC_EXISTS:
            return TopicExists(refused.message, hint="Use it, or choose another name")
        case metadata.MetadataCode.BAD_NAME:
            return BadName(str(fields["what"]), str(fields["name"]))
        case metadata.MetadataCode.RECREATED:
            name = TopicName(str(fields["stream"]), str(fields["topic"]))
            return Recreated(str(name), int(fields["expected"]), int(fields["found"]))
        case _:
            hint = _METADATA_HINTS.get(refused.code, "")
            return Refused(refused.code.value, refused.message, hint=hint)


def partition_error(refused: partition.Refusal) -> HeadraceError:
    """Return the error for a refusal by a shard."""
    match refused.code:
        case partition.RefusalCode.PARTITION_UNKNOWN:
            return PartitionUnknown(f"{refused.fields['namespace']:x}")
        case partition.RefusalCode.RECREATED:
            fields = refused.fields
            return Recreated(
                f"{fields['namespace']:x}", int(fields["expected"]), int(fields["found"])
            )
        case partition.RefusalCode.WRITER_UNKNOWN:
            return WriterUnknown(refused.message)
        case code if refused.is_retryable:
            return NotYet(code.value, refused.message, hint="Retry in a moment")
        case code:
            return Refused(code.value, refused.message, hint=_HINTS.get(code, ""))


def topic_unknown(name: TopicName, topics: Sequence[str]) -> TopicUnknown:
    """Return the error for an unknown topic, with a suggestion."""
    near = get_close_matches(str(name), topics[:_COMPARED_MAX], 1)
    hint = f"Did you mean {near[0]!r}?" if near else "List the topics, or create this one"
    return TopicUnknown(f"topic {str(name)!r} does not exist", hint=hint)


def defect(where: str, error: Exception) -> NotReady:
    """Log an unexpected exception, and return the error that answers the request."""
    event("node.defect.found", level=logging.ERROR, where=where, error=repr(error))
    return NotReady(
        f"{where} failed on this node: {type(error).__name__}",
        hint="This is a bug; the node's log has the details",
    )


def schema_unknown(version: int, count: int) -> NotYet:
    """Return the error for a schema that has not arrived yet, or never existed."""
    return NotYet(
        "schema_unknown",
        f"schema version {version} is unknown here yet; there are {count}",
        hint="Retry in a moment, or look up the topic again",
    )


def late() -> TimedOut:
    """Return the error for a request whose deadline passed before its turn."""
    return TimedOut("the deadline passed; nothing happened", hint="Retry with a longer timeout")
