"""Files beside the groups that cannot be changed: each is reported, and stops little."""

import asyncio

import pytest
from tests.node.nodes import Writer, a_config, a_node, a_topic, append, ask
from tests.node.test_stuck_files import eventually, in_group, scraped
from tests.stuck import immutable

from headrace.cli.status import node_look
from headrace.errors import HeadraceError
from headrace.model.units import MILLISECOND
from headrace.node.config.settings import SealSettings
from headrace.node.doubt.copy_writer import CopyFile
from headrace.wire.erase_messages import EraseDeleted
from headrace.wire.topic_messages import DeleteTopicRequest

QUICK = a_config(seal=SealSettings(size=64 * 1024, age=100 * MILLISECOND, children=1))


def test_a_config_file_of_an_earlier_start_stops_no_start(tmp_path):
    async def run():
        async with a_node(tmp_path) as node:
            await a_topic(node)
        with immutable(tmp_path / "node.toml"):
            async with a_node(tmp_path) as node:
                assert node.boot.is_ready
                assert "from an earlier start" in node.node.status()["steps"]["config"]

    asyncio.run(run())


def test_heads_that_cannot_be_written_are_in_the_status_and_the_scrape(tmp_path):
    async def run():
        async with a_node(tmp_path) as node:
            await a_topic(node)
        with immutable(tmp_path / "heads") as release:
            async with a_node(tmp_path) as node:
                await a_topic(node, "shop/second")
                await eventually(lambda: node.node.heads_writer.failure)
                assert scraped(node)["headrace_heads_failures"] >= 1
                status = node_look._status(node.node.status())
                assert any(
                    "heads cannot be written" in one for one in node_look._reasons(status)
                )
                release()
                await eventually(lambda: not node.node.heads_writer.failure)
                assert scraped(node)["headrace_heads_failures"] == 0

    asyncio.run(run())


def test_a_seal_that_the_copy_of_metadata_refuses_is_not_tried_at_each_tick(
    tmp_path, monkeypatch
):
    tries = []
    real = CopyFile.make_room

    def counted(self, entries):
        tries.append(entries)
        real(self, entries)

    async def run():
        async with a_node(tmp_path, QUICK) as node:
            await a_topic(node)
        with immutable(tmp_path / "metadata.copy"):
            async with a_node(tmp_path, QUICK, strict=False) as node:
                with pytest.raises(HeadraceError):
                    await a_topic(node, "shop/second")
                pump = node.node.catalog.driver.pump
                await eventually(lambda: pump.owes_seal or pump.seal_at)
                monkeypatch.setattr(CopyFile, "make_room", counted)
                await asyncio.sleep(2.5)
                assert len(tries) <= 4  # one each second

    asyncio.run(run())


def test_a_stuck_rest_of_a_carry_file_is_not_said_to_be_erased(tmp_path):
    """A crash inside its write leaves it, with rows in it."""

    async def run():
        async with a_node(tmp_path, QUICK) as node:
            info = await a_topic(node)
            await append(node, Writer(info), 100)
        carries = in_group(tmp_path, "carry")
        carries.mkdir(exist_ok=True)
        rest = carries / f"{99:020}.carry.tmp"
        rest.write_bytes(b"rows of a topic" * 100)
        with immutable(rest) as release:
            async with a_node(tmp_path, QUICK) as node:
                await ask(node, DeleteTopicRequest("shop/orders", info.created))
                left = []
                async with asyncio.timeout(30):
                    while left != [str(rest)]:
                        await asyncio.sleep(0.1)
                        answer = await ask(node, EraseDeleted(0))
                        left = [one.path for one in answer.left]
                        assert left, "erased, says the node, and the file is there"
                release()

    asyncio.run(run())
