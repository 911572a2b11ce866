"""Compacts small files of a table between the rounds of its pipeline.

What a crash after each step leaves:

    choose    enough small files                       nothing has changed
    write     their rows to one new file, synced       an uncommitted file
    commit    the new file in, the small ones out      the same rows in fewer files

The commit carries all of the pipeline's numbers, so that of two drivers, or of a round and a
compaction, one loses. A file is included only if the smaller ones add up to its size: a row is
rewritten once per doubling, not every time. Replaced files stay on disk for readers of older
versions until the table is vacuumed. Files not named by Headrace are left alone.
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

FILES_MIN: Final = 32  # small files that are worth a new one
_GROUP_SIZE: Final = 64 * 1024 * 1024  # Arrow bytes of one row group


class TableSpoilt(BadRequest):
    """A file of the table is not what was written."""


@dataclass(frozen=True, slots=True)
class SmallFile:
    """A candidate for compaction."""

    path: str
    size: int
    row_count: int


def compact(record: Record, file_size: int, files_min: int = FILES_MIN) -> int | None:
    """Compact small files if there are enough. Return how many; None: the race was lost."""
    if len(record.ends) != record.count:
        return 0  # a partition's position is lost: the next round raises that
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
        return None  # another driver compacted, and the table was vacuumed


def _refuse_missing(root: Path, record: Record, files: list[SmallFile]) -> None:
    """Raise TableSpoilt for a missing file that the table, read again, still lists."""
    missing = [one for one in files if not (root / one.path).exists()]
    named = {one.path for one in _files(look(str(root), record.source))}
    for one in missing:
        if one.path in named:
            raise _spoilt(root / one.path, "is missing, but the table lists it")


def chosen(record: Record, file_size: int, files_min: int) -> list[SmallFile]:
    """Return the files to compact, smallest first, at most `file_size` in total."""
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
    """Return the files named by Headrace."""
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
    """Yield the rows of all files, in pieces as large as a row group."""
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
    """Read a file as rows of the table; columns added later are null."""
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
        raise _spoilt(path, f"has {row_count:,} rows, but the table records {file.row_count:,}")


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
        hint="Run headrace prove to see which rows are wrong; "
        'file_size = "0" continues without compaction',
    )
