"""Metadata that lost a change of retention trims no row by the retention of before."""

import asyncio
import shutil

import pytest
from tests.node.nodes import Writer, a_config, a_node, a_topic, append, ask, ids
from tests.node.test_doubt import passes
from tests.node.test_heads import until

from headrace.model.units import MILLISECOND
from headrace.node.config.settings import RetentionSettings
from headrace.node.group.journal_thread import JournalWriter
from headrace.wire import read_messages, topic_messages

AGE_MS = 300
EAGER = a_config(retention=RetentionSettings(tick=100 * MILLISECOND))
METADATA = ("groups/00000", "metadata.copy", "heads")


async def alter(node, info, age_ms: int | None = None, size: int | None = None):
    wanted = topic_messages.AlterTopicRequest(info.topic, info.created, (age_ms, size), ())
    return await ask(node, wanted)


def put(source, target, names=METADATA) -> None:
    for name in names:
        if (target / name).is_dir():
            shutil.rmtree(target / name)
            shutil.copytree(source / name, target / name)
        else:
            shutil.copy(source / name, target / name)


@pytest.fixture
def altered(tmp_path):
    """A topic that keeps rows for ever now, its rows, and metadata of when it did not."""
    live, older = tmp_path / "live", tmp_path / "older"

    async def made():
        async with a_node(live, EAGER) as node:
            return await a_topic(node, age_ms=AGE_MS)

    async def grow():
        async with a_node(live, EAGER) as node:
            await alter(node, info)
            await append(node, Writer(info), 5)

    info = asyncio.run(made())
    shutil.copytree(live, older)
    asyncio.run(grow())
    return live, older, info


async def first_of(node, info) -> int:
    where = info.partitions[0]
    (bounds,) = (await ask(node, read_messages.GetBounds((where,)))).bounds
    return bounds.first


@pytest.mark.parametrize("copies", ["of that moment", "missing"])
def test_a_retention_of_an_earlier_moment_trims_nothing(altered, copies):
    live, older, info = altered
    put(older, live)
    if copies == "missing":
        (live / "metadata.copy").unlink()
        (live / "heads").unlink()

    async def run():
        async with a_node(live, EAGER) as node:
            await asyncio.sleep(3 * AGE_MS / 1_000)
            assert await ids(node, info.partitions[0]) == list(range(5))
            (reason,) = node.node.status()["degraded"]
            assert "shard 1 has seen revision" in reason

    asyncio.run(run())


def test_a_change_of_retention_is_followed_by_the_shard_and_only_that(tmp_path):
    async def run():
        async with a_node(tmp_path, EAGER) as node:
            info = await a_topic(node)
            state = node.node.shards[1].shard.state
            changed = await alter(node, info, AGE_MS * 1_000)
            assert changed.revision > info.revision
            await until(lambda: state.revision == changed.revision)
            same = await alter(node, info, AGE_MS * 1_000)
            assert same.revision == changed.revision
            applied = node.node.shards[1].shard.pump.group.applied
            await passes(node)
            assert node.node.shards[1].shard.pump.group.applied == applied

    asyncio.run(run())


def test_a_stop_right_after_the_change_leaves_it_followed(tmp_path):
    async def run():
        async with a_node(tmp_path, EAGER) as node:
            info = await a_topic(node)
            changed = await alter(node, info, AGE_MS)
            shard = node.node.shards[1].shard
        assert shard.state.revision == changed.revision

    asyncio.run(run())


def test_an_adoption_suspends_every_retention_and_says_so(altered):
    live, older, info = altered
    put(older, live)

    async def run():
        async with a_node(live, EAGER) as node:
            (said,) = (await ask(node, topic_messages.AdoptOrphans(True, ()))).adopted
            assert said.startswith("shop/orders: all its rows")
            assert "`headrace topic alter shop/orders --retention 300ms`" in said
            assert (await ask(node, topic_messages.AdoptOrphans(False, ()))).adopted == (said,)
            await until(lambda: node.node.doubt is None)
            await asyncio.sleep(3 * AGE_MS / 1_000)
            assert await ids(node, info.partitions[0]) == list(range(5))
            now = await ask(node, topic_messages.DescribeTopic(info.topic))
            assert (now.retention_age_ms, now.retention_size) == (None, None)
            await alter(node, info, AGE_MS)
            await until(lambda: node.node.shards[1].shard.state.partitions[
                info.partitions[0].namespace].first == 5)  # fmt: skip

    asyncio.run(run())


def test_a_stop_waits_for_a_shard_that_is_still_building_to_follow(tmp_path, monkeypatch):
    """It does not follow while a partition is being opened: here its disk takes a while."""
    append = JournalWriter.append

    def late(self, entries):
        if self.group.journal.identity.group == 1:
            asyncio.get_running_loop().call_later(0.05, append, self, entries)
        else:
            append(self, entries)

    async def run():
        async with a_node(tmp_path, EAGER) as node:
            monkeypatch.setattr(JournalWriter, "append", late)
            info = await a_topic(node)
            changed = await alter(node, info, AGE_MS)
            shard = node.node.shards[1].shard
            assert shard.reconciler.flights
        assert shard.state.revision == changed.revision

    asyncio.run(run())
