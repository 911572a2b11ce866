"""A group 0 that is held is opened once an operator has decided, with all that shards have."""

import asyncio
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.node.nodes import Writer, a_config, a_node, a_topic, append, ask, ids
from tests.node.test_copy_on_a_node import check_equal
from tests.node.test_doubt import Numbered, add_topic, passes, rows_of
from tests.node.test_heads import at_rest, contents, damage_end, heads_of, until
from tests.node.test_way_out import adopt, no_doubt

from headrace.errors import (
    Busy,
    DiskFull,
    HeadraceError,
    NotReady,
    Rejected,
    StorageFailed,
)
from headrace.metadata.state import LEVEL
from headrace.model.revisions import shown
from headrace.node.config.settings import Cluster
from headrace.node.doubt import heal, held, metadata_start
from headrace.node.doubt.metadata_copy import NAME as COPY
from headrace.wire import read_messages, topic_messages

PLACE = Path("groups") / "00000"
TOPICS = 4


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """A log of four topics, and its group 0 with copy and heads before each of them."""
    place = tmp_path_factory.mktemp("lived")
    data = place / "data"

    async def run():
        for number in range(1, TOPICS + 1):
            if number > 1:
                shutil.copytree(data, place / str(number), ignore=_unstored)
            async with a_node(data) as node:
                await add_topic(node, number)
                if number == TOPICS:
                    info = await ask(node, topic_messages.DescribeTopic("shop/t3"))
                    where = info.partitions[0]
                    cursor = (where.namespace, where.created, "g", 2, 0, True)
                    await ask(node, read_messages.StoreCursorRequest(*cursor))
                await at_rest(node)

    asyncio.run(run())
    return place


_unstored = shutil.ignore_patterns("*.sock", "*.tmp", "00001")


def _end(data: Path, lived: Path) -> None:
    damage_end(max((data / PLACE / "journal").glob("*.wal")), 512)
    (data / COPY).unlink()


def _end_and_rotten_copy(data: Path, lived: Path) -> None:
    damage_end(max((data / PLACE / "journal").glob("*.wal")), 512)
    (data / COPY).write_bytes(b"?" * 10_000)


def _gone(data: Path, lived: Path) -> None:
    shutil.rmtree(data / PLACE)
    (data / COPY).unlink()


def _gone_and_older_copy(data: Path, lived: Path) -> None:
    shutil.rmtree(data / PLACE)
    shutil.copy(lived / "3" / COPY, data / COPY)


def _emptied(data: Path, lived: Path) -> None:
    for name in contents(data / PLACE):
        (data / PLACE / name).unlink()
    (data / COPY).unlink()


def _older(data: Path, lived: Path) -> None:
    shutil.rmtree(data / PLACE)
    shutil.copytree(lived / "3" / PLACE, data / PLACE)
    (data / COPY).unlink()


def _older_and_older_copy(data: Path, lived: Path) -> None:
    shutil.rmtree(data / PLACE)
    shutil.copytree(lived / "2" / PLACE, data / PLACE)
    shutil.copy(lived / "2" / COPY, data / COPY)


HARMS = (
    _end,
    _end_and_rotten_copy,
    _gone,
    _gone_and_older_copy,
    _emptied,
    _older,
    _older_and_older_copy,
)


@pytest.fixture(params=HARMS, ids=lambda harm: harm.__name__.strip("_"))
def data(lived, tmp_path, request):
    """The log with a group 0 that no start recovers or heals."""
    path = shutil.copytree(lived / "data", tmp_path / "data")
    request.param(path, lived)
    return path


@pytest.fixture
def ended(lived, tmp_path):
    path = shutil.copytree(lived / "data", tmp_path / "data")
    _end(path, lived)
    return path


async def all_rows(node) -> list[list[int]]:
    found = []
    for name in (await ask(node, topic_messages.ListTopics())).topics:
        info = await ask(node, topic_messages.DescribeTopic(name))
        found += [await ids(node, where) for where in info.partitions]
    return sorted(found)


EVERY_ROW = [rows_of(number) for number in range(1, TOPICS + 1)]


def test_adopt_opens_it_with_all_that_shards_have(data):
    before = contents(data / PLACE) if (data / PLACE).exists() else {}
    head = heads_of(data)[0]

    async def run():
        async with a_node(data) as node:
            assert node.node.doubt.is_held
            lost = {(one.key.namespace, one.key.created) for one in node.node.doubt.orphans}
            seen = await adopt(node, is_dry=True)
            assert node.node.doubt.is_held
            done = await adopt(node)
            assert (done.adopted, done.left) == (seen.adopted, ())
            said, *adopted = done.adopted
            assert said.startswith("group 0: its readable part, ")
            assert len(adopted) == len(lost)
            await no_doubt(node)
            assert await all_rows(node) == EVERY_ROW
            status = node.node.status()
            assert status["groups"]["0"]["held"] is None
            assert status["metadata_copy"]["held"] == []
            assert any(
                "an operator decided" in one for one in status["groups"]["0"]["recovery"]
            )
            # It was said only once all of it was on disk.
            assert node.boot.heads.file.heads[0].op > head.op
            check_equal(data, node)
            served = set()
            for name in (await ask(node, topic_messages.ListTopics())).topics:
                info = await ask(node, topic_messages.DescribeTopic(name))
                served |= {(one.namespace, one.created) for one in info.partitions}
            assert lost <= served
            made = await a_topic(node, "shop/next")
            assert made.created > done.revision
            await append(node, Writer(made), 2)
            return done.revision

    revision = asyncio.run(run())
    aside = data / "groups" / "00000.old-1"
    assert (contents(aside) if aside.exists() else {}) == before
    assert not (data / "groups" / "00000.new").exists()

    async def again():
        async with a_node(data) as node:
            assert node.node.status()["degraded"] == []
            assert node.node.metadata.revision > revision
            assert await all_rows(node) == sorted([*EVERY_ROW, [0, 1]])
            await a_topic(node, "shop/more")
            await at_rest(node)
            check_equal(data, node)

    asyncio.run(again())
    damage_end(max((data / PLACE / "journal").glob("*.wal")), 512)  # it heals as any other

    async def healed():
        async with a_node(data) as node:
            assert node.node.status()["metadata_copy"]["healed"] is not None
            assert node.node.status()["degraded"] == []
            assert await all_rows(node) == sorted([*EVERY_ROW, [0, 1], []])

    asyncio.run(healed())


def test_lives_go_on_with_cursors_and_writers_under_the_names_that_are_said(ended, lived):
    async def run():
        async with a_node(ended) as node:
            (orphan,) = node.node.doubt.orphans
            await adopt(node, (orphan.key.namespace, "t4"))
            await no_doubt(node)
            info = await ask(node, topic_messages.DescribeTopic("shop/t3"))
            where = info.partitions[0]
            found = await ask(node, read_messages.GetCursors(where.namespace, where.created))
            assert [(one.group, one.next) for one in found.cursors] == [("g", 2)]
            last = await ask(node, topic_messages.DescribeTopic("shop/t4"))
            assert last.partitions[0].created == orphan.key.created
            assert (await append(node, Numbered(last, 9), 1)).start == 3

    asyncio.run(run())


def test_forget_opens_it_and_its_rows_go(ended):
    async def run():
        async with a_node(ended) as node:
            (orphan,) = node.node.doubt.orphans
            with pytest.raises(Rejected, match="nothing was changed"):
                await ask(node, topic_messages.ForgetOrphan(orphan.key.namespace, 7))
            assert node.node.doubt.is_held
            await ask(
                node, topic_messages.ForgetOrphan(orphan.key.namespace, orphan.key.created)
            )
            await no_doubt(node)
            await until(lambda: len(node.node.shards[1].shard.state.partitions) == TOPICS - 1)
            assert await all_rows(node) == EVERY_ROW[:-1]

    asyncio.run(run())

    async def again():
        async with a_node(ended) as node:
            assert node.node.status()["degraded"] == []
            assert await all_rows(node) == EVERY_ROW[:-1]

    asyncio.run(again())


def test_one_that_is_given_up_leaves_the_others_in_doubt(lived, tmp_path):
    data = shutil.copytree(lived / "data", tmp_path / "data")
    _older(data, lived)

    async def run():
        async with a_node(data) as node:
            first, second = node.node.doubt.orphans
            await ask(node, topic_messages.ForgetOrphan(first.key.namespace, first.key.created))
            await passes(node)
            assert not node.node.doubt.is_held
            assert [one.key for one in node.node.doubt.orphans] == [second.key]
            await adopt(node)
            await no_doubt(node)
            assert len(await all_rows(node)) == TOPICS - 1

    asyncio.run(run())


def test_a_name_that_cannot_be_leaves_it_held_and_each_byte_as_it_was(ended):
    before, heads = contents(ended / "groups"), heads_of(ended)

    async def run():
        async with a_node(ended) as node:
            (orphan,) = node.node.doubt.orphans
            for is_dry in (True, False):
                with pytest.raises(Rejected, match="already"):
                    await adopt(node, (orphan.key.namespace, "t1"), is_dry=is_dry)
            assert node.node.doubt.is_held

    asyncio.run(run())
    now = contents(ended / "groups")
    assert {name: data for name, data in now.items() if name.startswith("00000")} == {
        name: data for name, data in before.items() if name.startswith("00000")
    }
    assert heads_of(ended)[0] == heads[0]


def test_a_full_disk_leaves_it_held_and_the_next_try_does_it(ended, monkeypatch):
    make = heal._make

    async def run():
        async with a_node(ended) as node:

            def full(*_):
                raise DiskFull("groups/00000.new", "write")

            monkeypatch.setattr(heal, "_make", full)
            with pytest.raises(DiskFull):
                await adopt(node)
            assert node.node.doubt.is_held
            monkeypatch.setattr(heal, "_make", make)
            await adopt(node)
            await no_doubt(node)
            assert await all_rows(node) == EVERY_ROW

    asyncio.run(run())


@pytest.mark.parametrize("step", ["aside", "placed"])
def test_a_disk_that_fails_behind_the_old_one_was_set_aside(ended, monkeypatch, step):
    """Only a start tells what was done: it finds a whole new group, and all is adopted."""

    def fail(*_, **__):
        raise StorageFailed("groups/00000", "heal", OSError(5, "Input/output error"))

    def half_swapped(groups):
        groups.rename("00000", "00000.old-1")
        fail()

    async def run():
        async with a_node(ended) as node:
            with monkeypatch.context() as patch:
                if step == "aside":
                    patch.setattr(heal, "_swap", half_swapped)
                else:
                    patch.setattr(metadata_start, "recover", fail)
                with pytest.raises(StorageFailed):
                    await adopt(node)
            assert node.node.doubt.is_held
            with pytest.raises(StorageFailed):  # nor is it tried again
                await adopt(node)

    asyncio.run(run())

    async def again():
        async with a_node(ended) as node:
            assert node.node.status()["degraded"] == []
            assert await all_rows(node) == EVERY_ROW

    asyncio.run(again())


def test_it_stays_held_while_a_shard_does_not_serve(lived, tmp_path):
    """Its lives are not known, and their ids would be given to others."""
    two = a_config(cluster=replace(Cluster(), shards=2))
    data = tmp_path / "data"

    async def made():
        async with a_node(data, two) as node:
            for number in (1, 2):
                await add_topic(node, number)
            await at_rest(node)

    asyncio.run(made())
    _gone(data, lived)
    (data / "groups" / "00002").rename(tmp_path / "away")

    async def run():
        async with a_node(data, two, strict=False) as node:
            assert (await adopt(node, is_dry=True)).left == ()
            with pytest.raises(NotReady, match="shard 2 is not serving"):
                await adopt(node)
            (orphan,) = node.node.doubt.orphans
            with pytest.raises(NotReady, match="shard 2 is not serving"):
                await ask(
                    node, topic_messages.ForgetOrphan(orphan.key.namespace, orphan.key.created)
                )
            assert node.node.doubt.is_held

    asyncio.run(run())
    assert not (data / PLACE).exists()
    (tmp_path / "away").rename(data / "groups" / "00002")

    async def again():
        async with a_node(data, two) as node:
            await adopt(node)
            await no_doubt(node)
            assert await all_rows(node) == [rows_of(1), rows_of(2)]

    asyncio.run(again())


def test_of_two_decisions_at_once_one_is_taken(ended):
    async def run():
        async with a_node(ended) as node:
            both = await asyncio.gather(adopt(node), adopt(node), return_exceptions=True)
            busy = [one for one in both if isinstance(one, HeadraceError)]
            assert [type(one) for one in busy] == [Busy]
            await no_doubt(node)
            assert await all_rows(node) == EVERY_ROW

    asyncio.run(run())


def test_a_stop_waits_for_a_decision_that_is_under_way(ended, monkeypatch):
    open_held = held.open_held

    def slow(*arguments):
        time.sleep(0.5)
        return open_held(*arguments)

    async def run():
        async with a_node(ended) as node:
            monkeypatch.setattr(held, "open_held", slow)
            asking = asyncio.ensure_future(adopt(node))
            await asyncio.sleep(0.1)
            await node.boot.stop(0.01)  # it may not wait so long: all is let go as it is
            assert node.boot.metadata_group is not None
            asking.cancel()

    asyncio.run(run())

    async def again():
        async with a_node(ended) as node:
            assert await all_rows(node) == EVERY_ROW

    asyncio.run(again())


def test_metadata_of_an_older_release_gets_its_level_with_the_decision(ended, monkeypatch):
    (ended / "heads").unlink()
    shutil.rmtree(ended / PLACE)  # nothing is left of it: it begins at level 1

    async def run():
        async with a_node(ended) as node:
            assert node.node.doubt.is_held
            assert node.node.metadata.level < LEVEL
            done = await adopt(node)
            await no_doubt(node)
            assert node.node.metadata.level == LEVEL
            assert shown(done.revision) > TOPICS
            assert await all_rows(node) == EVERY_ROW

    asyncio.run(run())


def test_a_new_group_that_was_not_placed_is_not_taken_once_another_was_put_back(ended, lived):
    """It knows of an operator's decision that is none any more."""

    async def try_it(monkeypatch):
        async with a_node(ended) as node:
            monkeypatch.setattr(heal, "_swap", _raise)
            with pytest.raises(StorageFailed):
                await adopt(node)

    def _raise(_):
        raise StorageFailed("groups/00000", "heal", OSError(5, "Input/output error"))

    with pytest.MonkeyPatch.context() as patch:
        asyncio.run(try_it(patch))
    assert (ended / "groups" / "00000.new" / "superblock.a").exists()
    shutil.rmtree(ended / PLACE)
    shutil.copytree(lived / "data" / PLACE, ended / PLACE)

    async def run():
        async with a_node(ended) as node:
            assert node.node.status()["degraded"] == []

    asyncio.run(run())
    assert not (ended / "groups" / "00000.new" / "superblock.a").exists()
