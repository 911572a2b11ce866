"""Proves row by row that a table holds what its log holds, or claims nothing.

The table is read by its file list and plain Parquet, not with the code that wrote it. Each row
carries its position in the log (`_hr_partition`, `_hr_offset`), so every offset of the recorded
ranges must occur once, and every column that both have must be equal. Rows that the log has
trimmed count as not compared. Rows skipped by a reset are counted, too: log and table differ
then, which is not an error. Rows that the table records beyond the end of the log are foreign:
the log was restored from an old backup, or it is a different log. A column that both have with
different types is not compared: it is named, and nothing is claimed.

A data file that is a segment of the log, byte for byte, is proven by its digest; the rows of
all others are decoded. Either way each offset counts.

    identity       log and table have the same columns: whole rows are compared
    lineage        columns are computed or dropped: positions and shared columns are compared
    recompute      the transform is run again (`recompute.py`)
    not provable   the table has no positions: nothing is claimed
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import headrace
from headrace.spark.prove.copied_files import CopiedFile, SegmentFiles, segment_files
from headrace.spark.prove.table_parts import (
    OFFSET,
    PARTITION,
    Ranges,
    TableParts,
    Window,
    inside,
    table_parts,
)
from headrace.spark.tables.table_record import Record

NOWHERE: Final = -1  # partition and offset of a row without a position
SHOWN_MAX: Final = 20  # findings of a kind that are listed one by one
_FILE: Final = "__filename"  # pyarrow's column for the file of a row
_NOT_RECORDED: Final = "positions that were never recorded"


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
    by_digest: int = 0  # of these: in files with the bytes that the log sealed
    not_compared: int = 0  # rows that the log has trimmed
    skipped: int = 0  # rows that resets left out
    behind: int = 0  # rows of the log after the recorded ends
    ahead: int = 0  # recorded rows beyond the end of the log
    columns: tuple[str, ...] = ()  # the compared columns
    unlike: tuple[str, ...] = ()  # columns of different types in both: not compared
    absent: tuple[str, ...] = ()  # columns of the topic that the table does not have
    extra: tuple[str, ...] = ()  # columns of the table that the topic does not have
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

    def add_rows(
        self,
        kind: MismatchKind,
        partition: int,
        start: int,
        end: int,
        count: int,
        note: str = "",
    ) -> None:
        """Record what is wrong with `count` rows as one finding."""
        self.counts[kind] += count
        self.name(ProofMismatch(kind, partition, start, end, note))

    def name(self, finding: ProofMismatch) -> None:
        """List a finding unless there are already many of its kind."""
        if sum(each.kind == finding.kind for each in self.findings) < SHOWN_MAX:
            self.findings.append(finding)


@dataclass(frozen=True, slots=True)
class Reach:
    """The recorded ranges of each partition, divided by what the log has of them."""

    trimmed: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    retained: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    ahead: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # beyond its end

    @property
    def row_count(self) -> int:
        """Rows that the log has."""
        return sum(map(_length, self.retained.values()))


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A part of a recorded range that copied files have throughout, or not at all."""

    partition: int
    start: int
    end: int
    is_copied: bool


def prove(
    topic: "headrace.Topic", record: Record, *, own_only: bool = False
) -> Iterator[Proof]:
    """Compare window by window, yielding the proof so far; the last one is complete.

    With `own_only` only the pipeline's rows are checked: other writers may add rows.
    """
    version = record.table.version()
    table = table_parts(record)
    has_places = {PARTITION, OFFSET} <= set(record.columns.names)
    proof = Proof(Grade.NOT_PROVABLE, version)
    if has_places:
        proof = _begun(topic.schema, record.columns, version)
    proof.own_only = own_only
    bounds = {each.partition: each for each in topic.bounds()}
    reach = measure(proof, record, bounds)
    if not has_places:
        proof.in_log, proof.in_table = reach.row_count, table.row_count
        yield proof
        return
    segments = segment_files(topic, table)
    copied = [one.file for one in segments.copied]
    rows = table.without([*copied, *segments.foreign])
    windows = list(_windows(rows, _count_copied(proof, reach.retained, segments.copied)))
    yield proof
    seen = 0  # of `rows`: each must be found once, whatever footers say
    for window, log, found in _read(topic, rows, proof.columns, windows):
        seen += found.num_rows
        if log is None:
            offsets = found.column(OFFSET).to_pylist()
            proof.add(MismatchKind.TWICE, window.partition, offsets)
        else:
            _compare(proof, window, log, found)
        yield proof
    recorded = {number: record.ranges(number) for number in record.ends}
    of_others = _find_foreign(proof, rows, recorded)
    for number in record.ends:
        ahead = rows.count(number, reach.ahead.get(number, ()))
        proof.counts[MismatchKind.FOREIGN] += ahead
        seen += ahead + rows.count(number, reach.trimmed.get(number, ()))
    rows.refuse_unseen(seen + of_others)
    of_others += _count_foreign_segments(proof, segments, recorded)
    proof.in_table = table.row_count - of_others * own_only
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
        reach.trimmed[number] = _before(first, recorded)
        proof.not_compared += _length(reach.trimmed[number])
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
    proof.extra = tuple(name for name in own if name not in ours.names)
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


def _count_copied(
    proof: Proof, retained: Mapping[int, Ranges], copied: Sequence[CopiedFile]
) -> list[_Stretch]:
    """Count the rows that copied files have, and return all stretches of the ranges."""
    found = []
    files: dict[int, list[tuple[int, int]]] = {}
    for one in copied:
        files.setdefault(one.partition, []).append((one.start, one.end))
    for number, ranges in retained.items():
        for first, end in ranges:
            for start, stop, count in _covered(files.get(number, ()), first, end):
                found.append(_Stretch(number, start, stop, is_copied=count > 0))
                if not count:
                    continue
                length = stop - start
                proof.in_log += length
                proof.compared += length
                proof.by_digest += length
                if count > 1:
                    more = (count - 1) * length
                    proof.add_rows(MismatchKind.TWICE, number, start, stop, more)
    return found


def _covered(files: Ranges, first: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the stretches of a range: their start, their end, and how many files have them."""
    changes = Counter[int]()
    for start, stop in files:
        if start < end and first < stop:
            changes[max(start, first)] += 1
            changes[min(stop, end)] -= 1
    place, count = first, 0
    for edge, change in sorted(changes.items()):
        if change and place < edge:
            yield place, edge, count
            place = edge
        count += change
    if place < end:
        yield place, end, count


def _windows(
    rows: TableParts, stretches: Sequence[_Stretch]
) -> Iterator[tuple[Window, _Stretch]]:
    for each in stretches:
        for window in rows.windows(each.partition, each.start, each.end):
            if window.parts or not each.is_copied:
                yield window, each


def _read(
    topic: "headrace.Topic",
    rows: TableParts,
    columns: Sequence[str],
    windows: Sequence[tuple[Window, _Stretch]],
) -> Iterator[tuple[Window, pa.Table | None, pa.Table]]:
    """Yield windows with their rows in the log and in the table, the next one read meanwhile.

    None: the log's rows are not needed, since copied files have them.
    """

    def read(window: Window, stretch: _Stretch) -> tuple[Window, pa.Table | None, pa.Table]:
        if stretch.is_copied:
            return window, None, rows.rows(window, [])
        log = topic.read(
            partition=window.partition,
            start={window.partition: window.start},
            end={window.partition: window.end},
            columns=["_offset", *columns],
        )
        return window, log.to_table(), rows.rows(window, columns)

    with ThreadPoolExecutor(1) as pool:
        waiting: Future[tuple[Window, pa.Table | None, pa.Table]] | None = None
        for each in windows:
            before, waiting = waiting, pool.submit(read, *each)
            if before is not None:
                yield before.result()
        if waiting is not None:
            yield waiting.result()


def _compare(proof: Proof, window: Window, log: pa.Table, found: pa.Table) -> None:
    number, start, end = window.partition, window.start, window.end
    proof.in_log += log.num_rows
    proof.compared += end - start
    if not found.column(OFFSET).combine_chunks().equals(pa.arange(start, end)):
        found, log = _alike(proof, number, found, log)
    for name in proof.columns:
        proof.add(MismatchKind.CHANGED, number, _unlike(found, log, name), f"column {name}")


def _alike(
    proof: Proof, number: int, found: pa.Table, log: pa.Table
) -> tuple[pa.Table, pa.Table]:
    """Record missing and duplicated rows; return one row per offset that both have."""
    offsets, wanted = (
        each.combine_chunks() for each in (found.column(OFFSET), log.column("_offset"))
    )
    there = pc.is_in(wanted, value_set=offsets)
    missing = wanted.filter(pc.invert(there)).to_pylist()
    proof.add(MismatchKind.MISSING, number, missing)
    first = pa.array([True] * min(1, len(offsets)), pa.bool_())
    is_first = pa.concat_arrays([first, pc.not_equal(offsets[1:], offsets[:-1])])
    repeats = offsets.filter(pc.invert(is_first)).to_pylist()
    proof.add(MismatchKind.TWICE, number, repeats)
    return found.filter(is_first), log.filter(there)


def _unlike(found: pa.Table, log: pa.Table, name: str) -> list[int]:
    ours, theirs, offsets = log.column(name), found.column(name), found.column(OFFSET)
    if ours.equals(theirs):
        return []
    if not pa.types.is_nested(ours.type):
        return list(offsets.filter(pc.invert(_equal(ours, theirs))).to_pylist())
    pairs = zip(offsets.to_pylist(), ours.to_pylist(), theirs.to_pylist(), strict=True)
    return [place for place, one, other in pairs if not _is_same(one, other)]


def _equal(ours: pa.ChunkedArray, theirs: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return which values are equal, with null equal to null and NaN to NaN."""
    same = pc.fill_null(pc.equal(ours, theirs), False)
    same = pc.or_(same, pc.and_(pc.is_null(ours), pc.is_null(theirs)))
    if pa.types.is_floating(ours.type):
        both_nan = pc.and_(pc.is_nan(ours), pc.is_nan(theirs))
        same = pc.or_(same, pc.fill_null(both_nan, False))
    return same


def _is_same(one: object, other: object) -> bool:
    """Whether two values are equal, with NaN equal to NaN at any depth."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[n], other[n]) for n in one)
    return one == other or (one != one and other != other)  # only NaN is not itself


def _find_foreign(proof: Proof, rows: TableParts, recorded: Mapping[int, Ranges]) -> int:
    """Find rows with a position outside the recorded ranges or none; return how many."""
    ours = pc.scalar(False)
    for number, ranges in recorded.items():
        ours |= inside(number, ranges)
    nowhere = pc.field(PARTITION).is_null() | pc.field(OFFSET).is_null()
    parts = [part for part in rows.parts if not part.is_inside(recorded)]
    found = rows.where(~ours | nowhere, [PARTITION, OFFSET, _FILE], parts)
    for path, count in _counts(found.filter(nowhere).column(_FILE)):
        note = f"{count:,} without a position in the log, in {Path(path).name}"
        proof.add_rows(MismatchKind.FOREIGN, NOWHERE, NOWHERE, NOWHERE + 1, count, note)
    elsewhere = found.filter(~nowhere)
    for partition, _ in _counts(elsewhere.column(PARTITION)):
        here = elsewhere.filter(pc.field(PARTITION) == partition)
        offsets = here.column(OFFSET).to_pylist()
        proof.add(MismatchKind.FOREIGN, partition, offsets, _NOT_RECORDED)
    return int(found.num_rows)


def _counts(values: pa.ChunkedArray) -> list[tuple[Any, int]]:
    """Return each value and how often it is there, in order."""
    found = pc.value_counts(values).to_pylist()
    return sorted((each["values"], each["counts"]) for each in found)


def _count_foreign_segments(
    proof: Proof, segments: SegmentFiles, recorded: Mapping[int, Ranges]
) -> int:
    """Count the rows of segments that the record does not have; return how many."""
    total = 0
    for file in segments.foreign:
        note = f"{file.row_count:,} of another log, topic or life, in {Path(file.path).name}"
        proof.add_rows(
            MismatchKind.FOREIGN, NOWHERE, NOWHERE, NOWHERE + 1, file.row_count, note
        )
        total += file.row_count
    for one in segments.copied:
        for start, end in _outside(one.start, one.end, recorded.get(one.partition, ())):
            proof.add_rows(
                MismatchKind.FOREIGN, one.partition, start, end, end - start, _NOT_RECORDED
            )
            total += end - start
    return total


def _outside(start: int, end: int, ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Yield what of a range is not in others, which are in order."""
    for low, high in (*ranges, (end, end)):
        if start < min(low, end):
            yield start, min(low, end)
        start = max(start, high)


def _stretches(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive offsets as ranges."""
    start = None
    for place, offset in enumerate(offsets):
        if start is None:
            start = offset
        if place + 1 == len(offsets) or offsets[place + 1] != offset + 1:
            yield start, offset + 1
            start = None
