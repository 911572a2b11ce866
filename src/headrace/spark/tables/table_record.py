"""The position of a pipeline, recorded in its Delta table: the only checkpoint.

    txn headrace:<pipeline>                                  rises with each commit
    txn headrace:<pipeline>:<topic>:<life>:commit            random, to know a commit again
    txn headrace:<pipeline>:<topic>:<life>:count             number of recorded partitions
    txn headrace:<pipeline>:<topic>:<life>:version           of the table, as its rows changed
    txn headrace:<pipeline>:<topic>:<life>:<partition>       the offset of its next row
    txn headrace:<pipeline>:<topic>:<life>:<partition>+      the offset of its first row
    txn …:<partition>:skips                                  number of ranges skipped by resets
    txn …:<partition>:skip<number>:start, …:end              each of them

A life is the revision that created the topic, and the id of its log: <created>@<cluster>.

The table is created with the first two at 0. Each commit of the pipeline sets all of them, so
that two drivers that commit at once always conflict; the version is left out if no rows change.
They survive compaction, checkpoints and the clean-up of the table's log. A table is read and
committed to through one handle: a fresh one would accept numbers that the table already has.
"""

import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from headrace.errors import BadRequest, HeadraceError, first_line
from headrace.spark.stores.location import Location, location_of
from headrace.spark.stores.options import storage_options
from headrace.spark.stores.probe import refuse_unsafe
from headrace.spark.stores.seam import FileStore, NotInStore, StoredFile
from headrace.spark.stores.store import store_of
from headrace.spark.tables.data_files import exists
from headrace.spark.tables.table_errors import (
    CommitRefused,
    FileGone,
    RecordLost,
    TableAhead,
    TableForeign,
    TableStrange,
    first_file,
    reason_of,
    storage_failed,
)
from headrace.spark.tables.table_features import (
    refuse_unkept,
    refuse_unloaded,
    strange_features,
)
from headrace.spark.tables.table_log import (
    each_of,
    entry_end,
    entry_name,
    flawed_entry,
    has_log,
    log_damage,
    read_entry,
)
from headrace.spark.worker.files import Writing

if TYPE_CHECKING:
    import headrace

_EXPIRY: Final = "delta.setTransactionRetentionDuration"
_MARK: Final = "headrace."
QUERY: Final = "query "  # prefix of the table's property for a streaming query
_UNSURE_MAX: Final = 100  # entries that a dead driver may have left unsynced; usually one
_OPENING: Final = "opening the table"
_HEADS_AT_ONCE: Final = 16
_ID_BITS: Final = 63  # what a txn action holds

Where = Location | str  # of a table


@dataclass(frozen=True, slots=True)
class LogSource:
    """The source of a pipeline: one life of one topic of one log."""

    pipeline: str
    topic: str
    created: int
    cluster: str  # the log's id

    @classmethod
    def reading(cls, pipeline: str, topic: "headrace.Topic") -> "LogSource":
        return cls(pipeline, topic.name, topic.created, topic.cluster)

    @property
    def own(self) -> str:
        return f"headrace:{self.pipeline}"

    def of(self, what: int | str) -> str:
        return f"{self.own}:{self.topic}:{self.birth}:{what}"

    @property
    def birth(self) -> str:
        """The revision that created the topic, and its log."""
        return f"{self.created}@{self.cluster}"

    @property
    def life(self) -> str:
        """The life of the topic, for people; the value of the table's property."""
        return f"{self.topic} created {self.created} in {self.cluster}"

    @property
    def who(self) -> str:
        return f"pipeline {self.pipeline!r}"

    @property
    def mark(self) -> str:
        """The table's property that names the pipeline."""
        return f"{_MARK}{self.pipeline}"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file written by a task."""

    path: str
    size: int
    row_count: int
    stats: str
    is_segment: bool = False  # a segment of the log, byte for byte


@dataclass(frozen=True, slots=True)
class Removed:
    """A file to be removed from the table."""

    path: str  # as listed in the table
    size: int


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Where a pipeline resumes, and what its table has."""

    firsts: Mapping[int, int]
    ends: Mapping[int, int]
    skips: Mapping[int, Sequence[tuple[int, int]]]


@dataclass(slots=True)
class Record:
    """The record read from a table, and the handle it was read with: for one commit."""

    source: LogSource
    location: Location
    store: FileStore
    table: DeltaTable
    number: int  # of the newest commit of this pipeline; 0: none
    ends: dict[int, int]  # the next row of each recorded partition
    count: int  # of recorded partitions
    firsts: dict[int, int]  # where the table begins in each of them
    skips: dict[int, list[tuple[int, int]]]  # start and end of ranges that resets left out
    version: int | None  # of the table, after our newest change of rows; None: not recorded
    # Of the commit that follows this look, by which it is known again.
    id: int = field(default_factory=lambda: secrets.randbits(_ID_BITS))

    @property
    def path(self) -> str:
        """The table's path or URL, for people."""
        return self.location.url

    def has(self, path: str) -> bool:
        """Whether a file that the table lists, or listed, exists."""
        return exists(self.location, path)

    @property
    def columns(self) -> pa.Schema:
        return pa.schema(self.table.schema().to_arrow())

    def writing(self, columns: pa.Schema) -> Writing:
        """Return how tasks write files that the next commit, and no later one, can add."""
        return Writing.of(self.location, self.source.pipeline, self.number, columns)

    def ranges(self, partition: int) -> list[tuple[int, int]]:
        """Return the ranges of a partition in the table: from its first row on, minus skips."""
        start, found = self.firsts[partition], []
        for skip_start, skip_end in self.skips.get(partition, ()):
            found.append((start, skip_start))
            start = skip_end
        found.append((start, self.ends[partition]))
        return [(start, end) for start, end in found if start < end]

    def skipped(self, partition: int) -> int:
        """Return how many rows of a partition resets have left out."""
        return sum(end - start for start, end in self.skips.get(partition, ()))

    def start_of(self, partition: int, first: int) -> int:
        """Return where a partition resumes.

        A new table begins at `first`, the first retained row; a partition that is new to an
        existing table, at row 0.
        """
        if not self.count:
            return first
        if partition in self.ends:
            return self.ends[partition]
        if partition < self.count:
            raise self._lost(partition)
        return 0

    def _refuse_lost(self) -> None:
        """Raise RecordLost rather than commit a record that lacks a counted partition.

        It would count fewer then, and the partition would begin again at row 0.
        """
        for partition in range(self.count):
            if partition not in self.ends:
                raise self._lost(partition)

    def _lost(self, partition: int) -> RecordLost:
        return RecordLost(
            f"{self.path} has no record of partition {partition}, but counts {self.count}",
            hint="Do not run this pipeline; `headrace prove` shows which rows it has",
        )

    def refuse_vanished(self, partitions: Collection[int]) -> None:
        """Raise TableAhead unless `partitions`, those of the log, include all recorded ones."""
        for number in range(self.count):
            if number not in partitions:
                end, topic = self.ends.get(number, 0), self.source.topic
                raise TableAhead(
                    f"the table has rows of partition {number} up to {end}, but the log of "
                    f"{topic} has {len(partitions)} partitions, numbered from 0"
                )

    def commit(
        self,
        files: Sequence[DataFile],
        starts: Mapping[int, int],
        ends: Mapping[int, int],
        beside: Mapping[str, int] | None = None,  # further numbers of the caller
    ) -> bool:
        """Add the files and the new ends, atomically. False: another writer was faster."""
        assert self.ends.keys() <= ends.keys()  # a partition left out would be forgotten
        firsts = {each: self.firsts.get(each, start) for each, start in starts.items()}
        return self._commit(files, [], {**self._numbers(firsts, ends), **(beside or {})})

    def compact(self, files: Sequence[DataFile], removed: Sequence[Removed]) -> bool:
        """Replace files by others with the same rows. False: another writer was faster."""
        numbers = self._numbers(self.firsts, self.ends)
        return self._commit(files, removed, numbers, is_change=False)

    def widen(self, columns: pa.Schema) -> bool:
        """Add columns. False: another writer was faster."""
        self._refuse_lost()
        fields = Schema.from_arrow(columns).fields
        said = self._said(self._numbers(self.firsts, self.ends))
        return self._attempt(
            lambda: self.table.alter.add_columns(fields, commit_properties=said)
        )

    def touch(self) -> bool:
        """Take the next number, without a change. False: another writer was faster."""
        self._refuse_lost()
        return self._commit([], [], self._numbers(self.firsts, self.ends), is_change=False)

    def restart(
        self, files: Sequence[DataFile], removed: Sequence[Removed], after: TablePlace
    ) -> bool:
        """Move the pipeline to another position, atomically. False: another writer committed.

        Numbers may decrease: a table keeps those of its newest commit. A partition missing in
        `after` is forgotten, with its skips.
        """
        numbers = self._numbers(after.firsts, after.ends)
        for partition in self.ends.keys() | after.ends.keys():
            skips = after.skips.get(partition, ())
            numbers[self.source.of(f"{partition}:skips")] = len(skips)
            for number, (start, end) in enumerate(skips):
                numbers[self.source.of(f"{partition}:skip{number}:start")] = start
                numbers[self.source.of(f"{partition}:skip{number}:end")] = end
        return self._commit(files, removed, numbers)

    def _numbers(self, firsts: Mapping[int, int], ends: Mapping[int, int]) -> dict[str, int]:
        return {
            self.source.own: self.number + 1,
            self.source.of("commit"): self.id,
            self.source.of("count"): len(ends),
            **{self.source.of(each): end for each, end in ends.items()},
            **{self.source.of(f"{each}+"): first for each, first in firsts.items()},
        }

    def _commit(
        self,
        files: Sequence[DataFile],
        removed: Sequence[Removed],
        numbers: Mapping[str, int],
        *,
        is_change: bool = True,  # of rows, not only of files
    ) -> bool:
        now = int(time.time() * 1_000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(one.path, one.size, {}, now, is_change, one.stats) for one in files
        ]
        actions += [RemoveAction(one.path, is_change, now, one.size, {}) for one in removed]
        if is_change:  # the commit gets this version or fails: it is never retried
            numbers = {**numbers, self.source.of("version"): self.table.version() + 1}
        said = self._said(numbers)
        if not self._are_there(files):
            return False
        return self._attempt(
            lambda: self.table.create_write_transaction(
                actions, "append", self.table.schema(), commit_properties=said
            )
        )

    def _said(self, numbers: Mapping[str, int]) -> CommitProperties:
        now = int(time.time() * 1_000)
        return CommitProperties(
            app_transactions=[Transaction(name, each, now) for name, each in numbers.items()],
            max_commit_retries=0,
            custom_metadata={"headrace": self.source.own},
        )

    def _attempt(self, commit: Callable[[], None]) -> bool:
        """Commit durably. False: another writer was faster.

        An error of a commit does not mean that it failed: its answer may be lost, or deltalake
        failed in the work that it does afterwards. The table's log decides.

        Raises TableStrange if the table has unsupported features, perhaps since this look.
        CommitRefused: the commit is not in the table and never will be. StorageFailed: it is in
        or not, whole either way; a new look shows which.
        """
        before = self.table.version()
        refuse_unkept(self.table, self.path)
        try:
            commit()
        except (OSError, DeltaError) as error:
            if not self._landed(before, error):
                return False
        try:
            self.table.update_incremental()
            self._sync(before)
        except (OSError, DeltaError) as error:
            raise _failed(self.location, error) from _cause(self.location, error)
        return True

    def _landed(self, before: int, error: OSError | DeltaError) -> bool:
        """Whether a commit that raised is in the table. False: another one took its version.

        Raises CommitRefused if neither is so, and StorageFailed if that may still change.
        """
        own = {"appId": self.source.of("commit"), "version": self.id}
        now = self._newest(before, error)
        for version in range(before + 1, now + 1):
            for one in each_of(read_entry(self.store, version) or [], "txn"):
                if own.items() <= one.items():
                    return True
        if now > before:
            # Of entries that were cleaned up by now, the newest number of ours is left.
            newest = table_at(self.location).transaction_version(self.source.of("commit"))
            return newest == self.id
        if isinstance(error, CommitFailedError):
            said = f": {reason_of(error)}" if self.location.is_path else ""
            raise CommitRefused(
                f"the table at {self.path} rejects the commit{said}",
                hint="Remove from the table what deltalake cannot write, or write the rows to "
                "a new table",
            ) from _cause(self.location, error)
        raise _failed(self.location, error) from _cause(self.location, error)

    def _newest(self, before: int, error: Exception) -> int:
        """Return the newest version of the table after a commit that raised."""
        try:
            if self.store.head(entry_name(before + 1)) is None:
                return table_at(self.location).version()
            now = before + 1
            while self.store.head(entry_name(now + 1)) is not None:
                now += 1
            return now
        except (OSError, DeltaError) as flaw:
            raise _failed(self.location, flaw) from _cause(self.location, flaw)

    def settle(self) -> None:
        """Sync the newest entries, also those of drivers that may have died before syncing.

        Called before the position is reported to the log: rows that the log then drops must
        not be lost with an entry that a power cut undoes.
        """
        self._sync(self.table.version() - _UNSURE_MAX)

    def _are_there(self, files: Sequence[DataFile]) -> bool:
        """Check that each file exists with its full size; the table is unreadable otherwise.

        False: the number was taken meanwhile, so that files of this commit are leftovers.
        """
        for one, there in zip(files, self._heads(files), strict=True):
            if there is None or there.size != one.size:
                newest = table_at(self.location).transaction_version(self.source.own)
                if newest != self.number:
                    return False
                found = "no longer exists" if there is None else f"has {there.size:,}"
                raise FileGone(
                    f"{self.path}/{one.path} was written with {one.size:,} bytes, but {found}",
                    hint="Nothing was committed, and the next run writes the rows again. "
                    "Find out what removes files there",
                )
        return True

    def _heads(self, files: Sequence[DataFile]) -> Iterator[StoredFile | None]:
        """Look at files, many at a time in a bucket: meanwhile others may commit."""
        if self.location.is_path:
            yield from (self.store.head(one.path) for one in files)
            return
        with ThreadPoolExecutor(_HEADS_AT_ONCE) as pool:
            yield from pool.map(lambda one: self.store.head(one.path), files)

    def _sync(self, before: int) -> None:
        """Make the new entries of the table's log durable."""
        names = [
            entry_name(version)
            for version in range(max(before, -1) + 1, self.table.version() + 1)
        ]
        while names:
            try:
                self.store.durable(names)
                return
            except NotInStore as gone:  # cleaned up: a checkpoint has its content
                names.remove(gone.name)


@dataclass(frozen=True, slots=True)
class UnchangedTable:
    """A look at a table that found nothing to do. It holds until the table's log grows."""

    record: Record
    end: bytes  # of the newest entry of its log

    @classmethod
    def of(cls, record: Record) -> "UnchangedTable | None":
        end = entry_end(record.store, record.table.version())
        return None if end is None else cls(record, end)

    def is_current(self) -> bool:
        """Whether the newest entry is still the newest, and the same."""
        store, version = self.record.store, self.record.table.version()
        return (
            store.head(entry_name(version + 1)) is None
            and entry_end(store, version) == self.end
        )


def at(where: Where) -> Location:
    """Return the location of a table, given as text or as such."""
    return location_of(where) if isinstance(where, str) else where


def _failed(
    location: Location, error: OSError | DeltaError, stage: str = "a commit"
) -> HeadraceError:
    """Return the error for one of deltalake."""
    if location.is_path:
        return storage_failed(location.url, error, stage)
    from headrace.spark.stores.object_errors import FailedCall, failure_of

    return failure_of(error, FailedCall(location, "", stage, has_keys=True))


def _cause(location: Location, error: Exception) -> Exception | None:
    """Return what a traceback may show: an answer of a store may quote credentials."""
    return error if location.is_path else None


def table_at(where: Where, version: int | None = None) -> DeltaTable:
    """Open a table. Raises BadRequest if there is none, CorruptFile if its log is damaged."""
    location = at(where)
    try:
        return DeltaTable(
            location.url, version=version, storage_options=storage_options(location)
        )
    except TableNotFoundError:
        raise BadRequest(f"there is no Delta table at {location.url}") from None
    except OSError as error:
        raise _failed(location, error, _OPENING) from _cause(location, error)
    except DeltaError as error:
        store = store_of(location)
        refuse_unloaded(store)
        if version is not None and flawed_entry(store) is None:
            text = f"there is no Delta table with version {version} at {location.url}"
            raise BadRequest(f"{text}: {first_line(error)}") from error
        raise log_damage(store, error) from error


def look(where: Where, source: LogSource) -> Record:
    """Read the pipeline's position. Raises BadRequest for a table of another pipeline."""
    return read_record(own_table(where, source), at(where), source)


def own_table(where: Where, source: LogSource) -> DeltaTable:
    """Open the table. Raises BadRequest if it does not name the source or drops its record."""
    table, path = table_at(where), at(where).url
    _refuse_strange(table, path)
    settings = table.metadata().configuration
    if source.mark not in settings:
        raise TableForeign(
            f"the table at {path} was not created by {source.who}",
            hint="Use another table, or the pipeline that created this one",
        )
    if _EXPIRY in settings:
        raise TableForeign(
            f"the table at {path} has {_EXPIRY}, which drops the pipeline's position",
            hint="Remove that property from the table",
        )
    return table


def read_record(table: DeltaTable, location: Location, source: LogSource) -> Record:
    """Read the record of a table that names the source."""
    path = location.url
    number = table.transaction_version(source.own)
    count = table.transaction_version(source.of("count"))
    told = table.metadata().configuration[source.mark]
    if told.startswith(QUERY) and told != source.life:
        raise TableForeign(
            f"the table at {path} is filled by {told}, not by {source.life}",
            hint="Use another table",
        )
    if count is None and told != source.life:
        _refuse_other(path, source, told)
    if number is None or count is None or (number == 0 and count):
        raise RecordLost(
            f"the table at {path} does not record the position of {source.who}",
            hint="It was rewritten by another program and cannot be proven. Restore a version "
            "of it that records it, or write the rows to a new table",
        )
    found = {each: table.transaction_version(source.of(each)) for each in range(count)}
    ends = {each: end for each, end in found.items() if end is not None}
    firsts = {each: table.transaction_version(source.of(f"{each}+")) or 0 for each in ends}
    skips = {each: _skips(table, path, source, each) for each in ends}
    version = table.transaction_version(source.of("version"))
    store = store_of(location)
    return Record(source, location, store, table, number, ends, count, firsts, skips, version)


def _refuse_other(path: str, source: LogSource, told: str) -> None:
    """Raise TableForeign if the table records another source."""
    topic, found, _ = told.partition(" created ")
    if found and topic == source.topic:
        raise TableForeign(
            f"the table at {path} was filled from {told}: that is another "
            f"life of {topic}, or another log",
            hint="The topic or the log was deleted and recreated: use a new table",
        )
    if found:
        raise TableForeign(
            f"the table at {path} was filled by pipeline {source.pipeline!r} from {told}, "
            f"but now reads {source.topic}",
            hint="Set its topic back, or give the new pipeline another name and a new table",
        )


def _refuse_strange(table: DeltaTable, path: str) -> None:
    strange = strange_features(table)
    if strange:
        raise TableStrange(
            f"the table at {path} has {', '.join(strange)}: its files alone do not say "
            "which rows it has",
            hint="Remove them with the program that added them, or write the rows to a new "
            "table",
        )


def _skips(
    table: DeltaTable, path: str, source: LogSource, partition: int
) -> list[tuple[int, int]]:
    """Return the ranges of a partition that resets skipped, in order."""
    count = table.transaction_version(source.of(f"{partition}:skips")) or 0
    found = []
    for number in range(count):
        start = table.transaction_version(source.of(f"{partition}:skip{number}:start"))
        end = table.transaction_version(source.of(f"{partition}:skip{number}:end"))
        if start is None or end is None:
            raise RecordLost(
                f"{path} does not record which rows of partition {partition} a reset skipped",
                hint="It was rewritten by another program. Do not run this pipeline",
            )
        found.append((start, end))
    return found


def is_made(where: Where) -> bool:
    """Whether the table exists. Raises TableForeign if there are other files instead."""
    location = at(where)
    store = store_of(location)
    if has_log(store):
        return True
    file = first_file(store)
    if file is None:
        return False
    if has_log(store):  # another driver has just created and filled it
        return True
    raise TableForeign(
        f"{location.url} is not a Delta table, but contains {file}",
        hint="Give a directory that is empty or does not exist: a table would mix its files "
        "with these",
    )


def create(where: Where, source: LogSource, schema: pa.Schema) -> Record:
    """Create the table, which names its pipeline, or read the existing one."""
    location = at(where)
    if not is_made(location):
        refuse_unsafe(store_of(location), secrets.token_hex(8))
        first = [Transaction(source.own, 0), Transaction(source.of("count"), 0)]
        try:
            DeltaTable.create(
                location.url,
                schema,
                mode="ignore",
                name=source.pipeline,
                configuration={source.mark: source.life},
                raise_if_key_not_exists=False,
                storage_options=storage_options(location),
                commit_properties=CommitProperties(app_transactions=first),
            )
        except (OSError, DeltaError) as error:
            # Another driver was faster, or the answer was lost.
            if not isinstance(error, CommitFailedError) or not is_made(location):
                raise _failed(location, error) from _cause(location, error)
        made = look(location, source)
        made.settle()
        return made
    return look(location, source)


def pipelines_of(where: Where) -> list[str]:
    """Return the names of the pipelines that a table records."""
    settings = table_at(where).metadata().configuration
    return sorted(key.removeprefix(_MARK) for key in settings if key.startswith(_MARK))
