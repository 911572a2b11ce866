"""A row group that is read in several answers is decoded once, and then let go."""

import pyarrow as pa
import pytest
from tests.partition.segments import FIRST, a_segment, opened, small_groups

from headrace.model.ids import Offset
from headrace.partition.segments import row_group_cache as groups_room
from headrace.partition.segments.row_group_cache import RowGroupCache
from headrace_lab.disk.memory import MemoryDisk

END = Offset(FIRST + 60)


@pytest.fixture
def file():
    disk, reads = MemoryDisk(), []
    with small_groups(20):
        info, digests = a_segment(disk.root)
    found = opened(disk.root, info, digests)
    disk.read_fault = lambda path, at, size: reads.append(at)
    return found, reads


def offsets(batches):
    return [number for batch in batches for number in batch.column("_offset").to_pylist()]


def stopped(file, start, columns=None):
    """Read the first rows from `start` on, and stop: as an answer does that is full."""
    return offsets([next(file.read(Offset(start), END, columns))])


def test_a_reader_that_comes_back_for_the_rest_does_not_decode_it_again(file):
    found, reads = file
    assert stopped(found, FIRST) == list(range(FIRST, FIRST + 20))
    assert reads
    reads.clear()
    assert stopped(found, FIRST + 7) == list(range(FIRST + 7, FIRST + 20))
    assert reads == []
    stopped(found, FIRST + 7, ["_offset"])  # other columns
    assert reads


def test_a_group_that_was_read_to_the_end_of_the_range_is_let_go(file):
    found, reads = file
    stopped(found, FIRST)
    assert found.groups.size > 0
    assert offsets(found.read(Offset(FIRST), Offset(FIRST + 5))) == list(
        range(FIRST, FIRST + 5)
    )
    assert found.groups.size == 0
    reads.clear()
    assert offsets(found.read(Offset(FIRST), END)) == list(range(FIRST, END))
    assert reads
    assert found.groups.size == 0


def test_each_group_of_a_file_has_its_own_rows(file):
    found, _ = file
    for start in (FIRST, FIRST + 20, FIRST + 40):
        stopped(found, start)
    for start in (FIRST + 45, FIRST + 5, FIRST + 25):
        last = start - (start - FIRST) % 20 + 20
        assert stopped(found, start) == list(range(start, last))


def test_the_oldest_make_room_and_a_file_is_forgotten(monkeypatch):
    rows = [pa.record_batch({"a": list(range(100))})]
    monkeypatch.setattr(groups_room, "SIZE_MAX", 2 * rows[0].nbytes)
    groups = RowGroupCache()
    keys = [(bytes([number]), 0, ("a",)) for number in range(3)]
    for key in keys:
        groups.keep(key, rows)
    groups.keep(keys[1], rows)  # again: it counts once, and is the newest now
    assert groups.size == 2 * rows[0].nbytes
    assert groups.take(keys[0]) is None
    groups.forget(keys[2][0])
    assert groups.take(keys[2]) is None
    assert groups.take(keys[1]) is rows
    assert groups.size == 0
    groups.keep(keys[0], rows * 3)  # larger than all there is
    assert groups.size == 0


def test_a_reader_who_does_not_come_back_is_not_waited_for():
    rows, groups = [pa.record_batch({"a": [1]})], RowGroupCache()
    keys = [(b"file", number, ("a",)) for number in range(3)]
    groups.expire(100.0)
    groups.keep(keys[0], rows)
    groups.expire(103.0)
    groups.keep(keys[1], rows)
    groups.expire(104.9)
    assert groups.take(keys[0]) is rows
    groups.keep(keys[0], rows)  # he came back, and was stopped again
    groups.expire(108.0)
    assert groups.take(keys[1]) is None
    assert groups.take(keys[0]) is rows
    groups.keep(keys[2], rows)
    groups.expire(200.0)
    assert groups.size == 0
