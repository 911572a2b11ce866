"""Writes the rows of a frame as data files of a table, by executors, without a commit."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.spark.friendly_errors import RoundFailed, told_in_words
from headrace.spark.tables.table_record import DataFile, local_path
from headrace.spark.worker.copy import COPIED, copier
from headrace.spark.worker.files import OURS, WRITTEN, writer
from headrace.spark.worker.read import Span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write_files(frame: "DataFrame", schema: pa.Schema, table: str) -> list[DataFile]:
    """Compute the rows once and write them. RoundFailed may leave uncommitted files."""
    # Spark would parse a dot or a backtick in a name as syntax.
    plain = frame.toDF(*(f"column{place}" for place in range(len(schema))))
    write = writer(local_path(table), schema.serialize().to_pybytes())
    with told_in_words():
        found = plain.mapInArrow(write, WRITTEN).collect()
    return [DataFile(row.path, row.size, row.row_count, row.stats) for row in found]


def copy_files(
    spark: "SparkSession", spans: Sequence[Span], schema: pa.Schema, table: str
) -> list[DataFile]:
    """Copy rows of a topic, as they are. RoundFailed: files may be left, in no commit."""
    if not spans:
        return []
    copy = copier(spans, local_path(table), schema.serialize().to_pybytes())
    tasks = spark.range(0, len(spans), 1, len(spans))
    with told_in_words():
        found = tasks.mapInArrow(copy, COPIED).collect()
    counts = Counter[int]()
    for row in found:
        counts[row.task] += row.row_count
    for number, span in enumerate(spans):
        if counts[number] != span.row_count:
            raise RoundFailed(
                f"the task for rows {span.start} to {span.end - 1} of partition "
                f"{span.partition} of {span.topic} wrote {counts[number]} rows, "
                f"expected {span.row_count}",
                hint="Nothing was committed. Run the pipeline again",
            )
    return [DataFile(row.path, row.size, row.row_count, row.stats) for row in found]


def orphans_of(table: str, age_seconds: float) -> list[Path]:
    """Return our files that the table's log never listed and that are old enough.

    A driver may be about to commit a young file.
    """
    root = Path(table)
    named = _named(root)
    oldest = time.time() - age_seconds
    return sorted(
        path
        for path in root.iterdir()
        if OURS.fullmatch(path.name)
        and path.name not in named
        and path.stat().st_mtime <= oldest
    )


def _named(root: Path) -> set[str]:
    """Return every file that the log lists, in its entries or in the table's state."""
    from headrace.spark.tables.table_record import table_at

    found = {Path(uri).name for uri in table_at(str(root)).file_uris()}
    for entry in sorted((root / "_delta_log").glob("*.json")):
        for line in entry.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            for kind in ("add", "remove"):
                if kind in action:
                    found.add(Path(action[kind]["path"]).name)
    return found
