"""A damaged byte of cluster.toml hides no shard: all is served, or refused by name."""

import asyncio
import shutil
from random import Random

import pytest
from tests.node.nodes import a_node, ask, ids
from tests.node.test_doubt import TWO, add_topic, rows_of

from headrace.errors import HeadraceError
from headrace.wire import topic_messages


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A log with a topic in each of two shards."""
    data = tmp_path_factory.mktemp("identity") / "data"

    async def run():
        async with a_node(data, TWO) as node:
            await add_topic(node, 1)
            await add_topic(node, 2)
            assert sorted(node.node.shards) == [1, 2]
            for one in node.node.shards.values():
                assert len(one.shard.state.partitions) == 1

    asyncio.run(run())
    return data


async def served(node) -> list[list[int]]:
    found = []
    for name in ("shop/t1", "shop/t2"):
        info = await ask(node, topic_messages.DescribeTopic(name))
        found.append(await ids(node, info.partitions[0]))
    return found


def test_a_shard_that_is_not_counted_is_served_and_counted_again(stopped, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(stopped, data)
    file = data / "cluster.toml"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"shards = 2", b"shards = 1"))

    async def run():
        async with a_node(data, TWO) as node:
            assert await served(node) == [rows_of(1), rows_of(2)]
            assert "group 2 is also one" in node.node.status()["steps"]["identity"]
        assert file.read_bytes() == whole

    asyncio.run(run())


def test_a_shard_of_another_log_is_not_counted(stopped, tmp_path):
    data, other = tmp_path / "data", tmp_path / "other"
    shutil.copytree(stopped, data)

    async def run():
        async with a_node(other, TWO):
            pass
        shutil.copytree(other / "groups" / "00002", data / "groups" / "00003")
        async with a_node(data, TWO) as node:
            assert await served(node) == [rows_of(1), rows_of(2)]
            assert sorted(node.node.shards) == [1, 2]

    asyncio.run(run())


def test_a_shard_whose_directory_is_gone_with_the_file_is_named(stopped, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(stopped, data)
    (data / "cluster.toml").unlink()
    shutil.rmtree(data / "groups" / "00001")

    async def run():
        async with a_node(data, TWO, strict=False) as node:
            assert not node.boot.is_ready
            groups = node.node.status()["groups"]
            assert "groups/00001" in groups["1"]["refused"]
            assert groups["2"]["refused"] is None

    asyncio.run(run())


def test_no_new_log_is_made_over_shards_whose_metadata_is_gone(stopped, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(stopped, data)
    cluster = (data / "cluster.toml").read_text()
    (data / "cluster.toml").unlink()
    shutil.rmtree(data / "groups" / "00000")

    async def run():
        async with a_node(data, TWO, strict=False) as node:
            assert await served(node) == [rows_of(1), rows_of(2)]  # healed from the copy

    asyncio.run(run())
    assert (data / "cluster.toml").read_text() == cluster


@pytest.mark.campaign(12)
@pytest.mark.parametrize("place", range(60, 240))
def test_whatever_byte_is_damaged_no_row_is_hidden(stopped, tmp_path, place):
    data = tmp_path / "data"
    shutil.copytree(stopped, data)
    file = data / "cluster.toml"
    whole = bytearray(file.read_bytes())
    if place >= len(whole):
        return
    for byte in (0x30, 0x31, 0x33, Random(place).randrange(256)):
        if byte == whole[place]:
            continue
        file.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])

        async def run():
            try:
                async with a_node(data, TWO, strict=False) as node:
                    if node.boot.is_ready and not node.node.status()["degraded"]:
                        assert await served(node) == [rows_of(1), rows_of(2)]
            except HeadraceError:
                pass  # refused by name

        asyncio.run(run())
        file.write_bytes(whole)
