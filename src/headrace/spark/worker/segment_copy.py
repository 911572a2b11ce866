"""Copies sealed segments into a table as the files that they are: no row is decoded.

A segment is Parquet under the table's own column names, and its bytes have a digest that the
log knows. A task copies it from the node's disk if it sees that, and otherwise asks the node
for its bytes. The digest of the copy, taken after its sync, must be the log's. A segment that
the table cannot take as it is, such as one of an older format, goes by rows.
"""

import errno
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import CorruptSegment
from headrace.model.schema import (
    SEGMENT_FORMAT,
    SEGMENT_FORMAT_KEY,
    leaves_without_nan,
)
from headrace.spark.stores.path_store import PathStore
from headrace.spark.stores.store import store_of
from headrace.spark.worker.fetch_file import SealedFile, fetch_file
from headrace.spark.worker.files import Writing, new_file
from headrace.spark.worker.read import LogAddress
from headrace.spark.worker.statistics import footer_statistics
from headrace.spark.worker.sums import file_digest, has_file_digest

SURPLUS: Final = "_hr_timestamp"  # in each segment, and in no table of ours
_SPOOLED: Final = 64 * 1024 * 1024  # bytes of a fetched segment that stay in memory
_CHUNK: Final = 4 * 1024 * 1024
# What a copy inside the kernel fails with where it is not possible, before the first byte.
_NO_KERNEL_COPY: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
)


@dataclass(frozen=True, slots=True)
class SegmentCopy:
    """A sealed segment to copy, under a lease that the driver holds."""

    where: LogAddress
    lease_id: bytes
    path: str  # on the node's machine
    file: SealedFile


def copied_segment(task: SegmentCopy, writing: Writing) -> tuple[str, int, int, str] | None:
    """Copy a segment and return the file's name, size, row count and statistics.

    None: the table cannot take it as it is, and nothing was written.
    """
    if not has_file_digest():
        return None
    with suppress(OSError), open(task.path, "rb") as seen:
        # Another machine may have another file of that name: then the node is asked.
        if os.fstat(seen.fileno()).st_size == task.file.size:
            with suppress(CorruptSegment, pa.ArrowException):
                return _copied(task, writing, seen)
    with tempfile.SpooledTemporaryFile(_SPOOLED) as fetched:
        with task.where.link() as link:
            for chunk in fetch_file(link, task.lease_id, task.file):
                fetched.write(chunk)
        fetched.seek(0)
        return _copied(task, writing, cast("BinaryIO", fetched))


def _copied(
    task: SegmentCopy, writing: Writing, source: BinaryIO
) -> tuple[str, int, int, str] | None:
    footer = pq.read_metadata(source)
    stats = _statistics(footer, writing.columns)
    if stats is None:
        return None
    source.seek(0)
    name = writing.name()
    with new_file(writing, name) as file:
        digest = _copy(source, file, is_path=writing.location.is_path)
    _check(task, writing, name, digest)
    return name, task.file.size, footer.num_rows, stats


def _statistics(footer: pq.FileMetaData, columns: pa.Schema) -> str | None:
    """Return the statistics of a segment; None if a table with these columns cannot take it."""
    metadata = footer.metadata or {}
    text = metadata.get(SEGMENT_FORMAT_KEY.encode(), b"")
    if text != b"%d" % SEGMENT_FORMAT:
        return None
    found = footer.schema.to_arrow_schema()
    known = {field.name: field for field in columns}
    for field in found:
        wanted = known.pop(field.name, None)
        if wanted is None:
            if field.name != SURPLUS:
                return None
        elif not _are_alike(field.type, wanted.type) or field.nullable > wanted.nullable:
            return None
    if not all(field.nullable for field in known.values()):
        return None
    return footer_statistics(footer, found, leaves_without_nan(metadata), columns.names)


def _are_alike(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether two types differ in the nullability of inner fields at most."""
    if not pa.types.is_nested(one) or one.id != other.id or one.num_fields != other.num_fields:
        return bool(one.equals(other))
    is_named = pa.types.is_struct(one)
    pairs = [(one.field(place), other.field(place)) for place in range(one.num_fields)]
    return all(
        (mine.name == yours.name or not is_named) and _are_alike(mine.type, yours.type)
        for mine, yours in pairs
    )


def _copy(source: BinaryIO, file: BinaryIO, *, is_path: bool) -> bytes:
    """Copy a whole file; return the digest of the bytes that were written through Python."""
    if is_path and _copied_by_kernel(source, file):
        return b""
    digest = file_digest()
    while chunk := source.read(_CHUNK):
        file.write(chunk)
        digest.update(chunk)
    return digest.digest()


def _copied_by_kernel(source: BinaryIO, file: BinaryIO) -> bool:
    """Copy between two files of this machine. False: that is not possible, nothing was done."""
    try:
        ends = source.fileno(), file.fileno()
    except OSError:  # a file in memory has none
        return False
    size = os.fstat(ends[0]).st_size
    while (place := os.lseek(ends[1], 0, os.SEEK_CUR)) < size:
        try:
            if not os.copy_file_range(ends[0], ends[1], size - place, place):
                break
        except OSError as error:
            if place == 0 and error.errno in _NO_KERNEL_COPY:
                return False
            raise
    return True


def _check(task: SegmentCopy, writing: Writing, name: str, digest: bytes) -> None:
    """Raise CorruptSegment unless the copy is what the log sealed. It is removed then."""
    store = store_of(writing.location)
    found = digest
    if isinstance(store, PathStore):  # what is on the disk now, whatever was read before
        whole = file_digest()
        with open(f"{store.url}/{name}", "rb") as copy:
            while chunk := copy.read(_CHUNK):
                whole.update(chunk)
        found = whole.digest()
    if found != task.file.digest:
        store.remove([name])
        raise CorruptSegment(
            "a copy does not have the bytes that were sealed",
            path=task.path,
            expected=task.file.digest.hex(),
            found=found.hex(),
        )
