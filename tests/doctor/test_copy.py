"""What the doctor says of the copy of metadata: the same as the next start does."""

import os
import shutil

import pytest
from tests.doctor import two_shards
from tests.doctor.test_heads import damage_end, journal
from tests.doctor.two_shards import FIRST, METADATA, SETTINGS

import headrace
from headrace.doctor.examine import examine
from headrace.doctor.salvage.salvage import salvage
from headrace.errors import Corrupt, MetadataInDoubt
from headrace.node.doubt.metadata_copy import NAME


@pytest.fixture
def log(stopped):
    return stopped


def in_doubt(path) -> None:
    with headrace.open(path, **SETTINGS) as opened, pytest.raises(MetadataInDoubt):
        opened.create_topic("a/more", {"id": "int64"})


def kinds(findings) -> set[str]:
    return {one.kind for one in findings}


@pytest.mark.parametrize("harm", ["end", "gone", "headers"])
def test_a_group_0_that_the_next_start_heals_is_a_note(log, harm):
    if harm == "gone":
        shutil.rmtree(log / METADATA)
    elif harm == "end":
        damage_end(journal(log, 0), 512)
    else:
        with journal(log, 0).open("r+b") as file:
            file.write(bytes(8192))
    found = examine(str(log))
    assert found.damage == []
    (heal,) = [one for one in found.notes if one.kind == "heal"]
    assert heal.file == METADATA
    assert found.groups[0].start == "heals it from the copy of metadata"
    with headrace.open(log, **SETTINGS) as opened:
        assert len(opened.topics()) == 3
    again = examine(str(log))
    assert again.damage == []
    assert kinds(again.notes) >= ({"set-aside"} if harm != "gone" else set())
    assert "heal" not in kinds(again.notes)


def test_without_the_copy_it_is_damage(log):
    damage_end(journal(log, 0), 512)
    (log / NAME).unlink()
    found = examine(str(log))
    assert found.damage
    assert "copy" in kinds(found.notes)
    assert found.groups[0].start == "holds it, read-only: CorruptEntry"
    (one,) = [one for one in found.damage if one.file.startswith(METADATA)]
    means = "the node holds this group read-only and accepts no topic changes"
    assert one.means.endswith(means)
    assert "`headrace metadata adopt`" in one.next
    in_doubt(log)


def test_a_group_0_that_is_gone_with_its_copy_is_held_and_can_be_opened(log):
    shutil.rmtree(log / METADATA)
    (log / NAME).unlink()
    found = examine(str(log))
    assert found.groups[0].start == "holds it, read-only: MissingFile"
    (one,) = [one for one in found.damage if one.file == METADATA]
    assert (one.kind, one.means) == (
        "group-gone",
        "the node holds this group read-only and accepts no topic changes",
    )
    assert "Do not start a node" not in one.next
    assert "`headrace metadata adopt`" in one.next
    in_doubt(log)


def test_a_damaged_copy_is_a_note(log):
    (log / NAME).write_bytes(b"rot")
    found = examine(str(log))
    assert found.damage == []
    (one,) = [one for one in found.notes if one.kind == "copy"]
    assert "cut short" in one.what


def test_a_copy_of_any_size_is_a_note(log):
    os.truncate(log / NAME, 1 << 40)  # all but the beginning is a hole
    found = examine(str(log))
    assert found.damage == []
    (one,) = [one for one in found.notes if one.kind == "copy"]
    assert "1,099,511,627,776 bytes" in one.what


def test_a_directory_in_place_of_the_copy_is_damage(log):
    (log / NAME).unlink()
    (log / NAME).mkdir()
    (one,) = examine(str(log)).damage
    assert (one.kind, one.file) == ("copy", NAME)
    assert one.next.startswith("Move it elsewhere")


def test_a_group_that_was_set_aside_is_no_shard(log):
    """Also where the journals alone tell how many shards there were."""
    damage_end(journal(log, 0), 512)
    with headrace.open(log, **SETTINGS):
        pass
    assert (log / "groups" / "00000.old-1").is_dir()
    (log / "cluster.toml").unlink()
    for file in log.rglob("superblock.*"):
        file.unlink()
    found = examine(str(log))
    assert [one.group for one in found.groups] == [0, 1, 2]
    assert "group-gone" not in kinds(found.damage)


def test_beside_a_damaged_shard_it_is_not_healed_and_said(log):
    damage_end(journal(log, 0), 512)
    shutil.rmtree(log / FIRST)
    found = examine(str(log))
    assert {one.file.split("/")[1] for one in found.damage if "/" in one.file} >= {
        "00000",
        "00001",
    }
    (one,) = [one for one in found.notes if one.kind == "copy"]
    assert "group 1 did not start" in one.what
    with pytest.raises(Corrupt):
        headrace.open(log, **SETTINGS)


def test_a_salvage_takes_the_names_from_the_copy(log, tmp_path):
    shutil.rmtree(log / METADATA)
    account = salvage(str(log), str(tmp_path / "new"))
    assert account.is_whole
    assert two_shards.ids(tmp_path / "new") == two_shards.ids(log)


def test_a_copy_of_another_history_is_damage(tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with headrace.open(ours, **SETTINGS) as opened:
        opened.create_topic("a/one", {"id": "int64"})
    shutil.copytree(ours, theirs)
    for path, name in ((ours, "a/two"), (theirs, "a/three")):
        with headrace.open(path, **SETTINGS) as opened:
            opened.create_topic(name, {"id": "int64"})
    shutil.copy(theirs / NAME, ours / NAME)
    found = examine(str(ours))
    (one,) = found.damage
    assert found.groups[0].start == "holds it, read-only: it disagrees with its copy"
    assert (one.kind, one.file) == ("copy-differs", NAME)
    assert "`headrace metadata adopt`" in one.next
    in_doubt(ours)
