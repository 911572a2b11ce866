"""Fetches sealed segments, byte for byte, for executors that do not see the node's disk.

The driver holds a lease on the files, and a task gets the lease's id with the files to fetch.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headrace.errors import BadFrame, CorruptSegment, Refused
from headrace.spark.worker.link import Link
from headrace.spark.worker.sums import file_digest
from headrace.wire.file_messages import FetchFile, FileChunk
from headrace.wire.lease_messages import LEASE_UNKNOWN

CHUNK_SIZE: Final = 4 * 1024 * 1024
# A restarted node knows no lease until the driver has taken it again, a renewal later.
LEASE_SECONDS: Final = 15.0
_PAUSE: Final = 0.25


@dataclass(frozen=True, slots=True)
class SealedFile:
    """A segment as the lease describes it."""

    name: str  # for errors
    namespace: int
    created: int
    first: int  # of its rows
    end: int
    size: int
    digest: bytes  # xxh3-128 of the whole file


def fetch_file(
    link: Link, lease_id: bytes, file: SealedFile, *, chunk_size: int = CHUNK_SIZE
) -> Iterator[memoryview]:
    """Yield the bytes of a file in order. Every chunk is checked before it is yielded.

    After a lost connection, also by a restart of the node, it continues where it was. Before
    the last chunk, it raises CorruptSegment if the whole does not have the digest that the log
    has: a caller that was given all bytes has an intact copy.
    """
    whole, position = file_digest(), 0
    while position < file.size:
        request = _request(lease_id, file, position, chunk_size)
        data = _asked(link, request, min(chunk_size, file.size - position))
        position += len(data)
        if position < file.size:
            link.ask_ahead(_request(lease_id, file, position, chunk_size))
        whole.update(data)
        if position == file.size and whole.digest() != file.digest:
            raise CorruptSegment(
                "the node sent other bytes than were sealed: the file is damaged on its disk",
                path=file.name,
                expected=file.digest.hex(),
                found=whole.hexdigest(),
            )
        yield data


def _request(lease_id: bytes, file: SealedFile, position: int, size: int) -> FetchFile:
    return FetchFile(
        lease_id=lease_id,
        namespace=file.namespace,
        created=file.created,
        first=file.first,
        end=file.end,
        digest=file.digest,
        position=position,
        size_max=size,
    )


def _asked(link: Link, request: FetchFile, size_max: int) -> memoryview:
    """Return the requested bytes, at most `size_max` and at least one."""
    known, deadline = link.connection_count, time.monotonic() + LEASE_SECONDS
    while True:
        try:
            chunk, body = link.ask(request, FileChunk)
        except Refused as error:
            # On the same connection, the node has not restarted: the lease has ended.
            may_return = error.code == LEASE_UNKNOWN and link.connection_count != known
            if not may_return or time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE)
            continue
        data = memoryview(body).cast("B")
        if chunk.position != request.position or not 0 < len(data) <= size_max:
            raise BadFrame(
                f"asked for up to {size_max} bytes of a file from {request.position} on, got "
                f"{len(data)} from {chunk.position} on"
            )
        return data
