"""Copies rows of a topic into data files of a table, in the Python worker that reads them.

Spark schedules the tasks and tries them again; no row crosses the JVM.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from headrace.spark.worker.files import WRITTEN, WRITTEN_SCHEMA, Writing, files
from headrace.spark.worker.plain import plain_rows
from headrace.spark.worker.read import Span, gathered, rows_of

# What a task returns for each file, as Spark's DDL.
COPIED: Final = f"task bigint, {WRITTEN}"
_LEFT_OUT: Final = ["_timestamp"]
_SCHEMA: Final = pa.schema([("task", pa.int64()), *WRITTEN_SCHEMA])


def copier(
    spans: Sequence[Span], writing: Writing
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for `mapInArrow` over numbers of spans, which writes their rows.

    The columns of a span, without the timestamp, are those of the schema, in its order,
    whatever they are called.
    """

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = (
                    # Gathered: an entry of one row takes more memory than its bytes.
                    each.drop_columns(_LEFT_OUT)
                    for each in gathered(rows_of(spans[number]))
                )
                written = files(writing, rows)
                yield from (_of_task(number, each) for each in plain_rows(written))

    return copy


def _of_task(number: int, written: pa.RecordBatch) -> pa.RecordBatch:
    tasks = pa.array([number] * written.num_rows, pa.int64())
    return pa.RecordBatch.from_arrays([tasks, *written.columns], schema=_SCHEMA)
