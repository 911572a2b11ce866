"""Writing one segment: a sync beside the reading back, and entries that are taken together."""

import errno
import os

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.partition.shards import Place as PlaceToSeal

from headrace.errors import CorruptSegment
from headrace.model import batch
from headrace.model.ids import Offset
from headrace.model.schema import upgrade
from headrace.partition.segments import seal_job, segment_writer
from headrace.partition.segments.entry_rows import EntryPlace, Schemas, placed_together
from headrace.partition.segments.seal_job import (
    DISK,
    FULL,
    UNSEALABLE,
    Done,
    SealRefused,
    seal_file,
)
from headrace_lab.disk.memory import MemoryDisk


@pytest.fixture
def place():
    return PlaceToSeal(MemoryDisk().root)


def sealed(place, begin):
    return seal_file(place.jobs[0], place.segments, place._read, begin)


def finding_rot(place):
    def read_back(*_):
        raise CorruptSegment("another row digest", path=place.jobs[0].temporary)

    return read_back


class Beside:
    """Begins a sync, and ends it when it is waited for, or fails then."""

    def __init__(self, failure=None):
        self.failure = failure
        self.steps = []

    def __call__(self, work):
        self.steps.append("begun")

        def wait():
            self.steps.append("waited")
            if self.failure is not None:
                raise self.failure
            work()

        return wait


def test_a_file_is_read_back_while_it_is_synced(place, monkeypatch):
    beside = Beside()
    real = seal_job.read_back

    def read_back(*given):
        beside.steps.append("read back")
        real(*given)

    monkeypatch.setattr(seal_job, "read_back", read_back)
    assert isinstance(sealed(place, beside), Done)
    assert beside.steps == ["begun", "read back", "waited"]


@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, DISK), (errno.ENOSPC, FULL)])
@pytest.mark.parametrize("is_rotten", [False, True])
def test_a_sync_that_failed_counts_whatever_was_read_back(
    place, monkeypatch, code, kind, is_rotten
):
    if is_rotten:
        monkeypatch.setattr(seal_job, "read_back", finding_rot(place))
    outcome = sealed(place, Beside(OSError(code, os.strerror(code))))
    assert isinstance(outcome, SealRefused)
    assert outcome.kind == kind
    assert place.leftovers() == []


def test_rot_is_told_only_when_the_sync_has_ended(place, monkeypatch):
    beside = Beside()
    monkeypatch.setattr(seal_job, "read_back", finding_rot(place))
    outcome = sealed(place, beside)
    assert isinstance(outcome, SealRefused)
    assert outcome.kind == UNSEALABLE
    assert beside.steps == ["begun", "waited"]
    assert place.leftovers() == []


class TestEntriesTogether:
    """Jobs of Place have 14 entries of 10 rows each."""

    def lots(self, place):
        job = place.jobs[0]
        schemas = Schemas.decode(job.schemas, "journal")
        return [batch.num_rows for batch in seal_job._batches(job, schemas, place._read)]

    def test_all_that_a_row_group_takes_are_one_batch(self, place):
        assert self.lots(place) == [140]

    def test_no_more_rows_than_a_row_group_takes(self, place, monkeypatch):
        monkeypatch.setattr(seal_job, "ROW_GROUP_ROWS_MAX", 45)
        assert self.lots(place) == [40, 40, 40, 20]

    def test_no_more_bytes_than_a_row_group_takes(self, place, monkeypatch):
        job = place.jobs[0]
        schemas = Schemas.decode(job.schemas, "journal")
        whole = next(iter(seal_job._batches(job, schemas, place._read)))
        monkeypatch.setattr(seal_job, "ROW_GROUP_SIZE_MAX", whole.nbytes // 2)
        lots = list(seal_job._batches(job, schemas, place._read))
        assert len(lots) == 3
        assert all(lot.nbytes <= whole.nbytes // 2 for lot in lots)
        assert pa.concat_batches(lots).equals(whole)


@given(st.lists(st.tuples(st.integers(1, 300), st.booleans()), min_size=1, max_size=9))
def test_rows_together_are_no_larger_than_was_said_of_each(lots):
    """With columns that a newer schema added, whose nulls share one buffer, and with nulls."""
    old = pa.schema([("id", pa.int64())])
    inner = pa.struct([(f"x{n}", pa.int64()) for n in range(9)])
    new = pa.schema([*old, ("more", inner), ("text", pa.string()), ("flag", pa.bool_())])
    batches = [
        upgrade(pa.record_batch([[None if has_null else 7] * count], schema=old), new)
        for count, has_null in lots
    ]
    found = placed_together(batches, EntryPlace(0, Offset(0), 1), [1] * len(batches))
    assert found.nbytes <= sum(map(seal_job.size_of, batches))


@given(st.lists(st.none() | st.integers(0, 9), min_size=1, max_size=40))
def test_what_is_said_of_a_message_is_the_same_without_the_sum_of_its_columns(values):
    columns = {
        "number": pa.array(values, pa.int64()),
        "text": pa.array([None if n is None else "x" * n for n in values], pa.string()),
        "list": pa.array(
            [None if n is None else [n] * n for n in values], pa.list_(pa.int64())
        ),
        "flag": pa.array([None if n is None else n > 4 for n in values], pa.bool_()),
    }
    rows = pa.record_batch(columns)
    found = batch.decode(batch.encode(rows), rows.schema, rows.num_rows)
    assert seal_job.size_of(found, is_upgraded=False) == seal_job.size_of(found)


def test_values_that_no_row_refers_to_are_let_go():
    offsets = pa.array([0, 0], pa.int32())
    child = pa.array(bytes(3 * 1024 * 1024), pa.uint8()).cast(pa.int8())
    rows = pa.record_batch({"x": pa.ListArray.from_arrays(offsets, child)})
    assert rows.get_total_buffer_size() > 3 * 1024 * 1024
    found = seal_job._trimmed(rows)
    assert found.equals(rows)
    assert found.get_total_buffer_size() < 100
    plain = pa.record_batch({"x": pa.array(range(1_000))})
    assert seal_job._trimmed(plain) is plain
    # What is not worth a copy alone counts, so that many of them are no more than a row group.
    child = pa.array(bytes(1000 * 1024), pa.uint8()).cast(pa.int8())
    rows = pa.record_batch({"x": pa.ListArray.from_arrays(offsets, child)})
    assert seal_job._trimmed(rows) is rows
    assert seal_job.size_of(rows) > 1000 * 1024


def test_a_lack_of_memory_is_tried_again(place, monkeypatch):
    def without_memory(*_):
        raise pa.ArrowMemoryError("malloc of size 62914560 failed")

    monkeypatch.setattr(segment_writer.RowDigest, "update", without_memory)
    outcome = seal_file(place.jobs[0], place.segments, place._read)
    assert isinstance(outcome, SealRefused)
    assert outcome.kind == DISK
    assert place.leftovers() == []
