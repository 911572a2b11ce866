"""The batches of a streaming query, recorded in the Delta table that it fills, each once.

To the table a query is a source with one partition whose rows are its batches
(`table_record.py`):

    txn headrace:<name>                        rises with each commit
    txn headrace:<name>:query <id>:count       1 from the first batch on
    txn headrace:<name>:query <id>:0           the next batch
    txn headrace:<name>:query <id>:0+          the first batch: 0
    txn headrace:<name>:query <id>:entry       digest of the newest checkpointLocation entry
    txn headrace:<name>:query <id>:version     of the table, with the newest batch

The id is that of the query's checkpointLocation; the table's property `headrace.<name>` holds
it. A query has two checkpoints, which may disagree if one was lost, copied or restored. Spark
repeats only its newest batch, with the same entry. Anything else ends the query.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable

from headrace.errors import BadRequest
from headrace.spark.stores.location import Location
from headrace.spark.tables.commit_races import committed
from headrace.spark.tables.restore_check import restore_of
from headrace.spark.tables.table_errors import RecordLost, TableForeign
from headrace.spark.tables.table_features import refuse_unkept
from headrace.spark.tables.table_record import (
    QUERY,
    DataFile,
    LogSource,
    Record,
    Where,
    at,
    create,
    is_made,
    own_table,
    read_record,
)

_BATCHES: Final = 0  # the partition
_START_OVER: Final = "start over with a new table and a new checkpointLocation"


class TableDisagrees(BadRequest):
    """A table and the checkpointLocation of its query are not from the same moment."""


@dataclass(frozen=True, slots=True)
class Query(LogSource):
    """A streaming query as the source of a table."""

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
    """The record of a query, read from its table."""

    path: str
    record: Record
    entry: int | None  # digest of the newest batch; None: there is none

    @property
    def next(self) -> int:
        return self.record.ends.get(_BATCHES, 0)

    def is_new(self, batch: int, entry: int) -> bool:
        """Whether a batch is the next; False if it is already in. Raises TableDisagrees."""
        there = f"the table at {self.path} has the batches of {self.record.source.life}"
        if batch > self.next:
            raise _behind(f"{there} up to {self.next - 1}" if self.next else _none(self), batch)
        if batch == self.next:
            return True
        if batch < self.next - 1:
            flaw = f"up to {self.next - 1}, but its checkpointLocation is at {batch}"
        elif entry != self.entry:
            flaw = f"up to {batch}, but its checkpointLocation has different rows in {batch}"
        else:
            return False
        raise TableDisagrees(
            f"{there} {flaw}: it was copied, or restored from an old backup",
            hint=f"Two ways out: restore the checkpointLocation that wrote batch "
            f"{self.next - 1}, or {_START_OVER}",
        )

    def commit(self, files: Sequence[DataFile], batch: int, entry: int) -> bool:
        """Commit a batch and its number. False: read again, it may already be in."""
        assert batch == self.next
        beside, end = {self.record.source.of("entry"): entry}, {_BATCHES: batch + 1}
        return committed(
            self.record, lambda one: one.commit(files, {_BATCHES: 0}, end, beside), _is_whole
        )


def begin(where: Where, query: Query, batch: int, schema: pa.Schema) -> Batches:
    """Create the table for a first batch, or read the existing one."""
    if not is_made(where):
        if batch:
            raise _behind(f"there is no table at {at(where).url} for {query.life}", batch)
        create(where, query, schema)
    return look(where, query, batch)


def look(where: Where, query: Query, batch: int) -> Batches:
    """Read which batches a table has. Raises BadRequest if they are not this query's."""
    location: Location = at(where)
    table, path = own_table(location, query), location.url
    _refuse_other(table, path, query, batch)
    refuse_unkept(table, path)
    if None in map(table.transaction_version, (query.own, query.of("count"))):
        raise _lost(path, query)
    record = read_record(table, location, query)
    entry = table.transaction_version(query.of("entry"))
    if record.count:
        if _BATCHES not in record.ends or entry is None or record.version is None:
            raise _lost(path, query)
        _refuse_restored(record)
    return Batches(path, record, entry)


def _lost(path: str, query: Query) -> RecordLost:
    return RecordLost(
        f"the table at {path} does not record which batches of {query.life} it has",
        hint=f"It was rewritten by another program: {_START_OVER}",
    )


def _refuse_other(table: DeltaTable, path: str, query: Query, batch: int) -> None:
    told = table.metadata().configuration[query.mark]
    if not told.startswith(QUERY):
        raise TableForeign(
            f"the table at {path} is filled by pipeline {query.pipeline!r} from {told}",
            hint="Use another table",
        )
    if told == query.life:
        return
    restart = _START_OVER if batch else "start over with a separate table for this query"
    raise TableDisagrees(
        f"the table at {path} is filled by {told}, but this is {query.life}: "
        "it has a different checkpointLocation",
        hint=f"Two ways out: continue with the checkpointLocation of {told}, or {restart}",
    )


def _is_whole(record: Record) -> bool:
    _refuse_restored(record)
    return True


def _refuse_restored(record: Record) -> None:
    found = restore_of(record)
    if found is not None:
        raise TableDisagrees(
            f"{found}, so the table lacks rows of the batches that it records",
            hint=found.ways_out(_START_OVER),
        )


def _none(batches: Batches) -> str:
    return f"the table at {batches.path} has no batch of {batches.record.source.life}"


def _behind(there: str, batch: int) -> TableDisagrees:
    return TableDisagrees(
        f"{there}, but its checkpointLocation is at {batch}: batches are missing",
        hint=f"Two ways out: restore the table that has batch {batch - 1} and continue, or "
        f"{_START_OVER}. A foreachBatch function of your own must pass on every batch, also "
        "empty ones",
    )
