"""Holds a node to the answers that its producers got, through the public client.

Every acknowledged row is there once, at the reported offsets. Any other row was tried, is
exactly what its source sends, and is whole; nothing is duplicated. Published transactions are
whole, dropped ones never show. Offsets are dense, cursors lie between what was committed and
the end, and each writer's versions are in order.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.log import AsyncLog
from headrace.client.public import connect_async
from headrace.client.topic import AsyncTopic
from headrace.client.values.answers import Range, merged
from headrace.client.write.ledger import Line
from headrace.errors import HeadraceError
from headrace_lab.node.ledger import NodeAccount, NodeSource, Place
from headrace_lab.node.workload import (
    FIRST_LATE,
    FIRST_TRANSACTOR,
    SCHEMA,
    Name,
    NodeWorkload,
)
from headrace_lab.shard.kills.workload import digest_of

PROBLEM_COUNT_MAX: Final = 8  # more of the same kind tells no more
TIMEOUT: Final = 30.0


class Unit(NamedTuple):
    """Rows of one batch or piece, one after the other in one partition."""

    name: Name
    topic: str
    partition: int
    start: int
    end: int
    timestamp: int  # when the node took them, in us


@dataclass(slots=True)
class NodeAudit:
    """One look at everything. Nothing is in flight meanwhile."""

    address: str
    account: NodeAccount
    workload: NodeWorkload
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    units: dict[tuple[str, int, int], Unit] = field(default_factory=dict)  # by place
    _names: set[tuple[Name, int]] = field(default_factory=set)

    async def run(self) -> None:
        """Compare everything; what is wrong is in `problems`."""
        try:
            log = await connect_async(self.address, timeout=TIMEOUT)
            async with log:
                await self._judge_status(log)
                await self._judge_topics(log)
        except HeadraceError as error:
            self._blame("failed", f"the log cannot be read: {type(error).__name__}: {error}")
            return
        for number, source in self.account.sources.items():
            self._judge_ledger(number, source)
            self._judge_versions(source)
        for number in self.workload.transactors:
            self._judge_transactions(number, self.account.source(number))
        self._count_unheard()

    def _blame(self, kind: str, problem: str, rows: int = 1) -> None:
        self.counts[kind] += rows
        if len(self.problems) < PROBLEM_COUNT_MAX:
            self.problems.append(problem)

    async def _judge_status(self, log: AsyncLog) -> None:
        status = await log.status()
        groups = status["groups"].values()
        findings = [one for group in groups for one in group.get("findings", ())]
        halted = [group["halted"] for group in groups if group.get("halted")]
        if not status["ready"] or status["diverged"] or findings or halted:
            self._blame("ill", f"the node is not well: {status}")

    async def _judge_topics(self, log: AsyncLog) -> None:
        account, there = self.account, set(await log.topics())
        for name in sorted(there - account.creating):
            self._blame("invented", f"topic {name!r} is there, and nobody made it")
        for name, revisions in account.created.items():
            if name not in there:
                self._blame("lost", f"topic {name!r} is gone")
                continue
            topic = await log.topic(name)
            if revisions != {topic.created}:
                self._blame("lost", f"topic {name!r} was made anew: {topic.created}")
            for bounds in await topic.bounds():
                if bounds.first != 0:
                    self._blame("lost", f"{name} lost its first {bounds.first} rows")
                await self._judge_partition(topic, bounds.partition, bounds.end)
            await self._judge_cursors(topic)

    async def _judge_partition(self, topic: AsyncTopic, number: int, end: int) -> None:
        where = f"partition {number} of {topic.name}"
        table = (await (await topic.read(number)).to_table()).combine_chunks()
        self.counts["rows"] += table.num_rows
        if table["_offset"].to_pylist() != list(range(end)):
            self._blame("lost", f"offsets of {where} are not dense up to {end}")
            return
        if pc.any(pc.not_equal(table["_partition"], number)).as_py():
            self._blame("wrong", f"rows of {where} say that they are another's")
        times = table["_timestamp"]
        table = table.select(SCHEMA.names)
        for name, start, stop in _units(table):
            rows = table.slice(start, stop - start).to_batches()[0]
            time = times[start].value
            self._judge_unit(Unit(name, topic.name, number, start, stop, time), rows)
        for seen in self.account.seen:
            if (seen.topic, seen.partition) == (topic.name, number):
                rows = table.slice(seen.start, seen.end - seen.start).to_batches()
                if seen.end > end or digest_of(rows[0]) != seen.digest:
                    said = f"{where}: rows {seen.start} to {seen.end}"
                    self._blame("lost", f"{said} are not what a consumer was given")

    def _judge_unit(self, unit: Unit, rows: pa.RecordBatch) -> None:
        name = unit.name
        where = f"partition {unit.partition} of {unit.topic} at {unit.start}"
        wanted = self._wanted(unit)
        if wanted is None or not rows.equals(wanted):
            is_part = wanted is not None and rows.num_rows < wanted.num_rows
            word = "only a part of " if is_part else "no such rows as "
            self._blame("invented", f"{where} holds {word}{name}", rows.num_rows)
        # The client chooses one partition for a batch, unless keys choose several.
        is_keyed = self.workload.topic_of(name.source).key is not None
        known = (name, unit.partition if is_keyed else -1)
        if known in self._names:
            self._blame("twice", f"{where} holds {name} a second time", rows.num_rows)
        self._names.add(known)
        self.units[unit.topic, unit.partition, unit.start] = unit

    def _wanted(self, unit: Unit) -> pa.RecordBatch | None:
        """Make a batch again; None if nobody can have sent it there."""
        name = unit.name
        source = self.account.sources.get(name.source)
        if source is None or not 0 < name.sequence <= source.tried:
            return None
        if name.sequence in source.dropped:
            return None
        if self.workload.topic_of(name.source).name != unit.topic:
            return None
        if name not in self.workload.pieces(name.source, name.sequence):
            return None
        is_staged = name.source in self.workload.transactors
        if is_staged and self.workload.partition_of(name) != unit.partition:
            return None
        return self.workload.rows_in(name, unit.partition)

    def _judge_ledger(self, number: int, source: NodeSource) -> None:
        """Find each acknowledged append where the client's ledger says that it is."""
        for line, life in zip(source.lines, source.lives, strict=True):
            unit = self.units.get((line.topic, line.partition, line.start))
            if unit is None or unit.end != line.end or unit.name.source != number:
                said = f"{line.topic}, partition {line.partition}, {line.start} to {line.end}"
                self._blame("lost", f"an acknowledged append is not at {said}", line.rows)
            elif line.created not in self.account.created[line.topic]:
                self._blame("wrong", f"{line.topic} has never been in life {line.created}")
            else:
                self.counts["repeated"] += unit.timestamp < self.account.lives[life]
        if source.lines and source.acknowledged_rows != source.told_rows:
            told, known = source.told_rows, source.acknowledged_rows
            self._blame("wrong", f"{number} was told of {told} rows, the ledger has {known}")

    def _judge_versions(self, source: NodeSource) -> None:
        """Versions of one writer follow each other in its partition, and so do the batches."""
        lanes = defaultdict(list)
        for line in source.lines:
            lanes[line.writer, line.topic, line.partition].append(line)
        for lane in lanes.values():
            lane.sort(key=lambda line: line.version)
            for before, line in pairwise(lane):
                if line.version == before.version or line.start < before.end:
                    said = f"version {line.version} at {line.start}"
                    self._blame("wrong", f"{said}, but {before.version} ends at {before.end}")
                if self._sequence_of(line) < self._sequence_of(before):
                    said = f"{line.topic} at {line.start}"
                    self._blame("wrong", f"{said} has an older batch than before it")

    def _sequence_of(self, line: Line) -> int:
        unit = self.units.get((line.topic, line.partition, line.start))
        return 0 if unit is None else unit.name.sequence

    def _judge_transactions(self, number: int, source: NodeSource) -> None:
        """A transaction is there with all its pieces or with none, and where it was told."""
        found: dict[int, list[Unit]] = defaultdict(list)
        for unit in self.units.values():
            if unit.name.source == number:
                found[unit.name.sequence].append(unit)
        for sequence, units in found.items():
            pieces = set(self.workload.pieces(number, sequence))
            if {unit.name for unit in units} != pieces:
                self._blame("half", f"half a transaction: {sequence} of source {number}")
        for sequence, ranges in source.published.items():
            there = [Range(*unit[2:5]) for unit in found.get(sequence, [])]
            if merged(there) != merged(ranges):
                told = f"transaction {sequence} of source {number} was told to be at {ranges}"
                self._blame("lost", f"{told}, and is at {there}")

    async def _judge_cursors(self, topic: AsyncTopic) -> None:
        ends = {bounds.partition: bounds.end for bounds in await topic.bounds()}
        found = {
            Place(topic.name, one.group, one.partition): one.next
            for one in await topic.cursors()
        }
        for place, following in found.items():
            if following > ends[place.partition]:
                self._blame("wrong", f"{place} reads {following} next, beyond the end")
            if following > self.account.committing.get(place, 0):
                self._blame("invented", f"{place} is at {following}, which nobody committed")
        for place, following in self.account.committed.items():
            if place.topic == topic.name and found.get(place, 0) < following:
                self._blame("lost", f"{place} had committed {following}")

    def _count_unheard(self) -> None:
        """Count batches that are there and were never acknowledged."""
        lines = {
            (line.topic, line.partition, line.start)
            for source in self.account.sources.values()
            for line in source.lines
        }
        for where, unit in self.units.items():
            is_append = unit.name.source < FIRST_TRANSACTOR or unit.name.source >= FIRST_LATE
            self.counts["unheard"] += is_append and where not in lines


def _units(table: pa.Table) -> Iterator[tuple[Name, int, int]]:
    """Part rows where their name changes, or where their places do not rise."""
    count = table.num_rows
    if count == 0:
        return
    before, after = table.slice(0, count - 1), table.slice(1)
    edge = pc.less_equal(after["row"], before["row"])
    for column in ("source", "sequence", "piece"):
        edge = pc.or_(edge, pc.not_equal(after[column], before[column]))
    edges = [0, *(place + 1 for place in pc.indices_nonzero(edge).to_pylist()), count]
    names = table.select(["source", "sequence", "piece"]).take(edges[:-1])
    parts = zip(*(column.to_pylist() for column in names.columns), strict=True)
    for part, start, end in zip(parts, edges, edges[1:], strict=False):
        yield Name(*part), start, end
