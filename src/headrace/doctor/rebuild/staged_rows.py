"""Transactions that were staged before the journal begins: which of them were published?

Their Publish is drained, and the state that knew of it is lost. Three kinds of evidence remain:

    a segment     has exactly the rows of one of its entries, at the time of the Publish
    the journal   publishes or discards it, or adds to it
    a carry file  has it, at a Seal that would have dropped it had it not been published, or
                  has it beside a later one of the same writer

Without evidence a stage is left out: rows that were never published must not appear.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.doctor.look.entries import Entries
from headrace.doctor.look.orphan_segment import LoneState
from headrace.doctor.look.row_sources import proven_rows
from headrace.doctor.rebuild.lifetimes import Life, Recorded
from headrace.doctor.rebuild.timeline import Given
from headrace.errors import Corrupt
from headrace.journal.entry import SEAL, Entry, Header
from headrace.model.ids import Op
from headrace.model.namespace import Namespace
from headrace.model.results import PublishResult
from headrace.model.row_digest import RowDigest
from headrace.model.schema import SYSTEM_FIELDS
from headrace.partition.files.carry import CarryFile, carry_name
from headrace.partition.machine.operations import STAGE, Discard, Publish, decode, decode_stage
from headrace.partition.machine.results import Result
from headrace.partition.machine.state import PartitionsState, Stage, StagedEntry
from headrace.partition.machine.transactions import fold
from headrace.partition.segments.entry_rows import Schemas, rows_of
from headrace.partition.segments.segment import OFFSET


@dataclass(slots=True)
class OldStage:
    """A stage with entries left from before the journal."""

    stage_id: bytes
    topic: int  # its number
    writer: bytes
    version: int
    entries: list[tuple[int, Header]] = field(default_factory=list)  # number, by rising op
    is_published: bool = False  # before the journal begins
    published_at: int | None = None  # the time of that, where it is known

    def tell(self, timestamp: int | None) -> None:
        """Record that it was published."""
        self.is_published = True
        self.published_at = timestamp

    @property
    def is_dense(self) -> bool:
        """No entry between its first and its last is missing."""
        return [number for number, _ in self.entries] == list(range(len(self.entries)))

    @property
    def last_op(self) -> Op:
        return self.entries[-1][1].op

    def rows_of(self, lives: set[Life]) -> int:
        """Count its rows in partitions of these lives."""
        return sum(
            one.row_count
            for _, one in self.entries
            if Life(one.namespace, one.created) in lives
        )

    def opened(self) -> Stage:
        """Return it as the machine represents an unpublished stage."""
        stage = Stage(self.stage_id, self.writer, self.version, [])
        for _, header in self.entries:
            stage.entries.append(
                StagedEntry(
                    header.op,
                    Namespace(header.namespace),
                    header.row_count,
                    header.body_size,
                    header.body_checksum,
                )
            )
            stage.row_count += header.row_count
            stage.digest = fold(stage.digest, header.body_checksum)
        return stage


Staged = tuple[OldStage, Header]


@dataclass(slots=True)
class OldStages:
    """All stages of a shard from before its journal, and what is known about them."""

    entries: Entries
    recorded: Recorded
    bits: int  # of a partition's number in a namespace
    known: dict[bytes, OldStage] = field(default_factory=dict)
    decided: set[bytes] = field(default_factory=set)  # decided by the journal
    is_news: bool = False  # another one turned out to be published

    def find(
        self, segments: Mapping[Life, list[LoneState]], schemas: Mapping[int, Schemas]
    ) -> None:
        """Collect the entries of transactions, and the evidence about them in files."""
        for header in self.recorded.before.values():
            if header.operation == STAGE:
                self._add(header)
        readable = {life: [one for one in some if one.times] for life, some in segments.items()}
        find_published(self.known.values(), self.entries, readable, schemas)
        tell_siblings(self.known.values(), self._alive_at())
        tell_alive_together(self.known.values(), self.entries.carries.values())

    def put_into(self, state: PartitionsState) -> None:
        """Open the stages that may still be open, for the journal to publish or drop."""
        for stage in self.known.values():
            topic = state.topics.get(stage.topic)
            if topic is not None and stage.is_dense and not stage.is_published:
                topic.stages[stage.stage_id] = stage.opened()
                topic.staged_at[stage.writer] = stage.entries[-1][1].timestamp

    def given(self, life: Life) -> Iterator[Given]:
        """Yield the rows of a partition that were published before the journal."""
        for stage in self.known.values():
            if not stage.is_published:
                continue
            time = stage.published_at or self._time_behind(stage.last_op)
            for _, one in stage.entries:
                if (one.namespace, one.created) == life:
                    yield Given(time, one.op, one.row_count, one.body_size, one.schema_id)

    def hear(self, state: PartitionsState, entry: Entry, result: Result) -> None:
        """Note what an applied journal entry proves."""
        operation = entry.header.operation
        if operation == STAGE:
            place = decode_stage(entry.body)
            self.decided.update(() if place is None else (place.stage_id,))
        elif operation == SEAL:
            self._hear_seal(state, entry.header.op)
        elif operation in (Discard.operation, Publish.operation):
            command = decode(operation, entry.body)
            if isinstance(command, Discard):
                self.decided.update(command.stage_ids)
            elif isinstance(command, Publish) and isinstance(result, PublishResult):
                self.decided.update(each.stage_id for each in command.stages)

    def undecided(self, lives: set[Life]) -> dict[int, int]:
        """Count the rows, by topic, without evidence whether they were published."""
        found: dict[int, int] = {}
        for stage in self.known.values():
            rows = stage.rows_of(lives)
            if rows and not stage.is_published and stage.stage_id not in self.decided:
                found[stage.topic] = found.get(stage.topic, 0) + rows
        return found

    def untimed_count(self, lives: set[Life]) -> int:
        """Count the rows whose time of publishing is unknown."""
        return sum(
            stage.rows_of(lives)
            for stage in self.known.values()
            if stage.is_published and stage.published_at is None
        )

    def _add(self, header: Header) -> None:
        entry = self.entries.read(header.op)
        place = decode_stage(entry.body) if entry is not None else None
        if place is None:
            return
        topic = header.namespace >> self.bits
        fresh = OldStage(place.stage_id, topic, header.writer, header.version)
        stage = self.known.setdefault(place.stage_id, fresh)
        if all(place.number != number for number, _ in stage.entries):  # not a repeat
            stage.entries.append((place.number, header))

    def _alive_at(self) -> dict[Op, int]:
        """Return for each carried op a time at which it was certainly still needed."""
        found: dict[Op, int] = {}
        times = {op: one.timestamp for op, one in self.recorded.before.items()}
        for carry in self.entries.carries.values():
            newest = max((time for op, time in times.items() if op <= carry.op), default=0)
            for op in carry.ops:
                found[op] = max(found.get(op, 0), newest)
        return found

    def _time_behind(self, last: Op) -> int:
        """Return the earliest time of a Publish: the first missing op after its stage."""
        op = last
        while Op(op + 1) in self.recorded.before:
            op = Op(op + 1)
        return self.recorded.before[op].timestamp + 1

    def _hear_seal(self, state: PartitionsState, op: Op) -> None:
        """A stage that is carried here but was dropped by the machine was published."""
        carry = self.entries.carries.get(carry_name(op))
        if carry is None:
            return
        for stage in self.known.values():
            topic = state.topics.get(stage.topic)
            is_open = topic is not None and stage.stage_id in topic.stages
            is_settled = stage.is_published or stage.stage_id in self.decided
            if not is_open and not is_settled and stage.is_dense and stage.last_op in carry:
                stage.tell(None)
                self.is_news = True


def find_published(
    stages: Iterable[OldStage],
    entries: Entries,
    segments: Mapping[Life, list[LoneState]],
    schemas: Mapping[int, Schemas],
) -> None:
    """Return when each stage whose rows are in a segment was published."""
    by_life: dict[Life, list[Staged]] = {}
    for stage in stages:
        for _, header in stage.entries:
            life = Life(header.namespace, header.created)
            by_life.setdefault(life, []).append((stage, header))
    for life, staged in by_life.items():
        topic = staged[0][0].topic
        for one in segments.get(life, []) if topic in schemas else ():
            _match(one, staged, entries, schemas[topic])


def _match(
    segment: LoneState, staged: list[Staged], entries: Entries, schemas: Schemas
) -> None:
    """Find staged rows in a segment: the rows of one Publish are adjacent and share a time."""
    assert segment.task is not None
    known: dict[tuple[int, bytes], list[Staged]] = {}
    for one in staged:
        rows = _rows(one[1], entries, schemas, segment.task.info.schema_id)
        if rows is not None:
            known.setdefault((rows.num_rows, _digest(rows)), []).append(one)
    for timestamp, rows in timed_rows(segment) if known else ():
        start = 0
        while (found := _taken(known, rows.slice(start), timestamp)) is not None:
            found[0].tell(timestamp)
            start += found[1].row_count


def _taken(
    known: dict[tuple[int, bytes], list[Staged]], rows: pa.RecordBatch, timestamp: int
) -> Staged | None:
    """Take the entry whose rows come first here; among equals, the newest before this."""
    for row_count in {count for count, _ in known if count <= rows.num_rows}:
        equal = known.get((row_count, _digest(rows.slice(0, row_count))), [])
        older = [one for one in equal if one[1].timestamp < timestamp]
        if older:
            found = max(older, key=lambda one: one[1].op)
            equal.remove(found)
            return found
    return None


def tell_siblings(stages: Iterable[OldStage], alive_at: Mapping[Op, int]) -> None:
    """Return what a published stage implies about other stages of its writer.

    Its Publish drops what it does not name. So one that is carried later, by the time up to
    which each op is known to be alive, was published with it, or before it.
    """
    known = list(stages)
    for one in known:
        if one.published_at is None:
            continue
        for other in known:
            is_its = (other.topic, other.writer) == (one.topic, one.writer)
            if not is_its or other.is_published or other.version > one.version:
                continue
            if alive_at.get(other.last_op, 0) > one.published_at:
                other.tell(one.published_at if other.version == one.version else None)


def tell_alive_together(stages: Iterable[OldStage], carries: Iterable[CarryFile]) -> None:
    """Return what stages of one writer, alive at one Seal, imply about one another.

    A Publish drops the older ones that it does not name, and a writer has one version open at
    a time. So of several versions that one carry file has, only the newest may be open.
    """
    known = list(stages)
    for carry in carries:
        newest: dict[tuple[int, bytes], int] = {}
        alive = [one for one in known if one.last_op in carry]
        for one in alive:
            key = (one.topic, one.writer)
            newest[key] = max(newest.get(key, 0), one.version)
        for one in alive:
            if not one.is_published and one.version < newest[one.topic, one.writer]:
                one.tell(None)


def timed_rows(segment: LoneState) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the user's columns of a segment, split by the times of the rows."""
    assert segment.task is not None
    assert segment.state is not None
    for batch in proven_rows(segment.task, segment.state):
        user = batch.select(batch.schema.names[len(SYSTEM_FIELDS) :])
        first = batch.column(OFFSET)[0].as_py()
        end_here = first + batch.num_rows
        for one in segment.times:
            if one.start >= end_here:
                break
            start, end = max(one.start - first, 0), min(one.end - first, batch.num_rows)
            if start < end:
                yield one.timestamp, user.slice(start, end - start)


def _rows(
    header: Header, entries: Entries, schemas: Schemas, version: int
) -> pa.RecordBatch | None:
    entry = entries.read(header.op)
    if entry is None or header.schema_id > version:
        return None
    try:
        return rows_of(entry, schemas, version, f"op {header.op}")
    except (Corrupt, KeyError):
        return None


def _digest(rows: pa.RecordBatch) -> bytes:
    digest = RowDigest(rows.schema)
    digest.update(rows)
    return digest.digest()
