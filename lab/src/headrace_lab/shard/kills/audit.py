"""Holds a recovered shard to the ledger of its writer.

Every acknowledged row is there once, at its offsets, unless it was trimmed. Any other row was
tried, is exactly what its source would write, and belongs to a whole version. Offsets are
dense. After a crash alone nothing is damaged, missing or in quarantine.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.model.ids import Offset
from headrace.partition.machine.state import Placed
from headrace.partition.scrub import scrub
from headrace.partition.shard_store import Store
from headrace_lab.shard.kills.ledger import LedgerRows, ShardAccount
from headrace_lab.shard.kills.workload import SCHEMA, Batch, ShardWorkload, digest_of

PROBLEM_COUNT_MAX: Final = 8  # more of the same kind tells no more


class Found(msgspec.Struct, frozen=True):
    """What an audit found."""

    problems: list[str]
    row_count: int = 0  # read back and compared
    lost_count: int = 0  # acknowledged rows that are not there
    invented_count: int = 0  # rows that nobody wrote so
    unheard_count: int = 0  # batches that had reached the disk before they were acknowledged
    segment_count: int = 0
    carry_count: int = 0


@dataclass(slots=True)
class Audit:
    """One look at everything."""

    store: Store
    account: ShardAccount
    workload: ShardWorkload
    problems: list[str] = field(default_factory=list)
    seen: dict[Batch, LedgerRows] = field(default_factory=dict)  # all that is retained
    firsts: dict[int, Offset] = field(default_factory=dict)  # by partition
    counts: Counter[str] = field(default_factory=Counter)

    def run(self) -> Found:
        """Compare everything."""
        self.problems += self.account.problems
        self._judge_report()
        for number in range(self.workload.partition_count):
            try:
                self._judge_partition(number)
            except HeadraceError as error:
                self._blame(f"partition {number} cannot be read: {error}")
                self.counts["lost"] += 1
        if not self.problems:
            self._judge_ledger()
            self._judge_versions()
            self._judge_files()
        files = self.store.keeper.files
        return Found(
            self.problems[:PROBLEM_COUNT_MAX],
            row_count=self.counts["rows"],
            lost_count=self.counts["lost"],
            invented_count=self.counts["invented"],
            unheard_count=len(self.unheard),
            segment_count=len(files.there),
            carry_count=len(files.carry),
        )

    @property
    def unheard(self) -> list[LedgerRows]:
        """What is there and not in the ledger: whoever saw it must find it again."""
        return [rows for batch, rows in self.seen.items() if batch not in self.account.rows]

    def _blame(self, problem: str) -> None:
        self.problems.append(problem)

    def _judge_report(self) -> None:
        report = self.store.report
        damage: list[tuple[Sequence[object], str]] = [
            (report.faulty, "faulty entries"),
            ([report.snapshot_op] * report.fell_back, "a snapshot passed over"),
            (report.quarantined, "files in quarantine"),
            ([note for note in report.notes if not note.mended], "something not mended"),
            (self.store.findings, "findings"),
        ]
        for found, words in damage:
            if found:
                self._blame(f"{words} after a crash alone, {len(found)}: {found[0]}")

    def _judge_partition(self, number: int) -> None:
        key = self.workload.partitions[number]
        if number not in self.account.ends and key.namespace not in self._open:
            return  # the group died before it was opened
        first, end = self.store.reader.bounds(key)
        self.firsts[number] = first
        trimmed = self.account.trimmed.get(number, 0)
        if not trimmed <= first <= self.account.trimming.get(number, 0):
            self._blame(f"partition {number} begins at {first}, but {trimmed} was trimmed to")
        if end < self.account.ends.get(number, 0):
            missing = self.account.ends[number] - end
            self.counts["lost"] += missing
            self._blame(f"partition {number} lost {missing} rows: it ends at {end}")
        table = pa.Table.from_batches(
            self.store.reader.read(key, first, end),
            schema=None if first < end else SCHEMA,
        )
        if first == end:
            return
        if table["_offset"].to_pylist() != list(range(first, end)):
            self._blame(f"offsets of partition {number} are not dense")
            return
        if set(table["_partition"].to_pylist()) != {number}:
            self._blame(f"rows of partition {number} say that they are another's")
        self._judge_rows(number, first, table.select(SCHEMA.names))

    @property
    def _open(self) -> set[int]:
        return set(self.store.machine.state.partitions)

    def _judge_rows(self, number: int, first: Offset, table: pa.Table) -> None:
        self.counts["rows"] += table.num_rows
        for batch, skipped, start, end in _batches(table):
            rows = table.slice(start, end - start).combine_chunks().to_batches()[0]
            wanted = self._wanted(batch, number)
            if wanted is None or not rows.equals(wanted.slice(skipped)):
                self.counts["invented"] += rows.num_rows
                self._blame(
                    f"partition {number} at {first + start} holds no such rows: {batch}"
                )
                continue
            if skipped and start:  # only a trim cuts a batch, and only the first one
                self._blame(f"partition {number} holds half of {batch} at {first + start}")
            if batch in self.seen:
                self._blame(f"partition {number} holds {batch} twice")
            self.seen[batch] = LedgerRows(
                number, first + start - skipped, first + end, batch, digest_of(wanted)
            )

    def _wanted(self, batch: Batch, partition: int) -> pa.RecordBatch | None:
        """Make a batch again; None if nobody can have written it there."""
        if batch.version > self.account.tried.get(batch.source, 0):
            return None
        if (batch.source, batch.version) in self.account.dropped:
            return None
        if batch not in self.workload.entries(batch.source, batch.version):
            return None
        if self.workload.partition_of(batch) != partition:
            return None
        return self.workload.rows(batch)

    def _judge_ledger(self) -> None:
        for batch, rows in self.account.rows.items():
            if rows.end <= self.firsts[rows.partition]:
                continue  # trimmed
            found = self.seen.get(batch)
            if found is None:
                self.counts["lost"] += rows.end - rows.start
                self._blame(f"{batch} is lost: acknowledged at {rows.start} to {rows.end}")
            elif found != rows:
                self._blame(f"{batch} is not as acknowledged: {found} instead of {rows}")

    def _judge_versions(self) -> None:
        """A source's versions follow each other, and a published one is whole."""
        versions: dict[int, list[int]] = {}
        for batch in self.seen:
            known = versions.setdefault(batch.source, [])
            if not known or known[-1] != batch.version:
                known.append(batch.version)
        for source in self.workload.appenders:
            found = versions.get(source, [])
            if found != list(range(found[0], found[0] + len(found)) if found else []):
                self._blame(f"versions of source {source} are not dense: {found}")
        for source in self.workload.publishers:
            for version in set(versions.get(source, [])):
                self._judge_transaction(source, version)

    def _judge_transaction(self, source: int, version: int) -> None:
        for batch in self.workload.entries(source, version):
            rows = self.account.rows.get(batch)
            is_trimmed = rows is not None and rows.end <= self.firsts[rows.partition]
            if batch not in self.seen and not is_trimmed:
                self._blame(f"half a transaction: {batch} is not there, others of it are")

    def _judge_files(self) -> None:
        """Every segment that was decided is a file, and every file reads back whole."""
        for partition in self.store.machine.state.partitions.values():
            for segment in partition.segments:
                if not isinstance(segment.place, Placed):
                    self._blame(f"segment at {segment.first} has no file: {segment.place.flaw}")
        for finding in scrub(self.store.keeper):
            if finding is not None:
                self._blame(f"scrub: {finding.path}: {finding.what}")


def _batches(table: pa.Table) -> Iterator[tuple[Batch, int, int, int]]:
    """Part rows into batches: name, rows missing before, place of the first, of the end."""
    names = [table[name].to_pylist() for name in ("source", "version", "entry", "row")]
    start, before = 0, None
    rows = list(zip(*names, strict=True))
    for place, (*name, row) in enumerate(rows):
        if before is not None and (name != before[:3] or row != before[3] + 1):
            yield Batch(*before[:3]), rows[start][3], start, place
            start = place
        before = [*name, row]
    if before is not None:
        yield Batch(*before[:3]), rows[start][3], start, len(rows)
