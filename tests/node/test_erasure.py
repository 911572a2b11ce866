"""What a deleted topic held is in no file once that was asked for, and all else is there."""

import asyncio
import random
import secrets
from pathlib import Path

import pyarrow as pa
from tests.node.nodes import TIMEOUT, a_config, a_node, a_topic, ask, ids
from tests.node.test_stuck_files import eventually
from xxhash import xxh3_128_digest

from headrace.model import batch
from headrace.model.schema import canonical
from headrace.model.units import MILLISECOND
from headrace.node.settings import Journal, Seal
from headrace.wire import catalog, writing
from headrace.wire.erasing import EraseDeleted, Erasing

MIB = 1024 * 1024
BYTES = canonical(pa.schema([("id", pa.int64()), ("secret", pa.binary())]))
SLOW = a_config(  # no Seal but those that are asked for
    seal=Seal(size=1024**3, age=3_600_000 * MILLISECOND, children=1),
    journal=Journal(4 * MIB, slots=4096, metadata_slots=4096, spare_count=16),
)


def holding(path: Path, pattern: bytes) -> list[str]:
    """Name every file below `path` in which the pattern is, wherever in it."""
    files = [one for one in path.rglob("*") if one.is_file()]
    return sorted(str(one.relative_to(path)) for one in files if pattern in one.read_bytes())


class Marked:
    """A topic whose rows all have 32 bytes in them that nobody compresses."""

    def __init__(self, info, seed: int) -> None:
        self.info, self.mark = info, random.Random(seed).randbytes(32)
        self.writer, self.versions = secrets.token_bytes(16), {}
        self.count, self.rows = 0, {}  # ids, by partition

    async def append(self, node, count: int, size: int, partition: int = 0) -> None:
        secret = [self.mark + random.randbytes(size - 32) for _ in range(count)]
        rows = pa.record_batch([range(self.count, self.count + count), secret], schema=BYTES)
        where = self.info.partitions[partition]
        version = self.versions.get(partition, 0) + 1
        await ask(
            node,
            writing.Append(where.namespace, where.created, self.writer, version, 1, count, b""),
            memoryview(batch.encode(rows)),
        )
        self.versions[partition] = version
        self.rows.setdefault(partition, []).extend(range(self.count, self.count + count))
        self.count += count

    async def stage(self, node, size: int) -> None:
        """Leave rows of a transaction that is never published."""
        rows = pa.record_batch([[1], [self.mark + random.randbytes(size)]], schema=BYTES)
        body, where = memoryview(batch.encode(rows)), self.info.partitions[0]
        stager, stage_id = secrets.token_bytes(16), secrets.token_bytes(16)
        await ask(
            node,
            writing.Stage(
                *(where.namespace, where.created, stager, 1, 1, 1, stage_id, 0),
                xxh3_128_digest(body),
            ),
            body,
        )

    async def delete(self, node) -> None:
        await ask(node, catalog.DeleteTopic(self.info.topic, self.info.created))


async def marked(node, name, seed, partitions=1) -> Marked:
    return Marked(await a_topic(node, name, partitions, BYTES), seed)


async def is_whole(node, topic: Marked) -> bool:
    """Say whether a reader gets every row, each once, in its partition and its order."""
    found = {}
    for number, where in enumerate(topic.info.partitions):
        found[number] = await ids(node, where, BYTES)
    return found == {number: topic.rows.get(number, []) for number in found}


async def erase(node) -> list[Erasing]:
    """Ask until nothing is left; return all answers."""
    answers, revision = [], 0
    async with asyncio.timeout(TIMEOUT):
        while not answers or answers[-1].left_count:
            answers.append(await ask(node, EraseDeleted(revision)))
            revision = answers[-1].revision
            await asyncio.sleep(0.02)
    return answers


def checkpoints(node) -> int:
    return node.boot.stores[1].group.superblock.current.checkpoint.op


def watched(node) -> list[int]:
    """Return a list to which each checkpoint that is done adds its op."""
    running, made = node.node.shards[1], []
    after = running.driver.on_checkpoint

    def on_checkpoint(checkpoint) -> None:
        made.append(checkpoint.op)
        after(checkpoint)

    running.driver.on_checkpoint = on_checkpoint
    return made


async def seal(node) -> None:
    """Have one checkpoint, and wait for it."""
    running, before = node.node.shards[1], checkpoints(node)
    node.node._collect([running.shard])
    await eventually(lambda: checkpoints(node) > before)


async def spread(node) -> tuple[Marked, Marked]:
    """Have two topics' rows in segments, carry files, kept files, spares and stages.

    Those of both are in the same files, but for segments.
    """
    gone, other = (
        await marked(node, "shop/gone", 1, 14),
        await marked(node, "shop/other", 2, 14),
    )
    for _ in range(6):
        for topic in (gone, other):
            await topic.append(node, 8, 400_000)
            await topic.append(node, 2, 1_000)
        await gone.stage(node, 1_000)
        await seal(node)
    for number in range(1, 7):  # more than a file, and all of it live: it is kept as it is
        for topic in (gone, other):
            await topic.append(node, 1, 900_000, number)
    await seal(node)
    await seal(node)
    for number in range(7, 14):  # and what the next Seal would keep: most of it is another's
        await other.append(node, 1, 900_000, number)
        await gone.append(node, 1, 20_000, number)
    return gone, other


def kinds(found: list[str]) -> set[str]:
    return {"/".join(name.split("/")[2:-1]) + Path(name).suffix for name in found}


EVERYWHERE = {
    "segments.parquet",
    "carry.carry",
    "carry.wal",
    "journal.wal",
    "journal/spare.wal",
}


def test_no_file_has_its_bytes_and_those_of_others_are_all_there(tmp_path):
    async def run():
        async with a_node(tmp_path, SLOW) as node:
            gone, other = await spread(node)
            assert kinds(holding(tmp_path, gone.mark)) == EVERYWHERE
            made = watched(node)
            await gone.delete(node)
            answers = await erase(node)
            assert answers[0].left
            fresh = node.boot.stores[1].group.journal.fresh_from
            assert len([op for op in made if op >= fresh]) == 2
            assert holding(tmp_path, gone.mark) == []
            assert await is_whole(node, other)
            await other.append(node, 3, 1_000)
            await seal(node)
        assert holding(tmp_path, gone.mark) == []
        async with a_node(tmp_path, SLOW) as node:
            assert holding(tmp_path, gone.mark) == []
            assert await is_whole(node, other)
            # Nothing is left to do, but a new process does not know that: it looks itself.
            await erase(node)
            assert await is_whole(node, other)

    asyncio.run(run())
