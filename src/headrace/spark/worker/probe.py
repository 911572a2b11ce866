"""Checks on the executors whether tasks can open the segments of a lease.

On another machine a file of the same name may belong to another log; its footer tells. Unlike
pages, a footer has no checksum: the parts by which Spark finds rows are compared with what the
log knows, and, where that is asked for, all bytes with the digest of the file.
"""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import first_line
from headrace.model.schema import (
    SEGMENT_FORMAT,
    SEGMENT_FORMAT_FIRST,
    SEGMENT_FORMAT_KEY,
    SYSTEM_FIELDS,
    parquet_schema,
)
from headrace.spark.worker.sums import file_digest, has_file_digest

_ROW_DIGEST: Final = b"headrace.row_digest"
_FORMATS: Final = range(SEGMENT_FORMAT_FIRST, SEGMENT_FORMAT + 1)
REPORT: Final = pa.schema(
    [("host", pa.string()), ("flaw", pa.string()), ("formats", pa.map_(pa.int32(), pa.int32()))]
)
_CHUNK: Final = 4 * 1024 * 1024
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
    digest: bytes | None = None  # of the whole file; None: only its footer is looked at


def probing(
    files: Sequence[Expected], schemas: dict[int, bytes], task_count: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task: it checks all file sizes and looks into a share of them.

    It reports the first flaw, and otherwise the format of each file of its share, by place.
    `schemas` are the user's columns of each version, as Arrow IPC.
    """

    def probe(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                found = checked(files, schemas, range(number, len(files), task_count))
                flaw, formats = (found, {}) if isinstance(found, str) else (None, found)
                row = {
                    "host": [socket.gethostname()],
                    "flaw": [flaw],
                    "formats": [list(formats.items())],
                }
                yield pa.RecordBatch.from_pydict(row, REPORT)

    return probe


def checked(
    files: Sequence[Expected], schemas: dict[int, bytes], share: Sequence[int]
) -> dict[int, int] | str:
    """Return the format of each file of the share, or describe the first unexpected file."""
    for file in files:
        try:
            with open(file.path, "rb") as opened:
                size = os.fstat(opened.fileno()).st_size
        except OSError as error:
            return f"{file.path}: {error.strerror}"
        if size != file.size:
            return f"{file.path}: {size} bytes, but the log has {file.size}"
    columns = {
        (version, form): _columns(data, form)
        for version, data in schemas.items()
        for form in _FORMATS
    }
    formats = {}
    for place in share:
        found = _checked_footer(files[place], columns)
        if isinstance(found, int):
            found = _digest_flaw(files[place]) or found
        if isinstance(found, str):
            return f"{files[place].path}: {found}"
        formats[place] = found
    return formats


def _columns(data: bytes, form: int) -> pq.ParquetSchema:
    """Return the Parquet schema of a segment."""
    user = pa.ipc.read_schema(pa.py_buffer(data))
    return parquet_schema(pa.schema([*SYSTEM_FIELDS, *user]), form)


def _checked_footer(
    file: Expected, columns: dict[tuple[int, int], pq.ParquetSchema]
) -> int | str:
    """Return the format that a footer names, or its flaw."""
    try:
        footer = pq.read_metadata(file.path)
        text = (footer.metadata or {}).get(SEGMENT_FORMAT_KEY.encode(), b"")
        form = next((each for each in _FORMATS if text == b"%d" % each), None)
        if form is None:
            known = f"{SEGMENT_FORMAT_FIRST} to {SEGMENT_FORMAT}"
            return f"its format is {text.decode(errors='replace')!r}, but {known} are known"
        return _footer_flaw(footer, file, columns[file.version, form]) or form
    except (pa.ArrowException, OSError, ValueError) as error:  # also names that are not text
        return f"its footer cannot be read: {first_line(error)}"


def _digest_flaw(file: Expected) -> str | None:
    if file.digest is None:
        return None
    if not has_file_digest():
        return "its bytes cannot be checked: xxhash is not installed here"
    found = file_digest()
    try:
        with open(file.path, "rb") as opened:
            while chunk := opened.read(_CHUNK):
                found.update(chunk)
    except OSError as error:
        return f"its bytes cannot be read: {error.strerror}"
    return None if found.digest() == file.digest else "its bytes are not those that were sealed"


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
