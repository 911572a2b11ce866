"""A running node keeps the copy of metadata: before a change is acknowledged, and no later."""

import asyncio
import os
from pathlib import Path

import pytest
from tests.node.nodes import Writer, a_node, a_topic, append, ask
from tests.node.test_heads import until

from headrace.errors import WriteFailed
from headrace.node.doubt.metadata_copy import NAME, Copy, read_copy
from headrace.node.doubt.metadata_start import replayed
from headrace.node.group.driver import now_us
from headrace.node.identity import look
from headrace.storage.file import FileDirectory
from headrace.wire import topic_messages


def copy_of(path: Path) -> Copy:
    root = FileDirectory.open_root(str(path), create=False)
    cluster = look(root).cluster
    assert cluster is not None
    found = read_copy(root, cluster.identity)
    assert found.flaw == ""
    assert found.copy is not None
    return found.copy


def check_equal(path: Path, node) -> Copy:
    copy = copy_of(path)
    machine = node.node.catalog.machine
    assert copy.newest == node.node.heads[0]
    assert replayed(copy, machine).digest() == machine.digest()
    return copy


def test_every_change_is_in_the_copy_when_it_is_acknowledged(tmp_path):
    async def run():
        async with a_node(tmp_path) as node:
            for number in range(12):
                info = await a_topic(node, f"shop/topic-{number}")
                check_equal(tmp_path, node)
                if number % 3 == 0:
                    await ask(node, topic_messages.DeleteTopicRequest(info.topic, info.created))
                    check_equal(tmp_path, node)
        async with a_node(tmp_path) as node:
            copy = check_equal(tmp_path, node)
            assert copy.entries == ()
            assert list(copy.history) == list(range(1, copy.newest.op + 1))

    asyncio.run(run())


async def sealed(node) -> None:
    """Have a checkpoint of group 0, up to its end."""
    driver = node.node.catalog.driver
    before = driver.pump.group.superblock.current.checkpoint.op
    driver.perform(driver.pump.request_seal(now_us()))
    await until(
        lambda: (
            driver.pump.group.superblock.current.checkpoint.op > before and driver.pump.is_idle
        )
    )


def test_a_checkpoint_of_group_0_begins_it_anew_beside_changes(tmp_path):
    async def run():
        async with a_node(tmp_path) as node:
            await a_topic(node, "shop/before")
            for number in range(5):
                first = copy_of(tmp_path).base.op
                during = [
                    asyncio.create_task(a_topic(node, f"shop/during-{number}-{each}"))
                    for each in range(5)
                ]
                await sealed(node)
                await asyncio.gather(*during)
                copy = check_equal(tmp_path, node)
                assert copy.base.op > first
                assert copy.base.entry is not None

    asyncio.run(run())


class Syncs:
    """Counts `fdatasync` by the name of the file."""

    def __init__(self, monkeypatch) -> None:
        self.names: list[str] = []
        real = os.fdatasync

        def counted(descriptor: int) -> None:
            self.names.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
            real(descriptor)

        monkeypatch.setattr(os, "fdatasync", counted)

    def taken(self) -> list[str]:
        names, self.names = self.names, []
        return names


def test_a_change_costs_one_sync_more_and_an_append_none(tmp_path, monkeypatch):
    syncs = Syncs(monkeypatch)

    async def run():
        async with a_node(tmp_path) as node:
            info = await a_topic(node)
            writer = Writer(info)
            await append(node, writer)
            syncs.taken()
            await ask(node, topic_messages.CreateStreamRequest("more"))
            assert syncs.taken().count(NAME) == 1
            for _ in range(10):
                await append(node, writer)
            assert NAME not in syncs.taken()

    asyncio.run(run())


def test_a_copy_that_cannot_be_begun_refuses_changes_and_nothing_else(tmp_path):
    (tmp_path / "log").mkdir()

    async def run():
        async with a_node(tmp_path / "log") as node:
            info = await a_topic(node)
            writer = Writer(info)
            await append(node, writer)
        (tmp_path / "log" / NAME).unlink()
        (tmp_path / "log" / NAME).mkdir()
        async with a_node(tmp_path / "log") as node:
            await append(node, writer)
            status = node.node.status()
            assert NAME in status["metadata_copy"]["failure"]
            with pytest.raises(WriteFailed) as caught:
                await ask(node, topic_messages.CreateStreamRequest("more"))
            (tmp_path / "log" / NAME).rmdir()
            await ask(node, topic_messages.CreateStreamRequest("more"))
            assert node.node.status()["metadata_copy"]["failure"] is None
            check_equal(tmp_path / "log", node)
            return caught.value

    assert str(tmp_path / "log" / NAME) in str(asyncio.run(run()))
