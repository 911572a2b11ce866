"""Metadata that knows less than its shards have followed is damage, and costs no row."""

import shutil

import pytest
from tests.doctor import two_shards
from tests.doctor.two_shards import METADATA, NOTES, ROWS, SECOND, SETTINGS, ids

import headrace
from headrace.doctor.examine import examine
from headrace.doctor.salvage.salvage import salvage
from headrace.metadata.commands import AddSchema, CreateTopic
from headrace.node import bootstrap
from headrace.node.doubt.metadata_copy import NAME as COPY_NAME
from headrace.node.requests.catalog import Catalog


@pytest.fixture
def grown(stopped):
    """A log that was changed once more, and the metadata that it had before."""
    before = stopped.parent / "before"
    shutil.copytree(stopped / METADATA, before)
    with headrace.open(stopped, **SETTINGS) as log:
        log.topic(ROWS).add_partitions(3)
        log.topic(ROWS).append([{"id": n, "text": "p"} for n in range(7)], partition=2)
    return stopped, before


def forget_from(log, operation):
    """Zero group 0's journal from the last command of a kind on, as a lost write would."""
    (log / COPY_NAME).unlink()
    (log / "heads").unlink()  # on a slow machine a running node has written them by then
    hit = two_shards.frame(log / METADATA, operation)
    data = bytearray(hit.file.read_bytes())
    data[hit.position :] = bytes(len(data) - hit.position)
    hit.file.write_bytes(data)


def test_a_topic_that_metadata_forgot_is_brought_over_without_its_name(
    killed, tmp_path, counts
):
    forget_from(killed, CreateTopic.operation)
    *behind, orphan = examine(str(killed)).damage
    assert [(one.kind, one.file) for one in behind] == [("metadata-behind", METADATA)] * 2
    assert "shard 1" in behind[0].what
    assert "shard 2" in behind[1].what
    assert all("`headrace metadata adopt`" in one.next for one in (*behind, orphan))
    assert orphan.kind == "orphan"
    assert f"of one with {counts[two_shards.LATE, 0]} rows" in orphan.what
    assert "id: int64" in orphan.what
    account = salvage(str(killed), str(tmp_path / "new"))
    assert not account.is_whole
    assert not any("deleted" in said for said in account.notes)
    found = ids(tmp_path / "new")
    (late,) = [rows for (topic, _), rows in found.items() if topic.startswith("salvaged/")]
    assert late == list(range(counts[two_shards.LATE, 0]))


def test_a_schema_that_metadata_forgot_is_taken_from_the_shard(killed, tmp_path, counts):
    forget_from(killed, AddSchema.operation)
    kinds = [one.kind for one in examine(str(killed)).damage]
    assert set(kinds) <= {"metadata-behind", "orphan"}
    assert "metadata-behind" in kinds
    account = salvage(str(killed), str(tmp_path / "new"))
    assert account.missing_rows == 0
    assert not account.is_whole
    assert ids(tmp_path / "new")[NOTES, 0] == list(range(counts[NOTES, 0]))


def test_an_older_copy_of_the_metadata_is_found_out(grown, tmp_path, counts):
    log, before = grown
    shutil.rmtree(log / METADATA)
    shutil.copytree(before, log / METADATA)
    (log / COPY_NAME).unlink()
    one, *orphans = examine(str(log)).damage
    assert (one.kind, one.is_counted) == ("journal-end", False)
    assert {(each.kind, each.file) for each in orphans} == {("orphan", two_shards.FIRST)}
    assert all("metadata adopt" in each.next for each in orphans)  # which opens a held one, too
    (log / "heads").unlink()  # without it, what the shards have followed still tells
    behind, *orphans = examine(str(log)).damage
    assert behind.kind == "metadata-behind"
    assert "shard 1" in behind.what
    assert any("of one with 7 rows" in each.what for each in orphans)
    for each in (behind, *orphans):
        assert "headrace metadata adopt" in each.next
    salvage(str(log), str(tmp_path / "new"))
    found = ids(tmp_path / "new")
    assert found[ROWS, 2] == list(range(7))
    assert found[ROWS, 0] == list(range(counts[ROWS, 0]))


def test_a_topic_that_was_deleted_is_left_behind_without_a_loss(stopped, tmp_path):
    before = tmp_path / "before"
    shutil.copytree(stopped / SECOND, before)
    with headrace.open(stopped, **SETTINGS) as log:
        log.delete_topic(NOTES)
    # As a kill right behind the delete leaves it: the shard has not followed yet.
    shutil.rmtree(stopped / SECOND)
    shutil.copytree(before, stopped / SECOND)
    (stopped / "heads").unlink()  # a kill would have left the one of before
    assert examine(str(stopped)).damage == []
    account = salvage(str(stopped), str(tmp_path / "new"))
    assert account.is_whole
    assert [said.endswith("its rows are not copied") for said in account.notes] == [True]


def test_partitions_of_one_lost_topic_are_told_as_one(stopped):
    (stopped / COPY_NAME).unlink()
    (stopped / "heads").unlink()
    before = stopped.parent / "before"
    shutil.copytree(stopped / METADATA, before)
    with headrace.open(stopped, **SETTINGS) as log:
        log.create_topic("lost/wide", {"id": "int64"}, partitions=4)
    shutil.rmtree(stopped / METADATA)
    shutil.copytree(before, stopped / METADATA)
    (stopped / COPY_NAME).unlink()
    (stopped / "heads").unlink()
    (one,) = [one for one in examine(str(stopped)).damage if one.kind == "orphan"]
    assert one.what.startswith("partitions ")
    assert one.what.count(" of revision ") == 4


def test_a_life_of_a_branch_is_not_taken_for_the_topic_that_has_its_number(
    tmp_path, monkeypatch
):
    """Before revisions had bits of a checksum, two histories gave the same ones."""
    monkeypatch.setattr(Catalog, "begin_level", lambda _: None)
    monkeypatch.setattr(bootstrap, "LEVEL", 1)
    data, other = tmp_path / "data", tmp_path / "other"
    with headrace.open(data) as log:
        log.create_topic("a/first", {"id": "int64"}).append({"id": [1]})
    shutil.copytree(data, other, ignore=shutil.ignore_patterns("*.sock"))
    with headrace.open(data) as log:
        log.create_topic("a/one", {"id": "int64"}).append({"id": [5, 6]})
    with headrace.open(other) as log:
        log.create_topic("a/two", {"word": "string"}).append({"word": ["x"]})
    shutil.rmtree(data / METADATA)
    shutil.copytree(other / METADATA, data / METADATA)
    for name in ("heads", COPY_NAME):
        (data / name).unlink()
    monkeypatch.undo()
    account = salvage(str(data), str(tmp_path / "new"))
    assert account.missing_rows == 0
    found = {topic: rows for (topic, _), rows in ids(tmp_path / "new").items() if rows}
    assert [rows for topic, rows in found.items() if topic.startswith("salvaged/")] == [[5, 6]]
    with headrace.open(tmp_path / "new") as log:
        assert log.topic("a/two").schema.names == ["word"]
        assert log.topic("a/two").read().to_pandas().empty
