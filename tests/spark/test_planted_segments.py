"""Bugs planted in the copy of sealed segments, and what is wrong by them.

Most are in what a task does, and are planted in this process: the workers of a Spark session
know nothing of them.
"""

import math
import os
import shutil
import stat
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.spark.conftest import SCHEMA, rows
from tests.spark.power_cut import PowerCut
from tests.spark.sealing import seal_all
from tests.spark.test_pipeline import a_definition, run
from tests.spark.test_planted_commits import found, planted

from headrace.errors import CorruptSegment, Unavailable
from headrace.spark.pipeline import pipeline, sealed_rows
from headrace.spark.pipeline.pipeline import OFFSET, PARTITION
from headrace.spark.pipeline.sealed_rows import SealedRows
from headrace.spark.stores.path_store import PathStore
from headrace.spark.tables.table_record import DataFile, LogSource, create, look
from headrace.spark.worker import segment_copy
from headrace.spark.worker.fetch_file import SealedFile
from headrace.spark.worker.files import Writing, write_file
from headrace.spark.worker.segment_copy import SegmentCopy, copied_segment

COLUMNS = pa.schema(
    [(PARTITION, pa.int32()), (OFFSET, pa.int64()), ("id", pa.int64()), ("name", pa.string())]
)
_check = segment_copy._check


class NoNode:
    """An address at which no node answers: a copy must be made from what is seen."""

    def link(self):
        raise Unavailable("no node is asked here")


@pytest.fixture
def sealed(tmp_path, log):
    """A function that seals rows and returns their segments, as a lease describes them."""

    def seal(columns, *parts):
        topic = log.create_topic("shop/orders", columns)
        for part in parts:
            topic.append(part)
            seal_all(tmp_path / "data")
        with topic.lease_files() as lease:
            (only,) = lease.partitions
            return [
                SegmentCopy(NoNode(), lease.id, one.path, as_sealed(one, only))
                for one in only.files
            ]

    return seal


def as_sealed(file, partition):
    return SealedFile(
        name=file.path,
        namespace=partition.namespace,
        created=partition.created,
        first=file.start,
        end=file.end,
        size=file.size,
        digest=file.digest,
    )


def table_with(tmp_path, *tasks, columns=COLUMNS):
    """Make a table of these segments, copied by the code of a task, and return where it is."""
    where = str(tmp_path / "table")
    source = LogSource("orders", "shop/orders", 1, "log")
    record = create(where, source, columns)
    for task in tasks:
        writing = Writing.of(record.location, "orders", record.number, columns)
        copied = copied_segment(task, writing)
        start, end = task.file.first, task.file.end
        assert record.commit([DataFile(*copied)], {0: start}, {0: end})
        record = look(where, source)
    return where


def file_of(where):
    (only,) = DeltaTable(where).file_uris()
    return Path(only)


def bounds_of(where):
    actions = pa.table(DeltaTable(where).get_add_actions(flatten=True))
    return {name: actions[name].to_pylist() for name in actions.column_names}


def place_in_ids(path):
    """Return a byte of a segment that its ids depend on."""
    group = pq.read_metadata(path).row_group(0)
    (ids,) = (
        column
        for column in (group.column(place) for place in range(group.num_columns))
        if column.path_in_schema == "id"
    )
    return (ids.dictionary_page_offset or ids.data_page_offset) + ids.total_compressed_size - 5


def flipped(path):
    data = bytearray(Path(path).read_bytes())
    data[place_in_ids(path)] ^= 1
    Path(path).write_bytes(data)


class TestDigest:
    """What comes into a table has the bytes that were sealed."""

    def of_the_source(self, task, writing, name, digest):
        """The digest is that of the source: what was written is not looked at."""
        whole = segment_copy.file_digest()
        whole.update(Path(task.path).read_bytes())
        assert whole.digest() == task.file.digest

    def test_a_rotten_segment_that_is_not_compared_is_seen(self, tmp_path, sealed):
        (task,) = sealed(SCHEMA, rows(0, 100))
        flipped(task.path)
        with pytest.raises(Unavailable):  # the copy is thrown away and the node is asked
            table_with(tmp_path, task)
        with planted((segment_copy, "_check", lambda *_: None)):
            assert found(table_with(tmp_path, task)) != list(range(100))

    def test_a_copy_that_differs_from_its_sound_source_is_seen(
        self, tmp_path, sealed, monkeypatch
    ):
        (task,) = sealed(SCHEMA, rows(0, 100))
        kernel, where = os.copy_file_range, place_in_ids(task.path)

        def rots(source, target, count, place):
            done = kernel(source, target, count, place)
            byte = os.pread(source, 1, where)[0] ^ 1
            os.pwrite(target, bytes([byte]), where)
            return done

        monkeypatch.setattr(os, "copy_file_range", rots)
        with pytest.raises(Unavailable):
            table_with(tmp_path, task)
        with planted((segment_copy, "_check", self.of_the_source)):
            assert found(table_with(tmp_path, task)) != list(range(100))

    def test_rows_of_another_life_are_seen(self, tmp_path, sealed, log):
        """A file of the same name and size, of a topic that was there before."""
        (task,) = sealed(SCHEMA, rows(0, 100))
        kept = tmp_path / "kept.parquet"
        shutil.copyfile(task.path, kept)
        log.topic("shop/orders").delete()
        (later,) = sealed(SCHEMA, rows(100, 200))
        assert later.file.digest != task.file.digest
        shutil.copyfile(kept, later.path)
        short = SealedFile(
            **{name: getattr(later.file, name) for name in later.file.__slots__}
            | {"size": kept.stat().st_size}
        )
        there = SegmentCopy(later.where, later.lease_id, later.path, short)
        with pytest.raises(Unavailable):
            table_with(tmp_path, there)
        with planted((segment_copy, "_check", lambda *_: None)):
            assert found(table_with(tmp_path, there)) == list(range(100))  # not 100 to 199


class TestFile:
    def test_a_copy_that_is_not_synced_is_seen(self, tmp_path, sealed, monkeypatch):
        (task,) = sealed(SCHEMA, rows(0, 100))
        power = PowerCut(monkeypatch)
        where = table_with(tmp_path, task)
        assert power.strike(tmp_path / "table", "*.parquet") == []
        shutil.rmtree(where)
        with planted((PathStore, "_sync", lambda *_: None)):
            where = table_with(tmp_path, task)
        assert len(power.strike(tmp_path / "table", "*.parquet")) == 1
        assert found(where) == "FileNotFoundError"

    def test_its_mode_is_that_of_other_files(self, tmp_path, sealed, monkeypatch):
        (task,) = sealed(SCHEMA, rows(0, 100))

        def mode_of(where):
            return stat.S_IMODE(file_of(where).stat().st_mode)

        where = table_with(tmp_path, task)
        writing = Writing.of(look_at(where).location, "orders", 1, COLUMNS)
        by_rows, *_ = write_file(writing, [COLUMNS.empty_table()])
        usual = stat.S_IMODE((tmp_path / "table" / by_rows).stat().st_mode)
        assert mode_of(where) == usual
        shutil.rmtree(where)

        def closed(task, writing, name, digest):
            _check(task, writing, name, digest)
            (Path(writing.location.url) / name).chmod(0o600)

        with planted((segment_copy, "_check", closed)):
            assert mode_of(table_with(tmp_path, task)) != usual

    def test_its_time_is_now_so_that_no_vacuum_takes_it(self, tmp_path, sealed):
        (task,) = sealed(SCHEMA, rows(0, 100))
        os.utime(task.path, (1, 1))
        began = time.time() - 1
        where = table_with(tmp_path, task)
        assert file_of(where).stat().st_mtime > began
        shutil.rmtree(where)

        def as_it_was(task, writing, name, digest):
            _check(task, writing, name, digest)
            shutil.copystat(task.path, Path(writing.location.url) / name)

        with planted((segment_copy, "_check", as_it_was)):
            assert file_of(table_with(tmp_path, task)).stat().st_mtime < began

    def test_an_older_physical_type_under_a_widened_column_is_seen(self, tmp_path, sealed):
        (task,) = sealed({"id": "int32", "name": "string"}, rows(0, 10))
        writing = Writing.of(table_at(tmp_path).location, "orders", 0, COLUMNS)
        assert copied_segment(task, writing) is None  # by rows
        with planted((segment_copy, "_are_alike", lambda *_: True)):
            name, *_ = copied_segment(task, writing)
        kind = pq.read_schema(tmp_path / "table" / name).field("id").type
        assert kind != COLUMNS.field("id").type


def look_at(where):
    return look(where, LogSource("orders", "shop/orders", 1, "log"))


def table_at(tmp_path):
    return create(
        str(tmp_path / "table"), LogSource("orders", "shop/orders", 1, "log"), COLUMNS
    )


class TestStatistics:
    def read(self, where, number):
        """Return what a reader finds that skips files by their statistics."""
        dataset = DeltaTable(where).to_pyarrow_dataset()
        return dataset.to_table(filter=pa.compute.field("id") == number)["id"].to_pylist()

    def test_those_of_another_footer_are_seen(self, tmp_path, sealed):
        tasks = sealed(SCHEMA, rows(0, 100), rows(100, 200))
        where = table_with(tmp_path, *tasks)
        assert [self.read(where, number) for number in (50, 150)] == [[50], [150]]
        shutil.rmtree(where)
        real = segment_copy.footer_statistics

        def of_another(footer, *given):
            return real(pq.read_metadata(tasks[0].path), *given)

        with planted((segment_copy, "footer_statistics", of_another)):
            where = table_with(tmp_path, *tasks)
        assert [self.read(where, number) for number in (50, 150)] != [[50], [150]]

    def test_bounds_beside_nan_are_seen(self, tmp_path, sealed):
        columns = {"id": "int64", "x": "float64"}
        values = [1.0, math.nan, 50.0]
        (task,) = sealed(columns, [{"id": n, "x": x} for n, x in enumerate(values)])
        wide = pa.schema([*list(COLUMNS)[:3], ("x", pa.float64())])

        def has_bound(where):
            return bounds_of(where).get("max.x", [None]) != [None]

        where = table_with(tmp_path, task, columns=wide)
        assert not has_bound(where)  # NaN is above 50 for a reader that orders it
        shutil.rmtree(where)
        with planted((segment_copy, "leaves_without_nan", lambda _: frozenset(range(99)))):
            assert has_bound(table_with(tmp_path, task, columns=wide))


class TestRanges:
    """Which segments a round takes, and which rows around them: planned by the driver."""

    def test_one_that_is_trimmed_while_it_is_copied_comes_whole(
        self, spark, tmp_path, topic, monkeypatch
    ):
        """The lease keeps its file, and the place goes on behind it."""
        topic.append(rows(0, 100), partition=0)
        seal_all(tmp_path / "data")
        real, firsts = pipeline.copy_files, []

        def trimmed(*given):
            topic.trim(100, 0, past_hold=True)
            firsts.append(topic.bounds()[0].first)
            return real(*given)

        monkeypatch.setattr(pipeline, "copy_files", trimmed)
        (done,) = run(spark, a_definition(tmp_path))
        assert (firsts, done.segment_count) == ([100], done.file_count)
        topic.append(rows(100, 110), partition=0)
        run(spark, a_definition(tmp_path))
        assert found(str(tmp_path / "table")) == list(range(110))

    @pytest.fixture
    def half(self, spark, tmp_path, topic):
        """A table whose place is inside a segment."""
        topic.append(rows(0, 50), partition=0)
        run(spark, a_definition(tmp_path))
        topic.append(rows(50, 100), partition=0)
        seal_all(tmp_path / "data")
        topic.append(rows(100, 120), partition=0)
        return str(tmp_path / "table")

    def test_the_rest_of_a_segment_comes_by_rows(self, spark, tmp_path, half):
        run(spark, a_definition(tmp_path))
        assert found(half) == list(range(120))

    def test_a_segment_in_which_the_place_is_taken_whole_is_seen(self, spark, tmp_path, half):
        def overlapping(files, start, end):
            return [each for each in files if start < each.end <= end]

        with planted((sealed_rows, "_inside", overlapping)):
            run(spark, a_definition(tmp_path))
        assert found(half) == sorted([*range(50), *range(120)])

    def test_rows_of_a_copied_segment_that_come_again_are_seen(self, spark, tmp_path, topic):
        topic.append(rows(0, 100), partition=0)
        seal_all(tmp_path / "data")

        def all_around(self, number, start, end):
            return sealed_rows._inside(self._files(number), start, end), [(start, end)]

        with planted((SealedRows, "cut", all_around)):
            run(spark, a_definition(tmp_path))
        assert found(str(tmp_path / "table")) == sorted([*range(100), *range(100)])

    def test_a_sealed_round_that_ends_beyond_its_segments_is_seen(self, spark, tmp_path, topic):
        """Its place is that of the log's end, and the tail never comes."""
        topic.append(rows(0, 100), partition=0)
        seal_all(tmp_path / "data")
        topic.append(rows(100, 120), partition=0)

        def beyond(self, starts, ends):
            return {number: end and 120 for number, end in ends.items()}

        def without_rows(self, number, start, end):
            return sealed_rows._inside(self._files(number), start, end), []

        with planted((SealedRows, "sealed_ends", beyond), (SealedRows, "cut", without_rows)):
            run(spark, a_definition(tmp_path, tail="sealed"))
        run(spark, a_definition(tmp_path))
        assert found(str(tmp_path / "table")) == list(range(100))


def test_a_corrupt_segment_is_named(tmp_path, sealed):
    """So that no test here passes because copies fail in another way."""
    (task,) = sealed(SCHEMA, rows(0, 100))
    writing = Writing.of(table_at(tmp_path).location, "orders", 0, COLUMNS)
    flipped(task.path)
    with open(task.path, "rb") as source, pytest.raises(CorruptSegment):
        segment_copy._copied(task, writing, source)
