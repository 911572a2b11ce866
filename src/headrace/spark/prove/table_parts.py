"""The row groups of a table's data files, and where in the log their rows are.

Footers tell the positions; where one does not, the rows do. So a range of the log is compared
with the row groups that may have rows of it, and each of them is decoded about once. Footers
are not believed beyond that: the caller counts the rows that it finds by their positions, and
they must be all rows there are.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from headrace.errors import CorruptFile
from headrace.spark.stores.location import Location
from headrace.spark.tables.data_files import (
    as_dataset,
    damaged_file,
    fragments_of,
    live_files,
    refuse_missing,
)
from headrace.spark.tables.table_record import Record

PARTITION: Final = "_hr_partition"
OFFSET: Final = "_hr_offset"
WINDOW: Final = 200_000  # rows compared at a time
_WINDOW_MAX: Final = 1024 * 1024  # the same, so that a row group of small rows is decoded once
_WINDOW_SIZE: Final = 64 * 1024 * 1024  # bytes of the rows of such a row group
READERS: Final = 8  # files read at once: a store answers late, but to many

LowHigh = tuple[int, int]  # both included
Ranges = Sequence[tuple[int, int]]  # start and end of each, in order


@dataclass(frozen=True, slots=True)
class TablePart:
    """A row group, and between which positions its rows are."""

    file: ds.ParquetFileFragment
    number: int  # of the row group
    row_count: int
    size: int  # of its pages, decompressed
    places: Mapping[int, LowHigh]  # of each partition: the lowest and the highest offset
    has_nulls: bool  # a row without partition or offset

    def is_inside(self, recorded: Mapping[int, Ranges]) -> bool:
        """Whether each row has a position in the ranges."""
        return not self.has_nulls and all(
            any(start <= low and high < end for start, end in recorded.get(number, ()))
            for number, (low, high) in self.places.items()
        )


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A data file, as its footer describes it."""

    file: ds.ParquetFileFragment
    metadata: Mapping[bytes, bytes]
    parts: tuple[TablePart, ...]

    @property
    def path(self) -> str:
        return str(self.file.path)

    @property
    def row_count(self) -> int:
        return sum(part.row_count for part in self.parts)


@dataclass(frozen=True, slots=True)
class Window:
    """Offsets from `start` up to `end` of a partition, and what may have rows of them."""

    partition: int
    start: int
    end: int
    parts: Sequence[TablePart]


class _Index:
    """The parts with rows of one partition, to be found by their offsets."""

    def __init__(self, parts: Sequence[tuple[LowHigh, TablePart]]) -> None:
        found = sorted(parts, key=lambda each: each[0])
        self._offsets = [offsets for offsets, _ in found]
        self._parts = [part for _, part in found]
        self._lows = [low for low, _ in self._offsets]
        # The highest offset of a part or of any before it: it only rises.
        self._tops = list(accumulate((high for _, high in self._offsets), max))

    def between(self, start: int, end: int) -> list[tuple[LowHigh, TablePart]]:
        first, last = bisect_left(self._tops, start), bisect_left(self._lows, end)
        near = zip(self._offsets[first:last], self._parts[first:last], strict=True)
        return [(offsets, part) for offsets, part in near if offsets[1] >= start]


class TableParts:
    """Rows of a table by their position in the log."""

    def __init__(
        self,
        location: Location,
        schema: pa.Schema,
        files: Sequence[PlacedFile],
        partitions: Collection[int],
    ) -> None:
        self._location = location
        self._schema = schema
        self.files = files
        self._partitions = partitions
        self.parts = [part for file in files for part in file.parts]
        self._indices = {number: self._index(number) for number in partitions}

    @property
    def row_count(self) -> int:
        return sum(part.row_count for part in self.parts)

    def without(self, files: Collection[PlacedFile]) -> "TableParts":
        """Return the rows that are not in these files."""
        gone = {file.path for file in files}
        rest = [file for file in self.files if file.path not in gone]
        return TableParts(self._location, self._schema, rest, self._partitions)

    def windows(self, partition: int, start: int, end: int) -> Iterator[Window]:
        """Divide a range, between row groups where that is possible."""
        index = self._indices[partition]
        here = index.between(start, end)
        edges = sorted({edge for (low, high), _ in here for edge in (low, high + 1)})
        longest = _longest([part for _, part in here])
        while start < end:
            stop = min(_stop(edges, start, longest), end)
            parts = [part for _, part in index.between(start, stop)]
            yield Window(partition, start, stop, parts)
            start = stop

    def rows(self, window: Window, columns: Sequence[str]) -> pa.Table:
        """Return the rows of a window, in the order of their offsets."""
        here = inside(window.partition, [(window.start, window.end)])
        found = self.where(here, [*columns, OFFSET], window.parts)
        if not _is_sorted(found.column(OFFSET)):
            found = found.sort_by(OFFSET)
        return found

    def count(self, partition: int, ranges: Ranges) -> int:
        """Count the rows in some ranges of a partition."""
        index = self._indices[partition]
        near = (part for start, end in ranges for _, part in index.between(start, end))
        rows = self._dataset(list({id(part): part for part in near}.values()))
        try:
            return int(rows.count_rows(filter=inside(partition, ranges)))
        except (OSError, pa.ArrowException) as error:
            raise self._damage(error) from error

    def where(
        self, condition: pc.Expression, columns: Sequence[str], parts: Sequence[TablePart]
    ) -> pa.Table:
        """Return the matching rows of some parts, in any order."""
        try:
            return self._dataset(parts).to_table(columns=list(columns), filter=condition)
        except (OSError, pa.ArrowException) as error:
            raise self._damage(error) from error

    def refuse_unseen(self, seen: int) -> None:
        """Raise CorruptFile unless so many rows were found by their positions: all."""
        if seen == self.row_count:
            return
        raise CorruptFile(
            "data files have rows at other positions than their footers say",
            path=self._location.url,
            expected=f"{self.row_count:,} rows",
            found=f"{seen:,}",
        )

    def _damage(self, error: Exception) -> CorruptFile:
        return _damage(self._location, [file.path for file in self.files], error)

    def _dataset(self, parts: Sequence[TablePart]) -> ds.Dataset:
        numbers: dict[str, list[int]] = {}
        for part in parts:
            numbers.setdefault(part.file.path, []).append(part.number)
        files = {part.file.path: part.file for part in parts}
        found = [files[path].subset(row_group_ids=each) for path, each in numbers.items()]
        return as_dataset(self._schema, found)

    def _index(self, number: int) -> _Index:
        return _Index(
            [(part.places[number], part) for part in self.parts if number in part.places]
        )


def inside(partition: int, ranges: Ranges) -> pc.Expression:
    """Return a filter for rows whose position is in one of the ranges."""
    found = pc.scalar(False)
    for start, end in ranges:
        found |= (pc.field(OFFSET) >= start) & (pc.field(OFFSET) < end)
    return (pc.field(PARTITION) == partition) & found


def table_parts(record: Record) -> TableParts:
    """Read the footers of a table. Raises CorruptFile if a file is missing or damaged."""
    location, schema = record.location, pa.schema(record.table.schema().to_arrow())
    fragments = fragments_of(location, [one.name for one in live_files(record.table)])
    try:
        with ThreadPoolExecutor(READERS) as pool:
            files = list(pool.map(partial(_placed, schema), fragments))
    except (OSError, pa.ArrowException) as error:
        refuse_missing(location, live_files(record.table))
        raise _damage(location, [one.path for one in fragments], error) from error
    return TableParts(location, schema, files, record.ends)


def _damage(location: Location, paths: Sequence[str], error: Exception) -> CorruptFile:
    """Return the error of a table that cannot be read, with the path of the damaged file."""
    text = f"the table cannot be read: {error}"
    return damaged_file(location, paths) or CorruptFile(text, path=location.url)


def _placed(schema: pa.Schema, file: ds.ParquetFileFragment) -> PlacedFile:
    footer = file.metadata
    names = [footer.schema.column(place).path for place in range(len(footer.schema))]
    leaves = [names.index(name) for name in (PARTITION, OFFSET) if name in names]
    has_places = len(leaves) == 2 and {PARTITION, OFFSET} <= set(schema.names)
    parts = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        told = _told(group, *leaves) if has_places else ({}, True)
        places, has_nulls = told or _read_places(
            as_dataset(schema, [file.subset(row_group_ids=[number])])
        )
        count, size = group.num_rows, group.total_byte_size
        parts.append(TablePart(file, number, count, size, places, has_nulls))
    return PlacedFile(file, footer.metadata or {}, tuple(parts))


def _told(
    group: pq.RowGroupMetaData, partition: int, offset: int
) -> tuple[dict[int, LowHigh], bool] | None:
    """Return what the footer says of positions; None: too little."""
    chunks = [group.column(leaf) for leaf in (partition, offset)]
    told = [chunk.statistics for chunk in chunks if chunk.is_stats_set]
    if len(told) < 2 or not all(each.has_null_count for each in told):
        return None
    if any(each.null_count == group.num_rows for each in told):
        return {}, True
    if not all(each.has_min_max and isinstance(each.min, int) for each in told):
        return None
    partitions, offsets = told
    if partitions.min != partitions.max:  # of which partition the lowest offset is, is unknown
        return None
    has_nulls = any(each.null_count > 0 for each in told)
    return {partitions.min: (offsets.min, offsets.max)}, has_nulls


def _read_places(rows: ds.Dataset) -> tuple[dict[int, LowHigh], bool]:
    """Return what the rows say of their positions."""
    there = pc.field(PARTITION).is_valid() & pc.field(OFFSET).is_valid()
    found = rows.to_table(columns=[PARTITION, OFFSET], filter=there)
    bounds = found.group_by(PARTITION).aggregate([(OFFSET, "min"), (OFFSET, "max")])
    columns = (bounds[name] for name in (PARTITION, f"{OFFSET}_min", f"{OFFSET}_max"))
    each = zip(*(column.to_pylist() for column in columns), strict=True)
    return {number: (low, high) for number, low, high in each}, len(found) < rows.count_rows()


def _longest(parts: Sequence[TablePart]) -> int:
    """Return how many rows a window may have that ends with a row group."""
    row_count = sum(part.row_count for part in parts)
    size = sum(part.size for part in parts)
    return max(WINDOW, min(_WINDOW_MAX, _WINDOW_SIZE * row_count // max(size, 1)))


def _stop(edges: Sequence[int], start: int, longest: int) -> int:
    """Return where a window ends: at an edge of row groups, unless the next is too far."""
    place = bisect_right(edges, start + WINDOW)
    if place and edges[place - 1] > start:
        return edges[place - 1]
    if place < len(edges) and edges[place] <= start + longest:
        return edges[place]
    return start + WINDOW


def _is_sorted(offsets: pa.ChunkedArray) -> bool:
    whole = offsets.combine_chunks()
    return bool(pc.all(pc.less_equal(whole[:-1], whole[1:])).as_py())
