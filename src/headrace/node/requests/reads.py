"""Translates a shard's content into replies for readers."""

from collections.abc import Sequence

from headrace.model.ids import Offset
from headrace.partition.fetch import FetchedRows
from headrace.partition.machine.state import Partition
from headrace.storage.seam import Buffer
from headrace.wire import read_messages

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
