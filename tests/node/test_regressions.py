"""Defects that other logs have had, by the numbers of the list that names them (T5 to T8)."""

import asyncio
import errno
import shutil

import pytest
from tests.node.nodes import Writer, a_config, a_node, a_topic, append, ask, ids
from tests.partition.shards import KEY, a_disk, a_shard, sealed, shard_options

from headrace.errors import CorruptSegment, StorageFailed
from headrace.journal.recovery.recover import RecoveryOptions, recover
from headrace.model.ids import Offset
from headrace.model.results import CursorStored, StoredCursor
from headrace.node.config.settings import SealSettings
from headrace.node.node_status import diverged
from headrace.partition.machine.partitions_machine import PartitionsMachine
from headrace.partition.shard_store import open_store
from headrace.wire import read_messages
from headrace_lab.counter.counter import CounterMachine
from headrace_lab.counter.solo import SOLO
from headrace_lab.disk.faults import Fail
from headrace_lab.disk.memory import MemoryDisk


def test_t5_offsets_come_from_the_data_and_none_is_given_twice(tmp_path):
    """No index is kept beside the log: a crash leaves none that could be shorter than it."""

    async def run():
        async with a_node(tmp_path) as node:
            info = await a_topic(node)
            writer = Writer(info)
            for _ in range(3):
                await append(node, writer)
            copy = tmp_path.with_name("crashed")
            shutil.copytree(tmp_path, copy)
        async with a_node(copy) as node:
            writer.rows = 30
            found = await append(node, writer)
            assert (found.start, found.end) == (30, 40)
            return await ids(node, info.partitions[0])

    assert asyncio.run(run()) == list(range(40))


def test_t6_a_cursor_beyond_the_end_is_named_and_never_cut():
    disk = a_disk(lambda shard: shard.append(10))
    store = open_store(disk.root, SOLO, shard_options())
    store.machine.state.partitions[KEY.namespace].cursors["lost"] = StoredCursor(
        "lost", Offset(11), 1, False
    )
    (told,) = diverged(store)
    assert told.startswith("the next offset of consumer group 'lost' is 11")
    assert told.endswith("which ends at 10")
    assert store.machine.state.partitions[KEY.namespace].cursors["lost"].next == 11


def test_t6_a_start_says_which_cursors_are_beyond_the_end(tmp_path, monkeypatch):
    async def run():
        async with a_node(tmp_path) as node:
            info = await a_topic(node)
            await append(node, Writer(info))
            where = info.partitions[0]
            await ask(
                node,
                read_messages.StoreCursorRequest(
                    where.namespace, where.created, "readers", 10, 1, False
                ),
            )

    asyncio.run(run())
    original = PartitionsMachine.apply

    def losing(self, entry):
        """Lose rows behind a cursor, as no log should: only a defect can do that."""
        result = original(self, entry)
        if isinstance(result, CursorStored):
            self.state.partitions[entry.header.namespace].end = Offset(7)
        return result

    monkeypatch.setattr(PartitionsMachine, "apply", losing)

    async def look():
        async with a_node(tmp_path) as node:
            return node.node.status()["diverged"]

    (said,) = asyncio.run(look())
    assert "'readers' is 10 in partition" in said
    assert "ends at 7" in said


@pytest.mark.parametrize("kind", ["sync", "sync-dir"])
def test_t7_a_sync_that_fails_at_open_is_said_and_not_swallowed(kind):
    disk = MemoryDisk()
    options = RecoveryOptions(slots=64, file_size=64 * 1024)
    group, _ = recover(disk.root, SOLO, CounterMachine(), options)
    group.journal.close()
    after = disk.kill()
    failures = []

    def failing(effect):
        if effect.kind != kind:
            return None
        failures.append(effect)
        return Fail(errno.EIO)

    after.hook = failing
    with pytest.raises(StorageFailed):
        recover(after.root, SOLO, CounterMachine(), options)
    assert len(failures) == 1, "a failed sync is never tried again"


def test_t8_a_segment_that_vanishes_after_it_was_found_is_an_error_with_its_name():
    disk = MemoryDisk()
    shard = a_shard(disk)
    name = sealed(shard)
    again = a_shard(disk.kill())
    again.store.keeper.files.segments.unlink(name.rpartition("/")[2])
    with pytest.raises(CorruptSegment, match="cannot be opened") as caught:
        again.ids()
    assert name.rpartition("/")[2] in caught.value.path
    again.append(10)
    assert again.ids(140) == list(range(140, 150))


def test_t8_a_node_says_which_segment_is_gone_and_serves_the_rest(tmp_path):
    async def fill():
        config = a_config(seal=SealSettings(size=9 * 1024 * 1024, children=1))
        async with a_node(tmp_path, config) as node:
            info = await a_topic(node)
            writer = Writer(info)
            sealed_end = 0
            while not sealed_end:
                await append(node, writer, 20_000)
                bounds = await ask(node, read_messages.GetBounds(info.partitions))
                sealed_end = bounds.bounds[0].sealed_end
            await append(node, writer, 10)
            bounds = await ask(node, read_messages.GetBounds(info.partitions))
            return info, bounds.bounds[0]

    info, bounds = asyncio.run(fill())
    (segment, *_) = sorted(tmp_path.glob("groups/00001/segments/*.parquet"))
    segment.unlink()

    async def look():
        async with a_node(tmp_path) as node:
            (finding, *_) = node.node.status()["groups"]["1"]["findings"]
            assert segment.name in finding
            where = info.partitions[0]
            with pytest.raises(CorruptSegment):
                await ids(node, where)
            reply = await ask(
                node,
                read_messages.Fetch(
                    where.namespace,
                    where.created,
                    bounds.end - 10,
                    bounds.end,
                    1 << 20,
                    0,
                    None,
                    1,
                ),
            )
            assert reply.next == bounds.end

    asyncio.run(look())
