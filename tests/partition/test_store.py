"""A shard that runs: what it takes and refuses, over restarts, and beside its readers."""

import errno
import gc
from dataclasses import replace
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.partition.shards import (
    KEY,
    NARROW,
    OTHER,
    SCHEMA,
    WRITER,
    Shard,
    a_disk,
    a_shard,
    files_in,
    layered,
    on_files,
    sealed,
    shard_options,
    some_rows,
)

from headrace.errors import (
    BadBatch,
    BadSchema,
    BodyTooLarge,
    CorruptEntry,
    DiskFull,
    ForeignFile,
    MissingFile,
    StorageFailed,
)
from headrace.journal.entry import BODY_SIZE_MAX
from headrace.model import batch as batches
from headrace.model.ids import Revision
from headrace.model.namespace import Namespace
from headrace.model.results import AppendResult
from headrace.model.schema import canonical, check_sealable, conform
from headrace.partition.machine.operations import APPEND
from headrace.partition.machine.results import Refusal, RefusalCode
from headrace.partition.machine.segment_cut import SEGMENT_SIZES
from headrace.partition.machine.state import Placed
from headrace.partition.machine.writer_rule import WINDOW
from headrace.partition.reader import Key
from headrace.partition.segments.sealer import Children
from headrace.partition.shard_store import open_store
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.faults import Fail
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.shard.shard import appending, carrying, opening


def restarted(shard, disk, **changes) -> tuple[Shard, MemoryDisk]:
    """Kill the process and start again; nothing that the machine knows may be lost."""
    digest = shard.store.machine.digest()
    disk = disk.kill()
    again = a_shard(disk, **changes)
    assert again.store.machine.digest() == digest
    return again, disk


class TestBatches:
    def test_an_unknown_schema_is_refused_and_retryable(self):
        shard = a_shard()
        for schema_id in (0, 2, 2**32 - 1):
            proposal = appending(KEY, some_rows(0, 3), WRITER, 1, schema_id)
            refused = shard.one(proposal)
            assert isinstance(refused, Refusal)
            assert refused.code == RefusalCode.SCHEMA_UNKNOWN
            assert refused.is_retryable
        assert shard.store.reader.bounds(KEY) == (0, 0)

    def test_an_empty_batch_is_refused_at_the_door_and_in_the_log(self):
        shard = a_shard()
        body = memoryview(batches.encode(some_rows(0, 0)))
        with pytest.raises(BadBatch, match="no rows"):
            batches.admit(body, SCHEMA, 0)
        assert shard.one(appending(KEY, some_rows(0, 0), WRITER, 1)).code == RefusalCode.EMPTY
        assert isinstance(shard.one(appending(KEY, some_rows(0, 1), WRITER, 1)), AppendResult)

    @pytest.mark.parametrize(
        ("rows", "row_count", "flaw"),
        [
            (some_rows(0, 3, NARROW), 3, "nodes"),
            (some_rows(0, 3), 4, "the header declares 4 rows, the batch has 3"),
            (some_rows(0, 3), 2, "the header declares 2 rows, the batch has 3"),
        ],
    )
    def test_a_batch_that_is_not_what_is_said_is_refused_at_the_door(
        self, rows, row_count, flaw
    ):
        with pytest.raises(BadBatch, match=flaw):
            batches.admit(memoryview(batches.encode(rows)), SCHEMA, row_count)

    def test_a_batch_of_another_schema_names_the_column(self):
        with pytest.raises(BadBatch, match="name"):
            conform(some_rows(0, 3, NARROW), SCHEMA)
        wrong = pa.record_batch({"id": ["x"], "name": ["y"]})
        with pytest.raises(BadBatch, match="'id'"):
            conform(wrong, SCHEMA)

    @pytest.mark.parametrize(
        "kind",
        [pa.duration("us"), pa.null(), pa.month_day_nano_interval(), pa.struct([])],
        ids=str,
    )
    def test_a_type_that_parquet_or_spark_cannot_hold_names_the_column(self, kind):
        schema = pa.schema([("id", pa.int64()), ("odd", pa.list_(kind))])
        with pytest.raises(BadSchema) as caught:
            check_sealable(canonical(schema))
        assert caught.value.column == "odd[]"

    def test_one_that_was_let_in_all_the_same_harms_only_itself(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(2)
        rotten = memoryview(batches.encode(some_rows(20, 10, NARROW)))
        shard.one(carrying(APPEND, rotten, KEY, WRITER, 3, 1, 10))
        shard.append_many(14)
        for _ in range(3):
            with pytest.raises(CorruptEntry, match="op 4 does not hold a batch of schema 1"):
                shard.ids(20, 21)
            assert shard.ids(0, 20) + shard.ids(30, 170) == [*range(20), *range(30, 170)]
            shard.checkpoint()
            (unsealed,) = shard.unsealed
            assert "op 4 does not hold a batch" in unsealed.place.flaw
            assert [one.what for one in shard.store.findings] == [
                f"unsealed: {unsealed.place.flaw}"
            ]
            shard, disk = restarted(shard, disk)

    def test_the_largest_body_is_kept_and_one_byte_more_is_none(self):
        disk = MemoryDisk()
        shard = a_shard(disk, sizes=SEGMENT_SIZES)
        overhead = len(batches.encode(a_blob(4096))) - 4096
        blob = a_blob(BODY_SIZE_MAX - overhead)
        body = memoryview(batches.encode(blob))
        assert len(body) == BODY_SIZE_MAX
        key = Key(Namespace(1 << 24), Revision(1))
        shard.one(opening(key, [blob.schema], Revision(1), Revision(1)))
        head = shard.head
        with pytest.raises(BodyTooLarge) as caught:
            shard.one(carrying(APPEND, bytes(body) + b"\0", key, WRITER, 1, 1, 1))
        assert (caught.value.size, caught.value.limit) == (BODY_SIZE_MAX + 1, BODY_SIZE_MAX)
        assert shard.head == head
        assert shard.one(carrying(APPEND, body, key, WRITER, 1, 1, 1)) == AppendResult(
            0, 1, False
        )
        assert shard.rows(key=key)["blob"][0].as_py() == blob["blob"][0].as_py()
        shard.checkpoint()
        assert len(files_in(disk, "segments")) == 1
        assert shard.rows(key=key)["blob"][0].as_py() == blob["blob"][0].as_py()


def a_blob(size: int) -> pa.RecordBatch:
    return pa.record_batch({"blob": pa.array([b"\xab" * size], pa.binary())})


class TestWriters:
    def test_repeats_conflicts_gaps_and_strangers_have_one_answer_each(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(3)
        for _ in range(3):  # as it runs, replayed from the journal, and from a snapshot
            again = shard.one(appending(KEY, some_rows(10, 10), WRITER, 2))
            assert again == AppendResult(10, 20, repeated=True)
            conflict = shard.one(appending(KEY, some_rows(0, 10), WRITER, 2))
            assert conflict.code == RefusalCode.WRITER_CONFLICT
            gap = shard.one(appending(KEY, some_rows(30, 10), WRITER, 5))
            assert (gap.code, gap.is_retryable) == (RefusalCode.OUT_OF_ORDER, True)
            unknown = shard.one(appending(KEY, some_rows(30, 10), b"?" * 16, 2))
            assert unknown.code == RefusalCode.WRITER_UNKNOWN
            assert shard.ids() == list(range(30))
            shard, disk = restarted(shard, disk)
            shard.checkpoint()

    def test_below_the_window_is_too_old_also_after_a_restart(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(WINDOW + 2, 1)
        for _ in range(2):
            for version in (1, 2):
                old = shard.one(appending(KEY, some_rows(version - 1, 1), WRITER, version))
                assert (old.code, old.fields["first"]) == (RefusalCode.TOO_OLD, 3)
            known = shard.one(appending(KEY, some_rows(2, 1), WRITER, 3))
            assert known == AppendResult(2, 3, repeated=True)
            shard.checkpoint()
            shard, disk = restarted(shard, disk)
        assert shard.ids() == list(range(WINDOW + 2))

    def test_refused_and_repeated_entries_are_never_sealed_or_carried(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(2)
        shard.one(appending(KEY, some_rows(0, 10), WRITER, 1))
        shard.one(appending(KEY, some_rows(0, 10), WRITER, 9))
        shard.checkpoint()
        (op,) = shard.store.keeper.files.carry_ops
        assert list(shard.store.keeper.files.carry[op].ops) == [2, 3]


class TestRestart:
    @pytest.mark.parametrize("is_clean", [True, False])
    def test_everything_is_there_again(self, is_clean):
        disk = MemoryDisk()
        shard = a_shard(disk)
        layered(shard)
        before = shard.rows()
        digest = shard.store.machine.digest()
        if is_clean:
            shard.store.stop()
        after = disk.power_cut() if is_clean else disk.kill()
        again = a_shard(after)
        assert again.store.report.was_clean == is_clean
        assert again.store.machine.digest() == digest
        assert again.rows().equals(before)
        assert again.store.findings == []

    def test_a_life_of_many_restarts_and_checkpoints(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.open_partition(OTHER)
        for number in range(30):
            shard.append_many(1 + number % 5, 3 + number)
            shard.append(1 + number % 3, key=OTHER)
            if number % 3 == 0:
                shard.checkpoint()
            if number % 4 == 0:
                shard, disk = restarted(shard, disk)
            for key in (KEY, OTHER):
                end = shard.store.reader.bounds(key)[1]
                assert shard.ids(key=key) == list(range(end))
        assert shard.store.findings == []
        assert len(shard.segments) > 2

    def test_both_snapshots_lost_and_all_is_replayed_read_and_sealed_again(self):
        disk = a_disk(layered, file_size=1024 * 1024)
        before = a_shard(disk.clone(), file_size=1024 * 1024).rows()
        segments = files_in(disk, "segments")
        for path in [*files_in(disk, "snapshots"), *files_in(disk, "carry"), *segments]:
            disk.remove(path)
        shard = a_shard(disk, file_size=1024 * 1024)
        assert shard.store.report.snapshot_op == 0
        assert shard.rows().equals(before)
        # The Seal at the checkpoint was made again, with entries from below the ring.
        assert files_in(disk, "segments") == segments
        assert all(isinstance(one.place, Placed) for one in shard.segments)
        for _ in range(3):
            shard.append()
            shard.checkpoint()
        assert not shard.store.group.journal.far
        assert shard.rows(0, 190).equals(before)

    def test_the_newest_snapshot_lost_and_its_segments_are_written_again(self):
        disk = MemoryDisk()
        shard = a_shard(disk)
        shard.append_many(1)
        shard.checkpoint()
        path = sealed(shard)
        before = shard.rows()
        disk = disk.kill()
        disk.remove(files_in(disk, "snapshots")[-1])
        disk.remove(path)
        again = a_shard(disk)
        assert again.store.report.fell_back
        assert again.rows().equals(before)
        assert files_in(disk, "segments") == [path]

    def test_a_snapshot_that_names_files_that_are_gone_costs_their_rows_only(self):
        disk = a_disk(layered)
        (segment,) = files_in(disk, "segments")
        disk.remove(segment)
        shard = a_shard(disk)
        (finding,) = shard.store.findings
        assert finding.path == segment
        assert finding.what == "segment is missing: offsets 0 to 140 cannot be read"
        assert shard.ids(140, 190) == list(range(140, 190))
        shard.append()
        assert isinstance(shard.checkpoint(), int)


class TestOpening:
    def test_where_there_is_no_shard_none_is_made_unless_asked(self):
        disk = MemoryDisk()
        options = shard_options()
        options = replace(options, group=replace(options.group, create=False))
        with pytest.raises(MissingFile, match="not a shard"):
            open_store(disk.root, SOLO, options)
        assert disk.effect_count == 0

    def test_another_clusters_directory_is_refused(self):
        disk = a_disk(layered)
        other = replace(SOLO, cluster=b"another cluster!")
        with pytest.raises(ForeignFile):
            open_store(disk.root, other, shard_options())

    @pytest.mark.parametrize(
        ("number", "error"), [(errno.ENOSPC, DiskFull), (errno.EIO, StorageFailed)]
    )
    def test_rooms_that_cannot_be_made_are_named(self, number, error):
        disk = MemoryDisk()
        disk.hook = lambda effect: Fail(number) if effect.kind == "make-child" else None
        with pytest.raises(error):
            open_store(disk.root, SOLO, shard_options())
        disk.hook = None
        assert a_shard(disk).store.report.is_new

    def test_close_lets_every_descriptor_go(self, tmp_path):
        with on_files(tmp_path / "shard") as root:
            gc.collect()
            before = open_descriptors()
            shard = a_shard(root)
            layered(shard)
            shard.rows()
            shard.store.close()
            held = {path for path in open_descriptors() - before if not Path(path).is_dir()}
            assert held == set()


def open_descriptors() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.add(str(link.readlink()))
        except OSError:  # the one of the listing itself
            continue
    return found


class TestOtherReaders:
    def test_duckdb_polars_and_pandas_see_all_rows_of_all_partitions(self, tmp_path):
        with on_files(tmp_path / "shard") as root:
            shard = a_shard(root, sealer=lambda: Children(count=1))
            shard.open_partition(OTHER)
            for _ in range(2):
                shard.append_many(12)
                shard.append_many(11, key=OTHER)
                shard.checkpoint()
            expected = pa.concat_tables([shard.rows(), shard.rows(key=OTHER)])
            assert len(shard.segments) == 2
            assert not shard.partition.runs
            shard.store.stop()
        pattern = str(tmp_path / "shard" / "segments" / "*.parquet")
        names = [
            f"_hr{name}" if name.startswith("_") else name for name in expected.schema.names
        ]
        expected = expected.rename_columns(names)
        order = ["_hr_partition", "_hr_offset"]
        by_duckdb = duckdb.sql(
            f"select * from '{pattern}' order by _hr_partition, _hr_offset"
        ).arrow()
        if isinstance(by_duckdb, pa.RecordBatchReader):
            by_duckdb = by_duckdb.read_all()
        assert by_duckdb.select([*order, "id", "name"]).to_pylist() == (
            expected.select([*order, "id", "name"]).to_pylist()
        )
        by_polars = pl.scan_parquet(pattern).sort(order).collect()
        assert by_polars.rows() == [tuple(row.values()) for row in expected.to_pylist()]
        paths = sorted((tmp_path / "shard" / "segments").glob("*.parquet"))
        by_pandas = pd.concat([pd.read_parquet(path) for path in paths]).sort_values(order)
        assert by_pandas["id"].tolist() == expected["id"].to_pylist()
        assert by_pandas["_hr_timestamp"].tolist() == expected["_hr_timestamp"].to_pylist()
