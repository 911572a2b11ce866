"""One file that cannot be changed, moved or removed costs a finding, and stops nothing."""

import asyncio
from pathlib import Path

from tests.node.nodes import Writer, a_config, a_node, a_topic, append, ask, ids
from tests.stuck import immutable

from headrace.model.units import MILLISECOND
from headrace.node.config.settings import SealSettings
from headrace.partition.machine.state import Placed
from headrace.server.connections.traffic import Traffic
from headrace.server.metrics import Metrics
from headrace.server.readings import readings
from headrace.wire import topic_messages

CONFIG = a_config(seal=SealSettings(size=64 * 1024, age=100 * MILLISECOND, children=1))
STUCK = "cannot be deleted: Operation not permitted"
FAILURES = 'headrace_reconcile_failures_total{cause="EPERM"}'


def shard_of(node):
    return node.node.shards[1].shard


def findings(node):
    return {(Path(one.path).name, one.what) for one in node.boot.stores[1].findings}


def scraped(node):
    """Return every number that a scrape shows, by name and labels."""
    text = Metrics(lambda: readings(node.boot, Traffic())).render().decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def checkpoint_op(node):
    return node.boot.stores[1].group.superblock.current.checkpoint.op


async def eventually(check):
    async with asyncio.timeout(20):
        while True:
            if check():
                return
            await asyncio.sleep(0.02)


async def a_sealed_topic(node, name="shop/orders") -> topic_messages.TopicInfo:
    """Make a topic with rows that are in a segment."""
    info = await a_topic(node, name)
    writer = Writer(info)
    namespace = info.partitions[0].namespace
    while True:
        await append(node, writer, 50_000)
        segments = shard_of(node).state.partitions[namespace].segments
        if segments:
            await eventually(lambda: isinstance(segments[0].place, Placed))  # noqa: B023
            return info


async def checkpoints(node, writer, count=2):
    """Append until so many further checkpoints are done."""
    for _ in range(count):
        before = checkpoint_op(node)
        await append(node, writer)
        await eventually(lambda before=before: checkpoint_op(node) > before)


def in_group(path, *names):
    return path.joinpath("groups", "00001", *names)


class TestASegmentOfADeletedTopic:
    def test_it_costs_a_finding_across_a_restart_and_goes_when_it_can(self, tmp_path):
        asyncio.run(self.prepare(tmp_path))
        (stuck,) = in_group(tmp_path, "segments").glob("*.parquet")
        with immutable(stuck) as release:
            asyncio.run(self.delete(tmp_path, stuck))
            asyncio.run(self.go_on(tmp_path, stuck, release))
        assert not stuck.exists()

    async def prepare(self, path):
        async with a_node(path, CONFIG) as node:
            await a_sealed_topic(node)
            await a_topic(node, "shop/other")

    async def delete(self, path, stuck):
        async with a_node(path, CONFIG) as node:
            info = await ask(node, topic_messages.DescribeTopic("shop/orders"))
            assert (await ids(node, info.partitions[0]))[:3] == [0, 1, 2]  # reads need no write
            await ask(node, topic_messages.DeleteTopicRequest("shop/orders", info.created))
            await eventually(lambda: findings(node) == {(stuck.name, STUCK)})

    async def go_on(self, path, stuck, release):
        async with a_node(path, CONFIG) as node:
            reconciler = shard_of(node).reconciler
            other = await ask(node, topic_messages.DescribeTopic("shop/other"))
            await checkpoints(node, Writer(other), 3)
            assert findings(node) == {(stuck.name, STUCK)}
            # One that nobody has counted is no key: a Counter would answer 0 for it.
            await eventually(lambda: set(reconciler.counters.failures) == {"EPERM"})
            assert scraped(node)[FAILURES] == reconciler.counters.failures["EPERM"] >= 1
            assert node.boot.is_ready
            assert reconciler.counters.removal_count == 0
            release()
            await eventually(lambda: reconciler.counters.removal_count == 1)
            assert not findings(node)
            assert await ids(node, other.partitions[0]) == list(range(30))


class TestACheckpointThatRemovalsWaitFor:
    """Its snapshot cannot have its name: whoever has that one lets nobody change it."""

    def test_each_try_that_fails_is_counted_by_its_cause(self, tmp_path):
        asyncio.run(self.run(tmp_path))

    async def run(self, path):
        async with a_node(path, CONFIG) as node:
            info = await a_sealed_topic(node)
            await eventually(lambda: not node.boot.stores[1].group.checkpoints.pending)
            counters = shard_of(node).reconciler.counters
            durable = node.boot.stores[1].group.journal.durable
            taken = [
                in_group(path, "snapshots", f"{op:020}.snap")
                for op in range(durable + 1, durable + 9)
            ]
            for each in taken:
                each.touch()
            with immutable(*taken) as release:
                await ask(node, topic_messages.DeleteTopicRequest("shop/orders", info.created))
                await eventually(lambda: counters.failures["SealFailed"] >= 2)
                assert set(counters.failures) == {"SealFailed"}
                assert counters.removal_count == 0
                release()
                await eventually(lambda: counters.removal_count == 1)
