"""Journal files that carry files keep: what is said of them when they are gone or rotten."""

import shutil
from pathlib import Path

import pytest
from tests.doctor import batches, harm

import headrace
from headrace.doctor.examine import examine
from headrace.doctor.salvage.salvage import salvage
from headrace.errors import CorruptEntry
from headrace.partition.files.carry import CarryFile, load_carry, op_of
from headrace.storage.file import FileDirectory

SETTINGS = {
    "journal__file_size": "1MiB",
    "limits__body_size": "64KiB",
    "seal__size": "3MiB",
    "seal__age": "1h",
    "seal__children": "1",
}
ROWS, PARTITIONS, BATCH, TIMES = "a/rows", 40, 10, 9
CARRY = "groups/00001/carry"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A log of slow partitions: no run is large enough for a segment yet."""
    path = tmp_path_factory.mktemp("kept") / "data"
    with headrace.open(path, **SETTINGS) as log:
        schema = {"id": "int64", "text": "string"}
        topic = log.create_topic(ROWS, schema, partitions=PARTITIONS)
        for time in range(TIMES):
            for partition in range(PARTITIONS):
                rows = [{"id": time * BATCH + n, "text": "x" * 3_000} for n in range(BATCH)]
                topic.append(rows, partition=partition)
    return path


@pytest.fixture
def log(made, tmp_path):
    shutil.copytree(made, tmp_path / "data", ignore=shutil.ignore_patterns("*.sock", "*.tmp"))
    return tmp_path / "data"


def kept(log):
    return sorted((log / CARRY).glob("*.wal"))


def the_oldest(log):
    """Return the oldest carry file, and the first kept file that it needs."""
    room = FileDirectory.open_root(str(log / CARRY), create=False)
    name = min(filter(op_of, room.names()))
    carry = load_carry(room.open(name), None, None, room)
    assert isinstance(carry, CarryFile)
    return carry, log / CARRY / carry.sources[0].name


def unread(log: Path) -> batches.Lost:
    ends = dict.fromkeys(range(PARTITIONS), TIMES * BATCH)
    return batches.unread(log, SETTINGS, ROWS, ends, BATCH)


@pytest.mark.parametrize("deep", [False, True])
def test_a_whole_log_has_no_finding(log, deep):
    assert len(kept(log)) >= 4
    examination = examine(str(log), deep=deep)
    assert list(examination.findings) == []
    assert unread(log) == set()


@pytest.mark.parametrize("deep", [False, True])
def test_a_kept_file_that_is_gone_costs_the_rows_that_are_named(log, deep):
    _, path = the_oldest(log)
    path.unlink()
    examination = examine(str(log), deep=deep)
    (one,) = examination.damage
    assert (one.kind, one.file) == ("kept-gone", f"{CARRY}/{path.name}")
    assert batches.named(examination, BATCH) == unread(log) != set()


def test_a_rotten_entry_is_named_with_the_file_that_it_is_in(log):
    carry, path = the_oldest(log)
    row = next(row for row in map(carry.row, carry.ops) if row.source == 1)
    harm.flip(path, row.position + row.size // 2)
    examination = examine(str(log), deep=True)
    (one,) = examination.damage
    assert (one.kind, one.file) == ("carry-entry", f"{CARRY}/{path.name}")
    assert batches.named(examination, BATCH) == unread(log)
    assert len(batches.named(examination, BATCH)) == 1


def test_a_node_that_meets_it_is_degraded(log):
    carry, path = the_oldest(log)
    for row in [row for row in map(carry.row, carry.ops) if row.source == 1]:
        harm.flip(path, row.position + row.size // 2)
    with headrace.open(log, **SETTINGS) as opened:
        assert opened.status()["degraded"] == []
        topic, refused = opened.topic(ROWS), 0
        for partition in range(PARTITIONS):
            try:
                topic.read(partition).to_table()
            except CorruptEntry:
                refused += 1
        assert refused > 1
        (said,) = opened.status()["degraded"]  # one place, however many entries are in it
        assert path.name in said


@pytest.mark.parametrize("kind", ["carry-bad", "carry-gone"])
def test_behind_a_lost_index_a_salvage_finds_what_was_kept(log, tmp_path, kind):
    carry, _ = the_oldest(log)
    path = log / CARRY / carry.name
    if kind == "carry-bad":
        harm.flip(path, 30)
    else:
        path.unlink()
    examination = examine(str(log), deep=True)
    (one,) = examination.damage
    assert one.kind == kind
    assert "--salvage finds" in one.lost
    assert salvage(str(log), str(tmp_path / "new")).is_whole == (kind == "carry-bad")
    assert batches.named(examination, BATCH) == unread(log) != set()


def test_a_kept_file_that_nothing_needs_is_a_note(log):
    shutil.copy(kept(log)[0], log / CARRY / "0123456789abcdef.wal")
    (one,) = examine(str(log), deep=True).findings
    assert (one.kind, one.file) == ("unnamed", f"{CARRY}/0123456789abcdef.wal")
    assert unread(log) == set()
