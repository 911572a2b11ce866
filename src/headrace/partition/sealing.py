"""Writing one segment: from entries to a durable temporary file that was read back.

The same code runs in a child process and, for the simulator, in the caller's own. What is on
disk after a crash, whatever the moment: a file with a temporary name, which anyone may unlink.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import msgspec
import pyarrow as pa

from headrace.errors import Corrupt, DiskFull, HeadraceError, StorageFailed
from headrace.journal.entry import Entry
from headrace.model.ids import Offset, Op
from headrace.partition.operations import Value
from headrace.partition.rows import Place, Schemas, placed, rows_of
from headrace.partition.segment import Digests, SegmentInfo
from headrace.partition.segment_reader import read_back
from headrace.partition.segment_writer import write_segment
from headrace.storage.full import is_full
from headrace.storage.seam import Directory


class Part(Value, frozen=True):
    """One entry of a segment: where its bytes are, and which rows it gives."""

    op: Op
    path: str
    position: int
    size: int  # header and body
    checksum: bytes
    first: Offset
    timestamp: int


class SealJob(Value, frozen=True):
    """All that is needed to write one segment."""

    info: SegmentInfo
    partition_id: int
    schemas: dict[int, bytes]  # all of the topic, by version
    parts: tuple[Part, ...]
    directory: str
    temporary: str  # the name to write


class Done(Value, frozen=True, tag=True):
    """The file is whole and durable under its temporary name."""

    digests: Digests


class Failed(Value, frozen=True, tag=True):
    """Nothing is left under the temporary name, as far as that was possible."""

    kind: str  # one of the four below
    flaw: str


FULL: Final = "full"  # no space: try again later
DISK: Final = "disk"  # the disk failed: try again with a new file
DAMAGED: Final = "damaged"  # an entry cannot be read
UNSEALABLE: Final = "unsealable"  # no segment can be made of these rows by this release

Outcome = Done | Failed

_ENCODER = msgspec.msgpack.Encoder()
JOB_DECODER: Final = msgspec.msgpack.Decoder(SealJob)
OUTCOME_DECODER: Final = msgspec.msgpack.Decoder(Outcome)


def encode(message: SealJob | Outcome) -> bytes:
    return _ENCODER.encode(message)


def seal_file(job: SealJob, directory: Directory, read: Callable[[Part], Entry]) -> Outcome:
    """Write, sync and read back one segment under its temporary name."""
    try:
        return Done(_write(job, directory, read))
    except OSError as error:
        outcome = Failed(FULL if is_full(error) else DISK, str(error))
    except DiskFull as error:
        outcome = Failed(FULL, str(error))
    except (StorageFailed, MemoryError) as error:
        outcome = Failed(DISK, str(error))
    except Corrupt as error:
        # A segment that reads back wrong is a fault of the writing, not of the log.
        kind = UNSEALABLE if job.temporary in error.path else DAMAGED
        outcome = Failed(kind, str(error))
    except (HeadraceError, pa.ArrowException, ValueError, TypeError, KeyError) as error:
        outcome = Failed(UNSEALABLE, f"{type(error).__name__}: {error}")
    with suppress(OSError):
        directory.unlink(job.temporary)
    return outcome


def _write(job: SealJob, directory: Directory, read: Callable[[Part], Entry]) -> Digests:
    schemas = Schemas.decode(job.schemas, job.temporary)
    version = job.info.schema_id
    # A new inode each time: a file whose sync failed once is not to be trusted again, and one
    # that died with the child before this one is garbage.
    with suppress(FileNotFoundError):
        directory.unlink(job.temporary)
    file = directory.create(job.temporary)
    try:
        batches = _batches(job, schemas, read)
        digests = write_segment(file, job.info, schemas.user(version), batches)
        file.sync()
    finally:
        file.close()
    again = directory.open(job.temporary)
    try:
        read_back(again, job.info, schemas.user(version), digests)
    finally:
        again.close()
    return digests


def _batches(
    job: SealJob, schemas: Schemas, read: Callable[[Part], Entry]
) -> Iterator[pa.RecordBatch]:
    for part in job.parts:
        rows = rows_of(read(part), schemas, job.info.schema_id, part.path)
        yield placed(rows, Place(job.partition_id, part.first, part.timestamp))
