"""Small files of a table put together, between the rounds of its pipeline.

What is there after a crash behind each step:

    choose    small files of this pipeline, enough of them   nothing has changed
    write     their rows in one new file, synced             a file that is in no commit
    commit    the new file in, the small ones out            the same rows, in fewer files

The commit is one of the pipeline: it has all its numbers, so that of two drivers, or of a round
and a compaction, one loses. What it replaces stays on disk for readers of older versions, until
somebody vacuums the table. Files of others are left alone.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import BadRequest
from headrace.spark.record import DataFile, Record, Removed, local_path
from headrace.spark.worker.files import PREFIX, write_file

FILES_MIN: Final = 32  # small ones that are worth a new one
_HINT: Final = (
    'headrace prove tells which rows are wrong; file_size = "0" goes on without a look'
)
_OURS: Final = re.compile(rf"{re.escape(PREFIX)}[0-9a-f]{{32}}\.parquet")


class TableSpoilt(BadRequest):
    """A file of the table is not what was written."""


@dataclass(frozen=True, slots=True)
class Small:
    """A file that may be put together with others."""

    path: str
    size: int
    row_count: int


def compact(record: Record, file_size: int, files_min: int = FILES_MIN) -> int | None:
    """Put small files together, if there are enough. Return how many; None: lost a race."""
    if len(record.ends) != record.count:
        return 0  # a partition's place is lost: the next round says so
    found = chosen(record, file_size, files_min)
    if not found:
        return 0
    made = _write(record, found)
    gone = [Removed(one.path, one.size) for one in found]
    return len(found) if record.compact([made], gone) else None


def chosen(record: Record, file_size: int, files_min: int) -> list[Small]:
    """Return the files to put together: those below half of a whole one, the oldest first."""
    found: list[Small] = []
    size = 0
    for one in _files(record):
        if one.size * 2 >= file_size:
            continue
        if size + one.size > file_size and len(found) >= files_min:
            break
        found.append(one)
        size += one.size
    return found if len(found) >= files_min else []


def _files(record: Record) -> list[Small]:
    """Return the files of this pipeline, in the order of their commits."""
    actions: Any = pa.table(record.table.get_add_actions(flatten=True))
    columns = ("path", "size_bytes", "num_records", "modification_time")
    rows = sorted(actions.select(columns).to_pylist(), key=lambda row: row["modification_time"])
    return [
        Small(row["path"], row["size_bytes"], row["num_records"])
        for row in rows
        if _OURS.fullmatch(row["path"]) and row["num_records"] is not None
    ]


def _write(record: Record, files: list[Small]) -> DataFile:
    root = Path(local_path(record.table.table_uri))
    schema = pa.schema(record.table.schema().to_arrow())
    rows = pa.concat_tables([_read(root / one.path, one, schema) for one in files])
    name, size, row_count, stats = write_file(root, rows)
    return DataFile(name, size, row_count, stats)


def _read(path: Path, file: Small, schema: pa.Schema) -> pa.Table:
    """Read a file as rows of the table: what came later is missing in it, or was narrower."""
    try:
        with open(path, "rb") as source:
            rows = pq.ParquetFile(source, page_checksum_verification=True).read()
    except (OSError, pa.ArrowException) as error:
        raise TableSpoilt(f"{path} cannot be read: {error}", hint=_HINT) from error
    if rows.num_rows != file.row_count:
        what = f"has {rows.num_rows:,} rows, the table says {file.row_count:,}"
        raise TableSpoilt(f"{path} {what}", hint=_HINT)
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)
