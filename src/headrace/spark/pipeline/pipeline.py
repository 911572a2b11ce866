"""Loads a topic into a Delta table, exactly once, with the table as the only checkpoint.

The steps of a round, and what a crash after each one leaves:

    look       the table's record: where each partition resumes
    hold       the rows from there on, before the first round: retention keeps them
    choose     a range within the limits, which does not cross a schema version
    write      files by executors, synced          uncommitted files: cleaned up later
    commit     files and new ends, atomically;     the rows are in, once; the round is over.
               retried with the same files if      Before: uncommitted files
               only other writers were faster
    tell       the cursor of the pipeline's group  the next round stores it again

Meanwhile a `PipelineHeartbeat` reports that the driver is alive and listens for requests to
stop. Decisions depend on offsets, never on a round's number: a second driver loses the race at
the commit, reads the table again, and resumes after the rows of the first. Against other
writers of the table it retries the same commit (`commit_races.py`).
"""

import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from headrace.errors import BadConfig, BadRequest, Busy, HeadraceError, Recreated
from headrace.model.backoff import ExponentialBackoff
from headrace.spark.batch_ranges import next_ends
from headrace.spark.cluster_check import refuse_unseen
from headrace.spark.friendly_errors import (
    RoundFailed,
    checked_frame,
    told_in_words,
    transform_told,
)
from headrace.spark.pipeline.batch_scan import (
    BatchScan,
    BatchScans,
    ScanFailed,
    refuse_lost,
    with_nulls_of,
)
from headrace.spark.pipeline.definition import SEALED, Definition
from headrace.spark.pipeline.driver_reports import group_of
from headrace.spark.pipeline.failing_row import Ranges, failing_row
from headrace.spark.pipeline.heartbeat import PipelineHeartbeat
from headrace.spark.pipeline.pace import Pace
from headrace.spark.pipeline.row_by_row import refuse_mixing
from headrace.spark.pipeline.sealed_rows import SealedRows, leased, planned
from headrace.spark.pipeline.table_times import LogClock, RowTimes, TableTimes, read_times
from headrace.spark.pipeline.tail import replacements, segment_places
from headrace.spark.pipeline.transform import Transform, loaded
from headrace.spark.source.data_source import spark_schema
from headrace.spark.source.segment_scan import is_scan
from headrace.spark.source_options import parse
from headrace.spark.spark_session import copied, described, unlogged
from headrace.spark.tables.commit_races import committed
from headrace.spark.tables.compaction import FILES_MIN, compact
from headrace.spark.tables.data_files import LiveFile, copied_life, live_files
from headrace.spark.tables.restore_check import Watch, refuse_restored
from headrace.spark.tables.table_columns import file_columns, new_columns, refuse_twins
from headrace.spark.tables.table_errors import TableAhead
from headrace.spark.tables.table_features import refuse_unkept
from headrace.spark.tables.table_files import copy_files, write_files
from headrace.spark.tables.table_record import (
    DataFile,
    LogSource,
    Record,
    Removed,
    UnchangedTable,
    create,
    is_made,
    look,
)
from headrace.spark.topic_source import RowsLost, SchemaChanged, TopicRecreated, TopicSource
from headrace.spark.worker.segment_copy import SURPLUS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.client.sync_lease import Lease

PARTITION: Final = "_hr_partition"
OFFSET: Final = "_hr_offset"
TIMESTAMP: Final = "_timestamp"
TIMEOUT: Final = "120s"  # of one request to the log: a node may restart meanwhile
# After lost rounds, each of which leaves files behind. The first two in a row do not wait: they
# do not mean that other writers will stay faster.
PAUSES: Final = ExponentialBackoff(0.1, 30.0, free=2)
REPORT_TIMEOUT: Final = "5s"  # of one report: Ctrl-C must not wait for a node

_SKIP: Final = "Run the pipeline again: it names the rows, and the command that skips them"

Places = Mapping[int, int]  # an offset of each partition


class TableBehind(BadRequest):
    """The log has trimmed rows that the table still needs."""


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one round."""

    version: int  # of the table, after it
    row_count: int  # read from the log
    written: int  # rows in the new files
    file_count: int
    segment_count: int  # files that are segments of the log, byte for byte
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    seconds: float
    lag: int  # rows of the log after the new ends
    times: tuple[RowTimes, ...] = ()  # of its rows to the table, of each partition


@dataclass(slots=True)
class Pipeline:
    """One driver of one pipeline. Several may run at the same time."""

    start: Callable[[], "SparkSession"]  # called when Spark is first needed
    definition: Definition
    topic_source: TopicSource
    lost: int = (
        0  # lost rounds: another driver committed first, or the schema changed meanwhile
    )
    seen: pa.Schema | None = None  # the columns of the round, which the table was widened to
    told: Mapping[int, int] | None = None  # the cursor of the pipeline's group, if known
    unlooked: int = FILES_MIN  # files since the last search for small ones; unknown at first
    watch: Watch = field(default_factory=Watch)  # for restores of the table
    idle: UnchangedTable | None = None  # what the last look found, if that had no new rows
    compacted: int = 0  # small files that were replaced
    # Of files that segments could replace: the topic's life whose rows they have as they are.
    lives: dict[str, str] = field(default_factory=dict)
    flaw: str = ""  # why the last report of this driver failed
    scans: BatchScans = field(default_factory=BatchScans)  # of sealed rows, with a transform
    left: int = 0  # rows that the last look found and left to the next round
    pace: Pace = field(default_factory=lambda: Pace(0.0))
    times: TableTimes = field(default_factory=TableTimes)
    clock: LogClock = field(default_factory=LogClock)
    on_note: Callable[[str], None] = field(default=lambda text: None)  # for people, seldom
    on_step: Callable[[str], None] = field(default=lambda step: None)  # named crash points
    _begun: "tuple[SparkSession, Transform] | None" = None

    @property
    def spark(self) -> "SparkSession":
        """The session; starts Spark if it is not running yet."""
        return self.begin()[0]

    def begin(self) -> "tuple[SparkSession, Transform]":
        """Start Spark and load the transform, once. BadConfig: the transform does not load.

        With SQL it gets its own copy of the session, so that its view `source` cannot clash
        with other users of the session.
        """
        if self._begun is None:
            spark = self.start()
            with transform_told(self.definition, "it"):
                transform = loaded(self.definition)
            refuse_unseen(spark, self.definition.table)
            self._begun = copied(spark) if self.definition.sql else spark, transform
        return self._begun

    @property
    def is_copy(self) -> bool:
        """Whether rows go into the table unchanged."""
        return not (self.definition.sql or self.definition.transform)

    @property
    def source(self) -> LogSource:
        return LogSource.reading(self.definition.name, self.topic_source.topic)

    @told_in_words()
    def round(self) -> Round | None:
        """Load the next rows into the table. None: there are none, or the race was lost."""
        began = time.monotonic()
        self.topic_source.topic.refresh()
        if self._is_still_idle():
            return None
        record = self._record()
        if record is not None and self._next(record) is None:
            self.idle = UnchangedTable.of(record)
            return None
        record = self._fitting(record)
        if record is None:
            self.lost += 1
            return None
        found = self._next(record)
        if found is None:
            return None
        starts, ends = found
        is_sealed = self.definition.tail == SEALED
        try:
            with self._sealed(starts, ends, is_required=is_sealed) as sealed:
                if self.is_copy:
                    ends = (sealed.sealed_ends if is_sealed else sealed.aligned)(starts, ends)
                files = None if starts == ends else self._bring(record, starts, ends, sealed)
        except Busy:  # as many leases are held as there can be: the next round has one
            self.lost += 1
            files = None
        if files is None:
            return None
        committed_at = self.clock.now()
        self.on_step("after commit")
        # Before the cursor moves on, which lets the log drop the rows.
        times = read_times(self.topic_source.topic, starts, ends, committed_at)
        self._tell(ends)
        bounds = self.topic_source.bounds()
        return Round(
            version=record.table.version(),
            row_count=sum(ends[n] - starts[n] for n in ends),
            written=sum(one.row_count for one in files),
            file_count=len(files),
            segment_count=sum(one.is_segment for one in files),
            starts=starts,
            ends=ends,
            seconds=time.monotonic() - began,
            lag=sum(max(0, bounds[n].end - end) for n, end in ends.items()),
            times=times,
        )

    def backlog(self) -> int:
        """Return how many rows of the log are not in the table yet."""
        record, bounds = self._record(), self.topic_source.bounds()
        starts = {
            n: each.first if record is None else record.start_of(n, each.first)
            for n, each in bounds.items()
        }
        return sum(max(0, each.end - starts[n]) for n, each in bounds.items())

    def _is_still_idle(self) -> bool:
        """Whether there is nothing to do by the last look, which is still that of the table.

        Opening a table reads its log. An idle driver polls every second, so it only makes sure
        that there is no new entry; a round that has rows always looks anew.
        """
        idle, self.idle = self.idle, None
        if idle is None or not idle.is_current() or self._next(idle.record) is not None:
            return False
        self.idle = idle
        return True

    def _sealed(
        self, starts: Places, ends: Places, *, is_required: bool = False
    ) -> AbstractContextManager[SealedRows]:
        """Keep the segments of a range; none if a transform may as well do without them."""
        topic, bounds = self.topic_source.topic, self.topic_source.bounds()
        if not (self.is_copy or self.scans.is_worth(starts, ends, bounds)):
            return nullcontext(SealedRows())
        return leased(topic, starts, ends, bounds, is_required=is_required)

    def _bring(
        self, record: Record, starts: Places, ends: Places, sealed: SealedRows
    ) -> list[DataFile] | None:
        """Write the rows of a range and commit them. None: the race was lost."""
        self.on_step("before files")
        try:
            files = self._write(record, starts, ends, sealed)
            self.on_step("after files")
            if not self.is_copy:
                refuse_lost(sealed.lease)
            if committed(record, lambda one: one.commit(files, starts, ends), self._is_whole):
                return files
        except SchemaChanged:  # since the look: the next round widens the table first
            pass
        except ScanFailed:  # the next round does without the scan, or has another lease
            pass
        self.lost += 1
        return None

    def run(self, *, once: bool) -> Generator[Round]:
        """Run rounds until asked to stop; with `once`, until all current rows are loaded."""
        until = {number: each.end for number, each in self.topic_source.bounds().items()}
        losses = 0  # in a row
        definition = self.definition
        target = None if once else definition.freshness_seconds
        self.pace = Pace(definition.interval_seconds, target)
        with self._reporter() as reporter:
            if target is not None:
                self.begin()  # the first rows do not wait for Spark to start
            while not reporter.asked.is_set():
                before, began = self.lost, time.monotonic()
                done = self.round()
                losses = losses + 1 if self.lost > before else 0
                self.flaw = reporter.flaw
                if done is not None:
                    self._took(done, reporter)
                    yield done
                    self.unlooked += done.file_count - done.segment_count
                    if self.unlooked >= FILES_MIN:
                        self.compact()
                    if once and all(done.ends.get(n, 0) >= end for n, end in until.items()):
                        return
                elif losses:
                    reporter.asked.wait(PAUSES.after(losses))
                    continue
                elif once:
                    return
                if done is None or not self.left:
                    since = time.monotonic() - began
                    reporter.asked.wait(self.pace.wait(since, found=done is not None))

    def _took(self, done: Round, reporter: PipelineHeartbeat) -> None:
        """Report a round. Say so once if the target is not kept any more, or is again."""
        was_late = self.pace.is_late
        slowest = max((one.oldest for one in done.times), default=None)
        self.pace.done(done.seconds, done.row_count, slowest)
        self.times.add(done.times)
        if self.pace.is_late != was_late:
            target = f"freshness = {self.definition.freshness}"
            late = f"rows take up to {slowest:.1f} s to the table, more than {target}"
            reporter.note(late if self.pace.is_late else "")
            self.on_note(late if self.pace.is_late else f"rows are in time again: {target}")
        reporter.done(done.version, done.row_count)

    def compact(self, files_min: int = FILES_MIN) -> int:
        """Compact small files if there are enough, and return how many; 0 after a lost race."""
        self.unlooked, file_size = 0, self.definition.file_size_max
        if not file_size:
            return 0
        nothing = self.topic_source.bounds() if self.is_copy else {}
        starts, ends = dict.fromkeys(nothing, 0), {n: each.end for n, each in nothing.items()}
        with self._sealed(starts, ends) as sealed:
            found = self._replace_tail(sealed)
            record = look(self.definition.location, self.source)
            refuse_restored(record)
            segments = segment_places(sealed.partitions)
            found += compact(record, file_size, files_min, segments) or 0
        self.compacted += found
        return found

    def _replace_tail(self, sealed: SealedRows) -> int:
        """Put segments in the place of small files with their rows; return how many went."""
        if not sealed.partitions:
            return 0
        record = look(self.definition.location, self.source)
        refuse_restored(record)
        found = replacements(live_files(record.table), sealed.partitions)
        found = [one for one in found if self._are_copies(record, one.files)]
        self.seen = self.schema()
        if not found or new_columns(record.table, self.seen).names:
            return 0
        gone = {file for one in found for file in one.files}
        files = []
        try:
            for one in found:
                starts, ends = {one.partition: one.start}, {one.partition: one.end}
                files += self._write(record, starts, ends, sealed.only(one.segments))
        except (SchemaChanged, TableBehind):  # rows that are loaded are not held: they may go
            return 0
        removed = [Removed(file.path, file.size) for file in gone]
        self.on_step("after replacements")
        is_done = committed(
            record,
            lambda each: each.compact(files, removed),
            lambda each: self._is_whole(each) and gone <= set(live_files(each.table)),
        )
        return len(gone) if is_done else 0

    def _are_copies(self, record: Record, files: Sequence[LiveFile]) -> bool:
        """Whether all files have rows of this topic as they are. A file is looked at once."""
        for one in files:
            if one.path not in self.lives:
                self.lives[one.path] = copied_life(record.location, one)
        return {self.lives[one.path] for one in files} == {self.source.birth}

    def _reporter(self) -> PipelineHeartbeat:
        return PipelineHeartbeat(
            lambda: self.topic_source.another(REPORT_TIMEOUT),
            self.definition.name,
            self.topic_source.topic.name,
            self.definition.table,
            self.times,
            self.clock,
        )

    def rows(self, starts: Places, ends: Places) -> "DataFrame":
        """Return exactly these rows, transformed. All come through the source."""
        return self._rows(starts, ends, None)[0]

    def _rows(
        self, starts: Places, ends: Places, lease: "Lease | None"
    ) -> "tuple[DataFrame, BatchScan | None]":
        """Return rows, transformed, and which of them are scanned, under a lease if any."""
        with told_in_words():
            batch = None if lease is None else self._scan(starts, ends, lease)
            frame = self._read(starts, ends, batch).withColumnRenamed("_partition", PARTITION)
            frame = frame.withColumnRenamed("_offset", OFFSET).drop("_timestamp")
        is_source = _is_range(starts if batch is None else batch.ends, ends)
        with transform_told(self.definition):
            made = checked_frame(self.definition, self.begin()[1](frame))
            refuse_mixing(
                made,
                self.definition,
                lambda leaf: (
                    is_source(leaf) or (batch is not None and is_scan(leaf, batch.mark))
                ),
            )
        return made, batch

    def _read(self, starts: Places, ends: Places, batch: BatchScan | None) -> "DataFrame":
        """Return rows of the topic: those that are scanned, and the rest through the source."""
        if batch is None:
            return self._source(starts, ends)
        # A frame of another session would not find the views of this one.
        if batch.ends == ends and batch.rows.sparkSession is self.spark:
            return batch.rows
        tail = self._source(batch.ends, ends)
        self._refuse_change(batch.rows.schema.simpleString(), tail.schema.simpleString())
        return tail.union(batch.rows)

    def _source(self, starts: Places, ends: Places) -> "DataFrame":
        """Return rows of the topic as the source reads them."""
        # By address: the socket in a directory does not exist while its node is down.
        found = replace(self.definition, address=self.topic_source.address, path="")
        reader = (
            self.spark.read.format("headrace")
            .options(**found.options)
            .option("timeout", TIMEOUT)
            .option("startingOffsets", _json(starts))
            .option("endingOffsets", _json(ends))
            .option("topicCreated", self.topic_source.topic.created)
            .option("topicCluster", self.topic_source.topic.cluster)
        )
        return reader.load()

    def _scan(self, starts: Places, ends: Places, lease: "Lease") -> BatchScan | None:
        ranges = {number: (start, ends[number]) for number, start in starts.items()}
        columns = spark_schema(self.topic_source.schema())
        tasks = self.definition.min_partitions
        return self.scans.scan(self.spark, lease, columns, ranges, tasks)

    def schema(self) -> pa.Schema:
        """Return the columns that the transform produces."""
        if self.is_copy:
            columns = self._copied_columns()
            refuse_twins(columns, self.definition.transform_key)
            return file_columns(columns, self.definition.transform_key)
        bounds = self.topic_source.bounds()
        none = {number: each.first for number, each in bounds.items()}
        frame = self.rows(none, none)
        missing = {PARTITION, OFFSET} - set(frame.columns)
        if self.definition.lineage and missing:
            raise BadConfig(
                "lineage",
                f"the transform drops {', '.join(sorted(missing))}",
                hint=f"Select {PARTITION} and {OFFSET} as well, or set lineage = false",
            )
        refuse_twins(frame.schema, self.definition.transform_key)
        return self._columns(frame)

    @told_in_words()
    def check(self) -> pa.Schema:
        """Return the columns of the table. Raises what would fail a run; changes nothing."""
        schema = self.schema()
        if is_made(self.definition.location):
            record = look(self.definition.location, self.source)
            refuse_unkept(record.table, record.path)
            refuse_restored(record)
            new_columns(record.table, schema)
            self._choose(record)
        return schema

    def _columns(self, frame: "DataFrame") -> pa.Schema:
        return file_columns(frame.schema, self.definition.transform_key)

    def _copied_columns(self) -> "StructType":
        """Return the topic's columns as a table has them, without planning a DataFrame."""
        names = {"_partition": PARTITION, "_offset": OFFSET}
        found = [
            each for each in spark_schema(self.topic_source.schema()) if each.name != TIMESTAMP
        ]
        return StructType(
            [StructField(names.get(each.name, each.name), each.dataType) for each in found]
        )

    def _record(self) -> Record | None:
        """Read the table's record. None: there is no table yet."""
        if not is_made(self.definition.location):
            return None
        return self._checked(look(self.definition.location, self.source))

    def _fitting(self, record: Record | None) -> Record | None:
        """Return the table's record, widening the table if needed. None: lost that race."""
        self.seen = self.schema()
        if record is None:
            record = self._made(self.seen)
        new = new_columns(record.table, self.seen)
        return self._widen(record, new) if new.names else record

    def _widen(self, record: Record, new: pa.Schema) -> Record | None:
        """Add columns. None: another writer was faster, perhaps with the same columns."""
        if not record.widen(new):
            return None
        return self._made(new)

    def _made(self, columns: pa.Schema) -> Record:
        """Create the table or read the existing one, and check that it was not restored."""
        return self._checked(create(self.definition.location, self.source, columns))

    def _checked(self, record: Record) -> Record:
        refuse_unkept(record.table, record.path)
        refuse_restored(record, self.watch)
        return record

    def _next(self, record: Record) -> tuple[dict[int, int], dict[int, int]] | None:
        """Return start and end of the next range, and have the log hold it. None: no rows."""
        starts, ends = self._choose(record)
        if self.told != starts:
            record.settle()
            self._tell(starts)
        return None if starts == ends else (starts, ends)

    def _is_whole(self, record: Record) -> bool:
        """Check after a lost race, as before each round, that the table was not restored."""
        refuse_restored(record, self.watch)
        return True

    def _choose(self, record: Record) -> tuple[dict[int, int], dict[int, int]]:
        """Return where the next range begins and ends."""
        bounds, name = self.topic_source.bounds(), self.topic_source.topic.name
        record.refuse_vanished(bounds)
        starts = {n: record.start_of(n, each.first) for n, each in bounds.items()}
        for number, each in bounds.items():
            if starts[number] > each.end:
                raise TableAhead(
                    f"the table has rows of partition {number} up to {starts[number]}, "
                    f"but the log of {name} ends at {each.end}"
                )
            if starts[number] < each.first:
                raise TableBehind(
                    f"rows {starts[number]} to {each.first - 1} of partition {number} of "
                    f"{name} were trimmed before they reached the table",
                    hint="Skip them; the table records that: headrace pipeline reset "
                    f"FILE --to '{_json({number: each.first})}'",
                )
        # Of the same look: a partition that came since has no start.
        backlogs = self.topic_source.backlogs(starts, bounds)
        if self.definition.tail == SEALED:
            backlogs = {n: one.up_to(bounds[n].sealed_end) for n, one in backlogs.items()}
        ends = next_ends(
            backlogs,
            self.pace.row_count_max(self.definition.batch_rows),
            self.definition.size_max,
        )
        self.left = sum(max(0, one.end - ends[n]) for n, one in backlogs.items())
        return starts, ends

    def _copy(
        self, record: Record, starts: Places, ends: Places, sealed: SealedRows
    ) -> list[DataFile]:
        """Have tasks copy the rows into files, each in the worker that reads them."""
        try:
            self.topic_source.topic.refresh()
        except Recreated as error:
            raise TopicRecreated(
                f"{self.topic_source.topic.name} was deleted and recreated during a round",
                hint="Its old rows are gone. Load the new topic into a new table",
            ) from error
        schema = file_columns(self._copied_columns(), self.definition.transform_key)
        self._refuse_change(schema, self.seen)
        # All columns: a node sends its entries as they are then. A task drops the timestamp.
        exact = self.topic_source.schema()
        ranges = {number: (start, ends[number]) for number, start in starts.items()}
        try:
            spans = self.topic_source.spans(ranges, exact, self.topic_source.version, 1)
        except RowsLost as error:
            raise TableBehind(Exception.__str__(error), hint=_SKIP) from error
        sizes = {n: each.row_size for n, each in self.topic_source.backlogs(starts).items()}
        cores = self.spark.sparkContext.defaultParallelism
        if SURPLUS in record.columns.names:  # of others: it would have what segments have there
            sealed = SealedRows()
        tasks = planned(spans, sealed, sizes, cores, self.definition.min_partitions)
        writing = replace(record.writing(schema), life=self.source.birth)
        return copy_files(self.spark, tasks, writing)

    def _refuse_change(self, found: object, seen: object) -> None:
        if found != seen:
            raise SchemaChanged(
                f"the columns of {self.topic_source.topic.name} changed during a round",
                hint="Repeat the round: nothing was written",
            )

    def _write(
        self, record: Record, starts: Places, ends: Places, sealed: SealedRows
    ) -> list[DataFile]:
        rows = sum(ends[number] - start for number, start in starts.items())
        name, topic = self.definition.name, self.topic_source.topic.name
        with described(self.spark, f"headrace pipeline {name}: {rows:,} rows of {topic}"):
            if self.is_copy:
                return self._copy(record, starts, ends, sealed)
            return self._transformed(record, starts, ends, sealed.lease)

    def _transformed(
        self, record: Record, starts: Places, ends: Places, lease: "Lease | None"
    ) -> list[DataFile]:
        """Have Spark transform the rows, and tasks write what comes out."""
        frame, batch = self._rows(starts, ends, lease)
        schema = self._columns(frame)
        if batch is not None and self.seen is not None:
            schema = with_nulls_of(schema, self.seen)
        self._refuse_change(schema, self.seen)
        try:
            return write_files(frame, record.writing(schema))
        except RoundFailed as error:
            if batch is not None:
                self.scans.judge(error, batch)
            if not error.is_of_rows:
                raise
            with unlogged(self.spark):  # the failures here are provoked
                found = failing_row({n: (starts[n], ends[n]) for n in starts}, self._fails)
            if found is None:
                raise
            number, row = found
            text = f"row {row} of partition {number} of {self.topic_source.topic.name}: "
            raise RoundFailed(text + Exception.__str__(error), hint=error.hint) from error

    def _fails(self, ranges: Ranges) -> bool:
        """Whether the transform fails on these rows. Nothing is written."""
        none = dict.fromkeys(self.topic_source.bounds(), 0)
        starts = none | {number: start for number, (start, _) in ranges.items()}
        ends = none | {number: end for number, (_, end) in ranges.items()}
        try:
            with told_in_words():
                self.rows(starts, ends).write.format("noop").mode("overwrite").save()
        except RoundFailed as error:
            return error.is_of_rows
        return False

    def _tell(self, places: Mapping[int, int]) -> None:
        """Store the pipeline's position and hold the rows from there on.

        The table is the truth about the position, so this may fail and is repeated.
        """
        try:
            self.topic_source.topic.store_cursors(
                group_of(self.definition.name), places, hold=True
            )
        except HeadraceError:
            self.told = None
            return
        self.told = dict(places)


@contextmanager
def opened(
    spark: "SparkSession | Callable[[], SparkSession]", definition: Definition
) -> Iterator[Pipeline]:
    """Yield a pipeline that is ready to run, with a session or a function that starts one.

    The function is called when there are rows to write: a table that is up to date needs no
    Spark.
    """
    topic_source = TopicSource(parse(definition.options), TIMEOUT)
    try:
        if callable(spark):
            yield Pipeline(spark, definition, topic_source)
        else:
            pipeline = Pipeline(lambda: spark, definition, topic_source)
            pipeline.begin()
            yield pipeline
    finally:
        topic_source.close()


def _is_range(starts: Mapping[int, int], ends: Mapping[int, int]) -> Callable[[Any], bool]:
    """Return a test whether a leaf of a plan is the source reading this range."""
    wanted = {"startingOffsets": _json(starts), "endingOffsets": _json(ends)}

    def is_range(leaf: Any) -> bool:  # noqa: ANN401 - an object of the JVM
        if leaf.getClass().getSimpleName() != "DataSourceV2Relation":
            return False
        return all(leaf.options().get(name) == value for name, value in wanted.items())

    return is_range


def _json(places: Mapping[int, int]) -> str:
    return json.dumps({str(number): place for number, place in sorted(places.items())})
