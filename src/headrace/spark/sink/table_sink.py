"""From a query with state into a Delta table: `foreachBatch(headrace.spark.table_writer(…))`.

Windows, joins and the like need Spark's checkpointLocation for their state, so there are two
checkpoints, and each batch is in both. One batch, and what is there after a crash behind each
step:

    look       which batches the table has              nothing has changed
    write      files by executors, synced; their tasks  files that are in no commit; Spark
               store the query's state, too             repeats the batch
    commit     files and the batch's number, or neither the rows are there, once; Spark repeats
                                                        the batch, which adds nothing
    return     Spark notes the batch as done            the next batch is next

A batch that is repeated is computed again, for its state and its watermark, and not written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import BadRequest, Unavailable
from headrace.model.namespace import check_name
from headrace.model.units import parse_size
from headrace.spark.sink.foreach_batch import Moment, entry_of, moment_of, only_frame
from headrace.spark.source.delta_scan import deltalake_needed

with deltalake_needed():
    from headrace.spark.friendly_errors import told_in_words
    from headrace.spark.tables.compaction import FILES_MIN, compact
    from headrace.spark.tables.query_record import Batches, Query, begin, look
    from headrace.spark.tables.table_columns import file_columns, new_columns, refuse_twins
    from headrace.spark.tables.table_files import write_files
    from headrace.spark.tables.table_record import local_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_ROWS: Final = "rows"  # what a flaw of their columns is told as
_TRIES_MAX: Final = 20  # commits that others may be faster with


def table_writer(
    path: str | Path, *, name: str, file_size: str = "128MiB"
) -> "Callable[[DataFrame, int], None]":
    """Return what `foreachBatch` calls: it adds each batch to a Delta table, exactly once.

    The table is made with the first batch, and knows the query by `name` and by Spark's id of
    it, which a checkpointLocation keeps: with another one it is another query, and refused.
    Small files are put together up to `file_size`; "0" for never.
    """
    text = local_path(str(path))
    if "://" in text:
        raise BadRequest(
            f"{text} is on no local disk", hint="Name a directory that all executors see"
        )
    return _TableWriter(
        str(Path(text).absolute()), check_name("query", name), parse_size(file_size)
    )


@dataclass(slots=True)
class _TableWriter:
    path: str
    name: str
    file_size: int
    unlooked: int = FILES_MIN  # files since a look for small ones; at first, who knows

    def __call__(self, rows: "DataFrame", batch_id: int) -> None:
        """Add one batch. Spark's driver calls it, once for each time that it plays a batch."""
        now = moment_of(rows, batch_id)
        if now is None:
            raise BadRequest(
                "these rows are of no streaming query",
                hint="Use it in foreachBatch; for other rows there is write_deltalake",
            )
        hint = "Union the frames, or write each into a table of its own"
        with only_frame(str(Path(self.path).resolve()), now, name=self.path, hint=hint):
            self._add(rows, now)

    def _add(self, rows: "DataFrame", now: Moment) -> None:
        query, entry = Query.called(self.name, now.query), entry_of(rows, now)
        refuse_twins(rows.schema, _ROWS)
        schema = file_columns(rows.schema, _ROWS)
        batches = begin(self.path, query, now.batch, schema)
        if not batches.is_new(now.batch, entry):
            batches.record.settle()
            with told_in_words():
                rows.write.format("noop").mode("overwrite").save()
            return
        new_columns(batches.record.table, schema)  # which raises before anything is written
        files = write_files(rows, schema, self.path)
        for _ in range(_TRIES_MAX):
            if self._widened(batches, schema) and batches.commit(files, now.batch, entry):
                self._compact(query, now, len(files))
                return
            batches = look(self.path, query, now.batch)
            if not batches.is_new(now.batch, entry):  # by another driver of this query
                batches.record.settle()
                return
        raise Unavailable(
            f"others were faster with {_TRIES_MAX} commits to the table at {self.path}",
            hint="Start the query again: it goes on with this batch",
        )

    def _widened(self, batches: Batches, schema: "pa.Schema") -> bool:
        """Have the table fit the rows. False: look at it again."""
        new = new_columns(batches.record.table, schema)
        if not new.names:
            return True
        batches.record.widen(new)
        return False

    def _compact(self, query: Query, now: Moment, file_count: int) -> None:
        self.unlooked += file_count
        if self.file_size and self.unlooked >= FILES_MIN:
            self.unlooked = 0
            compact(look(self.path, query, now.batch + 1).record, self.file_size)
