"""Which files of a table's tail segments of the log can replace: the seal is the compaction.

Rows come into the table in small files, soon after they are appended. Once the log has sealed
them, one commit puts the segment in their place. The rest of a file that reaches beyond the
segments is written again. No row changes: what goes and what comes tile the same range. Only
files of ours that have rows as they are, of this life of the topic, are replaced. Where others
deleted rows their files are gone, so that there is a gap, and nothing is replaced.

What a crash after each step leaves is that of a compaction.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from headrace.spark.tables.data_files import FilePlace, LiveFile
from headrace.spark.worker.files import OURS

if TYPE_CHECKING:
    from headrace.client.read.lease import LeasedFile, LeasedPartition

_GAIN: Final = 2  # so many files must go for each that comes


@dataclass(frozen=True, slots=True)
class Replacement:
    """Files to be replaced: those of one partition that have the rows `start` to `end`."""

    partition: int
    start: int
    end: int
    files: tuple[LiveFile, ...]
    segments: "tuple[LeasedFile, ...]"


def segment_places(partitions: "Sequence[LeasedPartition]") -> set[FilePlace]:
    """Return which rows each segment has."""
    return {
        FilePlace(each.partition, file.start, file.end)
        for each in partitions
        for file in each.files
    }


def replacements(
    files: Sequence[LiveFile], partitions: "Sequence[LeasedPartition]"
) -> list[Replacement]:
    """Return which files segments can replace, by what the table and the log say of them."""
    placed: dict[int, list[tuple[FilePlace, LiveFile]]] = {}
    for one in files:
        if one.place is not None and OURS.fullmatch(one.path):
            placed.setdefault(one.place.partition, []).append((one.place, one))
    return [
        found
        for each in partitions
        for found in _of_partition(each, sorted(placed.get(each.partition, ()), key=_start))
    ]


def _start(pair: tuple[FilePlace, LiveFile]) -> int:
    return pair[0].start


def _of_partition(
    partition: "LeasedPartition", files: list[tuple[FilePlace, LiveFile]]
) -> Iterator[Replacement]:
    if any(one.end > other.start for (one, _), (other, _) in pairwise(files)):
        return  # rows are there twice, which a proof must go on to find
    starts, ends = [one.start for one, _ in files], [one.end for one, _ in files]
    taken = 0  # files before this one are in a replacement
    for segments in _runs(partition.files, starts, ends):
        low, high = _overlap(segments[0].start, segments[-1].end, starts, ends)
        first, last = starts[low], ends[high - 1]
        come = len(segments) + (first < segments[0].start) + (segments[-1].end < last)
        if taken <= low and first >= partition.first and high - low >= _GAIN * come:
            taken, gone = high, tuple(one for _, one in files[low:high])
            yield Replacement(partition.partition, first, last, gone, tuple(segments))


def _runs(
    segments: "Sequence[LeasedFile]", starts: list[int], ends: list[int]
) -> "Iterator[list[LeasedFile]]":
    """Yield adjacent segments, the rows of each of which are in several files."""
    run: list[LeasedFile] = []
    for segment in segments:
        low, high = _overlap(segment.start, segment.end, starts, ends)
        is_whole = (
            high - low >= _GAIN
            and segment.digest is not None
            and starts[low] <= segment.start
            and segment.end <= ends[high - 1]
            and ends[low : high - 1] == starts[low + 1 : high]
        )
        if is_whole:
            run.append(segment)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _overlap(start: int, end: int, starts: list[int], ends: list[int]) -> tuple[int, int]:
    """Return which files have rows of a range: the first, and the one after the last."""
    return bisect_right(ends, start), bisect_left(starts, end)
