"""Checks on the executors whether tasks can open the segments of a lease.

On another machine a file of the same name may belong to another log; its footer tells. Unlike
pages, a footer has no checksum: the parts by which Spark finds rows are compared with what the
log knows.
"""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import first_line
from headrace.model.schema import SYSTEM_FIELDS

_ROW_DIGEST: Final = b"headrace.row_digest"
_OFFSET_PLACE: Final = 1  # of `_offset` among the columns


@dataclass(frozen=True, slots=True)
class Expected:
    """A segment as the log describes it."""

    path: str
    start: int
    end: int
    version: int
    size: int
    row_digest: bytes


def probing(
    files: Sequence[Expected], schemas: dict[int, bytes], task_count: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task: it checks all file sizes and a share of the footers.

    `schemas` are the user's columns of each version, as Arrow IPC.
    """

    def probe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                flaw = first_flaw(files, schemas, range(number, len(files), task_count))
                row = {"host": [socket.gethostname()], "flaw": [flaw]}
                yield pa.RecordBatch.from_pydict(
                    row, pa.schema([("host", pa.string()), ("flaw", pa.string())])
                )

    return probe


def first_flaw(
    files: Sequence[Expected], schemas: dict[int, bytes], share: Sequence[int]
) -> str | None:
    """Describe the first file that is not as expected; None if all are."""
    for file in files:
        try:
            with open(file.path, "rb") as opened:
                size = os.fstat(opened.fileno()).st_size
        except OSError as error:
            return f"{file.path}: {error.strerror}"
        if size != file.size:
            return f"{file.path}: {size} bytes, but the log has {file.size}"
    columns = {version: _columns(data) for version, data in schemas.items()}
    for place in share:
        flaw = _checked_footer(files[place], columns)
        if flaw is not None:
            return f"{files[place].path}: {flaw}"
    return None


def _columns(data: bytes) -> pq.ParquetSchema:
    """Return the Parquet schema of a segment."""
    user = pa.ipc.read_schema(pa.py_buffer(data))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.schema([*SYSTEM_FIELDS, *user]).empty_table(), sink)
    return pq.read_metadata(pa.BufferReader(sink.getvalue())).schema


def _checked_footer(file: Expected, columns: dict[int, pq.ParquetSchema]) -> str | None:
    try:
        return _footer_flaw(pq.read_metadata(file.path), file, columns[file.version])
    except (pa.ArrowException, OSError, ValueError) as error:  # also names that are not text
        return f"its footer cannot be read: {first_line(error)}"


def _footer_flaw(
    footer: pq.FileMetaData, file: Expected, columns: pq.ParquetSchema
) -> str | None:
    found = (footer.metadata or {}).get(_ROW_DIGEST, b"").decode("ascii", "replace")
    if found != file.row_digest.hex():
        return "rows of another log, by the digest in its footer"
    if not footer.schema.equals(columns):
        return "other columns than the topic's"
    place = file.start
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        if not _is_well(group, footer.schema, place):
            return f"row group {number} does not have the offsets from {place} on"
        place += group.num_rows
    if place != file.end or footer.num_rows != file.end - file.start:
        return f"rows up to {place}, but the log has rows up to {file.end}"
    return None


def _is_well(group: pq.RowGroupMetaData, schema: pq.ParquetSchema, first: int) -> bool:
    """Whether a row group is consistent with the schema and starts at offset `first`."""
    if group.num_columns != len(schema):
        return False
    for place in range(group.num_columns):
        chunk, column = group.column(place), schema.column(place)
        count = chunk.num_values
        is_flat = column.max_repetition_level == 0
        if chunk.path_in_schema != column.path or chunk.physical_type != column.physical_type:
            return False
        if count != group.num_rows if is_flat else count < group.num_rows:
            return False
    # Last: Arrow aborts on statistics of a chunk whose type is not that of its column.
    offsets = group.column(_OFFSET_PLACE).statistics
    if offsets is None or not offsets.has_min_max:
        return False
    return bool((offsets.min, offsets.max) == (first, first + group.num_rows - 1))
