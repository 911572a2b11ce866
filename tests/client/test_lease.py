"""Leases on a topic's segments, as programs take them: kept, renewed, given back, lost."""

import asyncio
import time
from pathlib import Path

import pytest
from tests.client.doors import Door, RunningNode, it
from tests.spark.sealing import seal_all

import headrace
from headrace.client.read.lease import _partition
from headrace.errors import BadFrame, BadRequest, TopicUnknown
from headrace.wire.lease_messages import FileInfo, PartitionFiles, ReleaseLease
from headrace.wire.lease_messages import LeaseReleased as Released
from headrace.wire.topic_messages import PartitionInfo

ROWS = [{"id": number} for number in range(100)]


@pytest.mark.parametrize("api", ["sync", "async"])
async def test_a_lease_names_the_files_of_each_partition(tmp_path, api):
    door = Door("embedded", api, tmp_path / "data")
    async with door.log() as log:
        topic = await it(log.create_topic("orders", {"id": "int64"}, partitions=2))
        await it(topic.append(ROWS, partition=1))
        await asyncio.to_thread(seal_all, tmp_path / "data")
        await it(topic.append(ROWS[:5], partition=1))
        lease = await it(topic.lease_files())
        empty, one = lease.partitions
        assert (empty.partition, empty.first, empty.sealed_end, empty.end) == (0, 0, 0, 0)
        assert (one.partition, one.first, one.sealed_end, one.end) == (1, 0, 100, 105)
        (file,) = one.files
        assert is_file(file.path)
        assert (file.start, file.end, file.version) == (0, 100, 1)
        assert lease.view.name == "default/orders"
        assert (await it(log.status()))["leases"]["count"] == 1
        await it(lease.release())
        await it(lease.release())
        assert lease.is_released
        assert (await it(log.status()))["leases"]["count"] == 0


def is_file(path):
    return Path(path).is_file()


def leases(log):
    return log.status()["leases"]["count"]


def test_a_lease_is_renewed_until_its_log_is_closed(tmp_path):
    with RunningNode(tmp_path) as node, headrace.connect(node.address) as other:
        log = headrace.connect(node.address)
        lease = log.create_topic("orders", {"id": "int64"}).lease_files("1s")
        time.sleep(2.5)
        assert leases(other) == 1
        assert lease.lost is None
        log.close()
        assert leases(other) == 0


def test_a_lease_that_is_not_needed_any_more_gives_itself_back(tmp_path):
    needed = [True]
    with RunningNode(tmp_path) as node, headrace.connect(node.address) as log:
        lease = log.create_topic("orders", {"id": "int64"}).lease_files(
            "60s", lambda: needed[0]
        )
        assert leases(log) == 1
        lease.release()
        lease = log.topic("orders").lease_files(4.5, lambda: needed[0])
        needed[0] = False
        end = time.monotonic() + 4.0  # before its time is over
        while leases(log):
            assert time.monotonic() < end
            time.sleep(0.02)
        assert lease.is_released


def test_a_block_ends_its_lease(tmp_path):
    with RunningNode(tmp_path) as node, headrace.connect(node.address) as log:
        with log.create_topic("orders", {"id": "int64"}).lease_files():
            assert leases(log) == 1
        assert leases(log) == 0


async def test_a_lease_that_the_node_has_forgotten_is_taken_again(tmp_path, caplog):
    caplog.set_level("INFO")
    door = Door("embedded", "async", tmp_path / "data")
    async with door.log() as log:
        topic = await log.create_topic("orders", {"id": "int64"})
        await topic.append(ROWS)
        await asyncio.to_thread(seal_all, tmp_path / "data")
        lease = await topic.lease_files(1.5)
        await topic.caller.get(ReleaseLease(lease.id), Released)  # as a restart does
        async with asyncio.timeout(10):
            while "lease on default/orders: taken again" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert lease.lost is None
        assert (await log.status())["leases"] == {"count": 1, "files": 1, "kept_bytes": 0}
        await lease.release()
        assert (await log.status())["leases"]["count"] == 0


async def test_a_forgotten_lease_with_a_file_that_is_gone_is_lost_and_says_why(
    tmp_path, caplog
):
    door = Door("embedded", "async", tmp_path / "data")
    async with door.log() as log:
        topic = await log.create_topic("orders", {"id": "int64"})
        await topic.append(ROWS)
        await asyncio.to_thread(seal_all, tmp_path / "data")
        lease = await topic.lease_files(1.5)
        await topic.trim(100)
        await topic.caller.get(ReleaseLease(lease.id), Released)
        async with asyncio.timeout(10):
            while lease.lost is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert "the lease expired, or the node restarted" in str(lease.lost)
        assert "lease on default/orders: the lease expired" in caplog.text
        async with asyncio.timeout(10):
            while (await log.status())["leases"]["count"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_a_forgotten_lease_of_a_deleted_topic_is_lost(tmp_path):
    door = Door("embedded", "async", tmp_path / "data")
    async with door.log() as log:
        topic = await log.create_topic("orders", {"id": "int64"})
        lease = await topic.lease_files(1.5)
        await topic.delete()
        await topic.caller.get(ReleaseLease(lease.id), Released)
        async with asyncio.timeout(10):
            while lease.lost is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert isinstance(lease.lost, TopicUnknown)


@pytest.mark.parametrize("lasting", ["10ms", "1h", 0])
def test_a_lease_that_the_node_does_not_give_says_what_it_gives(tmp_path, lasting):
    with RunningNode(tmp_path) as node, headrace.connect(node.address) as log:
        topic = log.create_topic("orders", {"id": "int64"})
        with pytest.raises(BadRequest, match="a lease must last 1,000 to 600,000 ms"):
            topic.lease_files(lasting)


def a_file(first, end):
    return FileInfo(f"{first}-{end}.parquet", first, end, 1, 100, bytes(16))


@pytest.mark.parametrize(
    ("first", "sealed_end", "files"),
    [
        (0, 20, [a_file(0, 10)]),  # it ends too early
        (0, 20, [a_file(0, 10), a_file(11, 20)]),  # a gap
        (0, 20, [a_file(0, 10), a_file(9, 20)]),  # an overlap
        (0, 10, [a_file(1, 10)]),  # it begins too late
        (10, 20, [a_file(0, 10), a_file(10, 20)]),  # one that is trimmed whole
        (0, 5, []),
        (0, 40, [a_file(0, 40)]),  # more than there is
    ],
)
def test_files_that_are_not_the_rows_are_not_taken(first, sealed_end, files):
    answer = PartitionFiles(first, sealed_end, 30, "/data", tuple(files))
    with pytest.raises(BadFrame, match="partition 3"):
        _partition(3, PartitionInfo(3, 1), answer, [None] * len(files))
