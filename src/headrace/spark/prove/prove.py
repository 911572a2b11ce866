"""Proves row by row that a table holds what its log holds, or claims nothing.

The table is read by its file list and plain Parquet, not with the code that wrote it. Each row
carries its position in the log (`_hr_partition`, `_hr_offset`), so every offset of the recorded
ranges must occur once, and every column that both have must be equal. Rows that the log has
trimmed count as not compared. Rows skipped by a reset are counted, too: log and table differ
then, which is not an error. Rows that the table records beyond the end of the log are foreign:
the log was restored from an old backup, or it is a different log. A column that both have with
different types is not compared: it is named, and nothing is claimed.

    identity       log and table have the same columns: whole rows are compared
    lineage        columns are computed or dropped: positions and shared columns are compared
    recompute      the transform is run again (`recompute.py`)
    not provable   the table has no positions: nothing is claimed
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import compress, pairwise
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

import headrace
from headrace.errors import CorruptFile
from headrace.spark.stores.location import Location
from headrace.spark.tables.data_files import (
    damaged_file,
    live_files,
    refuse_missing,
    rows_of,
)
from headrace.spark.tables.table_record import Record

PARTITION: Final = "_hr_partition"
OFFSET: Final = "_hr_offset"
WINDOW: Final = 200_000  # rows compared at a time
NOWHERE: Final = -1  # partition and offset of a row without a position
_FILE: Final = "__filename"  # pyarrow's column for the file of a row
SHOWN_MAX: Final = 20  # findings of a kind that are listed one by one

Ranges = Sequence[tuple[int, int]]  # start and end of each, in order


class Grade(StrEnum):
    """How much a proof shows."""

    IDENTITY = "identity"
    LINEAGE = "lineage"
    RECOMPUTE = "recompute"
    NOT_PROVABLE = "not provable"


class MismatchKind(StrEnum):
    """What is wrong with some rows."""

    MISSING = "missing"  # in the log, but not in the table
    TWICE = "duplicated"
    CHANGED = "changed"
    FOREIGN = "foreign"  # in the table, but not from the log


@dataclass(frozen=True, slots=True)
class ProofMismatch:
    """What is wrong with rows `start` up to but not including `end` of a partition."""

    kind: MismatchKind
    partition: int
    start: int
    end: int
    note: str = ""


@dataclass(slots=True)
class Proof:
    """The result. It holds if nothing is wrong and nothing was skipped or left unchecked."""

    grade: Grade
    version: int  # of the table
    in_log: int = 0  # rows of the recorded ranges that the log has
    in_table: int = 0  # rows of the table that were checked
    compared: int = 0
    not_compared: int = 0  # rows that the log has trimmed
    skipped: int = 0  # rows that resets left out
    behind: int = 0  # rows of the log after the recorded ends
    ahead: int = 0  # recorded rows beyond the end of the log
    columns: tuple[str, ...] = ()  # the compared columns
    unlike: tuple[str, ...] = ()  # columns of different types in both: not compared
    absent: tuple[str, ...] = ()  # columns of the topic that the table does not have
    own_only: bool = False  # rows of other writers are counted, but allowed
    findings: list[ProofMismatch] = field(default_factory=list)
    counts: dict[MismatchKind, int] = field(
        default_factory=lambda: dict.fromkeys(MismatchKind, 0)
    )

    @property
    def is_wrong(self) -> bool:
        """Whether rows are wrong other than by request."""
        return bool(self.ahead) or any(
            count
            for kind, count in self.counts.items()
            if not (self.own_only and kind == MismatchKind.FOREIGN)
        )

    @property
    def holds(self) -> bool:
        is_seen = self.grade != Grade.NOT_PROVABLE and bool(self.columns) and not self.unlike
        is_whole = not self.skipped and not self.not_compared
        return is_seen and is_whole and not self.is_wrong

    def add(
        self, kind: MismatchKind, partition: int, offsets: Sequence[int], note: str = ""
    ) -> None:
        """Record what is wrong with rows, adjacent ones as one finding."""
        self.counts[kind] += len(offsets)
        for start, end in _stretches(sorted(set(offsets))):
            self.name(ProofMismatch(kind, partition, start, end, note))

    def name(self, finding: ProofMismatch) -> None:
        """List a finding unless there are already many of its kind."""
        if sum(each.kind == finding.kind for each in self.findings) < SHOWN_MAX:
            self.findings.append(finding)


@dataclass(frozen=True, slots=True)
class Reach:
    """The recorded ranges of each partition that the log has, and those beyond its end."""

    retained: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    ahead: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    @property
    def row_count(self) -> int:
        """Rows of the recorded ranges that the log has."""
        return sum(map(_length, self.retained.values()))


def prove(
    topic: "headrace.Topic", record: Record, *, own_only: bool = False
) -> Iterator[Proof]:
    """Compare window by window, yielding the proof so far; the last one is complete.

    With `own_only` only the pipeline's rows are checked: other writers may add rows.
    """
    table = record.table
    rows = _TableRows.of(record)
    version = table.version()
    has_places = {PARTITION, OFFSET} <= set(rows.schema.names)
    proof = Proof(Grade.NOT_PROVABLE, version)
    if has_places:
        proof = _begun(topic.schema, rows.schema, version)
    proof.own_only = own_only
    bounds = {each.partition: each for each in topic.bounds()}
    reach = measure(proof, record, bounds)
    if not has_places:
        proof.in_log = reach.row_count
        proof.in_table = rows.count()
        yield proof
        return
    for number, ranges in reach.retained.items():
        for first, end in ranges:
            for start in range(first, end, WINDOW):
                _compare(proof, topic, rows, number, start, min(start + WINDOW, end))
                yield proof
    recorded = {number: record.ranges(number) for number in record.ends}
    of_others = _look_for_foreign(proof, rows, recorded)
    for number, ranges in reach.ahead.items():
        proof.counts[MismatchKind.FOREIGN] += rows.count(_inside(number, ranges))
    proof.in_table = rows.count() - of_others * own_only
    yield proof


def measure(proof: Proof, record: Record, bounds: "Mapping[int, headrace.Bounds]") -> Reach:
    """Count what log and record alone show, and return how far the log reaches.

    It reads no rows of the table, so it also works for a table without positions.
    """
    reach = Reach()
    for number in record.ends:
        proof.skipped += record.skipped(number)
        known, recorded = bounds.get(number), record.ranges(number)
        first, log_end = (known.first, known.end) if known is not None else (0, 0)
        proof.not_compared += _length(_before(first, recorded))
        reach.retained[number] = _before(log_end, _from(first, recorded))
        if ahead := _from(log_end, recorded):
            reach.ahead[number] = ahead
            proof.ahead += _length(ahead)
            ends = "has no such partition" if known is None else f"ends at {log_end}"
            for start, end in ahead:
                note = f"recorded, but the log {ends}"
                proof.name(ProofMismatch(MismatchKind.FOREIGN, number, start, end, note))
    proof.behind = sum(
        max(0, each.end - max(each.first, record.ends.get(number, 0)))
        for number, each in bounds.items()
    )
    return reach


def _before(offset: int, ranges: Ranges) -> list[tuple[int, int]]:
    return [(start, min(end, offset)) for start, end in ranges if start < offset]


def _from(offset: int, ranges: Ranges) -> list[tuple[int, int]]:
    return [(max(start, offset), end) for start, end in ranges if end > offset]


def _length(ranges: Ranges) -> int:
    return sum(end - start for start, end in ranges)


def _begun(ours: pa.Schema, theirs: pa.Schema, version: int) -> Proof:
    """Start a proof: determine which columns can be compared, and the grade."""
    own = [name for name in theirs.names if name not in (PARTITION, OFFSET)]
    both = [name for name in own if name in ours.names]
    alike = [name for name in both if _is_alike(ours.field(name).type, theirs.field(name).type)]
    is_whole = set(alike) == set(own) == set(ours.names)
    proof = Proof(Grade.IDENTITY if is_whole else Grade.LINEAGE, version)
    proof.columns = tuple(alike)
    proof.unlike = tuple(name for name in both if name not in alike)
    proof.absent = tuple(name for name in ours.names if name not in own)
    return proof


def _is_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether values of two types can be compared. Nullability of inner fields is ignored."""
    if not pa.types.is_nested(one) or one.id != other.id:
        return bool(one.equals(other))
    if one.num_fields != other.num_fields:
        return False
    pairs = [(one.field(place), other.field(place)) for place in range(one.num_fields)]
    is_named = pa.types.is_struct(one)
    return all(
        (mine.name == yours.name or not is_named) and _is_alike(mine.type, yours.type)
        for mine, yours in pairs
    )


@dataclass(frozen=True, slots=True)
class _TableRows:
    location: Location
    names: Sequence[str]
    data: ds.Dataset
    schema: pa.Schema

    @classmethod
    def of(cls, record: Record) -> "_TableRows":
        """Raises CorruptFile if a file that the table lists is missing."""
        found = live_files(record.table)
        refuse_missing(record.location, found)
        names = [one.name for one in found]
        data = rows_of(record.location, record.table, names)
        return cls(record.location, names, data, record.columns)

    def between(self, partition: int, start: int, end: int, columns: Sequence[str]) -> pa.Table:
        """Return the rows of a range of offsets, sorted, from all files."""
        here = pc.field(PARTITION) == partition
        here &= (pc.field(OFFSET) >= start) & (pc.field(OFFSET) < end)
        return self.where(here, [*columns, OFFSET]).sort_by(OFFSET).combine_chunks()

    def where(self, condition: pc.Expression, columns: Sequence[str]) -> pa.Table:
        """Return the matching rows. Raises CorruptFile with the path of a damaged file."""
        try:
            return self.data.to_table(columns=list(columns), filter=condition)
        except (OSError, pa.ArrowException) as error:
            raise self._damage(error) from error

    def count(self, condition: pc.Expression | None = None) -> int:
        """Count the matching rows. Raises CorruptFile with the path of a damaged file."""
        try:
            return int(self.data.count_rows(filter=condition))
        except (OSError, pa.ArrowException) as error:
            raise self._damage(error) from error

    def _damage(self, error: Exception) -> CorruptFile:
        text = f"the table cannot be read: {error}"
        unknown = CorruptFile(text, path=self.location.url)
        return damaged_file(self.location, self.names) or unknown


def _compare(
    proof: Proof, topic: "headrace.Topic", rows: _TableRows, number: int, start: int, end: int
) -> None:
    columns = proof.columns
    log = topic.read(
        partition=number,
        start={number: start},
        end={number: end},
        columns=["_offset", *columns],
    ).to_table()
    proof.in_log += log.num_rows
    found = rows.between(number, start, end, columns)
    proof.compared += end - start
    if not found.column(OFFSET).combine_chunks().equals(pa.arange(start, end)):
        found, log = _alike(proof, number, found, log)
    for name in columns:
        proof.add(MismatchKind.CHANGED, number, _unlike(found, log, name), f"column {name}")


def _alike(
    proof: Proof, number: int, found: pa.Table, log: pa.Table
) -> tuple[pa.Table, pa.Table]:
    """Record missing and duplicated rows; return one row per offset that both have."""
    offsets, wanted = found.column(OFFSET).to_pylist(), log.column("_offset").to_pylist()
    there = set(offsets)
    proof.add(MismatchKind.MISSING, number, [each for each in wanted if each not in there])
    repeats = [one == other for one, other in pairwise([None, *offsets])]
    proof.add(MismatchKind.TWICE, number, list(compress(offsets, repeats)))
    firsts = [place for place, is_repeat in enumerate(repeats) if not is_repeat]
    known = [place for place, each in enumerate(wanted) if each in there]
    return found.take(firsts), log.take(known)


def _unlike(found: pa.Table, log: pa.Table, name: str) -> list[int]:
    ours, theirs = log.column(name).combine_chunks(), found.column(name).combine_chunks()
    if ours.equals(theirs):
        return []
    offsets = found.column(OFFSET).to_pylist()
    pairs = zip(offsets, ours.to_pylist(), theirs.to_pylist(), strict=True)
    return [place for place, one, other in pairs if not _is_same(one, other)]


def _is_same(one: object, other: object) -> bool:
    """Whether two values are equal, with NaN equal to NaN at any depth."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[n], other[n]) for n in one)
    return one == other or (one != one and other != other)  # only NaN is not itself


def _inside(partition: int, ranges: Ranges) -> pc.Expression:
    """Return a filter for rows whose position is in one of the ranges."""
    found = pc.scalar(False)
    for start, end in ranges:
        found |= (pc.field(OFFSET) >= start) & (pc.field(OFFSET) < end)
    return (pc.field(PARTITION) == partition) & found


def _look_for_foreign(proof: Proof, rows: _TableRows, recorded: Mapping[int, Ranges]) -> int:
    """Find rows with a position outside the recorded ranges or none; return how many."""
    ours = pc.scalar(False)
    for number, ranges in recorded.items():
        ours |= _inside(number, ranges)
    nowhere = pc.field(PARTITION).is_null() | pc.field(OFFSET).is_null()
    found = rows.where(~ours | nowhere, [PARTITION, OFFSET, _FILE]).to_pylist()
    lost = [row[_FILE] for row in found if None in (row[PARTITION], row[OFFSET])]
    for path in sorted(set(lost)):
        note = f"{lost.count(path):,} without a position in the log, in {Path(path).name}"
        proof.add(MismatchKind.FOREIGN, NOWHERE, [NOWHERE] * lost.count(path), note)
    elsewhere: dict[int, list[int]] = {}
    for row in found:
        if None not in (row[PARTITION], row[OFFSET]):
            elsewhere.setdefault(row[PARTITION], []).append(row[OFFSET])
    for partition, offsets in sorted(elsewhere.items()):
        proof.add(
            MismatchKind.FOREIGN, partition, offsets, "positions that were never recorded"
        )
    return len(found)


def _stretches(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive offsets as ranges."""
    start = None
    for place, offset in enumerate(offsets):
        if start is None:
            start = offset
        if place + 1 == len(offsets) or offsets[place + 1] != offset + 1:
            yield start, offset + 1
            start = None
