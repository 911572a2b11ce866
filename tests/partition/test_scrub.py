"""The scrub: rot is found while a copy still exists, and nothing else is called rot."""

import errno
from dataclasses import replace

import pytest
from tests.partition.shards import (
    KEY,
    a_disk,
    a_shard,
    carry_path,
    files_in,
    layered,
    sealed,
)

from headrace.errors import CorruptSegment, ReadFailed
from headrace.model.ids import Offset, Revision
from headrace.partition.files.file_set import FileFinding
from headrace.partition.scrub import scrub
from headrace_lab.disk.faults import LoseSync
from headrace_lab.disk.memory import MemoryDisk
from headrace_lab.shard.shard import closing, purging, trimming


@pytest.fixture
def disk():
    return a_disk(layered)


def test_a_healthy_shard_has_nothing_to_tell(disk):
    shard = a_shard(disk)
    before = {path: disk.content(path) for path in disk.files()}
    assert list(scrub(shard.store.keeper)) == [None] * 4  # a segment and three carry files
    assert shard.store.findings == []
    assert {path: disk.content(path) for path in disk.files()} == before


@pytest.mark.parametrize("is_open", [True, False])
def test_a_rotten_segment_goes_to_quarantine_and_comes_back_from_a_copy(disk, is_open):
    shard = a_shard(disk)
    (path,) = files_in(disk, "segments")
    if is_open:
        shard.ids(0, 1)
    whole = disk.content(path)
    disk.flip(path, 9_999)
    found = [one for one in scrub(shard.store.keeper) if one]
    assert [one.path for one in found] == [path]
    assert shard.store.findings == found
    assert files_in(disk, "segments") == []
    (aside,) = files_in(disk.power_cut(), "quarantine")
    assert len(disk.content(aside)) == len(whole)
    with pytest.raises(CorruptSegment, match="cannot be opened"):
        shard.ids(0, 1)
    assert shard.ids(140, 190) == list(range(140, 190))
    for _ in range(2):
        shard.checkpoint()
    disk.put(path, whole)
    assert shard.ids() == list(range(190))
    again = a_shard(disk.kill())
    assert again.ids() == list(range(190))
    assert again.store.findings == []


def test_rot_that_only_the_platter_shows_is_found(disk):
    (path,) = files_in(disk, "segments")
    whole = disk.content(path)
    disk.flip(path, 9_999)
    with disk.root.child("segments").open(path.split("/")[1], writable=True) as file:
        file.write(0, [whole])  # the cache is right; the sync that would say so is lost
        disk.hook = lambda effect: LoseSync() if effect.kind == "sync" else None
        with pytest.raises(OSError, match="error"):
            file.sync()
    disk.hook = None
    shard = a_shard(disk)
    assert shard.ids(0, 140) == list(range(140))
    assert [one.path for one in scrub(shard.store.keeper) if one] == [path]


def test_a_missing_segment_is_told_once_each_time(disk):
    (path,) = files_in(disk, "segments")
    disk.remove(path)
    shard = a_shard(disk)
    for _ in range(2):
        (found,) = [one for one in scrub(shard.store.keeper) if one]
        assert found.path == path
    assert len([one for one in shard.store.findings if "cannot be opened" in one.what]) == 1


def test_what_is_trimmed_while_a_scrub_runs_is_no_loss():
    disk = MemoryDisk()
    shard = a_shard(disk)
    for _ in range(3):
        sealed(shard)
    steps = scrub(shard.store.keeper)
    assert next(steps) is None
    shard.one(purging(KEY))
    for _ in range(3):
        shard.checkpoint()
    assert files_in(disk, "segments") == []
    assert list(steps) == [None, None]
    assert shard.store.findings == []


def test_a_scrub_passes_over_what_is_trimmed_meanwhile_and_checks_what_stays():
    disk = MemoryDisk()
    shard = a_shard(disk)
    kept, rotten = [sealed(shard) for _ in range(4)][2:]
    steps = scrub(shard.store.keeper)
    assert next(steps) is None
    shard.one(trimming(KEY, Offset(2 * 140 + 10)))  # inside of the third
    for _ in range(3):
        shard.checkpoint()
    assert files_in(disk, "segments") == [kept, rotten]
    disk.flip(rotten, 9_999)
    passed, checked, found = steps
    assert (passed, checked) == (None, None)
    assert isinstance(found, FileFinding)
    assert found.path == rotten
    assert files_in(disk, "segments") == [kept]


def test_a_segment_of_a_life_that_ended_meanwhile_is_not_checked():
    disk = MemoryDisk()
    shard = a_shard(disk)
    _, ended = sealed(shard), sealed(shard)
    steps = scrub(shard.store.keeper)
    assert next(steps) is None
    shard.one(closing(KEY, Revision(2)))
    again = replace(KEY, created=Revision(3))
    shard.open_partition(again)
    for _ in range(2):
        shard.append_many(14, key=again)
        shard.checkpoint()
    assert [one.first for one in shard.segments] == [0, 140]
    assert ended not in disk.files()
    assert next(steps) is None
    assert shard.store.findings == []


def test_a_segment_is_held_while_it_is_checked(disk):
    shard = a_shard(disk)
    name = files_in(disk, "segments")[0].split("/")[1]
    seen = set()
    disk.read_fault = lambda *_: seen.add(shard.store.keeper.files.holds[name])
    next(scrub(shard.store.keeper))
    assert seen == {1}


@pytest.mark.parametrize("at", [20, 130, -100])
def test_a_rotten_carry_file_is_told_and_left_for_the_ops_that_are_whole(disk, at):
    shard = a_shard(disk)
    path = carry_path(18)
    disk.flip(path, at % len(disk.content(path)) * 8)
    (found,) = [one for one in scrub(shard.store.keeper) if one]
    assert found.path == path
    assert found.what.startswith("carry file: ")
    assert shard.store.findings == [found]
    assert path in disk.files()
    list(scrub(shard.store.keeper))
    assert shard.store.findings == [found]


def test_a_segment_that_cannot_be_moved_aside_is_a_finding_and_tried_again(disk):
    shard = a_shard(disk)
    (path,) = files_in(disk, "segments")
    disk.flip(path, 9_999)
    disk.set_immutable(path)
    (found,) = [one for one in scrub(shard.store.keeper) if one]
    what = "cannot be moved to quarantine: Operation not permitted"
    stuck = FileFinding(path, what, rows_missing=False)  # `found` says what is missing
    assert shard.store.findings == [found, stuck]
    assert files_in(disk, "segments") == [path]
    disk.set_immutable(path, to=False)
    assert [one for one in scrub(shard.store.keeper) if one] == [found]
    assert shard.store.findings == [found]
    assert files_in(disk, "segments") == []


def test_unreadable_bytes_are_rot(disk):
    shard = a_shard(disk)
    (path,) = files_in(disk, "segments")
    disk.read_fault = lambda where, *_: errno.EIO if where == path else None
    found = next(scrub(shard.store.keeper))
    assert isinstance(found, FileFinding)
    assert (found.path, "Input/output error" in found.what) == (path, True)
    with pytest.raises(CorruptSegment):
        list(shard.store.reader.read(KEY, Offset(0), Offset(1)))


def test_rot_in_a_carry_file_is_mended_from_the_journal_while_that_is_there():
    disk = MemoryDisk()
    shard = a_shard(disk)
    shard.append_many(2)
    carried_at = shard.checkpoint()
    path = carry_path(carried_at)
    disk.flip(path, (len(disk.content(path)) - 200) * 8)
    assert [one for one in scrub(shard.store.keeper) if one]
    for _ in range(2):
        shard.append()
        shard.checkpoint()
    assert shard.ids() == list(range(40))
    assert a_shard(disk.kill()).ids() == list(range(40))


def test_a_process_short_of_descriptors_judges_no_file(disk, monkeypatch):
    shard = a_shard(disk)
    (path,) = files_in(disk, "segments")

    def refuse(self, name):
        raise OSError(errno.EMFILE, "Too many open files", name)

    shard.store.keeper.files.open.clear()
    with monkeypatch.context() as patched:
        patched.setattr(type(shard.store.keeper.files.segments), "open", refuse)
        with pytest.raises(ReadFailed, match="cannot be read now"):
            shard.ids(0, 10)
        (found, *_) = list(scrub(shard.store.keeper))
        assert "cannot be read now" in found.what
    assert path in disk.files()
    assert shard.ids(0, 140) == list(range(140))
    assert next(scrub(shard.store.keeper)) is None


def test_a_segment_that_somebody_takes_away_does_not_end_a_scrub(disk):
    shard = a_shard(disk)
    (path,) = files_in(disk, "segments")
    disk.remove(path)
    for _ in range(2):
        found = list(scrub(shard.store.keeper))
        assert found[0].path == path
        assert len(found) == 4
