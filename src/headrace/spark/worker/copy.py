"""Copies rows of a topic into data files of a table, in the Python worker that reads them.

Spark schedules the tasks and tries them again; no row crosses the JVM.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from headrace.spark.worker.files import WRITTEN, WRITTEN_SCHEMA, Writing, as_written, files
from headrace.spark.worker.plain import plain_rows
from headrace.spark.worker.read import Span, gathered, rows_of
from headrace.spark.worker.segment_copy import SegmentCopy, copied_segment

# What a task returns for each file, as Spark's DDL.
COPIED: Final = f"part bigint, is_segment boolean, {WRITTEN}"
_LEFT_OUT: Final = ["_timestamp"]
_SCHEMA: Final = pa.schema([("part", pa.int64()), ("is_segment", pa.bool_()), *WRITTEN_SCHEMA])


@dataclass(frozen=True, slots=True)
class CopyPart:
    """A range of rows to copy: those of one segment, or any."""

    number: int
    span: Span
    segment: SegmentCopy | None = None


def copier(
    tasks: Sequence[Sequence[CopyPart]], writing: Writing
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow` over numbers of tasks, which copies their parts.

    The columns of a span, without the timestamp, are those of the schema, in its order,
    whatever they are called.
    """

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for part in tasks[number]:
                    yield from plain_rows(_copied(part, writing))

    return copy


def _copied(part: CopyPart, writing: Writing) -> Iterator[pa.RecordBatch]:
    found = None if part.segment is None else copied_segment(part.segment, writing)
    if found is not None:
        yield _of_part(part, as_written(found), is_segment=True)
        return
    rows = (
        # Gathered: an entry of one row takes more memory than its bytes.
        each.drop_columns(_LEFT_OUT)
        for each in gathered(rows_of(part.span))
    )
    for written in files(writing, rows):
        yield _of_part(part, written, is_segment=False)


def _of_part(part: CopyPart, written: pa.RecordBatch, *, is_segment: bool) -> pa.RecordBatch:
    count = written.num_rows
    own = [pa.array([part.number] * count, pa.int64()), pa.array([is_segment] * count)]
    return pa.RecordBatch.from_arrays([*own, *written.columns], schema=_SCHEMA)
