"""What a Delta table says about the streaming query that fills it: its batches, each once.

To the table a query is a source with one partition, whose rows are its batches (`record.py`):

    txn headrace:<name>                        rises with each commit
    txn headrace:<name>:query <id>:count       1 as soon as a batch is there
    txn headrace:<name>:query <id>:0           the next batch
    txn headrace:<name>:query <id>:0+          the first batch: 0
    txn headrace:<name>:query <id>:entry       what the checkpointLocation said of the newest
    txn headrace:<name>:query <id>:version     of the table, with the newest batch

The id is of the query's checkpointLocation, and the table's property `headrace.<name>` says it.
A query has two checkpoints, so they may disagree, if one was lost, copied or put back. Spark
repeats its newest batch only, and plays the same entry then. Anything else ends the query.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from headrace.errors import BadRequest
from headrace.spark.tables.commit_races import committed
from headrace.spark.tables.restore_check import restore_of
from headrace.spark.tables.table_errors import RecordLost, TableForeign
from headrace.spark.tables.table_features import refuse_unkept
from headrace.spark.tables.table_record import (
    QUERY,
    DataFile,
    LogSource,
    Record,
    create,
    own_table,
    read_record,
)

_BATCHES: Final = 0  # the partition
_ANEW: Final = "begin anew with a new table and a new checkpointLocation"


class TableDisagrees(BadRequest):
    """A table and the checkpointLocation of its query are not of the same moment."""


@dataclass(frozen=True, slots=True)
class Query(LogSource):
    """A streaming query, as what fills a table."""

    @classmethod
    def called(cls, name: str, query: str) -> "Query":
        return cls(pipeline=name, topic="", created=0, cluster=query)

    @property
    def life(self) -> str:
        return f"{QUERY}{self.cluster}"

    @property
    def who(self) -> str:
        return f"query {self.pipeline!r}"

    def of(self, what: int | str) -> str:
        return f"{self.own}:{self.life}:{what}"


@dataclass(frozen=True, slots=True)
class Batches:
    """One look at the table."""

    path: str
    record: Record
    entry: int | None  # digest of the newest batch; None: there is none

    @property
    def next(self) -> int:
        return self.record.ends.get(_BATCHES, 0)

    def is_new(self, batch: int, entry: int) -> bool:
        """Tell whether a batch is next; False if it is there. TableDisagrees: neither."""
        there = f"the table at {self.path} has the batches of {self.record.source.life}"
        if batch > self.next:
            raise _behind(f"{there} up to {self.next - 1}" if self.next else _none(self), batch)
        if batch == self.next:
            return True
        if batch < self.next - 1:
            flaw = f"up to {self.next - 1}, and its checkpointLocation is at {batch}"
        elif entry != self.entry:
            flaw = f"up to {batch}, and its checkpointLocation has other rows in {batch}"
        else:
            return False
        raise TableDisagrees(
            f"{there} {flaw}: it was copied, or put back from an old copy",
            hint=f"Two ways out: put back the checkpointLocation that has brought batch "
            f"{self.next - 1}, or {_ANEW}",
        )

    def commit(self, files: Sequence[DataFile], batch: int, entry: int) -> bool:
        """Add a batch: its rows, and that it is there. False: look again, it may be there."""
        assert batch == self.next
        beside, end = {self.record.source.of("entry"): entry}, {_BATCHES: batch + 1}
        return committed(
            self.record, lambda one: one.commit(files, {_BATCHES: 0}, end, beside), _is_whole
        )


def begin(path: str, query: Query, batch: int, schema: pa.Schema) -> Batches:
    """Make the table for a first batch, or look at the one that is there."""
    if not DeltaTable.is_deltatable(path):
        if batch:
            raise _behind(f"there is no table at {path} for {query.life}", batch)
        create(path, query, schema)
    return look(path, query, batch)


def look(path: str, query: Query, batch: int) -> Batches:
    """Read which batches a table has. BadRequest if they are not of this query."""
    table = own_table(path, query)
    _refuse_other(table, path, query, batch)
    refuse_unkept(table, path)
    if None in map(table.transaction_version, (query.own, query.of("count"))):
        raise _lost(path, query)
    record = read_record(table, path, query)
    entry = table.transaction_version(query.of("entry"))
    if record.number:
        if _BATCHES not in record.ends or entry is None or record.version is None:
            raise _lost(path, query)
        _refuse_restored(record)
    return Batches(path, record, entry)


def _lost(path: str, query: Query) -> RecordLost:
    return RecordLost(
        f"the table at {path} does not say which batches of {query.life} it has",
        hint=f"It was rewritten by something else: {_ANEW}",
    )


def _refuse_other(table: DeltaTable, path: str, query: Query, batch: int) -> None:
    told = table.metadata().configuration[query.mark]
    if not told.startswith(QUERY):
        raise TableForeign(
            f"the table at {path} is filled by pipeline {query.pipeline!r} from {told}",
            hint="Name another table",
        )
    if told == query.life:
        return
    anew = _ANEW if batch else "give this query a table of its own, and begin anew"
    raise TableDisagrees(
        f"the table at {path} is filled by {told}, and this is {query.life}: "
        "it has another checkpointLocation",
        hint=f"Two ways out: start it with the checkpointLocation of {told}, and go on, "
        f"or {anew}",
    )


def _is_whole(record: Record) -> bool:
    _refuse_restored(record)
    return True


def _refuse_restored(record: Record) -> None:
    found = restore_of(record)
    if found is not None:
        raise TableDisagrees(
            f"{found}, and has not all rows of the batches that it names",
            hint=found.ways_out(_ANEW),
        )


def _none(batches: Batches) -> str:
    return f"the table at {batches.path} has no batch of {batches.record.source.life}"


def _behind(there: str, batch: int) -> TableDisagrees:
    return TableDisagrees(
        f"{there}, and its checkpointLocation is at {batch}: batches are missing",
        hint=f"Two ways out: put back the table that has batch {batch - 1}, and go on, or "
        f"{_ANEW}. A function of yours must pass on every batch, empty ones, too",
    )
