"""Reads a segment: no row leaves it before its bytes were checked.

`open_segment` verifies the whole file before it parses any of it, and keeps a sum of each
block: later corruption is found by these at each read. Page checksums are verified too; they
are written with the rows, before any digest, but do not cover page headers. Every failure is a
`CorruptSegment`.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.errors import BadRequest, CorruptSegment, first_line
from headrace.model.ids import Offset
from headrace.model.row_digest import RowDigest
from headrace.model.schema import (
    NO_NAN_KEY,
    SEGMENT_FORMAT_FIRST,
    SYSTEM_FIELDS,
    leaves_without_nan,
    parquet_schema,
    stored_name,
)
from headrace.partition.segments.row_group_cache import RowGroupCache
from headrace.partition.segments.segment import (
    OFFSET,
    ROW_DIGEST_KEY,
    TIMESTAMP,
    Digests,
    SegmentInfo,
    columns_text,
    format_of,
    identity,
    is_dense,
    retyped,
    rows_schema_of,
    segment_schema,
)
from headrace.storage.seam import Storage
from headrace.storage.stream import Pace, ReadStream, Sums, sums_of, unpaced

_TIMESTAMP_TYPE = SYSTEM_FIELDS[2].type
_TIMESTAMP_LEAF = 2  # the system's columns have no children: leaf and column are the same
_REPEATING_SIZE_MAX = 2  # bytes of a value: a place in the dictionary, and its share of that
_TIMESTAMP_MIN, _TIMESTAMP_MAX = -(2**63), 2**63 - 1


@dataclass(slots=True, eq=False)
class SegmentFile:
    """An open segment whose bytes were intact when it was opened. Any thread may read it."""

    info: SegmentInfo
    digests: Digests
    schema: pa.Schema  # as sealed: the system's columns, then the user's
    format: int  # of the file: it names and numbers its columns otherwise
    _storage: Storage
    _sums: Sums  # of the file when it was verified
    _metadata: pq.FileMetaData
    _bounds: list[Offset]  # the first offset of each row group, and the end
    groups: RowGroupCache = field(
        default_factory=RowGroupCache
    )  # decoded, and not read to their end
    _repeating: list[str] | None = None  # see `repeating`; None: not known yet

    def read(
        self, start: Offset, end: Offset, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows [start, end), within the segment, a row group at a time.

        `columns` are names, including the system's; None means all of them.
        """
        assert self.info.first <= start <= end <= self.info.end
        names = self.schema.names if columns is None else list(columns)
        for name in names:
            if name not in self.schema.names:
                raise BadRequest(
                    f"there is no column {name!r}",
                    hint=f"Choose from {', '.join(self.schema.names)}",
                )
        return self._read(start, end, names)

    def offset_at(self, timestamp_us: int) -> Offset:
        """Return the first offset whose timestamp is not before `timestamp_us`, or the end."""
        if timestamp_us > _TIMESTAMP_MAX:
            return self.info.end
        wanted = pa.scalar(max(timestamp_us, _TIMESTAMP_MIN), _TIMESTAMP_TYPE)
        reader = self._reader()
        for group in range(len(self._bounds) - 1):
            if self._is_before(group, timestamp_us):
                continue
            for batch in self._decode(reader, group, [OFFSET, TIMESTAMP]):
                late_enough = pc.greater_equal(batch.column(TIMESTAMP), wanted)
                index = pc.index(late_enough, True).as_py()
                if index >= 0:
                    return Offset(batch.column(OFFSET)[index].as_py())
        return self.info.end

    def check_rows(self, pace: Pace = unpaced) -> None:
        """Check every row against the row digest, and what the footer says of NaN."""
        digest = RowDigest(self.schema)
        reader = self._reader()
        for group in range(len(self._bounds) - 1):
            for batch in self._decode(reader, group, self.schema.names):
                digest.update(batch)
            pace(self.digests.size // (len(self._bounds) - 1))
        _expect(self._storage.path, "row digest", self.digests.rows, digest.digest())
        if self.format > SEGMENT_FORMAT_FIRST:
            said = sorted(leaves_without_nan(self._metadata.metadata))
            _expect(self._storage.path, NO_NAN_KEY, digest.leaves_without_nan(), said)

    def check_columns(self) -> None:
        """Check names, types and IDs of the columns in Parquet's own schema."""
        expected = parquet_schema(self.schema, self.format)
        if not self._metadata.schema.equals(expected):
            raise CorruptSegment(
                "other columns in the file",
                path=self._storage.path,
                expected=str(expected),
                found=str(self._metadata.schema),
            )

    def close(self) -> None:
        """Close the storage too."""
        self._storage.close()

    def _read(self, start: Offset, end: Offset, names: list[str]) -> Iterator[pa.RecordBatch]:
        if start == end:
            return
        group = bisect_right(self._bounds, start) - 1
        while self._bounds[group] < end:
            key, base = (self.digests.file, group, tuple(names)), self._bounds[group]
            rows = self.groups.take(key) or list(self._decode(self._reader(), group, names))
            try:
                yield from _between(rows, start - base, end - base)
            except GeneratorExit:  # the answer is full: the reader may come back for the rest
                self.groups.keep(key, rows)
                raise
            group += 1

    def _reader(self) -> pq.ParquetFile:
        if self._repeating is None:
            self._repeating = repeating(self._metadata)
        try:
            return open_parquet(self._storage, self._sums, self._metadata, self._repeating)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self._storage.path, error) from error

    def _decode(
        self,
        reader: pq.ParquetFile,
        group: int,
        names: list[str],
    ) -> Iterator[pa.RecordBatch]:
        """Return the columns `names` of a row group. Its offsets are always checked."""
        wanted = list(dict.fromkeys([OFFSET, *names]))
        schema = pa.schema([self.schema.field(name) for name in wanted])
        try:
            stored = [stored_name(name, self.format) for name in wanted]
            table = reader.read_row_group(group, columns=stored, use_threads=False)
            batches = [retyped(batch, schema, self.format) for batch in table.to_batches()]
        except pa.ArrowMemoryError:
            raise  # the bytes were checked: this node is out of memory, the file is intact
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self._storage.path, error, group) from error
        self._check_offsets(group, batches)
        for batch in batches:
            yield batch.select(names)

    def _check_offsets(self, group: int, batches: list[pa.RecordBatch]) -> None:
        offset, end = self._bounds[group], self._bounds[group + 1]
        for batch in batches:
            if not is_dense(batch.column(OFFSET), offset):
                raise CorruptSegment(
                    f"its offsets are not consecutive from {offset}",
                    path=self._storage.path,
                    row_group=group,
                )
            offset = Offset(offset + batch.num_rows)
        _expect(self._storage.path, "end", end, offset, group)

    def _is_before(self, group: int, timestamp_us: int) -> bool:
        """Whether all of a row group is before a time, by the footer alone."""
        statistics = self._metadata.row_group(group).column(_TIMESTAMP_LEAF).statistics
        if statistics is None or not statistics.has_min_max:
            return False
        return bool(statistics.max_raw < timestamp_us)


def _between(rows: list[pa.RecordBatch], start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Return the rows [start, end) of a group, counted from its first."""
    before = 0
    for batch in rows:
        first, last = max(start - before, 0), min(end - before, batch.num_rows)
        if first < last:
            yield batch.slice(first, last - first)
        before += batch.num_rows


def open_segment(
    storage: Storage, info: SegmentInfo, digests: Digests, pace: Pace = unpaced
) -> SegmentFile:
    """Return the segment in `storage`, with every byte checked and its identity that of `info`.

    The segment closes the storage; after an error the caller must.
    """
    path = storage.path
    sums = _check_bytes(storage, digests, pace)
    try:
        metadata = open_parquet(storage, sums).metadata
        found = metadata.metadata or {}
        form = format_of(found, path)
        schema = rows_schema_of(found, form)
        counts = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise _unreadable(path, error) from error
    _check_identity(path, {**identity(info, form), ROW_DIGEST_KEY: digests.rows.hex()}, found)
    system = columns_text(list(schema)[: len(SYSTEM_FIELDS)])
    _expect(path, "system columns", columns_text(SYSTEM_FIELDS), system)
    _expect(path, "row count", info.row_count, sum(counts))
    bounds = [Offset(offset) for offset in accumulate(counts, initial=int(info.first))]
    return SegmentFile(info, digests, schema, form, storage, sums, metadata, bounds)


def read_back(storage: Storage, info: SegmentInfo, schema: pa.Schema, written: Digests) -> None:
    """Check that the file reads back as written; CorruptSegment on any difference.

    The bytes come from the kernel: only a sync proves that the disk has them.
    """
    file = open_segment(storage, info, written)
    expected = segment_schema(schema)
    if not file.schema.equals(expected):
        raise CorruptSegment(
            "another schema",
            path=storage.path,
            expected=columns_text(expected),
            found=columns_text(file.schema),
        )
    file.check_columns()
    file.check_rows()


def repeating(metadata: pq.FileMetaData) -> list[str]:
    """Return the columns of strings or bytes that are stored as places in a short dictionary.

    To decode the places, and then copy the values, takes Arrow two thirds of the time in which
    it decodes the values. It would build any longer dictionary itself, by hashing.
    """
    schema, groups = metadata.schema, range(metadata.num_row_groups)
    return [
        schema.column(place).path
        for place in range(metadata.num_columns)
        if schema.column(place).physical_type == "BYTE_ARRAY"
        and schema.column(place).path == schema.column(place).name  # not within another
        and all(_is_short(metadata.row_group(group).column(place)) for group in groups)
    ]


def _is_short(chunk: pq.ColumnChunkMetaData) -> bool:
    return bool(chunk.total_uncompressed_size < _REPEATING_SIZE_MAX * chunk.num_values)


def open_parquet(
    storage: Storage,
    sums: Sums | None = None,
    metadata: pq.FileMetaData | None = None,
    dictionaries: Sequence[str] = (),
) -> pq.ParquetFile:
    """Open it without a background buffer: the caller's own thread reads every byte.

    The columns in `dictionaries` are returned as places in a dictionary.
    """
    return pq.ParquetFile(
        pa.PythonFile(ReadStream(storage, sums), mode="r"),
        metadata=metadata,
        read_dictionary=list(dictionaries),
        pre_buffer=False,
        page_checksum_verification=True,
    )


def _check_bytes(storage: Storage, digests: Digests, pace: Pace) -> Sums:
    try:
        size = storage.size()
        _expect(storage.path, "size", digests.size, size)
        sums = sums_of(storage, pace)
    except OSError as error:
        raise _unreadable(storage.path, error) from error
    _expect(storage.path, "file digest", digests.file, sums.digest)
    return sums


def _check_identity(path: str, expected: dict[str, str], found: dict[bytes, bytes]) -> None:
    for key, value in expected.items():
        text = found.get(key.encode(), b"").decode("utf-8", "replace")
        _expect(path, key, value, text or "nothing")


def _expect(
    path: str, what: str, expected: object, found: object, row_group: int | None = None
) -> None:
    if found != expected:
        raise CorruptSegment(
            f"another {what}",
            path=path,
            row_group=row_group,
            expected=_shown(expected),
            found=_shown(found),
        )


def _shown(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value


def _unreadable(path: str, error: Exception, row_group: int | None = None) -> CorruptSegment:
    return CorruptSegment(
        f"cannot be read: {first_line(error)}", path=path, row_group=row_group
    )
