"""The rows of a frame as data files of a table: written by executors, and in no commit yet."""

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.spark.failures import told_in_words
from headrace.spark.record import DataFile, local_path
from headrace.spark.worker.files import WRITTEN, writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_files(frame: "DataFrame", schema: pa.Schema, table: str) -> list[DataFile]:
    """Compute the rows once, and write them. RoundFailed: files may be left, in no commit."""
    # Spark would take a dot or a backtick in a name for its own syntax.
    plain = frame.toDF(*(f"column{place}" for place in range(len(schema))))
    write = writer(local_path(table), schema.serialize().to_pybytes())
    with told_in_words():
        found = plain.mapInArrow(write, WRITTEN).collect()
    return [DataFile(row.path, row.size, row.row_count, row.stats) for row in found]
