"""An operator ends the doubt: what shards have is adopted, or given up by name."""

import asyncio
import shutil

import pytest
from tests.node.nodes import Writer, a_node, a_topic, append, ask, ids
from tests.node.test_doubt import (
    TWO,
    Numbered,
    add_topic,
    copied,
    history,  # noqa: F401 - a fixture
    mixed,
    passes,
    rows_of,
    two_topics,  # noqa: F401 - a fixture
)
from tests.node.test_heads import damage_end, journal_of

from headrace.errors import HeadraceError, MetadataInDoubt, Rejected
from headrace.model.revisions import shown
from headrace.wire import read_messages, topic_messages


@pytest.fixture
def short(two_topics, tmp_path):  # noqa: F811
    """Two topics, of which the metadata lost the second, and nothing else tells."""
    data = copied(two_topics, tmp_path / "data")
    damage_end(journal_of(data, 0), 512)
    (data / "heads").unlink()
    return data


async def no_doubt(node) -> None:
    async with asyncio.timeout(10):
        while node.node.doubt is not None:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.01)
    await passes(node)
    assert node.node.status()["degraded"] == []


async def adopt(node, *names: tuple[int, str], is_dry: bool = False) -> topic_messages.Adoption:
    return await ask(node, topic_messages.AdoptOrphans(is_dry, names))


def test_a_look_at_what_an_adoption_would_do_changes_nothing(short):
    async def run():
        async with a_node(short) as node:
            before = node.node.metadata.revision
            found = await adopt(node, is_dry=True)
            assert found.adopted == (
                "shop/recovered-1-2 (partition 1000001000000, 3 rows, shard 1)",
            )
            assert (found.left, found.revision) == ((), before)
            assert node.node.doubt is not None

    asyncio.run(run())


def test_an_adopted_topic_has_its_rows_cursors_writers_and_offsets(tmp_path):
    data = tmp_path / "data"

    async def made():
        async with a_node(data) as node:
            await add_topic(node, 1)
        copied(data / "groups" / "00000", tmp_path / "older")
        async with a_node(data) as node:
            info = await a_topic(node, "shop/t2", partitions=2)
            writer = Numbered(info, 2)
            await append(node, writer, 3)
            where = info.partitions[0]
            await ask(
                node,
                read_messages.StoreCursorRequest(
                    where.namespace, where.created, "g", 2, 0, True
                ),
            )
            return info, writer

    info, writer = asyncio.run(made())
    shutil.rmtree(data / "groups" / "00000")
    (data / "metadata.copy").unlink()  # with it, group 0 is healed, or held
    (tmp_path / "older").rename(data / "groups" / "00000")
    (data / "heads").unlink()

    async def run():
        async with a_node(data) as node:
            with pytest.raises(MetadataInDoubt, match="metadata adopt"):
                await a_topic(node, "other/c")
            done = await adopt(node, (info.partitions[1].namespace, "orders"))
            assert done.adopted[0].startswith("shop/orders (partitions 1000001000000, ")
            await no_doubt(node)
            found = await ask(node, topic_messages.DescribeTopic("shop/orders"))
            assert (found.created, found.partitions) == (info.created, info.partitions)
            assert shown(done.revision) > shown(info.created)
            where = info.partitions[0]
            assert await ids(node, where) == rows_of(2)
            cursors = await ask(node, read_messages.GetCursors(where.namespace, where.created))
            assert [(one.group, one.next) for one in cursors.cursors] == [("g", 2)]
            assert (await append(node, writer, 2)).start == 3  # the next of the same writer
            other = await a_topic(node, "shop/next")
            assert other.created > done.revision

    asyncio.run(run())

    async def again():
        async with a_node(data) as node:
            assert node.node.status()["degraded"] == []
            assert await ids(node, info.partitions[0]) == rows_of(2, 5)

    asyncio.run(again())


@pytest.mark.parametrize("moment", [1, 3, 8])
def test_metadata_of_an_earlier_moment_takes_back_all_that_shards_have(
    history,  # noqa: F811
    tmp_path,
    moment,
):
    data = mixed(history, tmp_path / "data", {0: moment}, heads=False)

    async def run():
        async with a_node(data, TWO) as node:
            before = {
                (number, namespace, one.created, one.end - one.first)
                for number, shard in node.node.shards.items()
                for namespace, one in shard.shard.state.partitions.items()
            }
            done = await adopt(node)
            assert done.left == ()
            ended = [one for one in done.adopted if "its deletion" in one]
            assert [one.partition(" (")[0] for one in ended] == ["shop/t3"] * (moment == 3)
            await no_doubt(node)
            names = (await ask(node, topic_messages.ListTopics())).topics
            rows = []
            for name in names:
                info = await ask(node, topic_messages.DescribeTopic(name))
                rows += [await ids(node, one) for one in info.partitions
                         if one.created <= done.revision]  # fmt: skip
            expected = sorted(count for *_, count in before if count)
            assert sorted(len(one) for one in rows if one) == expected
            after = {
                (number, namespace, one.created)
                for number, shard in node.node.shards.items()
                for namespace, one in shard.shard.state.partitions.items()
            }
            assert {one[:3] for one in before} <= after

    asyncio.run(run())


def test_what_has_no_place_any_more_is_left_and_said(tmp_path, two_topics):  # noqa: F811
    """Metadata of another history has given its ids to another topic."""
    data, other = copied(two_topics, tmp_path / "data"), copied(two_topics, tmp_path / "other")

    async def grow(path, name):
        async with a_node(path) as node:
            await append(node, Writer(await a_topic(node, name)), 4)

    asyncio.run(grow(data, "shop/t3"))
    asyncio.run(grow(other, "shop/t4"))
    shutil.rmtree(data / "groups" / "00000")
    (data / "metadata.copy").unlink()  # with it, group 0 is healed, or held
    copied(other / "groups" / "00000", data / "groups" / "00000")
    (data / "heads").unlink()

    async def run():
        async with a_node(data) as node:
            done = await adopt(node)
            assert done.adopted == ()
            (said,) = done.left
            assert "topic shop/t4 has its IDs" in said
            assert "doctor --salvage" in said
            await passes(node)
            assert [one.row_count for one in node.node.doubt.orphans] == [4]

    asyncio.run(run())


def test_an_orphan_is_given_up_and_its_rows_go(short):
    async def run():
        async with a_node(short) as node:
            (orphan,) = node.node.doubt.orphans
            with pytest.raises(Rejected, match="is not recoverable"):
                await ask(node, topic_messages.ForgetOrphan(orphan.key.namespace, 7))
            info = await ask(node, topic_messages.DescribeTopic("shop/t1"))
            where = info.partitions[0]
            with pytest.raises(Rejected, match="is not recoverable"):
                await ask(node, topic_messages.ForgetOrphan(where.namespace, where.created))
            await ask(
                node, topic_messages.ForgetOrphan(orphan.key.namespace, orphan.key.created)
            )
            await no_doubt(node)
            async with asyncio.timeout(10):
                while len(node.node.shards[1].shard.state.partitions) > 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            made = await a_topic(node, "shop/next")
            assert await ids(node, made.partitions[0]) == []
            assert await ids(node, info.partitions[0]) == rows_of(1)

    asyncio.run(run())


def test_where_nothing_is_in_doubt_nothing_is_adopted_or_given_up(tmp_path):
    async def run():
        async with a_node(tmp_path) as node:
            info = await a_topic(node)
            before = node.node.metadata.revision
            assert await adopt(node) == topic_messages.Adoption(before, (), ())
            where = info.partitions[0]
            with pytest.raises(HeadraceError, match="is not recoverable"):
                await ask(node, topic_messages.ForgetOrphan(where.namespace, where.created))

    asyncio.run(run())
