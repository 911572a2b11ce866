"""Writes the rows of a frame as data files of a table, by executors, without a commit."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from headrace.spark.friendly_errors import RoundFailed, told_in_words
from headrace.spark.tables.table_record import DataFile
from headrace.spark.worker.copy import COPIED, CopyPart, copier
from headrace.spark.worker.files import WRITTEN, Writing, writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write_files(frame: "DataFrame", writing: Writing) -> list[DataFile]:
    """Compute the rows once and write them. RoundFailed may leave uncommitted files."""
    # Spark would parse a dot or a backtick in a name as syntax.
    plain = frame.toDF(*(f"column{place}" for place in range(len(writing.columns))))
    with told_in_words():
        found = plain.mapInArrow(writer(writing), WRITTEN).collect()
    return [DataFile(row.path, row.size, row.row_count, row.stats) for row in found]


def copy_files(
    spark: "SparkSession", tasks: Sequence[Sequence[CopyPart]], writing: Writing
) -> list[DataFile]:
    """Copy rows of a topic, as they are. RoundFailed: files may be left, in no commit."""
    if not tasks:
        return []
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    with told_in_words():
        found = numbers.mapInArrow(copier(tasks, writing), COPIED).collect()
    counts = Counter[int]()
    for row in found:
        counts[row.part] += row.row_count
    for part in chain.from_iterable(tasks):
        span = part.span
        if counts[part.number] != span.row_count:
            raise RoundFailed(
                f"the task for rows {span.start} to {span.end - 1} of partition "
                f"{span.partition} of {span.topic} wrote {counts[part.number]} rows, "
                f"expected {span.row_count}",
                hint="Nothing was committed. Run the pipeline again",
            )
    return [
        DataFile(row.path, row.size, row.row_count, row.stats, row.is_segment) for row in found
    ]
