"""Two histories of one log: what the lost one had is named; no record of another ends it."""

import asyncio
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.node.nodes import NEWER, a_config, a_node, a_topic, append, as_an_older_release, ask
from tests.node.test_doubt import TWO, Numbered, add_topic, copied, passes

from headrace.doctor.salvage.salvage import salvage
from headrace.errors import MetadataInDoubt, NotReady, Rejected
from headrace.metadata.commands import Adopt
from headrace.metadata.state import LEVEL, RECORDING_LEVEL
from headrace.model.ids import GroupId
from headrace.model.revisions import is_stamped
from headrace.model.units import DURATION_UNITS, Duration
from headrace.node.config.settings import Config
from headrace.node.group.driver import Driver
from headrace.wire import topic_messages

ADOPT = topic_messages.AdoptOrphans(False, ())
ONE = GroupId(1)


def put(data: Path, group: int, source: Path) -> None:
    """Put a group of another moment in its place, with nothing left that tells of it."""
    shutil.rmtree(data / "groups" / f"{group:05}")
    shutil.copytree(source / "groups" / f"{group:05}", data / "groups" / f"{group:05}")
    for name in ("heads", "metadata.copy"):
        (data / name).unlink(missing_ok=True)


async def begin_twice(place: Path, config: Config | None = None) -> None:
    """Make one log with t1, and two copies of it that go their own ways: `a` and `b`."""
    async with a_node(place / "base", config) as node:
        await add_topic(node, 1)
    for name in ("a", "b"):
        shutil.copytree(place / "base", place / name)


@pytest.fixture(scope="module")
def branches(tmp_path_factory):
    return two_branches(tmp_path_factory.mktemp("branches"))


def two_branches(place: Path) -> Path:
    """One log that went on in two ways: `a` got t2, and `b` another topic in its place."""

    async def run():
        await begin_twice(place)
        async with a_node(place / "a") as node:
            await add_topic(node, 2)
        async with a_node(place / "b") as node:
            await a_topic(node, "other/y")
            info = await a_topic(node, "shop/x")
            await ask(node, topic_messages.DeleteTopicRequest("shop/x", info.created))
            await passes(node, 4)

    asyncio.run(run())
    return place


@pytest.mark.parametrize(("log", "group", "source"), [("a", 0, "b"), ("b", 1, "a")])
def test_a_record_of_another_history_deletes_nothing(branches, tmp_path, log, group, source):
    data = tmp_path / "data"
    shutil.copytree(branches / log, data)
    put(data, group, branches / source)

    async def run():
        for _ in range(2):  # a second start finds the same
            async with a_node(data, strict=False) as node:
                await passes(node)
                status = node.node.status()
                assert [one["rows"] for one in status["orphans"]] == [3]
                assert any("of another history" in one for one in status["degraded"])
                state = node.node.shards[ONE].shard.state
                assert sorted(one.end - one.first for one in state.partitions.values()) == [
                    3,
                    3,
                ]
                with pytest.raises(MetadataInDoubt):
                    await a_topic(node, "shop/z")

    asyncio.run(run())


def test_what_was_adopted_from_another_history_is_served_whole(branches, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(branches / "a", data)
    put(data, 0, branches / "b")

    async def run():
        async with a_node(data, strict=False) as node:
            await ask(node, ADOPT)
            await passes(node)
            assert node.node.status()["degraded"] == []
            rows = [one.end for one in node.node.shards[ONE].shard.state.partitions.values()]
            assert sorted(rows)[-2:] == [3, 3]

    asyncio.run(run())


def test_nothing_is_decided_while_a_shard_does_not_serve(tmp_path):
    data, away = tmp_path / "data", tmp_path / "away"

    async def run():
        async with a_node(data, TWO) as node:
            await add_topic(node, 1)
            await add_topic(node, 2)
            shutil.copytree(data, tmp_path / "before", ignore=shutil.ignore_patterns("*.sock"))
            await add_topic(node, 3)
            await add_topic(node, 4)
        put(data, 0, tmp_path / "before")
        (data / "groups" / "00002").rename(away)
        async with a_node(data, TWO, strict=False) as node:
            await ask(node, replace(ADOPT, is_dry=True))
            with pytest.raises(NotReady, match="shard 2 is not serving"):
                await ask(node, ADOPT)
            await passes(node)
            assert node.node.doubt is not None
        away.rename(data / "groups" / "00002")
        async with a_node(data, TWO, strict=False) as node:
            assert [one["rows"] for one in node.node.status()["orphans"]] == [3, 3]
            await ask(node, ADOPT)
            await passes(node)
            assert node.node.status()["degraded"] == []

    asyncio.run(run())


def test_metadata_that_is_put_back_after_a_long_doubt_is_taken(tmp_path):
    """While it is in doubt its log is left as it is: no checkpoint of it, and no head."""
    config = a_config()
    config = replace(
        config, seal=replace(config.seal, age=Duration(200 * DURATION_UNITS["ms"]))
    )
    data = tmp_path / "data"

    async def run():
        async with a_node(data, config) as node:
            await add_topic(node, 1)
        copied(data, tmp_path / "before")
        async with a_node(data, config) as node:
            await add_topic(node, 2)
        copied(data, tmp_path / "right")
        put(data, 0, tmp_path / "before")
        async with a_node(data, config, strict=False) as node:
            assert node.node.doubt is not None
            durable = node.node.catalog.driver.pump.group.journal.durable
            await asyncio.sleep(1.5)  # seal.age passes several times
            assert node.node.catalog.driver.pump.group.journal.durable == durable
            assert GroupId(0) not in node.node.heads
        shutil.rmtree(data / "groups" / "00000")
        shutil.copytree(tmp_path / "right" / "groups" / "00000", data / "groups" / "00000")
        async with a_node(data, config) as node:
            assert node.node.status()["degraded"] == []
            assert len((await ask(node, topic_messages.ListTopics())).topics) == 2

    asyncio.run(run())


def test_more_can_be_given_up_than_the_log_of_metadata_has_room_for(tmp_path):
    """Each is an entry: a checkpoint makes room for the next."""
    config = replace(a_config(), journal=replace(a_config().journal, metadata_slots=64))
    data = tmp_path / "data"

    async def run():
        async with a_node(data, config) as node:
            await add_topic(node, 1)
        copied(data, tmp_path / "before")
        async with a_node(data, config) as node:
            await a_topic(node, "shop/wide", partitions=150)
        put(data, 0, tmp_path / "before")
        for share in (80, 70):  # a start whose log is full goes on
            async with a_node(data, config, strict=False) as node:
                for one in node.node.doubt.orphans[:share]:
                    key = one.key
                    await ask(node, topic_messages.ForgetOrphan(key.namespace, key.created))
        async with a_node(data, config) as node:
            assert node.node.status()["degraded"] == []

    asyncio.run(run())


def test_giving_a_life_up_takes_over_the_deletions_that_its_shard_has_followed(tmp_path):
    data = tmp_path / "data"

    async def run():
        async with a_node(data) as node:
            await add_topic(node, 1)
            gone = await a_topic(node, "shop/gone")
            await passes(node, 2)
            shutil.copytree(data, tmp_path / "before", ignore=shutil.ignore_patterns("*.sock"))
            await ask(node, topic_messages.DeleteTopicRequest("shop/gone", gone.created))
            await passes(node, 6)
            await add_topic(node, 2)
        put(data, 0, tmp_path / "before")
        async with a_node(data, strict=False) as node:
            for one in node.node.doubt.orphans:
                key = one.key
                await ask(node, topic_messages.ForgetOrphan(key.namespace, key.created))
            await passes(node)
            assert node.node.status()["degraded"] == []
            assert (await ask(node, topic_messages.ListTopics())).topics == ("shop/t1",)

    asyncio.run(run())


@pytest.fixture(scope="module")
def plain_branches(tmp_path_factory):
    return two_plain_branches(tmp_path_factory.mktemp("plain"))


def two_plain_branches(place: Path, **third: object) -> Path:
    """Two ways of a log whose lives have plain counts; then `b` went on at level 2."""

    async def old():
        await begin_twice(place)
        async with a_node(place / "a") as node:
            await add_topic(node, 2)
        async with a_node(place / "b") as node:
            await a_topic(node, "shop/t3", **third)

    async def new():
        async with a_node(place / "b") as node:
            await add_topic(node, 4)  # which the shard of `a` does not have
            shutil.copytree(place / "b", place / "b4", ignore=shutil.ignore_patterns("*.sock"))
            info = await ask(node, topic_messages.DescribeTopic("shop/t3"))
            await ask(node, topic_messages.DeleteTopicRequest("shop/t3", info.created))
            await passes(node, 6)
            assert node.node.metadata.topic("shop", "t3") is None

    with as_an_older_release():
        asyncio.run(old())
    asyncio.run(new())
    return place


@pytest.fixture
def mixed(plain_branches, tmp_path):
    return put_plain(plain_branches, tmp_path / "data")


def put_plain(place: Path, data: Path) -> Path:
    """The shard of `a` beside metadata of `b`, which has deleted a life of the same count."""
    shutil.copytree(place / "a", data)
    put(data, 0, place / "b")
    return data


async def described(node, topic):
    return await ask(node, topic_messages.DescribeTopic(topic))


def rows_at(node):
    state = node.node.shards[ONE].shard.state
    return sorted(one.end - one.first for one in state.partitions.values())


def test_a_record_of_a_plain_count_ends_no_life_of_another_history(mixed):
    async def run():
        for _ in range(2):
            async with a_node(mixed, strict=False) as node:
                await passes(node, 8)
                assert [one["rows"] for one in node.node.status()["orphans"]] == [3]
                assert rows_at(node) == [3, 3]
                with pytest.raises(MetadataInDoubt, match="is not served while"):
                    await append(node, Numbered(await described(node, "shop/t4"), 4), 1)
        async with a_node(mixed, strict=False) as node:
            await ask(node, ADOPT)
            await passes(node, 4)
            assert node.node.status()["degraded"] == []
            assert rows_at(node) == [0, 3, 3]  # t4 is made, with nothing in it
            assert len((await ask(node, topic_messages.ListTopics())).topics) == 3
        async with a_node(mixed) as node:
            assert rows_at(node) == [0, 3, 3]

    asyncio.run(run())


def test_a_life_of_a_plain_count_that_was_given_up_goes(mixed):
    async def run():
        async with a_node(mixed, strict=False) as node:
            key = node.node.doubt.orphans[0].key
            await ask(node, topic_messages.ForgetOrphan(key.namespace, key.created))
            assert node.node.doubt is None
            await passes(node, 6)
            assert rows_at(node) == [0, 3]
        async with a_node(mixed) as node:
            assert node.node.status()["degraded"] == []
            assert rows_at(node) == [0, 3]

    asyncio.run(run())


def test_a_log_of_an_older_release_deletes_as_every_other(plain_branches, tmp_path):
    """Its shards follow the level before anything else is asked of them."""
    data = tmp_path / "data"
    shutil.copytree(plain_branches / "a", data)

    async def run():
        async with a_node(data) as node:
            await passes(node, 4)
            assert is_stamped(node.node.shards[ONE].shard.state.revision)
            info = await ask(node, topic_messages.DescribeTopic("shop/t2"))
            await ask(node, topic_messages.DeleteTopicRequest("shop/t2", info.created))
        async with a_node(data) as node:  # whether or not its shard had followed
            await passes(node, 6)
            assert node.node.status()["degraded"] == []
            assert rows_at(node) == [3]

    asyncio.run(run())


def test_nothing_is_built_beside_an_orphan_of_a_plain_count(tmp_path):
    """Its shard would look as if it had followed this history, so that a record binds."""
    place = two_plain_branches(tmp_path, schema=NEWER)
    data = tmp_path / "data"
    shutil.copytree(place / "a", data)

    async def run():
        async with a_node(data, strict=False) as node:
            await passes(node, 6)
            assert [one["rows"] for one in node.node.status()["orphans"]] == [3]
            assert rows_at(node) == [3, 3]

    for group_0 in ("b4", "b"):  # before the record, and with it
        put(data, 0, place / group_0)
        asyncio.run(run())


def test_one_entry_takes_an_older_log_to_its_level_and_adopts(tmp_path, monkeypatch):
    """Between two a crash would leave a level whose revision hides what shards had followed."""
    data = tmp_path / "data"

    async def old():
        async with a_node(data) as node:
            await add_topic(node, 1)
            await add_topic(node, 2)
        copied(data, tmp_path / "before")
        async with a_node(data) as node:
            info = await described(node, "shop/t2")
            change = topic_messages.AlterTopicRequest(
                info.topic, info.created, (9**9, None), ()
            )
            await ask(node, change)
            info = await described(node, "shop/t1")
            await ask(node, topic_messages.DeleteTopicRequest("shop/t1", info.created))
            await passes(node, 6)
        put(data, 0, tmp_path / "before")

    with as_an_older_release():
        asyncio.run(old())

    async def run():
        async with a_node(data, strict=False) as node:
            assert (node.node.doubt is not None, node.node.metadata.level) == (True, 1)
            proposed, submit = [], Driver.submit

            def noted(self, request, *rest):
                proposed.append(request.operation)
                return submit(self, request, *rest)

            monkeypatch.setattr(Driver, "submit", noted)
            await ask(node, ADOPT)
            assert proposed[:1] == [Adopt.operation]
            assert node.node.metadata.level >= RECORDING_LEVEL
            await passes(node, 4)
            assert node.node.status()["degraded"] == []
            async with asyncio.timeout(10):
                while node.node.metadata.level < LEVEL:  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(0.01)

    asyncio.run(run())


@pytest.fixture
def twins(tmp_path):
    """One count and number in two shards, of two histories, and metadata of before both."""

    async def run():
        await begin_twice(tmp_path, TWO)
        async with a_node(tmp_path / "a", TWO) as node:
            await a_topic(node, "other/x", partitions=3)
            await add_topic(node, 2)
        async with a_node(tmp_path / "b", TWO) as node:
            info = await described(node, "shop/t1")
            await ask(node, topic_messages.AddPartitionsRequest("shop/t1", info.created, 1, 3))
            await add_topic(node, 3, rows=5)

    with as_an_older_release():
        asyncio.run(run())
    data = tmp_path / "data"
    shutil.copytree(tmp_path / "a", data)
    put(data, 0, tmp_path / "base")
    put(data, 2, tmp_path / "b")
    return data


def test_a_life_that_stands_in_two_shards_is_not_given_up(twins):
    async def run():
        async with a_node(twins, TWO, strict=False) as node:
            keys = [one.key for one in node.node.doubt.orphans]
            (twin,) = {key for key in keys if keys.count(key) == 2}
            with pytest.raises(Rejected, match="is in shards 1 and 2, with different rows"):
                await ask(node, topic_messages.ForgetOrphan(twin.namespace, twin.created))
            assert [one.key for one in node.node.doubt.orphans] == keys

    asyncio.run(run())


def test_salvage_brings_both_of_two_lives_of_one_count(twins, tmp_path):
    report = salvage(str(twins), str(tmp_path / "new"))
    counts = Counter()
    for one in report.partitions:
        counts[one.topic] += one.rows
    assert sorted(counts.values())[-2:] == [3, 5], counts
