"""Healing on real directories: what is less than its copy comes back, or is refused by name."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest
from tests.node.nodes import Writer, a_config, a_node, a_topic, append, ask, ids
from tests.node.test_copy_on_a_node import check_equal, sealed
from tests.node.test_heads import at_rest, contents, damage_end, until

from headrace.errors import (
    CorruptEntry,
    CorruptFile,
    MetadataInDoubt,
    MissingFile,
    StorageFailed,
    WriteFailed,
)
from headrace.node.bootstrap import start
from headrace.node.doubt.metadata_copy import NAME
from headrace.node.group.driver import now_us
from headrace.wire import topic_messages

MOMENTS = 11
PLACE = Path("groups") / "00000"


async def grow(path: Path, moments: Path) -> None:
    """Live: topics with rows, a checkpoint, restarts; group 0 kept from before each change."""
    for number in range(MOMENTS):
        if number:
            shutil.copytree(path / PLACE, moments / str(number))
        async with a_node(path) as node:
            info = await a_topic(node, f"shop/topic-{number}")
            await append(node, Writer(info))
            if number == MOMENTS // 2:
                await sealed(node)
            await at_rest(node)


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """A log that was stopped, and group 0 as it was at earlier moments."""
    place = tmp_path_factory.mktemp("lived")
    asyncio.run(grow(place / "data", place / "moments"))
    return place


@pytest.fixture
def data(lived, tmp_path):
    return shutil.copytree(lived / "data", tmp_path / "data")


def newest_journal(path: Path) -> Path:
    return max((path / PLACE / "journal").glob("*.wal"))


def check_healed(path: Path, left: str) -> dict:
    """Start; every topic and row is there, the old files are aside, and it is said."""
    before = contents(path / PLACE) if (path / PLACE).exists() else {}

    async def run():
        async with a_node(path) as node:
            topics = await ask(node, topic_messages.ListTopics())
            assert topics.topics == tuple(sorted(f"shop/topic-{n}" for n in range(MOMENTS)))
            for name in topics.topics:
                (where,) = (await ask(node, topic_messages.DescribeTopic(name))).partitions
                assert await ids(node, where) == list(range(10))
            status = node.node.status()
            await a_topic(node, "shop/after")
            check_equal(path, node)
            return status

    status = asyncio.run(run())
    assert status["ready"]
    (said,) = [line for line in status["groups"]["0"]["recovery"] if "healed" in line]
    assert said.startswith(f"healed from the copy of metadata, from {left}")
    assert said in status["steps"]["healing"]
    assert status["groups"]["0"]["refused"] is None
    aside = path / "groups" / "00000.old-1"
    if before:
        assert str(aside) in said
        assert contents(aside) == before
    assert not (path / "groups" / "00000.new").exists()
    again = asyncio.run(started(path))
    assert not any("healed" in line for line in again["groups"]["0"]["recovery"])
    return status


async def started(path: Path) -> dict:
    async with a_node(path) as node:
        return node.node.status()


def held(path: Path) -> Exception:
    """Start, in doubt, and return why group 0 is held."""

    async def run():
        async with a_node(path) as node:
            error = node.boot.groups[0].held
            assert node.node.status()["metadata_copy"]["held"]
            with pytest.raises(MetadataInDoubt):
                await ask(node, topic_messages.CreateStreamRequest("more"))
            return error

    return asyncio.run(run())


@pytest.mark.parametrize("size", [512, 4096])
def test_the_last_sector_of_its_newest_journal_file_is_damaged(data, size):
    damage_end(newest_journal(data), size)
    status = check_healed(data, "op ")
    said = status["metadata_copy"]
    assert said["healed"].startswith("healed from the copy of metadata, from op ")
    assert (said["flaw"], said["held"], said["failure"]) == (None, [], None)


@pytest.mark.parametrize("number", range(1, MOMENTS))
def test_it_was_put_back_from_an_earlier_moment(lived, data, number):
    shutil.rmtree(data / PLACE)
    shutil.copytree(lived / "moments" / str(number), data / PLACE)
    check_healed(data, "op ")


def test_it_was_put_back_from_an_earlier_moment_without_heads(lived, data):
    (data / "heads").unlink()
    shutil.rmtree(data / PLACE)
    shutil.copytree(lived / "moments" / "9", data / PLACE)
    check_healed(data, "op ")


@pytest.mark.parametrize("harm", ["directory", "files", "journal", "superblocks"])
def test_it_is_gone_or_a_part_of_it(data, harm):
    place = data / PLACE
    if harm == "directory":
        shutil.rmtree(place)
    elif harm == "files":
        for file in [each for each in place.rglob("*") if each.is_file()]:
            file.unlink()
    elif harm == "journal":
        shutil.rmtree(place / "journal")
    else:
        for file in [*place.glob("superblock.*"), *place.glob("snapshots/*")]:
            file.write_bytes(b"rot")
        newest_journal(data).write_bytes(bytes(8192))
    left = {"directory": "nothing", "files": "nothing", "journal": "op "}
    check_healed(data, left.get(harm, "nothing"))


def test_it_is_damaged_in_the_middle(data):
    journal = newest_journal(data)
    content = journal.read_bytes()
    with journal.open("r+b") as file:
        file.seek(8192 + len(content[8192:].rstrip(b"\0")) * 9 // 10)
        file.write(b"?" * 600)
    check_healed(data, "op ")


def test_a_heal_that_was_begun_is_gone_on_with(data):
    """As a crash between the two renames leaves it."""
    shutil.copytree(data / PLACE, data / "kept")
    shutil.rmtree(data / PLACE)
    asyncio.run(started(data))
    (data / PLACE).rename(data / "groups" / "00000.new")
    shutil.move(data / "kept", data / "groups" / "00000.old-1")
    status = asyncio.run(started(data))
    assert status["ready"]
    assert "resumed an interrupted heal" in status["groups"]["0"]["recovery"][0]
    assert (data / PLACE).exists()


def test_what_was_put_back_meanwhile_is_not_replaced(data, lived):
    """A crash had left a whole group beside the old one; since then the old one is whole."""
    shutil.copytree(lived / "moments" / "9", data / "groups" / "00000.new")
    status = asyncio.run(started(data))
    assert status["ready"]
    assert status["metadata_copy"]["healed"] is None
    assert not (data / "groups" / "00000.old-1").exists()


@pytest.mark.parametrize("kind", ["file", "link"])
@pytest.mark.parametrize("name", ["00000.new", "00000.old-1"])
def test_what_has_a_name_that_a_heal_needs_is_left_as_it_is(data, name, kind):
    stray = data / "groups" / name
    if kind == "file":
        stray.write_text("somebody's own")
    else:
        stray.symlink_to(data / "elsewhere")
    damage_end(newest_journal(data), 512)
    status = asyncio.run(started(data))
    assert status["ready"]
    assert "from op " in status["metadata_copy"]["healed"]
    kept = [one for one in (data / "groups").iterdir() if not one.is_dir()]
    assert len(kept) == 1
    assert kept[0].is_symlink() if kind == "link" else kept[0].read_text() == "somebody's own"
    assert asyncio.run(started(data))["ready"]


def test_a_link_for_the_group_is_refused_by_its_own_name(data):
    (data / PLACE).rename(data / "elsewhere")
    (data / PLACE).symlink_to(data / "elsewhere")
    with pytest.raises(StorageFailed) as caught:
        asyncio.run(started(data))
    assert caught.value.path == str(data / PLACE)
    assert "links are not followed" in caught.value.hint
    (data / PLACE).unlink()
    (data / "elsewhere").rename(data / PLACE)
    assert asyncio.run(started(data))["ready"]


class TestHeld:
    def test_group_0_and_its_copy_are_gone(self, data):
        shutil.rmtree(data / PLACE)
        (data / NAME).unlink()
        heads = (data / "heads").read_bytes()
        assert isinstance(held(data), MissingFile)
        assert not (data / PLACE).exists()
        assert not (data / NAME).exists()
        assert (data / "heads").read_bytes() == heads

    def test_group_0_and_its_copy_are_gone_and_all_that_tells_of_them(self, data):
        shutil.rmtree(data / PLACE)
        for name in (NAME, "heads", "node.toml"):
            (data / name).unlink()
        assert isinstance(held(data), MissingFile)
        assert not list((data / PLACE).rglob("*.wal"))

    def test_group_0_and_its_copy_are_damaged(self, data):
        damage_end(newest_journal(data), 512)
        (data / NAME).write_bytes(b"rot" * 1000)
        kept = (data / NAME).read_bytes(), (data / "heads").read_bytes()
        before = contents(data / PLACE)
        assert isinstance(held(data), CorruptEntry)
        assert contents(data / PLACE) == before
        assert ((data / NAME).read_bytes(), (data / "heads").read_bytes()) == kept

    def test_an_older_copy(self, data, lived, tmp_path):
        """The head is newer than it; without the head, the shard is."""
        old = tmp_path / "old"
        asyncio.run(grow_once(old, "one"))
        copy = (old / NAME).read_bytes()
        asyncio.run(grow_once(old, "two"))
        shutil.rmtree(old / PLACE)
        (old / NAME).write_bytes(copy)
        assert isinstance(held(old), MissingFile)
        assert "the copy ends at op" in reasons(old)
        (old / "heads").unlink()
        assert isinstance(held(old), MissingFile)
        assert "group 1 follows revision 2 of the metadata" in reasons(old)
        assert (old / NAME).read_bytes() == copy

    def test_a_copy_of_another_branch(self, tmp_path):
        ours, theirs = tmp_path / "ours", tmp_path / "theirs"
        asyncio.run(grow_once(ours, "one"))
        shutil.copytree(ours, theirs)
        asyncio.run(grow_once(ours, "two"))
        asyncio.run(grow_once(theirs, "three"))
        shutil.copy(theirs / NAME, ours / NAME)
        error = held(ours)
        assert isinstance(error, CorruptFile)
        assert error.path == str(ours / NAME)
        assert "another" in str(error)
        assert "move the copy away" in error.hint
        (ours / NAME).unlink()
        assert asyncio.run(started(ours))["ready"]

    def test_a_shard_that_does_not_start(self, data):
        """Nobody knows what it follows. A strict start is refused by the shard, by name."""
        damage_end(newest_journal(data), 512)
        shutil.rmtree(data / "groups" / "00001")
        before = contents(data / PLACE), (data / NAME).read_bytes()

        async def run():
            with pytest.raises(MissingFile, match="group 1"):
                await start(str(data), a_config())
            async with a_node(data, strict=False) as node:
                return node.node.status()

        status = asyncio.run(run())
        assert not status["ready"]
        assert "are missing" in status["groups"]["1"]["refused"]
        assert "heads" in status["groups"]["0"]["held"]
        assert "group 1 did not start" in status["metadata_copy"]["held"][0]
        assert (contents(data / PLACE), (data / NAME).read_bytes()) == before

    def test_a_node_that_is_in_doubt_says_so(self, data):
        shutil.rmtree(data / PLACE)
        (data / NAME).unlink()

        async def run():
            async with a_node(data, strict=False) as node:
                return node.node.status()

        status = asyncio.run(run())
        assert any("are missing" in each for each in status["degraded"])
        assert status["metadata_copy"]["held"]


async def grow_once(path: Path, name: str) -> None:
    async with a_node(path) as node:
        await append(node, Writer(await a_topic(node, f"shop/{name}")))
        await at_rest(node)


def reasons(path: Path) -> str:
    async def run():
        async with a_node(path, strict=False) as node:
            return "; ".join(node.node.status()["metadata_copy"]["held"])

    return asyncio.run(run())


def test_a_directory_in_place_of_the_copy_is_named_by_each_change(data):
    (data / NAME).unlink()
    (data / NAME).mkdir()

    async def run():
        async with a_node(data) as node:
            with pytest.raises(WriteFailed, match="Move it elsewhere") as caught:
                await a_topic(node, "shop/more")
            assert caught.value.path == str(data / NAME)
            (data / NAME).rmdir()
            await a_topic(node, "shop/more")
            check_equal(data, node)

    asyncio.run(run())


@pytest.mark.parametrize("harm", ["gone", "rot", "short", "huge"])
def test_a_copy_that_is_lost_costs_nothing(data, harm):
    copy = data / NAME
    if harm == "gone":
        copy.unlink()
    elif harm == "huge":
        os.truncate(copy, 1 << 40)  # all but the beginning is a hole
    else:
        copy.write_bytes(b"rot" * 100 if harm == "rot" else copy.read_bytes()[:300])

    async def run():
        async with a_node(data) as node:
            check_equal(data, node)
            return node.node.status()

    status = asyncio.run(run())
    assert status["ready"]
    assert bool(status["metadata_copy"]["flaw"]) == (harm != "gone")


class TestInDoubt:
    """Group 0 is recovered, and a shard knows more: the copy may know that, too."""

    def _older(self, data: Path, lived: Path) -> bytes:
        """Group 0 and heads of an earlier moment, beside a copy that cannot be read now."""
        shutil.rmtree(data / PLACE)
        shutil.copytree(lived / "moments" / "9", data / PLACE)
        (data / "heads").unlink()
        (data / NAME).write_bytes(b"?" + (data / NAME).read_bytes()[1:])
        return (data / NAME).read_bytes()

    def test_the_copy_stays_as_it_is_also_beside_a_checkpoint(self, data, lived):
        async def run():
            before = self._older(data, lived)
            async with a_node(data) as node:
                assert node.node.doubt is not None
                driver = node.node.catalog.driver
                driver.perform(driver.pump.request_seal(now_us()))
                assert driver.pump.is_idle  # in doubt there is none
                driver.pump.may_seal = True
                await sealed(node)
                await sealed(node)
                assert (data / NAME).read_bytes() == before
            async with a_node(data) as node:
                assert node.node.doubt is not None
                assert (data / NAME).read_bytes() == before

        asyncio.run(run())

    def test_the_first_change_begins_it_anew(self, data, lived):
        """As an operator's decision does: the Seals of before are in it, too."""

        async def run():
            before = self._older(data, lived)
            async with a_node(data) as node:
                driver = node.node.catalog.driver
                driver.pump.may_seal = True
                await sealed(node)
                driver.perform(driver.pump.request_seal(now_us()))
                await until(lambda: driver.pump.is_idle)
                assert (data / NAME).read_bytes() == before
                await ask(node, topic_messages.AdoptOrphans(False, ()))
                await until(lambda: node.node.doubt is None)
                check_equal(data, node)
                await a_topic(node, "shop/after")
                copy = check_equal(data, node)
                assert copy.newest.op > copy.base.op
            async with a_node(data) as node:
                check_equal(data, node)

        asyncio.run(run())
