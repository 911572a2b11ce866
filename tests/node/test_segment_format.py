"""Which format of segments a node writes: the newest, once no older release can open it."""

import asyncio
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.node.nodes import Writer, a_node, a_topic, append, ids

from headrace.errors import DiskFull, UnsupportedFormat
from headrace.journal import journal_file, superblock
from headrace.journal.group import Group
from headrace.metadata import commands
from headrace.metadata.state import LEVEL, SEGMENT_LEVEL
from headrace.node import bootstrap
from headrace.node.group.driver import now_us
from headrace.node.requests.catalog import Catalog
from headrace.partition.machine.segment_cut import SEGMENT_SIZES


@contextmanager
def as_at_level(level):
    """Nodes in here are of the last release that knew no higher level."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Catalog, "begin_level", lambda _: None)
        patch.setattr(bootstrap, "LEVEL", level)
        yield


async def raised_to(node, level):
    """Have the log at this level."""
    if level > 1:
        done = asyncio.get_running_loop().create_future()
        node.node.catalog.submit(commands.Level(level), float("inf"), done.set_result)
        await done


async def reached(node, level):
    async with asyncio.timeout(10):
        while node.node.metadata.level < level:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.01)


async def seal(node):
    """Have so many checkpoints that no run is too small for a segment any more."""
    (running,) = node.node.shards.values()
    group, pump = running.shard.store.group, running.driver.pump
    for _ in range(SEGMENT_SIZES.waited_max + 1):
        before = group.superblock.current.checkpoint.op
        running.driver.perform(pump.request_seal(now_us()))
        async with asyncio.timeout(20):
            while group.superblock.current.checkpoint.op <= before or not pump.is_idle:  # noqa: ASYNC110
                await asyncio.sleep(0.002)


def formats(path: Path) -> list[int]:
    """Return the format of each segment, by offset."""
    files = sorted(path.glob("groups/00001/segments/*.parquet"))
    return [int(pq.read_metadata(file).metadata[b"headrace.format"]) for file in files]


def readers(path: Path) -> list[int]:
    """Return what a release must understand to open each group."""
    found = []
    for group in ("00000", "00001"):
        data = (path / "groups" / group / "superblock.a").read_bytes()
        found.append(superblock.decode(data, "superblock.a").reader_min)
    return found


def test_a_new_log_has_the_newest_format_from_its_first_segment_on(tmp_path):
    async def run():
        async with a_node(tmp_path) as node:
            info = await a_topic(node)
            await append(node, Writer(info))
            await seal(node)
            return await ids(node, info.partitions[0])

    assert asyncio.run(run()) == list(range(10))
    assert formats(tmp_path) == [2]
    assert readers(tmp_path) == [LEVEL, LEVEL]


@pytest.mark.parametrize("level_before", range(1, SEGMENT_LEVEL))
def test_an_older_log_gets_it_with_its_level_and_is_read_as_one(tmp_path, level_before):
    writers = []

    async def older():
        async with a_node(tmp_path) as node:
            await raised_to(node, level_before)
            info = await a_topic(node)
            writers.append(Writer(info))
            await append(node, writers[0])
            await seal(node)
            return info

    async def newer(info):
        async with a_node(tmp_path) as node:
            await reached(node, LEVEL)
            await append(node, writers[0])
            await seal(node)
            await append(node, writers[0])
            return await ids(node, info.partitions[0])

    with as_at_level(level_before):
        info = asyncio.run(older())
    assert formats(tmp_path) == [1]
    assert readers(tmp_path) == [level_before, level_before]
    assert asyncio.run(newer(info)) == list(range(30))
    assert formats(tmp_path) == [1, 2]
    assert readers(tmp_path) == [LEVEL, LEVEL]


def test_before_the_level_is_committed_a_seal_writes_the_first_format(tmp_path, monkeypatch):
    monkeypatch.setattr(Catalog, "begin_level", lambda _: None)

    async def run():
        async with a_node(tmp_path) as node:
            info = await a_topic(node)
            writer = Writer(info)
            await append(node, writer)
            await seal(node)
            await raised_to(node, SEGMENT_LEVEL)
            await append(node, writer)
            await seal(node)

    asyncio.run(run())
    assert formats(tmp_path) == [1, 2]


def test_a_shard_that_older_releases_may_open_stays_at_the_first_format(tmp_path, monkeypatch):
    """Group 0 alone has locked them out, and the log is at the level."""
    with as_at_level(2):

        async def older():
            async with a_node(tmp_path) as node:
                info = await a_topic(node)
                return info, Writer(info)

        _, writer = asyncio.run(older())
    require = Group.require_reader

    def full(self, reader_min):
        if self.journal.identity.group:
            raise DiskFull("superblock.a", "write")
        require(self, reader_min)

    async def run():
        async with a_node(tmp_path) as node:
            said = node.boot.steps["level"]
            await raised_to(node, SEGMENT_LEVEL)
            await append(node, writer)
            await seal(node)
            return said

    with monkeypatch.context() as patch:
        patch.setattr(Group, "require_reader", full)
        assert "level 3 is postponed" in asyncio.run(run())
    assert readers(tmp_path) == [LEVEL, 2]
    assert formats(tmp_path) == [1]


def test_an_older_release_refuses_every_group_by_name_and_changes_nothing(
    tmp_path, monkeypatch
):
    async def run(strict):
        async with a_node(tmp_path, strict=strict) as node:
            if strict:
                info = await a_topic(node)
                await append(node, Writer(info))
                await seal(node)
            return node.node.status()["groups"]

    asyncio.run(run(strict=True))

    def content():
        return {
            path: path.read_bytes()
            for path in sorted(tmp_path.glob("groups/**/*"))
            if path.is_file()
        }

    before = content()
    monkeypatch.setattr(superblock, "READER", 2)
    monkeypatch.setattr(journal_file, "READER", 2)
    with pytest.raises(UnsupportedFormat, match="newer release") as caught:
        asyncio.run(run(strict=True))
    assert "superblock" in caught.value.path
    assert (caught.value.expected, caught.value.found) == ("format 2", 3)
    found = asyncio.run(run(strict=False))
    assert all("newer release" in found[number]["refused"] for number in ("0", "1"))
    assert content() == before
