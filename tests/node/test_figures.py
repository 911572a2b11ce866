"""The numbers of a node's status are those of what was done, and of what is on its disk."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest
from tests.node.nodes import Writer, a_config, a_node, a_topic, append, ask, ask_whole, fetch_of

import headrace
from headrace.errors import Rejected
from headrace.node.config.settings import SealSettings
from headrace.node.node_status import disk_figures, iso
from headrace.wire.greeting import GetStatus


def status_after(path, work, **config):
    """Run `work` on a node, and return its status, as the wire brings it."""

    async def run():
        async with a_node(path, a_config(**config)) as node:
            await work(node)
            return json.loads((await ask(node, GetStatus())).text)

    return asyncio.run(run())


def test_rows_and_bytes_are_counted_when_they_are_done(tmp_path):
    sizes = {}

    async def work(node):
        writer = Writer(await a_topic(node))
        for _ in range(3):
            request, body = writer.request(10)
            sizes["appended"] = sizes.get("appended", 0) + len(body)
            await ask(node, request, body)
        reply, rows = await ask_whole(node, fetch_of(writer.where))
        sizes["fetched"] = sum(map(len, rows))
        assert reply.end == 30

    assert status_after(tmp_path, work)["work"] == {
        "appends": 3,
        "appended_rows": 30,
        "appended_bytes": sizes["appended"],
        "fetches": 1,
        "fetched_bytes": sizes["fetched"],
    }


def test_a_repeated_append_is_counted_once(tmp_path):
    async def work(node):
        writer = Writer(await a_topic(node))
        request, body = writer.request(10)
        for _ in range(2):
            await ask(node, request, body)

    found = status_after(tmp_path, work)["work"]
    assert (found["appends"], found["appended_rows"]) == (1, 10)


def test_rows_of_a_transaction_are_counted_when_it_is_published(tmp_path):
    with headrace.open(tmp_path / "data") as log:
        topic = log.create_topic("orders", {"id": "int64"}, partitions=2)
        with log.transaction(topic, "job", 1) as transaction:
            transaction.append({"id": list(range(7))}, partition=0)
            transaction.append({"id": list(range(5))}, partition=1)
            assert log.status()["work"]["appended_rows"] == 0
        assert log.status()["work"]["appended_rows"] == 12


def test_what_was_refused_is_not_counted(tmp_path):
    async def work(node):
        writer = Writer(await a_topic(node))
        request, body = writer.request(10)
        with pytest.raises(Rejected):
            await ask(node, request, memoryview(bytes(body)[:-8]))

    assert status_after(tmp_path, work)["work"]["appends"] == 0


def test_a_checkpoint_is_told_with_its_op_and_its_time(tmp_path):
    async def work(node):
        writer = Writer(await a_topic(node))
        before = json.loads((await ask(node, GetStatus())).text)["groups"]["1"]
        assert before["checkpoints"]["op"] == 0
        assert before["checkpoints"]["at"] is None
        assert before["segments"] == {"count": 0, "size": 0}
        await append(node, writer, 100)
        pump = node.node.shards[1].driver.pump
        node.node.shards[1].driver.perform(pump.request_seal(0))
        for _ in range(500):
            if pump.group.superblock.current.checkpoint.op and pump.is_idle:
                return
            await asyncio.sleep(0.02)
        raise AssertionError("no checkpoint came")

    group = status_after(tmp_path, work, seal=SealSettings(children=1))["groups"]["1"]
    told = group["checkpoints"]
    assert told["op"] == group["durable"]
    since = datetime.now(UTC) - datetime.fromisoformat(told["at"])
    assert timedelta(0) <= since < timedelta(minutes=1)
    assert (told["pending"], told["waiting"], told["unsealed_bytes"]) == (0, 0, 0)
    assert group["segments"]["size"] > 0
    files = [*tmp_path.glob("groups/00001/segments/*"), *tmp_path.glob("groups/00001/carry/*")]
    assert group["segments"]["size"] == sum(file.stat().st_size for file in files)


def test_the_journal_says_its_bytes_and_its_slots(tmp_path):
    async def work(node):
        await append(node, Writer(await a_topic(node)))

    group = status_after(tmp_path, work)["groups"]["1"]
    on_disk = sum(f.stat().st_size for f in tmp_path.glob("groups/00001/journal/**/*.wal"))
    assert group["journal"]["size"] == on_disk
    assert group["journal"]["slots"] == 4096
    assert group["journal"]["free_slots"] == 4096 - group["durable"]


def test_the_reconciler_says_what_it_built(tmp_path):
    async def work(node):
        await append(node, Writer(await a_topic(node, partitions=3)))

    told = status_after(tmp_path, work)["groups"]["1"]["reconciler"]
    assert (told["builds"], told["removals"], told["failures"]) == (3, 0, {})
    assert (told["parked"], told["removing"]) == (0, 0)
    assert told["passes"] > 0


def test_the_disk_is_that_of_the_directory(tmp_path):
    found = disk_figures(str(tmp_path))
    assert 0 < found["free"] <= found["total"]
    assert disk_figures(str(tmp_path / "gone")) == {}


def test_the_start_is_told_as_a_moment_and_as_an_age(tmp_path):
    async def work(node):
        return

    began = datetime.now(UTC)
    status = status_after(tmp_path, work)
    assert abs(datetime.fromisoformat(status["started_at"]) - began) < timedelta(seconds=30)
    assert 0 <= status["uptime_seconds"] < 30


def test_a_moment_is_written_in_utc_to_the_millisecond():
    assert iso(0.0025) == "1970-01-01T00:00:00.002Z"
