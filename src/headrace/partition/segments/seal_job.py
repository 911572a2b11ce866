"""Writes one segment: from entries to a durable temporary file that was read back.

The same code runs in a child process and, for the simulator, in the caller's process. A crash
at any moment leaves a file with a temporary name, which may be unlinked.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import msgspec
import pyarrow as pa

from headrace.errors import Corrupt, DiskFull, HeadraceError, StorageFailed
from headrace.journal.entry import Entry
from headrace.model.batch import compacted
from headrace.model.ids import Offset, Op
from headrace.partition.machine.operations import PartitionValue
from headrace.partition.segments.entry_rows import EntryPlace, Schemas, placed_together, rows_of
from headrace.partition.segments.segment import SYSTEM_ROW_SIZE, Digests, SegmentInfo
from headrace.partition.segments.segment_reader import read_back
from headrace.partition.segments.segment_writer import (
    ROW_GROUP_ROWS_MAX,
    ROW_GROUP_SIZE_MAX,
    write_segment,
)
from headrace.storage.seam import Directory, is_full


class SealPart(PartitionValue, frozen=True):
    """One entry of a segment: the place of its bytes, and its rows."""

    op: Op
    path: str
    position: int
    size: int  # header and body
    checksum: bytes
    first: Offset
    timestamp: int


class SealJob(PartitionValue, frozen=True):
    """Everything needed to write one segment."""

    info: SegmentInfo
    format: int  # of the file
    partition_id: int
    schemas: dict[int, bytes]  # all of the topic, by version
    parts: tuple[SealPart, ...]
    directory: str
    temporary: str  # the name to write


class Done(PartitionValue, frozen=True, tag=True):
    """The file is complete and durable under its temporary name."""

    digests: Digests


class SealRefused(PartitionValue, frozen=True, tag=True):
    """Nothing is left under the temporary name, as far as possible."""

    kind: str  # one of the four below
    flaw: str


FULL: Final = "full"  # no space: retry later
DISK: Final = "disk"  # the disk failed, or memory: retry with a new file
DAMAGED: Final = "damaged"  # an entry cannot be read
UNSEALABLE: Final = "unsealable"  # this release cannot write these rows to a segment

Outcome = Done | SealRefused

UNREFERRED_SIZE_MAX: Final = 1024 * 1024  # of an entry, held along with its rows

_ENCODER = msgspec.msgpack.Encoder()
JOB_DECODER: Final = msgspec.msgpack.Decoder(SealJob)
OUTCOME_DECODER: Final = msgspec.msgpack.Decoder(Outcome)


def encode(message: SealJob | Outcome) -> bytes:
    return _ENCODER.encode(message)


def at_once(work: Callable[[], None]) -> Callable[[], None]:
    """Do the work now; the returned wait is empty."""
    work()
    return lambda: None


def seal_file(
    job: SealJob,
    directory: Directory,
    read: Callable[[SealPart], Entry],
    begin: Callable[[Callable[[], None]], Callable[[], None]] = at_once,
) -> Outcome:
    """Write, sync and read back one segment under its temporary name.

    `begin` starts some work, maybe concurrently, and returns a function that waits for it. It
    is used for the sync, which a child would only wait for.
    """
    try:
        return Done(_write(job, directory, read, begin))
    except OSError as error:
        outcome = SealRefused(FULL if is_full(error) else DISK, str(error))
    except DiskFull as error:
        outcome = SealRefused(FULL, str(error))
    except (StorageFailed, MemoryError) as error:
        outcome = SealRefused(DISK, str(error))
    except Corrupt as error:
        # A segment that reads back wrong is a fault of the writer, not of the log.
        kind = UNSEALABLE if job.temporary in error.path else DAMAGED
        outcome = SealRefused(kind, str(error))
    except (HeadraceError, pa.ArrowException, ValueError, TypeError, KeyError) as error:
        outcome = SealRefused(UNSEALABLE, f"{type(error).__name__}: {error}")
    with suppress(OSError):
        directory.unlink(job.temporary)
    return outcome


def _write(
    job: SealJob,
    directory: Directory,
    read: Callable[[SealPart], Entry],
    begin: Callable[[Callable[[], None]], Callable[[], None]],
) -> Digests:
    schemas = Schemas.decode(job.schemas, job.temporary)
    version = job.info.schema_id
    # A new inode each time: a file whose sync failed once must not be trusted again, and the
    # file of an earlier, dead child is garbage.
    with suppress(FileNotFoundError):
        directory.unlink(job.temporary)
    file = directory.create(job.temporary)
    try:
        batches = _batches(job, schemas, read)
        digests = write_segment(file, job.info, schemas.user(version), batches, job.format)
        wait = begin(file.sync)
        try:
            _read_back(job, directory, schemas.user(version), digests)
        finally:
            wait()  # if the sync failed, that is what counts
    finally:
        file.close()
    return digests


def _read_back(job: SealJob, directory: Directory, schema: pa.Schema, digests: Digests) -> None:
    again = directory.open(job.temporary)
    try:
        read_back(again, job.info, schema, digests)
    finally:
        again.close()


@dataclass(slots=True)
class _Together:
    """Entries with contiguous rows, as many as a row group takes."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    parts: list[SealPart] = field(default_factory=list)
    row_count: int = 0
    size: int = 0

    def takes(self, part: SealPart, rows: pa.RecordBatch, size: int) -> bool:
        """Whether this entry follows and fits."""
        return (
            part.first == self.parts[0].first + self.row_count
            and self.row_count + rows.num_rows <= ROW_GROUP_ROWS_MAX
            and self.size + size <= ROW_GROUP_SIZE_MAX
        )

    def add(self, part: SealPart, rows: pa.RecordBatch, size: int) -> None:
        self.batches.append(rows)
        self.parts.append(part)
        self.row_count += rows.num_rows
        self.size += size

    def placed(self, partition_id: int) -> pa.RecordBatch:
        first = EntryPlace(partition_id, self.parts[0].first, self.parts[0].timestamp)
        return placed_together(self.batches, first, [part.timestamp for part in self.parts])


def size_of(rows: pa.RecordBatch, *, is_upgraded: bool = True) -> int:
    """Return the largest size of rows, now or once combined with others.

    They may hold more than they refer to, or, once upgraded, share buffers that are then copied
    for each; and a null in another entry adds validity bits to all.
    """
    size: int = rows.get_total_buffer_size()
    # In a message each buffer has one owner, and `nbytes` takes ten times as long.
    if is_upgraded:
        size = max(size, rows.nbytes)
    bits = rows.num_rows * rows.num_columns
    size += rows.num_rows * SYSTEM_ROW_SIZE + bits // 8 + rows.num_columns
    return size


def _trimmed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Drop values that no row refers to: a few bytes may inflate to many of them."""
    held = rows.get_total_buffer_size()
    if held <= UNREFERRED_SIZE_MAX or held <= 2 * rows.nbytes + UNREFERRED_SIZE_MAX:
        return rows
    return compacted(rows)


def _batches(
    job: SealJob, schemas: Schemas, read: Callable[[SealPart], Entry]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the job, of as many entries at a time as a row group takes.

    Building the system's columns for each entry takes longer than decoding a small one.
    """
    together = _Together()
    version = job.info.schema_id
    for part in job.parts:
        entry = read(part)
        rows = _trimmed(rows_of(entry, schemas, version, part.path))
        size = size_of(rows, is_upgraded=entry.header.schema_id != version)
        # The writer checks all offsets and reports an entry that does not follow.
        if together.parts and not together.takes(part, rows, size):
            yield together.placed(job.partition_id)
            together = _Together()
        together.add(part, rows, size)
    if together.parts:
        yield together.placed(job.partition_id)
