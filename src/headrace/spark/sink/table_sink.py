"""Writes a stateful query to a Delta table: `foreachBatch(headrace.spark.table_writer(…))`.

Windows, joins and the like keep state in Spark's checkpointLocation, so there are two
checkpoints, and each batch is in both. The steps of a batch, and what a crash after each one
leaves:

    look       which batches the table has              nothing has changed
    write      files by executors, synced; their tasks  uncommitted files; Spark repeats the
               store the query's state, too             batch
    commit     files and the batch's number, atomically the rows are in, once; Spark repeats the
                                                        batch, which adds nothing
    return     Spark marks the batch as done            the next batch follows

A repeated batch is recomputed, for its state and its watermark, but not written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import BadRequest, Unavailable
from headrace.model.namespace import check_name
from headrace.model.units import parse_size
from headrace.spark.sink.foreach_batch import Moment, entry_of, moment_of, only_frame
from headrace.spark.source.delta_scan import deltalake_needed

with deltalake_needed():
    from headrace.spark.cluster_check import refuse_unseen
    from headrace.spark.friendly_errors import told_in_words
    from headrace.spark.stores.location import Location, location_of
    from headrace.spark.tables.compaction import FILES_MIN, compact
    from headrace.spark.tables.query_record import Query, begin, look
    from headrace.spark.tables.table_columns import file_columns, new_columns, refuse_twins
    from headrace.spark.tables.table_files import write_files
    from headrace.spark.tables.table_record import DataFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS: Final = "rows"  # the setting that errors of columns name
_TRIES_MAX: Final = 20  # commits that may be lost to other writers


def table_writer(
    path: str | Path,
    *,
    name: str,
    file_size: str = "128MiB",
    store: Mapping[str, object] | None = None,
) -> "Callable[[DataFrame, int], None]":
    """Return a function for `foreachBatch` that adds each batch to a Delta table, exactly once.

    The table is at a path that all executors can access, or at a URL such as
    s3://bucket/orders; `store` has the settings of that store, such as its endpoint. The first
    batch creates the table, which records the query by `name` and by Spark's id from the
    checkpointLocation. With another checkpointLocation it is another query and is refused.
    Small files are compacted up to `file_size`; "0" disables that.
    """
    location = location_of(str(path), store)
    return _TableWriter(location, check_name("query", name), parse_size(file_size))


@dataclass(slots=True)
class _TableWriter:
    location: Location
    name: str
    file_size: int
    unlooked: int = FILES_MIN  # files since the last search for small ones; unknown at first
    is_seen: bool = False  # the path, by driver and executors

    def __call__(self, rows: "DataFrame", batch_id: int) -> None:
        """Add one batch. Spark's driver calls it once per execution of a batch."""
        now = moment_of(rows, batch_id)
        if now is None:
            raise BadRequest(
                "these rows do not belong to a streaming query",
                hint="Call it inside foreachBatch; for other rows use write_deltalake",
            )
        hint = "Union the frames, or write each to its own table"
        url = self.location.url
        target = str(Path(url).resolve()) if self.location.is_path else url
        with only_frame(target, now, name=url, hint=hint):
            self._add(rows, now)

    def _add(self, rows: "DataFrame", now: Moment) -> None:
        if not self.is_seen:
            refuse_unseen(rows.sparkSession, self.location.url)
            self.is_seen = True
        query, entry = Query.called(self.name, now.query), entry_of(rows, now)
        refuse_twins(rows.schema, _ROWS)
        schema = file_columns(rows.schema, _ROWS)
        batches = begin(self.location, query, now.batch, schema)
        files: dict[int, list[DataFile]] = {}  # by number of the commit that they follow
        if not batches.is_new(now.batch, entry):
            batches.record.settle()
            with told_in_words():
                rows.write.format("noop").mode("overwrite").save()
            return
        for _ in range(_TRIES_MAX):
            new, base = new_columns(batches.record.table, schema), batches.record.number
            if new.names:
                batches.record.widen(new)
            else:
                if base not in files:  # they can enter after that commit only
                    files = {base: write_files(rows, batches.record.writing(schema))}
                if batches.commit(files[base], now.batch, entry):
                    self._compact(query, now, len(files[base]))
                    return
            batches = look(self.location, query, now.batch)
            if not batches.is_new(now.batch, entry):  # by another driver of this query
                batches.record.settle()
                return
        raise Unavailable(
            f"lost {_TRIES_MAX} commits to the table at {self.location.url} to other writers",
            hint="Restart the query: it resumes with this batch",
        )

    def _compact(self, query: Query, now: Moment, file_count: int) -> None:
        self.unlooked += file_count
        if self.file_size and self.unlooked >= FILES_MIN:
            self.unlooked = 0
            compact(look(self.location, query, now.batch + 1).record, self.file_size)
