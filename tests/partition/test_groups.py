"""A row group that is read in several answers is decoded once, and then let go."""

import pytest
from tests.partition.segments import FIRST, a_segment, opened, small_groups

from headrace.model.ids import Offset
from headrace.partition.groups import COUNT_MAX, Groups
from headrace.storage.memory import MemoryDisk

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


def test_a_reader_that_comes_back_for_the_rest_does_not_decode_it_again(file):
    found, reads = file
    assert offsets([next(found.read(Offset(FIRST), END))]) == list(range(FIRST, FIRST + 20))
    assert reads
    reads.clear()
    assert offsets([next(found.read(Offset(FIRST + 7), END))]) == list(
        range(FIRST + 7, FIRST + 20)
    )
    assert reads == []
    next(found.read(Offset(FIRST + 7), END, ["_offset"]))  # other columns
    assert reads


def test_a_group_that_was_read_to_its_end_is_let_go(file):
    found, reads = file
    assert offsets(found.read(Offset(FIRST), END)) == list(range(FIRST, END))
    assert not found.groups._kept
    reads.clear()
    assert offsets(found.read(Offset(FIRST), Offset(FIRST + 5))) == list(
        range(FIRST, FIRST + 5)
    )
    assert reads
    assert len(found.groups._kept) == 1


def test_the_oldest_makes_room():
    groups = Groups()
    keys = [(b"file", number, ("a",)) for number in range(COUNT_MAX + 1)]
    for key in keys[:-1]:
        groups.keep(key, [])
    assert groups.find(keys[0]) == []  # and is now the newest
    groups.keep(keys[-1], [])
    assert [groups.find(key) for key in keys] == [[], None, *[[]] * (COUNT_MAX - 1)]
