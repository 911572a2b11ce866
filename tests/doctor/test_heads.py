"""What the doctor says of heads, and the way out of a log that is short of its head."""

import shutil
from random import Random

import pyarrow as pa
import pytest
from tests.doctor import two_shards
from tests.doctor.two_shards import SETTINGS

import headrace
from headrace.doctor.examine import examine
from headrace.doctor.findings.finding import Severity
from headrace.doctor.salvage.salvage import salvage
from headrace.errors import CorruptEntry
from headrace.journal.heads import NAME, SLOT_SIZE, read_heads
from headrace.node.identity import look
from headrace.storage.file import FileDirectory

ROWS = 20


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Twenty rows that were appended one by one and a cursor, at rest for long."""
    path = tmp_path_factory.mktemp("heads") / "data"
    with headrace.open(path, **SETTINGS) as log:
        topic = log.create_topic("shop/a", {"id": "int64", "text": "string"})
        for number in range(ROWS):
            topic.append([{"id": number, "text": "x" * 200}])
        topic.store_cursors("readers", {0: ROWS})
    unclean(path)
    return path


def unclean(path):
    """Leave the superblocks as a kill does: nothing there says that the stop was clean."""
    for group in sorted((path / "groups").iterdir()):
        for name in ("superblock.a", "superblock.b"):
            (group / name).unlink()


@pytest.fixture
def log(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "data")


def journal(log, group=1):
    (found,) = (log / "groups" / f"{group:05}" / "journal").glob("*.wal")
    return found


def damage_end(file, size):
    data = bytearray(file.read_bytes())
    end = len(data.rstrip(b"\0"))
    data[end - size : end] = Random(7).randbytes(size)
    file.write_bytes(data)


def cluster_of(path):
    root = FileDirectory.open_root(str(path), create=False)
    return root, look(root).cluster.identity.cluster


@pytest.mark.parametrize("size", [512, 4096])
def test_the_way_out_of_a_short_shard_is_a_salvage(log, tmp_path, size):
    damage_end(journal(log), size)
    damage = [one for one in examine(str(log)).damage if one.kind != "superblock-lost"]
    assert damage
    assert all(one.file == f"groups/00001/journal/{journal(log).name}" for one in damage)
    assert all(one.next.endswith("--salvage NEW_DIR") for one in damage)
    with pytest.raises(CorruptEntry, match="doctor --salvage NEW_DIR"):
        headrace.open(log, **SETTINGS)
    account = salvage(str(log), str(tmp_path / "new"))
    assert not account.is_whole
    found = ids(tmp_path / "new")
    assert found == list(range(len(found)))
    assert 10 < len(found) <= ROWS
    assert cluster_of(tmp_path / "new")[1] != cluster_of(log)[1]
    root, cluster = cluster_of(tmp_path / "new")
    assert read_heads(root, cluster).heads[1].op > 0


def ids(path):
    with headrace.open(path, **SETTINGS) as log:
        return pa.table(log.topic("shop/a").read(0))["id"].to_pylist()


def test_an_older_copy_of_a_shard_is_damage_that_is_named(stopped):
    shard = stopped / two_shards.SECOND
    older = stopped.parent / "older"
    shutil.copytree(shard, older)
    with headrace.open(stopped, **SETTINGS) as log:
        log.topic(two_shards.NOTES).append([{"id": 1, "word": "more"}])
    shutil.rmtree(shard)
    older.rename(shard)
    (one,) = examine(str(stopped)).damage
    assert one.kind == "journal-end"


def test_weak_heads_are_a_note(log):
    file = log / NAME
    data = file.read_bytes()
    file.write_bytes(data[:SLOT_SIZE] + b"?" * SLOT_SIZE)
    assert next(one.what for one in heads_notes(log)).startswith("slot 2 of 2: ")
    file.unlink()
    assert [one.what for one in heads_notes(log)] == ["the file does not exist"]


def heads_notes(log):
    return [one for one in examine(str(log)).notes if one.kind == "heads"]


def test_heads_of_another_log_are_damage(log, tmp_path):
    other = tmp_path / "other"
    with headrace.open(other, **SETTINGS) as made:
        made.create_topic("shop/a", {"id": "int64"})
    shutil.copy(other / NAME, log / NAME)
    (one,) = [one for one in examine(str(log)).findings if one.file == NAME]
    assert (one.severity, one.kind) == (Severity.DAMAGE, "foreign-file")


def test_a_log_without_any_group_is_not_taken_for_a_new_one(log):
    shutil.rmtree(log / "groups")
    (one,) = examine(str(log)).damage
    assert one.kind == "group-gone"
    assert "'heads' names their ops" in one.what
