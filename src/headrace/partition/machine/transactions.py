"""Transactions on one topic: rows are staged without offsets and published in one op.

Per topic and writer, versions only rise: a repeat of the last published one gets the same
answer, a lower one is superseded. A stage is complete or missing, never shorter.

A writer of one transaction is forgotten a day after its Publish. A repeat after that adds
nothing: the stages that it names are gone, because the first Publish used them or they expired.
Only the answer that it was published is lost by then.
"""

from typing import Final

import msgspec
from xxhash import xxh3_128_digest

from headrace.journal.entry import Entry, Header
from headrace.model.ids import is_once
from headrace.model.namespace import Namespace
from headrace.model.results import (
    DiscardResult,
    PartitionRange,
    PublishResult,
    Receipt,
    StageResult,
)
from headrace.partition.machine.operations import (
    STAGE_HEADER_SIZE,
    STAGE_ID_SIZE,
    Discard,
    Publish,
    StageHeader,
    decode_stage,
)
from headrace.partition.machine.results import Refusal, RefusalCode, refuse
from headrace.partition.machine.state import (
    Partition,
    PartitionsState,
    Publisher,
    Stage,
    StagedEntry,
    TopicState,
)

# Of one topic. Last versions are kept as long as it lives, but those of writers of one.
PUBLISHER_COUNT_MAX: Final = 65_536
STAGE_COUNT_MAX: Final = 65_536  # of one topic: a job has a stage for each of its tasks
IDLE_MAX_US: Final = 24 * 3600 * 1_000_000  # a writer that staged nothing for a day is dropped
_ONLY: Final = 1  # the version of a writer of one transaction


def stage(topic: TopicState, partition: Partition, entry: Entry) -> StageResult | Refusal:
    """Add an entry to its stage."""
    header = entry.header
    place = decode_stage(entry.body)
    if place is None or header.body_size <= STAGE_HEADER_SIZE:
        return refuse(RefusalCode.MALFORMED, operation=header.operation)
    refused = _unfit(topic, header)
    if refused is not None:
        return refused
    known = topic.stages.get(place.stage_id)
    if known is not None:
        answer = _known(known, header, place)
        if answer is not None:
            return answer
    elif place.number != 0:
        return refuse(RefusalCode.OUT_OF_ORDER, version=place.number, expected=0)
    elif len(topic.stages) >= STAGE_COUNT_MAX:
        return refuse(RefusalCode.STAGES_FULL, max=STAGE_COUNT_MAX)
    else:
        known = Stage(place.stage_id, header.writer, header.version, [])
        topic.stages[place.stage_id] = known
    known.entries.append(
        StagedEntry(
            header.op,
            partition.namespace,
            header.row_count,
            header.body_size,
            header.body_checksum,
        )
    )
    known.row_count += header.row_count
    known.digest = fold(known.digest, header.body_checksum)
    topic.staged_at[header.writer] = header.timestamp
    topic.image = None
    return StageResult(known.receipt, repeated=False)


def fold(digest: bytes, checksum: bytes) -> bytes:
    """Add one body checksum to a receipt's digest."""
    return xxh3_128_digest(digest + checksum)


def _unfit(topic: TopicState, header: Header) -> Refusal | None:
    if is_once(header.writer) and header.version != _ONLY:
        return refuse(RefusalCode.OUT_OF_ORDER, version=header.version, expected=_ONLY)
    publisher = topic.publishers.get(header.writer)
    if publisher is not None and header.version <= publisher.version:
        return refuse(
            RefusalCode.SUPERSEDED, version=header.version, published=publisher.version
        )
    if publisher is None and len(topic.publishers) >= PUBLISHER_COUNT_MAX:
        return refuse(RefusalCode.WRITERS_FULL, max=PUBLISHER_COUNT_MAX)
    return None


def _known(known: Stage, header: Header, place: StageHeader) -> StageResult | Refusal | None:
    """Answer an op of an existing stage; None if it is the stage's next op."""
    if (known.writer, known.version) != (header.writer, header.version):
        return refuse(RefusalCode.WRITER_CONFLICT, version=header.version)
    if place.number < len(known.entries):
        if known.entries[place.number].checksum != header.body_checksum:
            return refuse(RefusalCode.WRITER_CONFLICT, version=header.version)
        return StageResult(known.receipt, repeated=True)
    if place.number > len(known.entries):
        return refuse(
            RefusalCode.OUT_OF_ORDER, version=place.number, expected=len(known.entries)
        )
    return None


def publish(
    state: PartitionsState, topic: TopicState, header: Header, command: Publish
) -> PublishResult | Refusal:
    """Assign offsets to the rows of exactly these stages; refuse all if one differs."""
    content = xxh3_128_digest(msgspec.msgpack.encode(command.stages))
    publisher = topic.publishers.get(header.writer)
    if publisher is not None and header.version == publisher.version:
        same = publisher.content == content
        return PublishResult(publisher.ranges, repeated=True, same=same)
    refused = _unfit(topic, header) or _missing(topic, header, command.stages)
    if refused is not None:
        return refused
    given: dict[Namespace, PartitionRange] = {}
    for receipt in command.stages:
        for entry in topic.stages[receipt.stage_id].entries:
            _give(state, entry, header.timestamp, given)
    ranges = tuple(given.values())
    topic.publishers[header.writer] = Publisher(header.version, content, ranges)
    _drop_through(topic, header.writer, header.version)
    if is_once(header.writer):
        topic.once_at[header.writer] = header.timestamp
    topic.image = None
    return PublishResult(ranges, repeated=False, same=True)


def _give(
    state: PartitionsState,
    entry: StagedEntry,
    timestamp: int,
    given: dict[Namespace, PartitionRange],
) -> None:
    """Assign offsets to one entry's rows. One op's rows of a partition are contiguous."""
    partition = state.partitions[entry.namespace]
    start = partition.add(entry.row_count, entry.op, timestamp, entry.size)
    partition.image = None
    known = given.get(entry.namespace)
    first = start if known is None else known.start
    given[entry.namespace] = PartitionRange(entry.namespace, first, partition.end)


def _missing(
    topic: TopicState, header: Header, receipts: tuple[Receipt, ...]
) -> Refusal | None:
    """Name the first stage that is missing, differs, belongs to another, or is repeated."""
    seen: set[bytes] = set()
    for receipt in receipts:
        name = receipt.stage_id[:STAGE_ID_SIZE].hex()
        if receipt.stage_id in seen:
            return refuse(RefusalCode.STAGE_REPEATED, stage_id=name)
        seen.add(receipt.stage_id)
        stage = topic.stages.get(receipt.stage_id)
        if stage is None or stage.receipt != receipt:
            return refuse(RefusalCode.STAGE_MISSING, stage_id=name)
        if (stage.writer, stage.version) != (header.writer, header.version):
            return refuse(RefusalCode.STAGE_MISSING, stage_id=name)
    return None


def discard(topic: TopicState, header: Header, command: Discard) -> DiscardResult:
    """Forget the named stages of this writer. Missing ones are not an error."""
    count = 0
    for stage_id in command.stage_ids:
        known = topic.stages.get(stage_id)
        if known is not None and known.writer == header.writer:
            del topic.stages[stage_id]
            count += 1
    _forget_idle(topic)
    topic.image = None
    return DiscardResult(count)


def expire(topic: TopicState, now: int) -> int:
    """Drop the stages of writers that staged nothing for too long; return how many.

    Writers of one transaction are forgotten after the same time.
    """
    for writer in [key for key, at in topic.once_at.items() if now - at > IDLE_MAX_US]:
        del topic.once_at[writer], topic.publishers[writer]
        topic.image = None
    gone = {
        writer for writer, timestamp in topic.staged_at.items() if now - timestamp > IDLE_MAX_US
    }
    expired = [key for key, stage in topic.stages.items() if stage.writer in gone]
    for key in expired:
        del topic.stages[key]
    if gone:
        _forget_idle(topic)
        topic.image = None
    return len(expired)


def drop_partition(topic: TopicState, namespace: Namespace) -> None:
    """Drop the stages with rows for a closing partition: they do not apply to its next life."""
    for key, stage in list(topic.stages.items()):
        if any(entry.namespace == namespace for entry in stage.entries):
            del topic.stages[key]
    _forget_idle(topic)
    topic.image = None


def _drop_through(topic: TopicState, writer: bytes, version: int) -> None:
    """Drop everything staged by `writer` for `version` or below."""
    for key, stage in list(topic.stages.items()):
        if stage.writer == writer and stage.version <= version:
            del topic.stages[key]
    _forget_idle(topic)


def _forget_idle(topic: TopicState) -> None:
    """Forget a writer's last staging time once it has no stages."""
    busy = {stage.writer for stage in topic.stages.values()}
    for writer in [key for key in topic.staged_at if key not in busy]:
        del topic.staged_at[writer]
