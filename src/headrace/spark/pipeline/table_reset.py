"""Resets a pipeline: forward, skipping rows, or back, deleting its rows from the table.

The table is the only checkpoint, so a reset is one conditional commit to it, which also records
the rows in between:

    forward     rows are left out and recorded as skipped; a proof counts and reports them
    truncate    the same commit deletes the pipeline's rows; it starts over, and rows of the log
                before its new position are recorded as skipped

Going back while the table keeps its rows would duplicate them, and is refused. A table that was
restored to an older version lacks rows that it records: only a truncation helps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow.compute as pc
import pyarrow.dataset as ds

import headrace
from headrace.errors import BadRequest
from headrace.spark.prove.table_parts import OFFSET, PARTITION
from headrace.spark.tables.data_files import live_files, rows_of
from headrace.spark.tables.restore_check import refuse_restored, restore_of
from headrace.spark.tables.table_features import refuse_removal, refuse_unkept
from headrace.spark.tables.table_record import DataFile, Record, Removed, TablePlace
from headrace.spark.worker.files import writer

Places = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """The effects of a reset."""

    before: Places  # the next row of each partition
    after: TablePlace
    deleted: int = 0  # rows deleted from the table
    kept: int = 0  # rows of other writers, which stay
    again: int = 0  # rows of the log that were loaded and will be loaded again
    gone: int = 0  # rows of the log that were loaded and will not be loaded again
    skipped: int = 0  # rows of the log that were not loaded and will not be
    removed: tuple[Removed, ...] = ()
    mixed: tuple[str, ...] = ()  # removed files with rows of other writers, which are rewritten
    is_restored: bool = False  # the table was, so its rows are not those that it records

    @property
    def changes(self) -> bool:
        is_emptied = bool(self.removed or self.again or self.gone or self.is_restored)
        return is_emptied or self.before != self.after.ends


def planned(
    record: Record, bounds: "Mapping[int, headrace.Bounds]", places: Places, *, truncate: bool
) -> ResetPlan:
    """Plan a reset to `places`. Raises BadRequest if the pipeline cannot resume there."""
    refuse_unkept(record.table, record.path)
    before = {n: record.start_of(n, each.first) for n, each in bounds.items()}
    for number, each in bounds.items():
        if not each.first <= places[number] <= each.end:
            raise BadRequest(
                f"partition {number} cannot resume at offset {places[number]}",
                hint=f"Give an offset from {each.first} to {each.end}",
            )
    if truncate:
        return _truncated(record, before, places, {n: each.first for n, each in bounds.items()})
    refuse_restored(record)
    record.refuse_vanished(bounds)
    return _forward(record, before, places)


def carry_out(record: Record, plan: ResetPlan) -> bool:
    """Carry out a plan, atomically. False: the table was committed to since the plan."""
    files = list(_rest(record, plan))
    return record.restart(files, plan.removed, plan.after)


def _forward(record: Record, before: Places, places: Places) -> ResetPlan:
    for number, place in places.items():
        if place < before[number]:
            raise BadRequest(
                f"rows {place} to {before[number] - 1} of partition {number} are already in "
                "the table and would be duplicated",
                hint="Add --truncate to delete the pipeline's rows in the same commit",
            )
    skips = {
        number: _with(record.skips.get(number, []), before[number], place)
        for number, place in places.items()
    }
    firsts = {number: record.firsts.get(number, before[number]) for number in places}
    return ResetPlan(before, TablePlace(firsts, places, skips), skipped=_sum(places, before))


def _with(known: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Add a range to the skipped ones, merging it with the last if they adjoin."""
    if start == end:
        return list(known)
    if known and known[-1][1] == start:
        return [*known[:-1], (known[-1][0], end)]
    return [*known, (start, end)]


def _sum(places: Places, before: Places) -> int:
    return sum(max(0, place - before[number]) for number, place in places.items())


def _truncated(record: Record, before: Places, places: Places, firsts: Places) -> ResetPlan:
    removed, mixed, deleted, kept = [], [], 0, 0
    is_restored = restore_of(record) is not None
    for path, size, own, others in _files(record, _own(record, is_restored=is_restored)):
        deleted, kept = deleted + own, kept + others
        if own or not others:
            removed.append(Removed(path, size))
        if own and others:
            mixed.append(path)
    if removed:
        refuse_removal(record.table, record.path, is_partial=bool(mixed))
    brought = [
        (start, end, places.get(number, end))
        for number in record.ends
        for start, end in record.ranges(number)
    ]
    skips = {number: _with([], firsts[number], place) for number, place in places.items()}
    return ResetPlan(
        before,
        TablePlace(firsts, places, skips),
        deleted=deleted,
        kept=kept,
        again=sum(max(0, end - max(start, place)) for start, end, place in brought),
        gone=sum(max(0, min(end, place) - start) for start, end, place in brought),
        skipped=_sum(places, before),
        removed=tuple(removed),
        mixed=tuple(mixed),
        is_restored=is_restored,
    )


def _files(record: Record, own: pc.Expression | None) -> Iterator[tuple[str, int, int, int]]:
    """Yield each file of the table: path, size, rows of ours, rows of other writers."""
    for each in live_files(record.table):
        rows = _rows(record, each.path)
        row_count = rows.count_rows()
        own_count = row_count if own is None else rows.count_rows(filter=own)
        yield each.path, each.size, own_count, row_count - own_count


def _own(record: Record, *, is_restored: bool) -> pc.Expression | None:
    """Return a filter for the pipeline's rows; None without lineage: then all count as its."""
    if not {PARTITION, OFFSET} <= set(record.columns.names):
        return None
    placed = pc.field(PARTITION).is_valid() & pc.field(OFFSET).is_valid()
    if is_restored:
        return placed  # includes rows from before a reset, which it does not record
    found = pc.scalar(False)
    for number in record.ends:
        for start, end in record.ranges(number):
            inside = (pc.field(OFFSET) >= start) & (pc.field(OFFSET) < end)
            found |= (pc.field(PARTITION) == number) & inside
    return found & placed


def _rows(record: Record, path: str) -> ds.Dataset:
    return rows_of(record.location, record.table, [unquote(path)])


def _rest(record: Record, plan: ResetPlan) -> Iterator[DataFile]:
    """Rewrite other writers' rows of the removed files, and yield the new files."""
    own = _own(record, is_restored=plan.is_restored)
    write = writer(record.writing(record.columns))
    for path in plan.mixed:
        assert own is not None
        others = ~own | pc.field(PARTITION).is_null() | pc.field(OFFSET).is_null()
        for written in write(_rows(record, path).to_batches(filter=others)):
            for row in written.to_pylist():
                yield DataFile(row["path"], row["size"], row["row_count"], row["stats"])
