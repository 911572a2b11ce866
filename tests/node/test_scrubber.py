"""The scrub of a real node: it finds a flipped bit in a real file, and is in nobody's way."""

import asyncio
import json
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.node.nodes import Writer, a_config, a_node, a_topic, append, ask
from tests.node.test_doubt import history, two_topics  # noqa: F401 - fixtures
from tests.node.test_lessor import seal, until
from tests.node.test_way_out import short  # noqa: F401 - a fixture

from headrace.model.units import SECOND, Duration
from headrace.node.config.settings import ScrubSettings
from headrace.wire import topic_messages
from headrace.wire.greeting import GetStatus

SOON = ScrubSettings(every=SECOND, rate=1 << 30)


@asynccontextmanager
async def a_scrubbed_node(path, scrub=SOON):
    async with a_node(path, a_config(scrub=scrub)) as node:
        yield node


async def status(node):
    return json.loads((await ask(node, GetStatus())).text)


def passes(node):
    """Wait for the end of a pass that begins from here on."""
    scrubber, before = node.node.scrubber, node.node.scrubber.newest
    return until(lambda: scrubber.newest is not before and not scrubber.is_running)


def the_segment(path) -> Path:
    (found,) = Path(path).rglob("segments/*.parquet")
    return found


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


async def rows_in_a_segment(node, count=50_000):
    writer = Writer(await a_topic(node))
    await append(node, writer, count)
    await seal(node)
    return writer


def test_a_whole_log_has_no_findings(tmp_path):
    async def scene():
        async with a_scrubbed_node(tmp_path) as node:
            await rows_in_a_segment(node)
            await passes(node)
            found = await status(node)
            assert found["scrub"]["files"] >= 1
            assert found["scrub"]["bytes"] >= the_segment(tmp_path).stat().st_size
            assert (found["scrub"]["findings"], found["scrub"]["failure"]) == (0, None)
            assert found["degraded"] == []

    asyncio.run(scene())


def test_a_flipped_bit_is_found_told_and_found_again_after_a_restart(tmp_path):
    async def scene():
        async with a_scrubbed_node(tmp_path) as node:
            await rows_in_a_segment(node)
            path = the_segment(tmp_path)
            whole = path.read_bytes()
            flip(path)
            await passes(node)
            found = await status(node)
            assert found["scrub"]["findings"] == 1
            (told,) = found["degraded"]
            assert str(path) in told
            assert told in found["groups"]["1"]["findings"]
            assert not path.exists()  # it is in quarantine
        path.write_bytes(whole)
        async with a_scrubbed_node(tmp_path) as node:
            await passes(node)
            assert (await status(node))["degraded"] == []
            flip(path)
            await passes(node)
            assert len((await status(node))["degraded"]) == 1

    asyncio.run(scene())


def test_a_pass_keeps_to_its_rate_while_appends_go_on(tmp_path):
    async def scene():
        scrub = ScrubSettings(every=SECOND, rate=16 * 1024)
        async with a_scrubbed_node(tmp_path, scrub) as node:
            writer = await rows_in_a_segment(node)
            scrubber = node.node.scrubber
            await until(lambda: scrubber.newest is not None and scrubber.newest.size)
            began, before = time.monotonic(), scrubber.newest.size
            assert before > 2 * scrub.rate  # a read to be paid for
            while time.monotonic() < began + 1.5:
                await append(node, writer, 10)
                await asyncio.sleep(0.01)
            assert scrubber.is_running
            assert scrubber.newest.size == before
            stop_at = time.monotonic()
        assert time.monotonic() - stop_at < 5  # it does not wait for the pass
        assert scrubber.newest.failure == "the node stopped"

    asyncio.run(scene())


def test_nothing_is_scrubbed_before_a_pass_is_due(tmp_path):
    async def scene():
        scrub = ScrubSettings(every=Duration(3600 * 1_000_000), rate=1 << 30)
        async with a_scrubbed_node(tmp_path, scrub) as node:
            await rows_in_a_segment(node, 10)
            await asyncio.sleep(1.2)
            assert (await status(node))["scrub"] is None

    asyncio.run(scene())


def test_nothing_is_scrubbed_while_metadata_is_in_doubt(short):  # noqa: F811
    """What is set aside then may be what an adoption needs."""

    async def scene():
        async with a_scrubbed_node(short) as node:
            assert node.node.doubt is not None
            await asyncio.sleep(1.5)
            assert node.node.scrubber.newest is None
            await ask(node, topic_messages.AdoptOrphans(is_dry=False, names=()))
            await until(lambda: node.node.doubt is None)
            await passes(node)

    asyncio.run(scene())


@pytest.mark.parametrize("error", [OSError("no thread"), RuntimeError("a defect")])
def test_a_pass_that_fails_says_so_and_the_next_one_runs(tmp_path, monkeypatch, error):
    from headrace.node.shard import scrubber as module

    async def scene():
        async with a_scrubbed_node(tmp_path) as node:
            await rows_in_a_segment(node, 10)

            def fail(*_):
                raise error

            with monkeypatch.context() as patched:
                patched.setattr(module, "scrub", fail)
                await passes(node)
                assert (await status(node))["scrub"]["failure"] == str(error)
            await passes(node)
            assert (await status(node))["scrub"]["failure"] is None

    asyncio.run(scene())
