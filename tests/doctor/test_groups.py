"""Identity and groups that do not fit each other: what is said, and what is saved."""

import shutil

import pytest
from tests.doctor.two_shards import FIRST, METADATA, SECOND, SETTINGS, ids

import headrace
from headrace.doctor.examine import examine
from headrace.doctor.salvage.salvage import salvage
from headrace.errors import MissingFile
from headrace.node.doubt.metadata_copy import NAME as COPY_NAME


def count_shards(log, number) -> None:
    path = log / "cluster.toml"
    path.write_text(path.read_text().replace("shards = 2", f"shards = {number}"))


def kinds(found) -> list[tuple[str, str]]:
    return [(one.kind, one.file) for one in found.damage]


def test_a_shard_too_few_is_counted_again_and_no_row_is_left_behind(stopped, tmp_path, counts):
    count_shards(stopped, 1)
    found = examine(str(stopped))
    assert kinds(found) == []
    (note,) = found.notes
    assert (note.kind, note.file) == ("identity-file", "cluster.toml")
    assert note.what == "cluster.toml counts 1 shards, but group 2 is also one"
    assert [one.group for one in found.groups] == [0, 1, 2]
    assert salvage(str(stopped), str(tmp_path / "new")).is_whole
    assert ids(tmp_path / "new") == {key: list(range(count)) for key, count in counts.items()}


def test_a_shard_that_only_metadata_names_is_not_forgotten(stopped, tmp_path):
    count_shards(stopped, 1)
    for one in ("superblock.a", "superblock.b"):
        (stopped / SECOND / one).unlink()
    found = examine(str(stopped))
    assert ("identity-file", "cluster.toml") in kinds(found)
    assert [one.group for one in found.groups] == [0, 1, 2]
    assert salvage(str(stopped), str(tmp_path / "new")).rows


def test_a_shard_too_many_is_damage_and_loses_nothing(stopped, tmp_path):
    count_shards(stopped, 3)
    found = examine(str(stopped))
    (one,) = found.damage
    assert (one.kind, one.file) == ("group-gone", "groups/00003")
    assert "cluster.toml" in one.what
    assert one.lost.startswith("nothing")
    assert found.groups[3].start == "refuses: MissingFile"
    assert salvage(str(stopped), str(tmp_path / "new")).is_whole


@pytest.mark.parametrize("number", [1, 3])
def test_without_metadata_the_directories_tell_how_many_there_are(stopped, tmp_path, number):
    count_shards(stopped, number)
    for one in (stopped / METADATA / "journal").glob("*.wal"):
        one.write_bytes(b"")
    (stopped / COPY_NAME).unlink()
    account = salvage(str(stopped), str(tmp_path / "new"))
    assert not account.is_whole
    assert len(account.partitions) == 4


@pytest.mark.parametrize("left", ["superblocks", "journals"])
def test_a_stray_directory_with_a_number_is_no_shard(stopped, left):
    (stopped / "cluster.toml").unlink()
    (stopped / "groups" / "00009").mkdir()
    (stopped / "groups" / "00009" / "notes.txt").write_text("not of a shard")
    if left == "journals":
        for one in stopped.rglob("superblock.*"):
            one.unlink()
    found = examine(str(stopped))
    assert [one.group for one in found.groups] == [0, 1, 2]
    (stray,) = [one for one in found.findings if one.file == "groups/00009"]
    assert (stray.kind, stray.severity) == ("stranger", "note")
    assert "not a shard" in stray.what
    if left == "superblocks":
        assert found.damage == []
        with headrace.open(stopped, **SETTINGS) as log:
            assert len(log.topics()) == 3
        assert "shards = 2" in (stopped / "cluster.toml").read_text()


def test_a_shard_that_lost_its_superblocks_is_still_counted_without_cluster_toml(stopped):
    (stopped / "cluster.toml").unlink()
    for one in (stopped / SECOND).glob("superblock.*"):
        one.unlink()
    assert [one.group for one in examine(str(stopped)).groups] == [0, 1, 2]


def test_a_directory_in_place_of_cluster_toml_is_told_once(stopped):
    (stopped / "cluster.toml").unlink()
    (stopped / "cluster.toml").mkdir()
    found = examine(str(stopped))
    (one,) = [one for one in found.findings if one.file == "cluster.toml"]
    assert (one.kind, one.what) == ("identity-file", "a directory where a file is expected")
    assert one.next.startswith("Move it elsewhere")


def test_groups_that_are_all_gone_are_no_new_log(stopped, tmp_path):
    shutil.rmtree(stopped / "groups")
    (one,) = examine(str(stopped)).damage
    assert (one.kind, one.file) == ("group-gone", "groups")
    assert one.lost == "everything"
    assert "'heads' names their ops" in one.what
    assert not salvage(str(stopped), str(tmp_path / "new")).is_whole


def test_groups_that_are_all_gone_without_heads_may_never_have_been(stopped, tmp_path):
    shutil.rmtree(stopped / "groups")
    (stopped / "heads").unlink()
    (one,) = examine(str(stopped)).damage
    assert (one.kind, one.file) == ("group-gone", "groups")
    assert "unknown" in one.lost
    assert not salvage(str(stopped), str(tmp_path / "new")).is_whole


def test_a_gone_group_is_said_to_be_refused_as_the_node_does(stopped):
    shutil.rmtree(stopped / SECOND)
    found = examine(str(stopped))
    assert found.groups[2].start == "refuses: MissingFile"
    with pytest.raises(MissingFile, match="the files of group 2 are missing"):
        headrace.open(stopped, **SETTINGS)


def test_other_widths_of_ids_are_named(stopped):
    path = stopped / "cluster.toml"
    path.write_text(path.read_text().replace("16, 24, 24", "16, 20, 28"))
    (one,) = examine(str(stopped)).damage
    assert one.what.startswith("expected namespace bits (")


def test_groups_that_were_swapped_are_told_as_one_finding_each(stopped, tmp_path):
    aside = stopped / "aside"
    for source, target in (
        (FIRST, aside),
        (SECOND, stopped / FIRST),
        (aside, stopped / SECOND),
    ):
        (stopped / source).rename(target)
    found = examine(str(stopped))
    assert kinds(found) == [("foreign-file", FIRST), ("foreign-file", SECOND)]
    assert found.damage[0].what.endswith("files: expected group 1, found 2")
    assert not salvage(str(stopped), str(tmp_path / "new")).is_whole
