"""Small files of a table put together, between the rounds of its pipeline.

What is there after a crash behind each step:

    choose    small files, enough of them              nothing has changed
    write     their rows in one new file, synced       a file that is in no commit
    commit    the new file in, the small ones out      the same rows, in fewer files

The commit is one of the pipeline: it has all its numbers, so that of two drivers, or of a round
and a compaction, one loses. A file is taken along only if those that are smaller add up to it:
a row is written again once for each doubling, and not each time. What is replaced stays on disk
for readers of older versions, until somebody vacuums the table. Files that have no name of ours
are left alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import BadRequest, StorageFailed
from headrace.spark.tables.commit_races import committed
from headrace.spark.tables.table_errors import FileGone
from headrace.spark.tables.table_features import refuse_unkept
from headrace.spark.tables.table_record import DataFile, Record, Removed, local_path, look
from headrace.spark.worker.files import OURS, write_file

FILES_MIN: Final = 32  # small ones that are worth a new one
_GROUP_SIZE: Final = 64 * 1024 * 1024  # of rows in Arrow, in one row group


class TableSpoilt(BadRequest):
    """A file of the table is not what was written."""


@dataclass(frozen=True, slots=True)
class SmallFile:
    """A file that may be put together with others."""

    path: str
    size: int
    row_count: int


def compact(record: Record, file_size: int, files_min: int = FILES_MIN) -> int | None:
    """Put small files together, if there are enough. Return how many; None: lost a race."""
    if len(record.ends) != record.count:
        return 0  # a partition's place is lost: the next round says so
    refuse_unkept(record.table, record.path)
    found = chosen(record, file_size, files_min)
    if not found:
        return 0
    root = Path(local_path(record.table.table_uri))
    try:
        made = _write(root, record, found)
        gone = [Removed(one.path, one.size) for one in found]
        is_done = committed(
            record,
            lambda one: one.compact([made], gone),
            lambda one: set(found) <= set(_files(one)),
        )
        return len(found) if is_done else None
    except (FileNotFoundError, FileGone):
        _refuse_missing(root, record, found)
        return None  # another has compacted, and somebody vacuumed


def _refuse_missing(root: Path, record: Record, files: list[SmallFile]) -> None:
    """Raise TableSpoilt if one is not there though the table, looked at later, names it."""
    missing = [one for one in files if not (root / one.path).exists()]
    named = {one.path for one in _files(look(str(root), record.source))}
    for one in missing:
        if one.path in named:
            raise _spoilt(root / one.path, "is not there, and the table names it")


def chosen(record: Record, file_size: int, files_min: int) -> list[SmallFile]:
    """Return the files to put together, at most `file_size` in all, the smallest first."""
    files = sorted(_files(record), key=lambda file: file.size)
    size = best = 0
    for count, one in enumerate(files, 1):
        if one.size * 2 >= file_size or size + one.size > file_size:
            break
        if count >= files_min and one.size <= size:
            best = count
        size += one.size
    return files[:best]


def _files(record: Record) -> list[SmallFile]:
    """Return the files that have names of ours."""
    actions: Any = pa.table(record.table.get_add_actions(flatten=True))
    rows = actions.select(["path", "size_bytes", "num_records"]).to_pylist()
    return [
        SmallFile(row["path"], row["size_bytes"], row["num_records"])
        for row in rows
        if OURS.fullmatch(row["path"]) and row["num_records"] is not None
    ]


def _write(root: Path, record: Record, files: list[SmallFile]) -> DataFile:
    schema = pa.schema(record.table.schema().to_arrow())
    try:
        return DataFile(*write_file(root, schema, _gathered(root, files, schema)))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StorageFailed(str(root), "compaction", error) from error


def _gathered(root: Path, files: list[SmallFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """Give the rows of all files, in pieces that are worth a row group."""
    held: list[pa.Table] = []
    size = 0
    for file in files:
        for rows in _read(root / file.path, file, schema):
            held.append(rows)
            size += rows.nbytes
            if size >= _GROUP_SIZE:
                yield pa.concat_tables(held)
                held, size = [], 0
    if held:
        yield pa.concat_tables(held)


def _read(path: Path, file: SmallFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read a file as rows of the table: what came later is missing in it."""
    row_count = 0
    with open(path, "rb") as source:
        try:
            rows = pq.ParquetFile(source, page_checksum_verification=True)
            for number in range(rows.num_row_groups):
                group = rows.read_row_group(number)
                row_count += group.num_rows
                yield _fitted(group, schema)
        except (OSError, pa.ArrowException) as error:
            raise _spoilt(path, f"cannot be read: {error}") from error
    if row_count != file.row_count:
        raise _spoilt(path, f"has {row_count:,} rows, the table says {file.row_count:,}")


def _fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _spoilt(path: Path, what: str) -> TableSpoilt:
    return TableSpoilt(
        f"{path} {what}",
        hint="headrace prove tells which rows are wrong; "
        'file_size = "0" goes on without putting files together',
    )
