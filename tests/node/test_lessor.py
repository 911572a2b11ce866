"""Leases on a real node: which files they name, and that these stay as long as they last."""

import asyncio
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.node.nodes import Writer, a_config, a_node, a_topic, append, ask, ask_whole
from xxhash import xxh3_128_digest

from headrace.errors import BadRequest, PartitionUnknown, Refused
from headrace.node.group.driver import now_us
from headrace.partition.files.file_set import ShardFiles
from headrace.partition.machine.segment_cut import SEGMENT_SIZES
from headrace.partition.segments.segment import ROW_DIGEST_KEY
from headrace.wire import topic_messages, write_messages
from headrace.wire.file_messages import FetchFile, GetFileDigests
from headrace.wire.greeting import GetStatus
from headrace.wire.lease_messages import LeaseFiles, LeaseReleased, ReleaseLease, RenewLease
from headrace.wire.topic_messages import PartitionInfo

LEASE = b"lease of sixteen"
MINUTE = 60_000


def run(path, scene):
    async def within():
        async with a_node(path, a_config()) as node:
            await scene(node)

    asyncio.run(within())


def a_lease(info, duration_ms=MINUTE, lease_id=LEASE):
    return LeaseFiles(lease_id, duration_ms, info.partitions)


async def checkpoint(node):
    """Have one checkpoint, and wait until its files are collected."""
    (running,) = node.node.shards.values()
    group = running.shard.store.group
    before = group.superblock.current.checkpoint.op
    running.driver.perform(running.shard.pump.request_seal(now_us()))
    await until(
        lambda: group.superblock.current.checkpoint.op > before and running.driver.pump.is_idle
    )


async def seal(node):
    """Have so many checkpoints that no run is too small for a segment any more."""
    for _ in range(SEGMENT_SIZES.waited_max + 1):
        await checkpoint(node)


async def collect(node):
    """Have so many checkpoints that no kept snapshot names what is trimmed."""
    for _ in range(3):
        await checkpoint(node)


async def until(is_so):
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.01)


async def trim(node, where, first):
    await ask(node, write_messages.TrimRequest(where.namespace, where.created, first, False))


def paths(leased):
    return [Path(one.directory, file.name) for one in leased.partitions for file in one.files]


def size_of(path):
    return path.stat().st_size


async def figures(node):
    return json.loads((await ask(node, GetStatus())).text)["leases"]


def test_a_lease_names_whole_files_up_to_the_sealed_end(tmp_path):
    async def scene(node):
        info = await a_topic(node, partitions=2)
        writer = Writer(info, 1)
        await append(node, writer, 10)
        await seal(node)
        await append(node, writer, 5)
        empty, one = (await ask(node, a_lease(info))).partitions
        assert (empty.first, empty.sealed_end, empty.end, empty.files) == (0, 0, 0, ())
        assert (one.first, one.sealed_end, one.end) == (0, 10, 15)
        (file,) = one.files
        assert (file.first, file.end, file.version) == (0, 10, 1)
        path = Path(one.directory, file.name)
        assert path.is_absolute()
        assert size_of(path) == file.size
        found = pq.read_metadata(path)
        assert found.metadata[ROW_DIGEST_KEY.encode()].decode() == file.row_digest.hex()
        assert found.num_rows == 10

    run(tmp_path, scene)


def test_a_file_with_hidden_rows_begins_before_the_first_retained(tmp_path):
    async def scene(node):
        info = await a_topic(node)
        await append(node, Writer(info), 10)
        await seal(node)
        await trim(node, info.partitions[0], 4)
        (one,) = (await ask(node, a_lease(info))).partitions
        assert (one.first, one.sealed_end, one.files[0].first) == (4, 10, 0)

    run(tmp_path, scene)


def test_a_gap_in_the_files_ends_the_lease_of_a_partition_there(tmp_path):
    async def scene(node):
        info = await a_topic(node)
        writer = Writer(info)
        for _ in range(3):
            await append(node, writer, 10)
            await seal(node)
        whole = (await ask(node, a_lease(info))).partitions[0]
        assert [file.first for file in whole.files] == [0, 10, 20]
        (running,) = node.node.shards.values()
        running.shard.store.keeper.files.quarantine_segment(whole.files[1].name, "rot")
        (one,) = (await ask(node, a_lease(info))).partitions
        assert [file.first for file in one.files] == [0]
        assert (one.sealed_end, one.end) == (10, 30)

    run(tmp_path, scene)


def test_leased_files_outlive_a_trim_until_the_release(tmp_path):
    async def scene(node):
        info = await a_topic(node)
        writer = Writer(info)
        await append(node, writer, 10)
        await seal(node)
        await append(node, writer, 10)
        (path,) = paths(await ask(node, a_lease(info)))
        await trim(node, info.partitions[0], 20)
        await collect(node)
        assert path.exists()
        assert await figures(node) == {
            "count": 1,
            "files": 1,
            "kept_bytes": size_of(path),
        }
        assert await ask(node, ReleaseLease(LEASE)) == LeaseReleased()
        await gone(path)
        assert await figures(node) == {"count": 0, "files": 0, "kept_bytes": 0}

    run(tmp_path, scene)


async def gone(path):
    """Wait until a file is unlinked, with nobody asking for a checkpoint."""
    await until(lambda: not path.exists())


def test_leased_files_go_when_the_lease_is_over_and_stay_while_it_is_renewed(tmp_path):
    async def scene(node):
        info = await a_topic(node)
        await append(node, Writer(info), 10)
        await seal(node)
        (path,) = paths(await ask(node, a_lease(info, 3_000)))
        await trim(node, info.partitions[0], 10)
        for _ in range(3):
            await asyncio.sleep(1.1)
            await checkpoint(node)
            await ask(node, RenewLease(LEASE, 3_000))
        assert path.exists()
        await gone(path)
        with pytest.raises(Refused, match="the lease expired"):
            await ask(node, RenewLease(LEASE, 3_000))

    run(tmp_path, scene)


def test_without_a_lease_the_same_file_is_gone(tmp_path):
    async def scene(node):
        info = await a_topic(node)
        await append(node, Writer(info), 10)
        await seal(node)
        (path,) = paths(await ask(node, a_lease(info)))
        await ask(node, ReleaseLease(LEASE))
        await trim(node, info.partitions[0], 10)
        await collect(node)
        assert not path.exists()

    run(tmp_path, scene)


def test_a_file_of_two_leases_stays_until_both_are_over(tmp_path):
    async def scene(node):
        info = await a_topic(node)
        await append(node, Writer(info), 10)
        await seal(node)
        (path,) = paths(await ask(node, a_lease(info)))
        await ask(node, a_lease(info, lease_id=bytes(16)))
        await ask(node, a_lease(info, lease_id=bytes(16)))  # a repeat takes nothing twice
        await trim(node, info.partitions[0], 10)
        await ask(node, ReleaseLease(LEASE))
        await collect(node)
        assert path.exists()
        await ask(node, ReleaseLease(bytes(16)))
        await gone(path)

    run(tmp_path, scene)


def test_a_lease_that_is_taken_anew_lets_the_files_go_that_it_does_not_name_any_more(tmp_path):
    async def scene(node):
        info = await a_topic(node)
        await append(node, Writer(info), 10)
        await seal(node)
        (path,) = paths(await ask(node, a_lease(info)))
        await trim(node, info.partitions[0], 10)
        await collect(node)
        assert path.exists()
        assert paths(await ask(node, a_lease(info))) == []
        await gone(path)

    run(tmp_path, scene)


def test_a_topic_is_deleted_and_made_again_while_its_files_are_leased(tmp_path):
    async def scene(node):
        info = await a_topic(node)
        await append(node, Writer(info), 10)
        await seal(node)
        (path,) = paths(await ask(node, a_lease(info)))
        await ask(node, topic_messages.DeleteTopicRequest(info.topic, info.created))
        (running,) = node.node.shards.values()
        await until(lambda: not running.shard.state.partitions)
        await collect(node)
        await until(lambda: not running.shard.reconciler.tombstones)  # it waits for no lease
        assert path.exists()
        again = await a_topic(node)
        await append(node, Writer(again), 3)
        (one,) = (await ask(node, a_lease(again, lease_id=bytes(16)))).partitions
        assert (one.end, one.files) == (3, ())
        await ask(node, ReleaseLease(LEASE))
        await gone(path)

    run(tmp_path, scene)


def test_leases_end_with_the_node(tmp_path):
    found = {}

    async def before(node):
        info = found["info"] = await a_topic(node)
        await append(node, Writer(info), 10)
        await seal(node)
        (found["path"],) = paths(await ask(node, a_lease(info)))

    async def after(node):
        assert await figures(node) == {"count": 0, "files": 0, "kept_bytes": 0}
        with pytest.raises(Refused, match="or the node restarted"):
            await ask(node, RenewLease(LEASE, MINUTE))
        await trim(node, found["info"].partitions[0], 10)
        await collect(node)
        assert not found["path"].exists()

    run(tmp_path, before)
    run(tmp_path, after)


def test_a_lease_that_cannot_be_takes_nothing(tmp_path):
    async def scene(node):
        info = await a_topic(node)
        (where,) = info.partitions
        for partitions, error, said in (
            ((), BadRequest, "a lease without partitions"),
            ((where, where), BadRequest, "named twice"),
            ((PartitionInfo(where.namespace, 99 << 20),), PartitionUnknown, "revision 99"),
        ):
            with pytest.raises(error, match=said):
                await ask(node, LeaseFiles(LEASE, MINUTE, partitions))
        with pytest.raises(BadRequest, match="a lease must last"):
            await ask(node, a_lease(info, 0))
        assert (await figures(node))["count"] == 0

    run(tmp_path, scene)


def test_a_file_that_goes_with_its_lease_during_a_fetch_is_not_called_damaged(
    tmp_path, monkeypatch
):
    async def scene(node):
        info = await a_topic(node)
        await append(node, Writer(info), 10)
        await seal(node)
        (path,) = paths(await ask(node, a_lease(info)))
        (digest,) = (await ask(node, GetFileDigests(LEASE))).digests
        assert digest == xxh3_128_digest(path.read_bytes())
        (where,) = info.partitions
        fetch = FetchFile(LEASE, where.namespace, where.created, 0, 10, digest, 0, 1 << 20)
        chunk, body = await ask_whole(node, fetch)
        assert (chunk.position, b"".join(body)) == (0, path.read_bytes())
        real = ShardFiles.part

        def late(*args):
            node.node.lessor.leases.release(LEASE)
            path.unlink()
            return real(*args)

        monkeypatch.setattr(ShardFiles, "part", late)
        with pytest.raises(Refused, match="the lease expired"):
            await ask(node, fetch)
        assert node.node.status()["groups"]["1"]["findings"] == []

    run(tmp_path, scene)
