"""Checks whether a version was already published with the same rows.

The log records where the rows of a writer's newest version are, for the life of the topic, and
has the rows until they are trimmed. So nothing else is stored: the rows are read back and
compared without regard to order, since tasks that run again may split them differently.
"""

from collections.abc import Sequence
from typing import Final

from headrace.errors import BadRequest, Refused
from headrace.model.results import PartitionRange
from headrace.spark.source_options import Use, parse
from headrace.spark.topic_source import TopicSource
from headrace.spark.worker.content import Content, content_of
from headrace.spark.worker.read import read
from headrace.spark.worker.write import Deed, StageTarget

TIMEOUT: Final = "120s"  # of one request to the log: a node may restart meanwhile
_PASS: Final = (
    "or, for rows that differ each time they are computed (rand, uuid, sums of doubles), skip "
    'this check with .option("failOnOtherRows", "false")'
)

_PUT_BACK: Final = "The checkpointLocation was restored from an old backup, or copied"
_START_OVER: Final = "start over with a new checkpointLocation and a new topic"

Ranges = dict[int, tuple[int, int]]  # start and end by partition


class VersionTaken(BadRequest):
    """A version of a writer was already published with different rows, or a later one was."""


def check_repeat(
    options: dict[str, str],
    target: StageTarget,
    deed: Deed,
    published: Sequence[PartitionRange],
    content: Content,
    batch: int | None,
) -> None:
    """Raise VersionTaken unless exactly these rows were published. `batch`: of a query."""
    topic_source = TopicSource(parse(options, Use.PUT), TIMEOUT)
    try:
        # The topic as it is now: another driver may have seen more partitions.
        partitions = topic_source.topic.core.view.info.partitions
        numbers = {one.namespace: number for number, one in enumerate(partitions)}
        ranges: Ranges = {numbers[one.namespace]: (one.start, one.end) for one in published}
        row_count = sum(end - start for start, end in ranges.values())
        if row_count == content.row_count:
            _refuse_unseen(topic_source, target, deed, ranges, batch)
            if _content(topic_source, target, ranges) == content:
                return
        raise _taken(target, deed, ranges, content, batch)
    finally:
        topic_source.close()


def superseded(
    target: StageTarget, deed: Deed, refused: Refused, batch: int | None
) -> VersionTaken:
    """Return the error for a superseded version: the log does not know its rows any more."""
    newest = "restore the checkpointLocation that wrote its newest batch"
    return VersionTaken(
        f"{_named(deed, batch)} is superseded in {target.topic} ({refused.args[0]}): nothing "
        "was added",
        hint=f"Give a higher txnVersion; if a checkpointLocation was restored, {newest}"
        if batch is None
        else f"{_PUT_BACK}: {newest}, or {_START_OVER}",
    )


def _content(topic_source: TopicSource, target: StageTarget, ranges: Ranges) -> Content:
    """Digest the rows of these ranges, in the target's schema."""
    schema = topic_source.topic.core.view.schemas[target.version]
    total = Content()
    for span in topic_source.spans(ranges, schema, target.version):
        total = sum(map(content_of, read(span)), start=total)
    return total


def _refuse_unseen(
    topic_source: TopicSource,
    target: StageTarget,
    deed: Deed,
    ranges: Ranges,
    batch: int | None,
) -> None:
    """Raise VersionTaken for rows that are trimmed or newer than the target's schema."""
    bounds = topic_source.bounds()
    for number, (start, end) in sorted(ranges.items()):
        found = bounds[number]
        version = max((one for one, first in found.versions if first < end), default=0)
        if found.first > start:
            why = (
                f", which are trimmed up to {found.first - 1}, so they cannot be compared with "
            )
            why += "these"
        elif version > target.version:
            why = f" with schema version {version}, but this is schema version "
            why += f"{target.version}: nothing was added"
        else:
            continue
        raise VersionTaken(
            f"{_named(deed, batch)} was already published to {topic_source.topic.name} as rows "
            f"{start} to {end - 1} of partition {number}{why}",
            hint=_ways_out(batch),
        )


def _taken(
    target: StageTarget, deed: Deed, ranges: Ranges, content: Content, batch: int | None
) -> VersionTaken:
    row_count = sum(end - start for start, end in ranges.values())
    there = ", ".join(
        f"{start} to {end - 1} of partition {n}" for n, (start, end) in sorted(ranges.items())
    )
    is_as_many = row_count == content.row_count
    found = f"{content.row_count:,} {'different rows' if is_as_many else 'rows'}"
    this = found if batch is None else f"batch {batch} with {found}"
    return VersionTaken(
        f"version {deed.version} of {deed.app_id} was already published to {target.topic} with "
        f"{row_count:,} rows ({there or 'none'}), but this is {this}: nothing was added",
        hint=_ways_out(batch),
    )


def _named(deed: Deed, batch: int | None) -> str:
    suffix = "" if batch is None else f" (batch {batch})"
    return f"version {deed.version} of {deed.app_id}{suffix}"


def _ways_out(batch: int | None) -> str:
    if batch is None:
        return (
            "A txnVersion, or a batch of a query, stands for one set of rows. Give the next "
            "one; if a checkpointLocation was restored from an old backup, restore the one "
            f"that wrote this version; {_PASS}"
        )
    return (
        f"{_PUT_BACK}: restore the checkpointLocation that wrote batch {batch}, or "
        f"{_START_OVER}; {_PASS}"
    )
