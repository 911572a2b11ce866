"""Which sealed segments a round takes as the files that they are, and which rows go by rows.

A segment is taken if all its rows are of the round. A round that would end inside one extends
to its end: otherwise the rest of it would have to go by rows.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count, pairwise
from typing import TYPE_CHECKING, Final

from headrace.errors import BadRequest, Busy
from headrace.spark.worker.copy import CopyPart
from headrace.spark.worker.fetch_file import SealedFile
from headrace.spark.worker.read import Span
from headrace.spark.worker.segment_copy import SegmentCopy

if TYPE_CHECKING:
    import headrace
    from headrace.client.read.lease import LeasedFile, LeasedPartition
    from headrace.client.sync_lease import Lease

LASTING: Final = "120s"  # how long a lease outlives a dead driver
TASK_SIZE: Final = 16 * 1024 * 1024  # rows that justify a task, and a file, of their own

Ranges = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SealedRows:
    """The segments of a topic that a round may take; none without a lease."""

    lease: "Lease | None" = None
    chosen: "Collection[LeasedFile] | None" = None  # None: all of them

    @property
    def partitions(self) -> "Sequence[LeasedPartition]":
        """All partitions with their segments."""
        return () if self.lease is None else self.lease.partitions

    def only(self, files: "Collection[LeasedFile]") -> "SealedRows":
        """Return the same, with only these segments."""
        return replace(self, chosen=files)

    def aligned(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
        """Return the ends of a round, moved to the ends of segments that it begins."""
        return {
            number: _aligned(self._files(number), starts[number], end)
            for number, end in ends.items()
        }

    def sealed_ends(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
        """Return where the last segment that ends in a round does in each partition.

        A round that ends in the middle of one is extended to its end: it would never get there.
        """
        found = {}
        for number, end in ends.items():
            start, files = starts[number], self._files(number)
            found[number] = max(
                (file.end for file in files if start < file.end and file.start < end),
                default=start,
            )
        return found

    def cut(self, number: int, start: int, end: int) -> "tuple[list[LeasedFile], Ranges]":
        """Return the segments inside a range, and the ranges of rows around them."""
        inside, place, around = _inside(self._files(number), start, end), start, []
        for file in inside:
            around.append((place, file.start))
            place = file.end
        around.append((place, end))
        return inside, [(one, other) for one, other in around if one < other]

    def part(self, number: int, file: "LeasedFile", span: Span) -> CopyPart:
        """Return what copies a segment, or takes its rows where that is not possible."""
        assert self.lease is not None
        assert file.digest is not None
        sealed = SealedFile(
            name=file.path,
            namespace=span.namespace,
            created=span.created,
            first=file.start,
            end=file.end,
            size=file.size,
            digest=file.digest,
        )
        copy = SegmentCopy(span.where, self.lease.id, file.path, sealed)
        return CopyPart(number, replace(span, start=file.start, end=file.end), copy)

    def _files(self, number: int) -> "Sequence[LeasedFile]":
        for each in self.partitions:
            if each.partition == number:
                return [one for one in each.files if self.chosen is None or one in self.chosen]
        return ()


@contextmanager
def leased(
    topic: "headrace.Topic",
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    bounds: "Mapping[int, headrace.Bounds]",
    *,
    is_required: bool,
) -> Iterator[SealedRows]:
    """Yield the segments in a range, which stay until the block ends.

    If they are required, raises Busy if other readers hold as many leases as there can be, and
    BadRequest for more segments than a lease can keep.
    """
    if not any(starts[n] < min(ends[n], bounds[n].sealed_end) for n in ends if n in bounds):
        yield SealedRows()
        return
    try:
        lease = topic.lease_files(LASTING)
    except (Busy, BadRequest):  # too many leases, or too many segments for one
        if is_required:
            raise
        yield SealedRows()  # all goes by rows
        return
    with lease:
        yield SealedRows(lease)


def planned(
    spans: Sequence[Span],
    sealed: SealedRows,
    row_sizes: Mapping[int, float],
    cores: int,
    count_min: int,
) -> list[list[CopyPart]]:
    """Return the parts of each task. `count_min`: of tasks by rows; 0 for one per core."""
    numbers, segments, rows = count(), [], []
    for span in spans:
        files, around = sealed.cut(span.partition, span.start, span.end)
        segments += [(file.size, sealed.part(next(numbers), file, span)) for file in files]
        rows += [replace(span, start=start, end=end) for start, end in around]
    size = sum(one.row_count * row_sizes[one.partition] for one in rows)
    wanted = count_min or min(cores, math.ceil(size / TASK_SIZE))
    by_rows = [[CopyPart(next(numbers), one)] for one in _split(rows, wanted)]
    return by_rows + _shared(segments, max(cores, count_min))


def _split(rows: Sequence[Span], wanted: int) -> Iterator[Span]:
    """Split ranges so that there are `wanted` of them, if there are so many rows."""
    total = sum(one.row_count for one in rows)
    for one in rows:
        pieces = -(-one.row_count * wanted // total) if len(rows) < wanted else 1
        pieces = min(max(pieces, 1), one.row_count)
        cuts = [one.start + one.row_count * place // pieces for place in range(pieces + 1)]
        for start, end in pairwise(cuts):
            yield replace(one, start=start, end=end)


def _shared(segments: Sequence[tuple[int, CopyPart]], task_count: int) -> list[list[CopyPart]]:
    """Share segments out among tasks, so that each has about as many bytes."""
    tasks = [(0, place, list[CopyPart]()) for place in range(min(task_count, len(segments)))]
    for size, part in sorted(segments, key=lambda each: -each[0]):
        taken, place, parts = heappop(tasks)
        parts.append(part)
        heappush(tasks, (taken + size, place, parts))
    return [parts for _, _, parts in tasks]


def _inside(files: "Sequence[LeasedFile]", start: int, end: int) -> "list[LeasedFile]":
    return [
        file
        for file in files
        if start <= file.start and file.end <= end and file.digest is not None
    ]


def _aligned(files: "Sequence[LeasedFile]", start: int, end: int) -> int:
    for file in files:
        if start <= file.start < end < file.end:
            return file.end
    return end
