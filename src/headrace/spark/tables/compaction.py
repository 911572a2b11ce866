"""Compacts small files of a table between the rounds of its pipeline.

What a crash after each step leaves:

    choose    enough small files                       nothing has changed
    write     their rows to one new file, synced       an uncommitted file
    commit    the new file in, the small ones out      the same rows in fewer files

The commit carries all of the pipeline's numbers, so that of two drivers, or of a round and a
compaction, one loses. A file is included only if the smaller ones add up to its size: a row is
rewritten once per doubling, not every time. Replaced files stay on disk for readers of older
versions until the table is vacuumed. Files not named by Headrace are left alone, and so are
segments of the log.

Files of one partition are put together by themselves if they are many: then a segment of the
log can take the place of the new file, too (`pipeline/tail.py`).
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from headrace.errors import BadRequest, CorruptFile, StorageFailed
from headrace.spark.stores.seam import FileStore, NotInStore
from headrace.spark.tables.commit_races import committed
from headrace.spark.tables.data_files import (
    FilePlace,
    LiveFile,
    copied_life,
    full_path,
    live_files,
)
from headrace.spark.tables.table_errors import FileGone
from headrace.spark.tables.table_features import refuse_unkept
from headrace.spark.tables.table_record import DataFile, Record, Removed, look
from headrace.spark.worker.files import OURS, write_file
from headrace.spark.worker.scan import rows_of_file

FILES_MIN: Final = 32  # small files that are worth a new one
_GROUP_SIZE: Final = 64 * 1024 * 1024  # Arrow bytes of one row group


class TableSpoilt(BadRequest):
    """A file of the table is not what was written."""


def compact(
    record: Record,
    file_size: int,
    files_min: int = FILES_MIN,
    segments: Collection[FilePlace] = (),
) -> int | None:
    """Compact small files if there are enough. Return how many; None: the race was lost.

    Files with the place of a segment are left alone.
    """
    if len(record.ends) != record.count:
        return 0  # a partition's position is lost: the next round raises that
    refuse_unkept(record.table, record.path)
    files = [one for one in _files(record) if one.place not in segments]
    found = chosen(_of_one_partition(files, files_min // 2), file_size, files_min // 2)
    found = found or chosen(sorted(files, key=lambda one: one.size), file_size, files_min)
    if not found:
        return 0
    try:
        made = _write(record, found)
        gone = [Removed(one.path, one.size) for one in found]
        is_done = committed(
            record,
            lambda one: one.compact([made], gone),
            lambda one: set(found) <= set(_files(one)),
        )
        return len(found) if is_done else None
    except (NotInStore, FileGone):
        _refuse_missing(record, found)
        return None  # another driver compacted, and the table was vacuumed


def _refuse_missing(record: Record, files: list[LiveFile]) -> None:
    """Raise TableSpoilt for a missing file that the table, read again, still lists."""
    missing = [one for one in files if not record.has(one.name)]
    named = {one.path for one in _files(look(record.location, record.source))}
    for one in missing:
        if one.path in named:
            raise _spoilt(record, one, "is missing, but the table lists it")


def _of_one_partition(files: Sequence[LiveFile], files_min: int) -> list[LiveFile]:
    """Return the newest files of a partition, newest first, while there is no gap.

    None if no partition has so many.
    """
    placed: dict[int, list[tuple[FilePlace, LiveFile]]] = {}
    for one in files:
        if one.place is not None:
            placed.setdefault(one.place.partition, []).append((one.place, one))
    for each in placed.values():
        each.sort(key=lambda pair: -pair[0].end)
        found = [each[0]]
        for place, one in each[1:]:
            if place.end != found[-1][0].start:
                break
            found.append((place, one))
        if len(found) >= files_min:
            return [one for _, one in found]
    return []


def chosen(files: Sequence[LiveFile], file_size: int, files_min: int) -> list[LiveFile]:
    """Return those of the files to compact, at most `file_size` in total.

    They come in the order in which they are taken: the larger ones last.
    """
    size = best = 0
    for count, one in enumerate(files, 1):
        if one.size * 2 >= file_size or size + one.size > file_size:
            break
        if count >= files_min and one.size <= size:
            best = count
        size += one.size
    return list(files[:best])


def _files(record: Record) -> list[LiveFile]:
    """Return the files named by Headrace."""
    return [
        one
        for one in live_files(record.table)
        if OURS.fullmatch(one.path) and one.row_count is not None
    ]


def _write(record: Record, files: list[LiveFile]) -> DataFile:
    lives = {copied_life(record.location, one) for one in files}
    life = lives.pop() if len(lives) == 1 else ""
    writing = replace(record.writing(record.columns), life=life)
    try:
        return DataFile(*write_file(writing, _gathered(record, files)))
    except StorageFailed as error:
        raise StorageFailed(record.path, "compaction", error.cause) from error


def _gathered(record: Record, files: list[LiveFile]) -> Iterator[pa.Table]:
    """Yield the rows of all files, in pieces as large as a row group."""
    held: list[pa.Table] = []
    size, store = 0, record.store
    for file in files:
        for rows in _read(record, store, file):
            held.append(rows)
            size += rows.nbytes
            if size >= _GROUP_SIZE:
                yield pa.concat_tables(held)
                held, size = [], 0
    if held:
        yield pa.concat_tables(held)


def _read(record: Record, store: FileStore, file: LiveFile) -> Iterator[pa.Table]:
    """Read a file as rows of the table; columns added later are null."""
    row_count = 0
    try:
        for rows in rows_of_file(store, file.path, record.columns):
            row_count += rows.num_rows
            yield rows
    except CorruptFile as error:
        raise _spoilt(record, file, f"cannot be read: {error.__cause__}") from error
    if row_count != file.row_count:
        flaw = f"has {row_count:,} rows, but the table records {file.row_count:,}"
        raise _spoilt(record, file, flaw)


def _spoilt(record: Record, file: LiveFile, what: str) -> TableSpoilt:
    return TableSpoilt(
        f"{full_path(record.location, file.name)} {what}",
        hint="Run headrace prove to see which rows are wrong; "
        'file_size = "0" continues without compaction',
    )
