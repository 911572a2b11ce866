"""Proves that a table holds what its transform makes of the log, by running it again.

The transformed rows of the recorded ranges and the rows of the table are compared as multisets,
both ways, in the columns that both have with the same type; any other column is named, and then
nothing is claimed. Page checksums of the table are verified. A nondeterministic transform
proves nothing; to tell it from a wrong table, it is run once more and compared with itself.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql.functions import array_sort, map_entries, struct, transform, when
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from headrace.errors import Unavailable
from headrace.spark.friendly_errors import told_in_words
from headrace.spark.pipeline.pipeline import Pipeline
from headrace.spark.prove.prove import (
    Grade,
    MismatchKind,
    Proof,
    measure,
)
from headrace.spark.prove.table_parts import Ranges
from headrace.spark.source.delta_scan import scan
from headrace.spark.tables.data_files import damaged_file, live_files, refuse_missing
from headrace.spark.tables.table_record import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class RecomputeFailed(Unavailable):
    """The transform could not be rerun. Nothing was compared."""


@contextmanager
def _damage_named(record: Record) -> Iterator[None]:
    """Name the damaged data file if Spark cannot read the table."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        files = live_files(record.table)
        refuse_missing(record.location, files)
        damaged = damaged_file(record.location, [one.name for one in files])
        if damaged is None:
            raise
        raise damaged from error


@told_in_words(RecomputeFailed, "Nothing was compared. Fix the cause, then prove again")
def recompute(pipeline: Pipeline, record: Record) -> Proof:
    """Run the transform over the recorded ranges and compare the result with the table."""
    with _damage_named(record):
        return _compare(pipeline, record)


def _compare(pipeline: Pipeline, record: Record) -> Proof:
    proof = Proof(Grade.RECOMPUTE, record.table.version())
    reach = measure(proof, record, pipeline.topic_source.bounds())
    proof.in_log = reach.row_count
    found = _table(pipeline, record)
    proof.in_table = found.count()
    if proof.not_compared:  # which rows of the table came from them is unknown
        proof.grade = Grade.NOT_PROVABLE
        return proof
    wanted = _made(pipeline, reach.retained)
    proof.columns, proof.unlike = _compared(wanted, found)
    if not proof.columns:
        return proof
    chosen = [_quoted(name) for name in proof.columns]
    wanted, found = wanted.select(*chosen), found.select(*chosen)
    proof.counts[MismatchKind.MISSING] = _left(wanted, found)
    proof.counts[MismatchKind.FOREIGN] = _left(found, wanted)
    proof.compared = proof.in_log
    if proof.is_wrong and _left(wanted, _made(pipeline, reach.retained).select(*chosen)):
        proof.grade = Grade.NOT_PROVABLE  # the transform is nondeterministic
    return proof


def _made(pipeline: Pipeline, ranges: Mapping[int, Ranges]) -> "DataFrame":
    """Run the transform over the recorded ranges, in one pass or around skipped ranges."""
    none = {number: each.first for number, each in pipeline.topic_source.bounds().items()}
    pieces = []
    for place in range(max(map(len, ranges.values()), default=0)):
        here = {number: each[place] for number, each in ranges.items() if place < len(each)}
        starts = {number: start for number, (start, _) in here.items()}
        ends = {number: end for number, (_, end) in here.items()}
        pieces.append(pipeline.rows(none | starts, none | ends))
    if not pieces:
        return pipeline.spark.createDataFrame([], pipeline.rows(none, none).schema)
    return reduce(lambda one, other: one.unionByName(other), pieces)


def _table(pipeline: Pipeline, record: Record) -> "DataFrame":
    """Read the table by its file list and schema, not with the code that wrote it."""
    refuse_missing(record.location, live_files(record.table))
    return scan(pipeline.spark, record.location, record.table)


def _compared(
    wanted: "DataFrame", found: "DataFrame"
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns that both have with the same type, and all other columns."""
    ours = {field.name: field.dataType.simpleString() for field in wanted.schema}
    theirs = {field.name: field.dataType.simpleString() for field in found.schema}
    names = [*ours, *(name for name in theirs if name not in ours)]
    alike = tuple(name for name in names if ours.get(name) == theirs.get(name))
    return alike, tuple(name for name in names if name not in alike)


def _left(rows: "DataFrame", others: "DataFrame") -> int:
    """Count the rows that are not among the others, as multisets."""
    return _comparable(rows).exceptAll(_comparable(others)).count()


def _comparable(rows: "DataFrame") -> "DataFrame":
    """Turn maps, which Spark cannot compare, into sorted arrays of entries."""
    return rows.select(
        *(
            _plain(rows[_quoted(field.name)], field.dataType).alias(field.name)
            for field in rows.schema
        )
    )


def _plain(value: Column, kind: DataType) -> Column:
    """Replace the maps in a value, at any depth, by sorted arrays of entries."""
    if not _has_map(kind):
        return value
    if isinstance(kind, MapType):
        inner = kind.valueType  # a key has no map inside
        entries = transform(
            map_entries(value),
            lambda each: struct(each["key"], _plain(each["value"], inner).alias("value")),
        )
        return array_sort(entries)
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return transform(value, lambda each: _plain(each, element))
    assert isinstance(kind, StructType)
    fields = [
        _plain(value.getField(field.name), field.dataType).alias(field.name) for field in kind
    ]
    return when(value.isNotNull(), struct(*fields))


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind)
    return isinstance(kind, MapType)


def _quoted(name: str) -> str:
    """Return a name quoted for Spark."""
    return "`" + name.replace("`", "``") + "`"
