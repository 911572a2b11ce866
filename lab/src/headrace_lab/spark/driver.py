"""A driver to be killed, in its own process: `python -m … SETTINGS`.

It starts Spark, warms it up, prints `warm`, and obeys the commands on its standard input, each
a JSON object with `word`:

    job       fill a table by a pipeline and copy a topic by a streaming query, until `end`
    halt      at this `step` of the pipeline's work: print `at`, and wait to be killed
    sleep     the same, without the streaming query, and continue after `wake`
    pause     the same, with the streaming query
    fail      at this step print `at`, and raise an error of the operating system
    compact   compact the table's files after a round, even a few: print `compacted`
    end       end the job once all rows are in the table and in the copy; print `done`

It reports what happens, one JSON object per line. A query or a round that fails because one of
its processes was killed is restarted, as an operator of Spark would do.

Steps are those of a round; two of a compaction, `new file`, before its commit, and `new
version`, after it; two of any commit, `before entry` and `after entry`; and `after
columns`, when a commit has widened the table.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from errno import EIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from headrace.cli.demo.pipeline_driver import say
from headrace.errors import HeadraceError, Unavailable
from headrace.spark import session
from headrace.spark.pipeline.definition import ROWS, load
from headrace.spark.pipeline.pipeline import Pipeline, opened
from headrace.spark.source.data_source import NAME
from headrace.spark.tables.compaction import FILES_MIN
from headrace.spark.tables.table_record import DataFile, Record, Removed
from headrace_lab.harness.mutants import Mutant
from headrace_lab.spark.plants import planted, sink_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PAUSE_S = 0.3  # between looks for new rows
TRIGGER = "1 second"  # between batches of the copy: others need the machine, too
FEW_FILES = 4  # that are put together when somebody asks for it
WARM_SECONDS = 60  # that a first batch may take
FAILURES_MAX = 8  # one after another: then it is no kill that they come from
_FAILURES = (PySparkException, HeadraceError, Py4JError)


class Settings(msgspec.Struct):
    """How a driver is started."""

    master: str
    conf: dict[str, str] = {}
    plant: str = ""  # a planted bug


class Job(msgspec.Struct):
    """What one run asks of a driver."""

    file: str  # of the pipeline
    topic: str
    copy: str  # the topic that is copied to
    address: str  # for the streaming query; the pipeline's file has its own
    checkpoint: str


class Wishes:
    """What the words on standard input ask for."""

    def __init__(self) -> None:
        self._words: queue.Queue[dict[str, Any]] = queue.Queue()
        self.at_step: dict[str, Any] | None = None
        self.is_compacting = False
        self.is_ending = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self._words.put(json.loads(line))
        os._exit(0)  # nobody is there any more; Java ends when its standard input does

    def next_job(self) -> Job:
        """Wait for the next job."""
        self.at_step, self.is_compacting, self.is_ending = None, False, False
        while (found := self._words.get())["word"] != "job":
            self._take(found)
        return msgspec.convert(found["job"], Job)

    def look(self) -> None:
        """Take the words that have come."""
        while not self._words.empty():
            self._take(self._words.get())

    def _take(self, found: dict[str, Any]) -> None:
        match found["word"]:
            case "halt" | "sleep" | "pause" | "fail":
                self.at_step = found
            case "compact":
                self.is_compacting = True
            case "end":
                self.is_ending = True
            case _:
                pass  # `wake` is for a driver that sleeps

    def wish_at(self, step: str) -> str:
        """Return what was asked for at this step, once."""
        self.look()
        if self.at_step is None or self.at_step["step"] != step:
            return ""
        wish, self.at_step = str(self.at_step["word"]), None
        return wish

    def await_wake(self) -> None:
        """Wait for the word `wake`."""
        while (found := self._words.get())["word"] != "wake":
            self._take(found)


class Copier:
    """The streaming query from topic to topic, begun anew when it ends by a kill."""

    def __init__(self, spark: "SparkSession", job: Job, sink: str) -> None:
        self._spark, self._job, self._sink = spark, job, sink
        self._query: StreamingQuery | None = None
        self._failures = 0
        self._is_stopped = False

    def tend(self) -> None:
        """See that it runs, unless it was stopped."""
        if self._is_stopped or (self._query is not None and self._query.isActive):
            return
        if self._query is not None:
            self._failed(self._query.exception())
        self._query = self._started()

    def stop(self) -> None:
        """End it where it is, for good: another driver has one."""
        self._is_stopped = True
        if self._query is not None:
            self._query.stop()

    def finish(self) -> None:
        """Have everything copied that is there, and end it."""
        while True:
            self.tend()
            assert self._query is not None
            try:
                self._query.processAllAvailable()
                self._query.stop()
            except _FAILURES as error:
                self._failed(error)
            else:
                return

    def _failed(self, error: Exception | None) -> None:
        say("query failed", why=_short(error))
        self._failures += 1
        if self._failures > FAILURES_MAX:
            raise SystemExit("the streaming query fails again and again")

    def _started(self) -> "StreamingQuery":
        job = self._job
        rows = (
            self._spark.readStream.format("headrace")
            .option("topic", job.topic)
            .option("address", job.address)
            .load()
            .select("source", "number", "customer", "amount")
        )
        return (
            rows.writeStream.format(self._sink)
            .option("topic", job.copy)
            .option("address", job.address)
            .option("checkpointLocation", job.checkpoint)
            .trigger(processingTime=TRIGGER)
            .start()
        )


def work(spark: "SparkSession", job: Job, wishes: Wishes, sink: str) -> None:
    """Do one job, until there is nothing left to do."""
    copier, failures = Copier(spark, job, sink), 0
    while failures <= FAILURES_MAX:
        try:
            with opened(spark, load(Path(job.file))) as pipeline:
                for _ in rounds(pipeline, copier, wishes):
                    failures = 0
            copier.finish()
        except _FAILURES as error:
            say("round failed", why=_short(error))
            failures += 1
        else:
            return
    raise SystemExit("the pipeline fails again and again")


def rounds(pipeline: Pipeline, copier: Copier, wishes: Wishes) -> Iterator[None]:
    """Bring rows into the table until all are there."""

    def on_step(step: str) -> None:
        wish = wishes.wish_at(step)
        if wish == "sleep":
            copier.stop()
        if wish:
            say("at", step=step)
        if wish == "fail":
            raise OSError(EIO, "the answer is lost, as planted")
        if wish:
            wishes.await_wake()

    pipeline.on_step = on_step
    with commits_told(on_step):
        yield from endless(pipeline, copier, wishes)


def endless(pipeline: Pipeline, copier: Copier, wishes: Wishes) -> Iterator[None]:
    """Go round after round, and put files together in between, as `Pipeline.run` does."""
    while True:
        copier.tend()
        if wishes.is_ending:  # rows that are not sealed come, too
            pipeline.definition = replace(pipeline.definition, tail=ROWS)
        before = pipeline.lost
        done = pipeline.round()
        if done is not None:
            ends = [done.ends[number] for number in sorted(done.ends)]
            starts = [done.starts[number] for number in sorted(done.starts)]
            rows = done.row_count
            say(
                "round",
                version=done.version,
                rows=rows,
                lag=done.lag,
                starts=starts,
                ends=ends,
                segments=done.segment_count,
            )
            yield
            pipeline.unlooked += done.file_count
        elif pipeline.lost > before:
            say("lost")
        elif wishes.is_ending:
            return
        else:
            time.sleep(PAUSE_S)
        wishes.look()
        if wishes.is_compacting or pipeline.unlooked >= FILES_MIN:
            count = pipeline.compact(FEW_FILES if wishes.is_compacting else FILES_MIN)
            if count:
                wishes.is_compacting = False
                say("compacted", removed=count)


def commits_told(on_step: Callable[[str], None]) -> AbstractContextManager[None]:
    """Have `on_step` called on both sides of an entry, and of the commit of a compaction."""
    compact, attempt, widen = Record.compact, Record._attempt, Record.widen

    def told(record: Record, files: Sequence[DataFile], removed: Sequence[Removed]) -> bool:
        on_step("new file")
        is_done = compact(record, files, removed)
        on_step("new version")
        return is_done

    def attempted(record: Record, commit: Callable[[], None]) -> bool:
        def stepped() -> None:
            on_step("before entry")
            commit()
            on_step("after entry")

        return attempt(record, stepped)

    def widened(record: Record, columns: pa.Schema) -> bool:
        is_done = widen(record, columns)
        on_step("after columns")
        return is_done

    steps = (
        (Record, "compact", told),
        (Record, "_attempt", attempted),
        (Record, "widen", widened),
    )
    return Mutant("", "driver", steps).planted()


def _short(error: Exception | None) -> str:
    return " ".join(str(error).split())[:400]


def warm_up(spark: "SparkSession") -> None:
    """Have Spark load what a job needs: Python workers, and a streaming query."""
    spark.range(2).mapInArrow(lambda batches: batches, "id long").collect()
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load()
    query = rows.writeStream.format("noop").trigger(once=True).start()
    if not query.awaitTermination(WARM_SECONDS):
        query.stop()
        raise Unavailable(f"Spark did not end a first batch in {WARM_SECONDS} s")


def main(text: str) -> None:
    """Be a driver, until standard input ends."""
    settings = msgspec.json.decode(text, type=Settings)
    wishes = Wishes()
    conf = {key.replace(".", "__"): value for key, value in settings.conf.items()}
    with ExitStack() as exits:
        exits.enter_context(planted(settings.plant))
        spark = session("headrace-chaos", settings.master, quick_start=None, **conf)
        sink = sink_of(settings.plant)
        if sink is not None:
            spark.dataSource.register(sink)
        warm_up(spark)
        say("warm", app=spark.sparkContext.applicationId)
        while True:
            work(spark, wishes.next_job(), wishes, NAME if sink is None else sink.name())
            say("done")


if __name__ == "__main__":
    main(sys.argv[1])
