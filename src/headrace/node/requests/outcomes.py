"""What a machine refused, as the error that its asker gets. The one translation of results."""

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
from headrace.model.names import TopicName
from headrace.node.events import event
from headrace.partition.machine import results as partition

_COMPARED_MAX = 100  # names that are compared with a wrong one: each takes its time
_HINTS = {
    partition.Code.WRITER_CONFLICT: "Use a new writer, or the content of the first try",
    partition.Code.TOO_OLD: "Its answer was given long ago; go on with a new writer",
    partition.Code.STAGE_MISSING: "Stage the rows again, and publish those receipts",
    partition.Code.SUPERSEDED: "A later version was published; begin a new one above it",
    partition.Code.FENCED: "Another consumer took over; join the group again",
}
_CHANGED = "Somebody else has changed it: look the topic up again"
_METADATA_HINTS = {
    metadata.Code.BAD_PARTITION_COUNT: "Ask for one at least",
    metadata.Code.BAD_RETENTION: "Give more than nothing, or leave it out to keep everything",
    metadata.Code.BAD_OPTION: "Take it out, or write it as the others are",
    metadata.Code.STREAM_EXISTS: "Use it, or choose another name",
    metadata.Code.STREAM_NOT_EMPTY: "Delete its topics first, or say that they go with it",
    metadata.Code.PARTITIONS_NOT_NEXT: _CHANGED,
    metadata.Code.SCHEMA_NOT_NEXT: _CHANGED,
    metadata.Code.SCHEMA_REPEATED: "Nothing is left to do",
    metadata.Code.LIMIT_REACHED: "Ask for fewer, or delete what is not needed any more",
}


def metadata_error(refused: metadata.Refused, topics: Sequence[str]) -> HeadraceError:
    """Say why group 0 refused a command. `topics` are names that may have been meant."""
    fields = refused.fields
    match refused.code:
        case metadata.Code.TOPIC_UNKNOWN:
            name = TopicName(str(fields["stream"]), str(fields["topic"]))
            return topic_unknown(name, topics)
        case metadata.Code.STREAM_UNKNOWN:
            return TopicUnknown(refused.message, hint="Create the stream, or check its name")
        case metadata.Code.TOPIC_EXISTS:
            return TopicExists(refused.message, hint="Use it, or choose another name")
        case metadata.Code.BAD_NAME:
            return BadName(str(fields["what"]), str(fields["name"]))
        case metadata.Code.RECREATED:
            name = TopicName(str(fields["stream"]), str(fields["topic"]))
            return Recreated(str(name), int(fields["expected"]), int(fields["found"]))
        case _:
            hint = _METADATA_HINTS.get(refused.code, "")
            return Refused(refused.code.value, refused.message, hint=hint)


def partition_error(refused: partition.Refused) -> HeadraceError:
    """Say why a shard refused an operation."""
    match refused.code:
        case partition.Code.PARTITION_UNKNOWN:
            return PartitionUnknown(f"{refused.fields['namespace']:x}")
        case partition.Code.RECREATED:
            fields = refused.fields
            return Recreated(
                f"{fields['namespace']:x}", int(fields["expected"]), int(fields["found"])
            )
        case partition.Code.WRITER_UNKNOWN:
            return WriterUnknown(refused.message)
        case code if refused.is_retryable:
            return NotYet(code.value, refused.message, hint="Repeat it in a moment")
        case code:
            return Refused(code.value, refused.message, hint=_HINTS.get(code, ""))


def topic_unknown(name: TopicName, topics: Sequence[str]) -> TopicUnknown:
    """Say that there is no such topic, and which one was meant perhaps."""
    near = get_close_matches(str(name), topics[:_COMPARED_MAX], 1)
    hint = f"Did you mean {near[0]!r}?" if near else "List the topics, or create it"
    return TopicUnknown(f"there is no topic {str(name)!r}", hint=hint)


def defect(where: str, error: Exception) -> NotReady:
    """Say that this node failed in a way that nobody thought of. The request is answered."""
    event("node.defect.found", level=logging.ERROR, where=where, error=repr(error))
    return NotReady(
        f"{where} failed on this node: {type(error).__name__}",
        hint="This is a defect; the node's log has the details",
    )


def schema_unknown(version: int, count: int) -> NotYet:
    """Say that a schema is on its way here, or was never made."""
    return NotYet(
        "schema_unknown",
        f"schema {version} is not known here yet; there are {count}",
        hint="Repeat it in a moment, or look the topic up again",
    )


def late() -> TimedOut:
    """Say that a deadline came before the request's turn."""
    return TimedOut("the deadline came first; nothing happened", hint="Give it more time")
