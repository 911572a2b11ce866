"""Reads beside writes: every moment of a checkpoint and of a trim, threads, and memory."""

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.partition.shards import (
    KEY,
    NEWER,
    SCHEMA,
    WRITER,
    a_disk,
    a_shard,
    layered,
    on_files,
    table_of,
)

from headrace.errors import Expired, PartitionUnknown
from headrace.journal.entry import SEAL
from headrace.model.ids import Offset, Revision
from headrace.model.proposal import EntryProposal
from headrace.partition.files.file_set import ShardFiles
from headrace.partition.machine.segment_cut import SEGMENT_SIZES, SegmentSizes
from headrace_lab.shard.shard import appending, closing, evolving, trimming

READING = frozenset({"reader.py", "checkpoint_files.py", "file_set.py"})
WRITING = frozenset(
    {*READING, "partitions_machine.py", "state.py", "segment_cut.py", "journal.py"}
)


class Moments:
    """Does `deed` before the lines of some modules: before all, or before one of them."""

    def __init__(self, modules, deed, number=None):
        self.modules = modules
        self.deed = deed
        self.number = number
        self.count = 0
        self.is_due = False

    def during(self, act):
        sys.settrace(self._enter)
        try:
            return act()
        finally:
            sys.settrace(None)

    def _enter(self, frame, event, _):
        path = Path(frame.f_code.co_filename)
        is_watched = path.name in self.modules and {"partition", "journal"} & {*path.parts[-3:]}
        return self._line if is_watched else None

    def _line(self, frame, event, _):
        if event == "line":
            self.count += 1
            self.is_due = self.is_due or self.number in (None, self.count)
            if self.is_due and not has_lock(frame):  # else it would have to wait, as here
                self.is_due = False
                self.deed()
        return self._line


def has_lock(frame):
    """Tell whether this line, or one that called it, is in a section that others wait for."""
    while frame is not None:
        files = frame.f_locals.get("self")
        if isinstance(files, ShardFiles):
            return files._lock.locked()
        frame = frame.f_back
    return False


def move(shard):
    """Bring what is in the journal and in carry files into a segment, and drain both."""
    for _ in range(3):
        shard.append(1)
        shard.checkpoint()


def trim(shard):
    """Drop rows, and let their files go."""
    shard.one(trimming(KEY, Offset(150)))
    for _ in range(3):
        shard.checkpoint()


def close(shard):
    shard.one(closing(KEY, Revision(5)))
    for _ in range(3):
        shard.checkpoint()


@pytest.fixture(scope="module")
def layers():
    return a_disk(layered)


class TestMoments:
    def outcomes(self, layers, deed, act):
        """Return what `act` gives if `deed` happens before any one line of the reader's."""
        count = Moments(READING, lambda: None, 0)
        count.during(lambda: act(a_shard(layers.clone())))
        assert count.count > 50
        for number in range(1, count.count + 1):
            shard = a_shard(layers.clone())
            try:
                yield Moments(READING, lambda shard=shard: deed(shard), number).during(
                    lambda shard=shard: act(shard)
                )
            except (Expired, PartitionUnknown) as error:
                yield error

    def test_rows_may_move_before_any_line_of_a_read(self, layers):
        for found in self.outcomes(layers, move, lambda shard: shard.ids(139, 141)):
            assert found == list(range(139, 141))

    def test_rows_may_be_trimmed_before_any_line_of_a_read(self, layers):
        seen = set()
        for found in self.outcomes(layers, trim, lambda shard: shard.ids(139, 141)):
            seen.add(type(found))
            if isinstance(found, Expired):
                assert found.first == 150
            else:
                assert found == list(range(139, 141))
        assert seen == {list, Expired}

    def test_the_partition_may_be_closed_before_any_line_of_a_read(self, layers):
        seen = set()
        for found in self.outcomes(layers, close, lambda shard: shard.ids(139, 141)):
            seen.add(type(found))
            assert isinstance(found, PartitionUnknown) or found == list(range(139, 141))
        assert seen == {list, PartitionUnknown}

    @pytest.mark.parametrize("deed", [move, trim])
    def test_a_time_is_found_whatever_happens_meanwhile(self, layers, deed):
        at = int(a_shard(layers.clone()).rows(30, 31)["_timestamp"][0].value)
        for found in self.outcomes(
            layers, deed, lambda shard: shard.store.reader.offset_at(KEY, at)
        ):
            assert found in ((30,) if deed is move else (30, 150))

    def test_all_committed_rows_are_there_before_any_line_of_a_checkpoint(self, layers):
        shard = a_shard(layers.clone())
        ends = []

        def look():
            end = shard.store.reader.bounds(KEY)[1]
            ends.append(end)
            for start in (145, end - 1):
                assert shard.ids(start, start + 1) == [start]

        moments = Moments(WRITING, look)
        moments.during(lambda: move(shard))
        assert moments.count > 300
        assert (ends[0], ends[-1]) == (190, 193)

    def test_all_committed_rows_are_there_before_any_line_of_an_append(self, layers):
        shard = a_shard(layers.clone())
        shard.one(evolving(KEY, 2, NEWER))

        def look():
            end = shard.store.reader.bounds(KEY)[1]
            assert shard.ids(140, 141) == [140]
            assert shard.ids(end - 1, end) == [end - 1]
            assert shard.store.reader.offset_at(KEY, 2**60) == end

        moments = Moments(WRITING - READING, look)
        for schema_id, schema in ((1, SCHEMA), (2, NEWER)):
            moments.during(lambda s=schema, n=schema_id: shard.append(schema=s, schema_id=n))
        assert moments.count > 60


class TestThreads:
    def test_rows_are_right_while_checkpoints_drain_and_collect_under_threads(self, tmp_path):
        """One thread appends and settles, one seals, three read, one trims now and then."""
        with on_files(tmp_path / "shard") as root:
            shard = a_shard(root, sizes=SegmentSizes(2_000, 6_000, 2))
            race = Race(shard)
            race.run(appends=140, reads=20, checkpoints=6)
            assert race.faults == []
            assert race.reads >= 20
            assert race.checkpoints >= 6
            assert shard.partition.first > 0
            assert shard.store.group.journal.first > 1
            shard.store.stop()


class Race:
    """Threads around one shard. A fault is anything but the right rows or Expired."""

    def __init__(self, shard):
        self.shard = shard
        self.faults = []
        self.reads = 0
        self.checkpoints = 0
        self.is_over = threading.Event()
        self.sealing = threading.Event()
        self.checkpoint = None

    def run(self, appends, reads, checkpoints):
        """Append at least so often, and go on until the others have done their share."""
        tasks = [self._read_all, self._read_last, self._read_times, self._seal]
        threads = [threading.Thread(target=self._guard, args=(task,)) for task in tasks]
        for thread in threads:
            thread.start()
        try:
            self._guard(lambda: self._append(appends, reads, checkpoints))
        finally:
            self.is_over.set()
            for thread in threads:
                thread.join()

    def _guard(self, task):
        try:
            task()
        except BaseException as error:  # noqa: BLE001 -- it is reported by the main thread
            self.faults.append(repr(error))

    def _append(self, appends, reads, count):
        group = self.shard.store.group
        checkpoints = group.checkpoints
        for number in range(100 * appends):
            has_drained = group.journal.first > 1 and self.shard.partition.first > 0
            has_raced = self.reads >= reads and self.checkpoints >= count and has_drained
            if self.faults or (number >= appends and has_raced):
                return
            self.shard.append(10)
            if self.checkpoint is not None:
                checkpoints.settle(self.checkpoint)
                self.checkpoint = None
                self.checkpoints += 1
            elif number % 6 == 0 and not checkpoints.pending:
                self.shard.submit([seal()])
                self.sealing.set()
            if number % 40 == 39:
                first, end = self.shard.store.reader.bounds(KEY)
                self.shard.one(trimming(KEY, Offset((first + end) // 2)))

    def _seal(self):
        while not self.is_over.is_set():
            if self.sealing.wait(0.01):
                self.sealing.clear()
                self.checkpoint = self.shard.store.group.checkpoints.persist()

    def _read_all(self):
        reader = self.shard.store.reader
        while not self.is_over.is_set():
            start, end = reader.bounds(KEY)
            offset = start
            try:
                for batch in reader.read(KEY, start, end):
                    count = batch.num_rows
                    self._compare(batch, list(range(offset, offset + count)))
                    offset += count
                assert offset == end
            except Expired as expired:
                self._compare_first(expired.first, start)
            self.reads += 1

    def _read_last(self):
        reader = self.shard.store.reader
        while not self.is_over.is_set():
            try:
                first, end = reader.bounds(KEY)
                start = Offset(max(first, end - 25))
                rows = table_of(reader.read(KEY, start, end, columns=["id", "_offset"]))
            except Expired:
                continue
            if rows.num_rows:
                self._compare(rows, rows["_offset"].to_pylist())
            self.reads += 1

    def _read_times(self):
        reader = self.shard.store.reader
        at = 0
        while not self.is_over.is_set():
            first, end = reader.bounds(KEY)
            found = reader.offset_at(KEY, at)
            assert found >= first
            at = (at + 17_000) % (self.shard.timestamp + 1)
            if found < end:
                try:
                    batch = next(reader.read(KEY, found, Offset(found + 1)))
                except Expired:
                    continue
                self._compare(batch, [found])
            self.reads += 1

    def _compare_first(self, first, start):
        assert first > start

    def _compare(self, rows, expected):
        assert rows["id"].to_pylist() == expected


def seal():
    return EntryProposal(SEAL)


READ_ALL = """
import gc, json, sys, tracemalloc
import pyarrow as pa
from headrace.model.ids import Offset
from headrace.partition.shard_store import open_store
from headrace_lab.counter.solo import SOLO
from headrace.storage.file import FileDirectory
from tests.partition.shards import KEY, shard_options
from headrace.partition.machine.segment_cut import SEGMENT_SIZES

with FileDirectory.open_root(sys.argv[1], create=False) as root:
    store = open_store(root, SOLO, shard_options(sizes=SEGMENT_SIZES, slots=4096))
    _, end = store.reader.bounds(KEY)
    for first in (Offset(0), Offset(end - 1)):  # what is imported late is no memory of a read
        list(store.reader.read(KEY, first, Offset(first + 1)))
    gc.collect()
    pool = pa.default_memory_pool()
    tracemalloc.start()
    rows = size = 0
    for batch in store.reader.read(KEY, *store.reader.bounds(KEY)):
        assert batch["id"][0].as_py() == rows
        rows += batch.num_rows
        size += batch.nbytes
    store.stop()
print(json.dumps({"rows": rows, "size": size, "arrow": pool.max_memory(),
                  "python": tracemalloc.get_traced_memory()[1]}))
"""


class TestMemory:
    def test_reading_takes_as_much_as_two_row_groups_whatever_the_range(self, tmp_path):
        """200 MiB, half in segments and half in the journal; three entries are a row group."""
        count, width = 16 * 1024, 240
        entry = count * (width + 8 + 4)
        row_group = 3 * count * (width + 8 + 4 + 8 + 8 + 4)
        with on_files(tmp_path / "shard") as root:
            sizes = replace(SEGMENT_SIZES, size_target=64 << 20)
            options = {"sizes": sizes, "slots": 4096, "file_size": 32 << 20}
            shard = a_shard(root, **options)
            name = pa.array(["x" * width] * count)
            for number in range(50):
                ids = pa.array(range(number * count, (number + 1) * count), pa.int64())
                batch = pa.record_batch([ids, name], schema=SCHEMA)
                shard.one(appending(KEY, batch, WRITER, number + 1))
                if number == 24:
                    shard.checkpoint()
            assert len(shard.segments) == 2
            assert len(shard.partition.runs) == 1
            shard.store.stop()
        done = subprocess.run(
            [sys.executable, "-c", READ_ALL, str(tmp_path / "shard")],
            capture_output=True,
            check=False,
            cwd=Path(__file__).parents[2],
            env={"PYTHONPATH": "src:.", "PATH": "/usr/bin:/bin"},
        )
        assert done.returncode == 0, done.stderr.decode()
        found = json.loads(done.stdout)
        assert found["rows"] == 50 * count
        assert found["size"] > 200 << 20
        assert found["arrow"] < 2.5 * row_group, found
        assert found["python"] < 2.1 * entry, found  # of the journal, one beside the next
