# ruff: noqa: ANN401 -- a planted bug has the shape of what it replaces
"""Planted bugs that chaos must find, and the node that has one of them.

`python -m headrace_lab.spark.plants NAME serve …` is `headrace serve …` with the bug in it.
Bugs of drivers are planted by the driver's process; a bug of a sink is a sink of another name.
Each lists the points whose kills reveal it.
"""

import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark import TaskContext
from pyspark.sql.types import StructType

from headrace.journal.entry import Header
from headrace.model.results import PublishResult
from headrace.partition.machine import transactions
from headrace.partition.machine.operations import Publish
from headrace.partition.machine.results import Refusal
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace.partition.machine.state import PartitionsState, TopicState
from headrace.spark.pipeline import pipeline
from headrace.spark.pipeline.driver_reports import group_of
from headrace.spark.pipeline.pipeline import Pipeline, Places
from headrace.spark.pipeline.sealed_rows import SealedRows
from headrace.spark.sink.data_sink import CommitMessage, StreamWriter
from headrace.spark.source.data_source import HeadraceSource
from headrace.spark.tables import table_record
from headrace.spark.tables.table_record import DataFile, Record, Removed
from headrace.spark.worker.files import PREFIX
from headrace.spark.worker.write import Deed
from headrace_lab.harness.mutants import Mutant, Patch
from headrace_lab.spark.names import Point

# Rows become a segment so soon that rounds of seconds find some.
SOON_SIZE: Final = 64 * 1024
SOON_SEALS: Final = 1
NEW_WRITER: Final = "a driver is a new writer to the sink"
_FORMAT: Final = "headrace-planted"

_commit = Record._commit
_choose = Pipeline._choose
_write = Pipeline._write
_look = table_record.look
_publish = transactions.publish


def _commit_anyway(
    self: Record,
    files: Sequence[DataFile],
    removed: Sequence[Removed],
    numbers: Mapping[str, int],
    *,
    is_change: bool = True,
) -> bool:
    if _commit(self, files, removed, numbers, is_change=is_change):
        return True
    return _commit_freshly(self, files, removed, numbers, is_change=is_change)


def _commit_freshly(
    self: Record,
    files: Sequence[DataFile],
    removed: Sequence[Removed],
    numbers: Mapping[str, int],
    *,
    is_change: bool = True,
) -> bool:
    self.table = DeltaTable(self.table.table_uri)
    return _commit(self, files, removed, numbers, is_change=is_change)


def _place_after_rows(
    self: Record,
    files: Sequence[DataFile],
    starts: Places,
    ends: Places,
    beside: Mapping[str, int] | None = None,
) -> bool:
    numbers = self._numbers({**starts, **self.firsts}, ends)
    return self._commit(files, [], {}) and self._commit([], [], numbers)


def _place_before_rows(
    self: Record,
    files: Sequence[DataFile],
    starts: Places,
    ends: Places,
    beside: Mapping[str, int] | None = None,
) -> bool:
    numbers = self._numbers({**starts, **self.firsts}, ends)
    return self._commit([], [], numbers) and self._commit(files, [], {})


def _write_and_list(
    self: Pipeline, record: Record, starts: Places, ends: Places, sealed: SealedRows
) -> list[DataFile]:
    returned = {one.path: one for one in _write(self, record, starts, ends, sealed)}
    root = Path(self.definition.table)
    known = {Path(uri).name for uri in DeltaTable(str(root)).file_uris()}
    return [
        returned.get(path.name)
        or DataFile(path.name, path.stat().st_size, pq.read_metadata(path).num_rows, "{}")
        for path in sorted(root.glob(f"{PREFIX}*.parquet"))
        if path.name not in known
    ]


def _choose_by_cursor(self: Pipeline, found: Record) -> tuple[dict[int, int], dict[int, int]]:
    cursors = self.topic_source.topic.cursors(group_of(self.definition.name))
    found.ends |= {
        each.partition: each.next for each in cursors if each.partition in found.ends
    }
    return _choose(self, found)


def _tell_and_write(
    self: Pipeline, record: Record, starts: Places, ends: Places, sealed: SealedRows
) -> list[DataFile]:
    self._tell(ends)
    return _write(self, record, starts, ends, sealed)


def _look_at_metadata(where: table_record.Where, source: table_record.LogSource) -> Record:
    found = _look(where, source)
    if "headrace" in found.table.history(1)[0]:
        return found
    return replace(found, number=0, count=0, ends={}, firsts={}, skips={})


def _publish_all(
    state: PartitionsState, topic: TopicState, header: Header, command: Publish
) -> PublishResult | Refusal:
    own = (header.writer, header.version)
    every = [one.receipt for one in topic.stages.values() if (one.writer, one.version) == own]
    return _publish(state, topic, header, Publish(tuple(every)) if every else command)


class _NewWriter(StreamWriter):
    def write(self, iterator: Any) -> CommitMessage:  # batches, as Spark gives them
        context = TaskContext.get()
        assert context is not None
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert batch is not None
        return self._stage(Deed(f"driver/{os.getppid()}", int(batch) + 1), iterator)


class PlantedSource(HeadraceSource):
    """The data source, with another sink."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return _NewWriter(dict(self.options), overwrite=overwrite)


@dataclass(frozen=True, slots=True)
class Plant:
    """One planted bug, where it is, and which kills show it."""

    name: str
    where: str  # driver, worker, node or sink
    points: tuple[Point, ...]
    patches: tuple[Patch, ...] = ()


PLANTS: Final = {
    one.name: one
    for one in (
        Plant(
            "a commit that lost is tried again",
            "driver",
            (Point.DRIVER_OVERTAKEN,),
            ((Record, "_commit", _commit_anyway),),
        ),
        Plant(
            "a fresh table handle at the commit",
            "driver",
            (Point.DRIVER_OVERTAKEN,),
            ((Record, "_commit", _commit_freshly),),
        ),
        Plant(
            "files by listing the directory",
            "driver",
            (Point.DRIVER_AFTER_FILES,),
            ((Pipeline, "_write", _write_and_list),),
        ),
        Plant(
            "the cursor before the data",
            "driver",
            (Point.DRIVER_AFTER_FILES,),
            (
                (Pipeline, "_choose", _choose_by_cursor),
                (Pipeline, "_write", _tell_and_write),
            ),
        ),
        Plant(
            "the place in a commit after the rows",
            "driver",
            (Point.DRIVER_AFTER_ENTRY,),
            ((Record, "commit", _place_after_rows),),
        ),
        Plant(
            "the place in a commit before the rows",
            "driver",
            (Point.DRIVER_AFTER_ENTRY,),
            ((Record, "commit", _place_before_rows),),
        ),
        Plant(
            "ends in custom metadata only",
            "driver",
            (Point.DRIVER_AFTER_OPTIMIZE,),
            (
                (table_record, "look", _look_at_metadata),
                (pipeline, "look", _look_at_metadata),
            ),
        ),
        Plant(
            "all stages are published, not those named",
            "node",
            (Point.WORKER_IN_STAGE,),
            ((transactions, "publish", _publish_all),),
        ),
        Plant(NEW_WRITER, "sink", (Point.DRIVER_AFTER_PUBLISH,)),
    )
}


def planted(name: str) -> AbstractContextManager[None]:
    """Plant the bug of this name, none if it is empty."""
    if not name:
        return nullcontext()
    return Mutant(name, PLANTS[name].where, PLANTS[name].patches).planted()


def sink_of(name: str) -> type[HeadraceSource] | None:
    """Return the source whose sink has the bug of this name, if that is where it is."""
    return PlantedSource if name == NEW_WRITER else None


def is_of(name: str, where: str) -> bool:
    """Return whether there is a bug of this name, and it is planted there."""
    return bool(name) and PLANTS[name].where == where


def command_of(name: str) -> tuple[str, ...]:
    """Return the command that is the node with this bug, or without one."""
    return (sys.executable, "-m", "headrace_lab.spark.plants", name * is_of(name, "node"))


def main() -> None:
    """Run the command that follows the name of the bug. Its segments come soon."""
    soon = Mutant("", "node", ((SegmentSizes, "of", lambda *_: (SOON_SIZE, SOON_SEALS)),))
    with soon.planted(), planted(sys.argv.pop(1)):
        runpy.run_module("headrace", run_name="__main__")


if __name__ == "__main__":
    main()
