"""The part of a batch that Spark's own Parquet scan reads: rows of sealed segments.

In each partition it is the rows before some offset; the source reads those from there on. A
segment in which a column has another type than in the batch, such as a narrower one from before
the column was widened, ends the part: Spark may refuse it.
"""

import re
import secrets
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import PySparkException

from headrace.client.read.lease import LeasedFile, LeasedPartition
from headrace.errors import Unavailable, first_line
from headrace.model.projection import Projection
from headrace.spark.friendly_errors import RoundFailed
from headrace.spark.source.data_source import spark_schema
from headrace.spark.source.segment_scan import UNSEEN, scan, seen_formats
from headrace.spark.spark_session import copied

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    import headrace
    from headrace.client.sync_lease import Lease

# Below the first, and above the second, rows come sooner through the source.
SIZE_MIN: Final = 64 * 1024 * 1024  # of the sealed rows of a range
READ_MAX: Final = 2.0  # rows that the files have, per row of the range
_SPLITS: Final = "spark.sql.files.minPartitionNum"
_UNREAD: Final = re.compile(r"\[FAILED_READ_FILE[^\n]*")

Places = Mapping[int, int]


class ScanFailed(Unavailable):
    """A round failed by its scan alone, and is repeated."""


@dataclass(frozen=True, slots=True)
class BatchScan:
    """Scanned rows of a batch: those before `ends` in each partition."""

    rows: "DataFrame"
    ends: Places
    files: Sequence[LeasedFile]
    lease: "Lease"
    mark: str  # unique

    def unread(self, error: BaseException | None) -> str | None:
        """Return what Spark says of one of the files that it could not read, if it says so."""
        found = _UNREAD.search(str(error))
        if found is None or not any(PurePath(one.path).name in found[0] for one in self.files):
            return None
        return found[0]


@dataclass(slots=True)
class BatchScans:
    """The scans of one run, and what it knows of the segments."""

    flaw: str = ""  # why the source reads all rows for the rest of the run
    _formats: dict[LeasedFile, int] = field(default_factory=dict)  # of files that were seen
    _session: "SparkSession | None" = None

    def is_worth(
        self, starts: Places, ends: Places, bounds: "Mapping[int, headrace.Bounds]"
    ) -> bool:
        """Whether a range has enough sealed rows to justify a lease and a look at files."""
        sizes = (_sealed_size(bounds[n], starts[n], end) for n, end in ends.items())
        return not self.flaw and sum(sizes) >= SIZE_MIN

    def scan(
        self,
        spark: "SparkSession",
        lease: "Lease",
        schema: "StructType",
        ranges: Mapping[int, tuple[int, int]],
        task_count_min: int,
    ) -> BatchScan | None:
        """Return the rows of these ranges that can be scanned, if there are any."""
        versions = _versions(lease, schema)
        cuts = {
            each.partition: _scannable(each, *ranges[each.partition], versions)
            for each in lease.partitions
            if each.partition in ranges
        }
        files = [file for own in cuts.values() for file in own]
        ends = {number: start for number, (start, _) in ranges.items()}
        ends |= {n: min(own[-1].end, ranges[n][1]) for n, own in cuts.items() if own}
        row_count = sum(end - ranges[number][0] for number, end in ends.items())
        if sum(file.end - file.start for file in files) > READ_MAX * row_count:
            return None
        formats = self._seen(spark, lease, files)
        if not formats:
            return None
        mark, session = secrets.token_hex(8), self._split(spark, task_count_min)
        by_form: dict[int, list[LeasedFile]] = {}
        for file in files:
            by_form.setdefault(formats[file], []).append(file)
        try:
            parts = [scan(session, own, form, schema, mark) for form, own in by_form.items()]
        except PySparkException as error:  # the driver lists the files
            self._give_up(lease, first_line(error))
            return None
        rows = reduce(lambda one, other: one.union(other), parts)
        for number, own in cuts.items():
            rows = _cut(rows, number, own, ranges[number][0], ends[number])
        return BatchScan(rows, ends, files, lease, mark)

    def judge(self, error: RoundFailed, batch: BatchScan) -> None:
        """Raise ScanFailed if a round failed because Spark could not read a segment.

        The node has its rows, or names the damage.
        """
        unread = batch.unread(error.__cause__)
        if unread is not None:
            self._give_up(batch.lease, unread)
            raise ScanFailed(self.flaw) from error

    def _seen(
        self, spark: "SparkSession", lease: "Lease", files: Sequence[LeasedFile]
    ) -> dict[LeasedFile, int]:
        """Return the formats of files, after a look at those that are new; none if flawed."""
        new = [file for file in files if file not in self._formats]
        # With all bytes: a minimum that rotted in a footer would hide rows from a filter.
        found = seen_formats(spark, new, lease.view.schemas, is_whole=True) if new else {}
        if isinstance(found, str):
            self._give_up(lease, found)
            return {}
        # Without files of earlier rounds, which do not come again.
        self._formats = {file: self._formats.get(file) or found[file] for file in files}
        return self._formats

    def _give_up(self, lease: "Lease", flaw: str) -> None:
        """Have the source read all rows from here on, unless it is the lease that was lost."""
        refuse_lost(lease)
        self.flaw = UNSEEN.format(lease.view.name, flaw)
        warnings.warn(self.flaw, stacklevel=2)

    def _split(self, spark: "SparkSession", task_count_min: int) -> "SparkSession":
        """Return a session whose scans have so many tasks at least, as long as files last."""
        if not task_count_min:
            return spark
        if self._session is None:
            self._session = copied(spark)
            self._session.conf.set(_SPLITS, task_count_min)
        return self._session


def refuse_lost(lease: "Lease | None") -> None:
    """Raise ScanFailed if segments may have been deleted under a scan."""
    if lease is not None and lease.lost is not None:
        name = lease.view.name
        raise ScanFailed(f"the node dropped the lease on {name}: {lease.lost}") from lease.lost


def with_nulls_of(schema: pa.Schema, seen: pa.Schema) -> pa.Schema:
    """Return columns with the nullability that they have without a scan.

    A scan takes all fields inside structs, lists and maps as nullable, so that what a transform
    makes of them may be declared nullable, too.
    """
    nullable = {each.name: each.nullable for each in seen}
    return pa.schema(
        [each.with_nullable(nullable.get(each.name, each.nullable)) for each in schema]
    )


def _sealed_size(bounds: "headrace.Bounds", start: int, end: int) -> float:
    """Return about how many bytes the sealed rows of a range have."""
    row_count = min(end, bounds.sealed_end) - start
    return max(row_count, 0) * bounds.size / max(bounds.row_count, 1)


def _versions(lease: "Lease", schema: "StructType") -> frozenset[int]:
    """Return the schema versions whose segments a scan reads as they are."""
    kinds = {field.name: field.dataType for field in schema}
    found = []
    for version, user in lease.view.schemas.items():
        stored = spark_schema(Projection.of(user, None).schema)
        if all(kinds.get(one.name, one.dataType) == one.dataType for one in stored):
            found.append(version)
    return frozenset(found)


def _scannable(
    each: LeasedPartition, start: int, end: int, versions: frozenset[int]
) -> list[LeasedFile]:
    """Return the segments that a scan of a range reads, from its start on and without a gap."""
    found = []
    for file in each.files if each.first <= start < end else ():
        if file.end <= start:
            continue
        is_known = file.version in versions and file.digest is not None
        if file.start >= end or not is_known:
            break
        found.append(file)
    return found


def _cut(
    rows: "DataFrame", number: int, files: Sequence[LeasedFile], start: int, end: int
) -> "DataFrame":
    """Leave out the rows of a partition that its files have around a range."""
    if not files or (start <= files[0].start and files[-1].end <= end):
        return rows
    is_in = (rows["_offset"] >= start) & (rows["_offset"] < end)
    return rows.where((rows["_partition"] != number) | is_in)
