"""Translates a shard's content into replies for readers."""

from collections.abc import Sequence

from xxhash import xxh3_128_digest

from headrace.errors import BadRequest
from headrace.model.ids import Offset
from headrace.partition.fetch import FetchedRows
from headrace.partition.files.file_set import ShardFiles
from headrace.partition.machine.state import Partition
from headrace.partition.segments.segment import segment_name
from headrace.storage.seam import Buffer
from headrace.wire import read_messages
from headrace.wire.file_messages import FetchFile, FileChunk

ALIGNMENT = 64  # the alignment that Arrow prefers for buffers


def bounds_of(partition: Partition) -> read_messages.PartitionBounds:
    """Return what is retained of a partition."""
    first, end = partition.first, partition.end
    sealed_end = min((run.first for run in partition.runs), default=end)
    sealed_end = max(first, sealed_end)
    return read_messages.PartitionBounds(
        first, end, partition.size, sealed_end, partition.versions
    )


def end_for(partition: Partition, version: int) -> Offset:
    """Return the end of the rows that a schema version can show."""
    newer = (offset for number, offset in partition.versions if number > version)
    return min([*newer, partition.end])


def cursors_of(partition: Partition) -> read_messages.Cursors:
    """Return the cursors of a partition, by group."""
    return read_messages.Cursors(tuple(sorted(partition.cursors.values())))


def fetched(found: FetchedRows) -> tuple[read_messages.FetchReply, Sequence[Buffer]]:
    """Return rows as a reply and a body, with each piece aligned."""
    body: list[Buffer] = []
    for piece, rows in found.parts:
        body.append(rows)
        if piece.size % ALIGNMENT:
            body.append(bytes(ALIGNMENT - piece.size % ALIGNMENT))
    pieces = tuple(piece for piece, _ in found.parts)
    return read_messages.FetchReply(found.next, found.first, found.end, pieces), body


def file_chunk(
    files: ShardFiles, request: FetchFile, whole_size: int, size_max: int
) -> tuple[FileChunk, Sequence[Buffer]]:
    """Return a part of a leased file of `whole_size` as it is on disk, and nothing more."""
    position = request.position
    name = segment_name(request.namespace, request.created, request.first, request.end)
    if not 0 <= position < whole_size:
        raise BadRequest(
            f"byte {position} is not in {name}, which has {whole_size} bytes",
            hint="Fetch from byte 0 on, up to the size that the lease gave",
        )
    size = min(max(1, request.size_max), size_max, whole_size - position)
    data = files.part(name, whole_size, position, size)
    return FileChunk(position, xxh3_128_digest(data)), [data]
