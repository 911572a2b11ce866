"""Checks whether a segment is intact, and if not, which of its rows can still be proven.

Its file digest proves an intact file. In a damaged one a row group counts only if it decodes
with correct page checksums, has its offsets, and yields exactly the same bytes when written
again: page checksums do not cover page headers, and a wrong header silently changes rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.doctor.look.readonly import ReadonlyDirectory
from headrace.errors import Corrupt, CorruptSegment, first_line
from headrace.model.schema import decode_schema, stored_name, stored_schema
from headrace.partition.segments.segment import (
    OFFSET,
    ROW_DIGEST_KEY,
    Digests,
    SegmentInfo,
    format_of,
    identity,
    is_dense,
    retyped,
    rows_schema_of,
    segment_schema,
)
from headrace.partition.segments.segment_reader import open_parquet, open_segment
from headrace.partition.segments.segment_writer import leaves, writer_settings
from headrace.storage.seam import Storage
from headrace.storage.stream import whole_digest

MAGIC: Final = b"PAR1"
_FOOTER_SIZE_MAX: Final = 16 * 1024 * 1024  # far above the widest schema's


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """One segment to check: its expected place and content."""

    directory: str
    name: str
    info: SegmentInfo
    digests: Digests
    schema: bytes  # of the user's columns, as an Arrow message


@dataclass(frozen=True, slots=True)
class BadGroup:
    """A row group that cannot be proven, and where its bytes are."""

    number: int
    start: int  # offsets
    end: int
    position: int | None  # of the first bad column's bytes
    flaw: str


@dataclass(frozen=True, slots=True)
class SegmentState:
    """The result of checking a segment."""

    name: str
    flaw: str = ""  # empty: every byte and every row is correct
    is_gone: bool = False
    bad: tuple[BadGroup, ...] = ()  # if others can be proven; otherwise no row can be read
    readable: tuple[tuple[int, int], ...] = ()  # ranges of offsets

    @property
    def is_whole(self) -> bool:
        return not self.flaw


def check_segment(task: SegmentTask) -> SegmentState:
    """Check every byte and every row. Runs in a child process."""
    info = task.info
    try:
        storage = ReadonlyDirectory(task.directory).open(task.name)
    except FileNotFoundError:
        return SegmentState(task.name, "the file is missing", is_gone=True)
    except OSError as error:
        return SegmentState(task.name, f"cannot be opened: {error.strerror}")
    try:
        open_segment(storage, info, task.digests).check_rows()
        return SegmentState(task.name, "", readable=((info.first, info.end),))
    except Corrupt as error:
        flaw = error.args[0].split(": ", 1)[-1]
        return _partly(task, storage, flaw)
    finally:
        storage.close()


def _partly(task: SegmentTask, storage: Storage, flaw: str) -> SegmentState:
    """Find the row groups of a damaged file that can be proven one by one."""
    try:
        ruin = open_ruin(storage, task.info, task.digests.rows, decode_schema(task.schema))
    except Corrupt as error:
        return SegmentState(task.name, f"{flaw}; {error.args[0].split(': ', 1)[-1]}")
    readable: list[tuple[int, int]] = []
    bad: list[BadGroup] = []
    for number in range(ruin.group_count):
        start, end = ruin.bounds[number], ruin.bounds[number + 1]
        try:
            ruin.prove(number)
            readable.append((start, end))
        except CorruptSegment as error:
            why = str(error.args[0]).split(": ", 1)[-1]
            bad.append(BadGroup(number, start, end, error.position, why))
    return SegmentState(task.name, flaw, bad=tuple(bad), readable=tuple(readable))


@dataclass(slots=True)
class DamagedSegment:
    """A damaged segment whose footer can be read and is the expected one."""

    storage: Storage
    format: int
    schema: pa.Schema  # of the rows
    parquet: Any  # a pq.ParquetFile
    bounds: list[int]  # the first offset of each row group, and the end

    @property
    def group_count(self) -> int:
        return len(self.bounds) - 1

    def prove(self, number: int) -> pa.RecordBatch:
        """Return the rows of a row group, or raise with the bad position."""
        batch = self._decoded(number)
        if not is_dense(batch.column(OFFSET), self.bounds[number]):
            raise self._flaw(number, "its offsets are not consecutive", None)
        before = self.parquet.metadata.row_group(number)
        again = _encoded(batch, self.schema, self.format, before)
        after = pq.read_metadata(pa.BufferReader(again)).row_group(0)
        for column in range(before.num_columns):
            start, size = extent(before.column(column))
            at, same = extent(after.column(column))
            data = self.storage.read(start, size)
            if size != same or data != again[at : at + size].to_pybytes():
                name = before.column(column).path_in_schema
                flaw = f"column {name!r} differs from its rows when written again"
                raise self._flaw(number, flaw, start)
        return batch

    def _decoded(self, number: int) -> pa.RecordBatch:
        try:
            table = self.parquet.read_row_group(number, use_threads=False)
            batches = [retyped(one, self.schema, self.format) for one in table.to_batches()]
            return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        except (pa.ArrowException, OSError, IndexError, KeyError) as error:
            why = first_line(error)
            name, position = self._first_bad(number)
            raise self._flaw(number, f"column {name!r}: {why}", position) from error

    def _first_bad(self, number: int) -> tuple[str, int | None]:
        """Find the first column of a row group that does not decode."""
        for field in self.schema:
            stored = stored_name(field.name, self.format)
            try:
                self.parquet.read_row_group(number, columns=[stored], use_threads=False)
            except (pa.ArrowException, OSError):
                group = self.parquet.metadata.row_group(number)
                for column in range(group.num_columns):
                    chunk = group.column(column)
                    if chunk.path_in_schema.split(".")[0] == stored:
                        return field.name, extent(chunk)[0]
        return self.schema.names[0], None

    def _flaw(self, number: int, what: str, position: int | None) -> CorruptSegment:
        error = CorruptSegment(what, path=self.storage.path, row_group=number)
        error.position = position
        return error


def open_ruin(
    storage: Storage, info: SegmentInfo, rows: bytes, schema: pa.Schema
) -> DamagedSegment:
    """Read a footer that no digest vouches for; it must agree with the log."""
    expected = segment_schema(schema)
    path = storage.path
    try:
        parquet = open_parquet(storage)
        metadata = parquet.metadata
        said = metadata.metadata or {}
        form = format_of(said, path)
        found = rows_schema_of(said, form)
        counts = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        why = first_line(error)
        raise CorruptSegment(f"its footer cannot be read ({why})", path=path) from error
    for key, value in {**identity(info, form), ROW_DIGEST_KEY: rows.hex()}.items():
        if said.get(key.encode(), b"").decode("utf-8", "replace") != value:
            raise CorruptSegment(f"its footer has a different {key}", path=path)
    if not found.equals(expected) or sum(counts) != info.row_count:
        raise CorruptSegment("its footer has different columns or rows", path=path)
    bounds = list(accumulate(counts, initial=int(info.first)))
    return DamagedSegment(storage, form, expected, parquet, bounds)


def _encoded(
    batch: pa.RecordBatch,
    schema: pa.Schema,
    form: int,
    before: Any,  # noqa: ANN401 - a pq.RowGroupMetaData
) -> pa.Buffer:
    """Write a row group again, with dictionaries where its footer declares them.

    Which columns have one was chosen by the first row group, and by older releases otherwise.
    If its footer is wrong about that, the bytes differ.
    """
    sink = pa.BufferOutputStream()
    stored = stored_schema(schema, form)
    plain = {
        path
        for number, path in enumerate(leaves(stored))
        if not before.column(number).has_dictionary_page
    }
    with pq.ParquetWriter(sink, stored, **writer_settings(stored, plain, form)) as writer:
        writer.write_batch(batch.rename_columns(stored.names), row_group_size=batch.num_rows)
    return sink.getvalue()


def extent(chunk: Any) -> tuple[int, int]:  # noqa: ANN401 - a pq.ColumnChunkMetaData
    """Return where the bytes of a column are, including page headers."""
    starts = [chunk.data_page_offset]
    if chunk.has_dictionary_page:
        starts.append(chunk.dictionary_page_offset)
    return min(starts), chunk.total_compressed_size


def rows_in(
    storage: Storage, task: SegmentTask, state: SegmentState
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a check found readable, proven again."""
    if state.is_whole:
        whole = open_segment(storage, task.info, task.digests)
        yield from whole.read(task.info.first, task.info.end)
        return
    schema = decode_schema(task.schema)
    ruin = open_ruin(storage, task.info, task.digests.rows, schema)
    for number in range(ruin.group_count):
        if (ruin.bounds[number], ruin.bounds[number + 1]) in state.readable:
            yield ruin.prove(number)


def footer_bytes(storage: Storage) -> bytes | None:
    """Return the footer's bytes, unparsed; None if the file does not end like a segment."""
    try:
        size = storage.size()
        tail = storage.read(max(0, size - 8), 8)
        if len(tail) < 8 or tail[4:] != MAGIC or storage.read(0, 4) != MAGIC:
            return None
        footer_size = int.from_bytes(tail[:4], "little")
        if footer_size > min(size - 12, _FOOTER_SIZE_MAX):
            return None
        return storage.read(size - 8 - footer_size, footer_size)
    except OSError:
        return None


def digest_of(directory: str, name: str) -> bytes | None:
    """Return the file digest of a file, None if it cannot be read."""
    try:
        storage = ReadonlyDirectory(directory).open(name)
    except OSError:
        return None
    try:
        return whole_digest(storage)
    except OSError:
        return None
    finally:
        storage.close()
