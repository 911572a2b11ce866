"""What a deleted topic held is in no file once that was asked for, and all else is there."""

import asyncio
import random
import secrets
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.node.nodes import TIMEOUT, a_config, a_node, a_topic, ask, ids
from tests.node.test_stuck_files import eventually
from tests.stuck import immutable
from xxhash import xxh3_128_digest

from headrace.errors import (
    ApplyFailed,
    CorruptEntry,
    MetadataInDoubt,
    NotReady,
    NotYet,
    PartitionUnknown,
)
from headrace.model import batch
from headrace.model.ids import Revision
from headrace.model.schema import canonical
from headrace.model.units import MILLISECOND
from headrace.node.config.settings import Cluster, JournalSettings, SealSettings
from headrace.node.doubt.doubt import Doubt
from headrace.wire import topic_messages, write_messages
from headrace.wire.erase_messages import EraseDeleted, Erasing
from headrace.wire.lease_messages import LeaseFiles, ReleaseLease

MIB = 1024 * 1024
BYTES = canonical(pa.schema([("id", pa.int64()), ("secret", pa.binary())]))
SLOW = a_config(  # no Seal but those that are asked for
    seal=SealSettings(size=1024**3, age=3_600_000 * MILLISECOND, children=1),
    journal=JournalSettings(4 * MIB, slots=4096, metadata_slots=4096, spare_count=16),
)


def holding(path: Path, pattern: bytes) -> list[str]:
    """Name every file below `path` in which the pattern is, wherever in it."""
    found = []
    for one in path.rglob("*"):
        with suppress(FileNotFoundError):  # it went meanwhile
            if one.is_file() and pattern in one.read_bytes():
                found.append(str(one.relative_to(path)))
    return sorted(found)


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
            write_messages.AppendRequest(
                where.namespace, where.created, self.writer, version, 1, count, b""
            ),
            memoryview(batch.encode(rows)),
        )
        self.versions[partition] = version
        self.rows.setdefault(partition, []).extend(range(self.count, self.count + count))
        self.count += count

    async def stage(self, node, size: int) -> write_messages.PublishRequest:
        """Stage a row with the id 1; return what would publish it."""
        rows = pa.record_batch([[1], [self.mark + random.randbytes(size)]], schema=BYTES)
        body, where = memoryview(batch.encode(rows)), self.info.partitions[0]
        stager, stage_id = secrets.token_bytes(16), secrets.token_bytes(16)
        staged = await ask(
            node,
            write_messages.StageRequest(
                *(where.namespace, where.created, stager, 1, 1, 1, stage_id, 0),
                xxh3_128_digest(body),
            ),
            body,
        )
        topic = where.namespace, self.info.created
        return write_messages.PublishRequest(*topic, stager, 1, (staged.receipt,))

    async def delete(self, node) -> None:
        await ask(node, topic_messages.DeleteTopicRequest(self.info.topic, self.info.created))


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


def checkpoints(node, number=1) -> int:
    return node.boot.stores[number].group.superblock.current.checkpoint.op


def watched(node) -> list[int]:
    """Return a list to which each checkpoint that is done adds its op."""
    running, made = node.node.shards[1], []
    after = running.driver.on_checkpoint

    def on_checkpoint(checkpoint) -> None:
        made.append(checkpoint.op)
        after(checkpoint)

    running.driver.on_checkpoint = on_checkpoint
    return made


async def seal(node, number=1) -> None:
    """Have one checkpoint, and wait for it."""
    running, before = node.node.shards[number], checkpoints(node, number)
    node.node._collect([running.shard])
    await eventually(lambda: checkpoints(node, number) > before)


async def sealed(node, partitions=1) -> tuple[Marked, Marked]:
    """Have two topics' rows in segments, carry files, the journal, spares and stages.

    Those of both are in the same files, but for segments.
    """
    gone = await marked(node, "shop/gone", 1, partitions)
    other = await marked(node, "shop/other", 2, partitions)
    for _ in range(6):
        for topic in (gone, other):
            await topic.append(node, 8, 400_000)
            await topic.append(node, 2, 1_000)
        await gone.stage(node, 1_000)
        await seal(node)
    await gone.append(node, 1, 2_000)
    await other.append(node, 1, 2_000)
    return gone, other


async def spread(node) -> tuple[Marked, Marked]:
    """Have them in kept files as well."""
    gone, other = await sealed(node, 14)
    for number in range(1, 7):  # more than a file, and all of it live: it is kept as it is
        for topic in (gone, other):
            await topic.append(node, 1, 900_000, number)
    await seal(node)
    await seal(node)
    for number in range(7, 14):  # and what the next Seal would keep: most of it is another's
        await other.append(node, 1, 900_000, number)
        await gone.append(node, 1, 20_000, number)
    return gone, other


async def left(node, until=lambda files: True) -> tuple:
    """Ask until what is left is as it should be; return it."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            answer = await ask(node, EraseDeleted(0))
            if until(answer.left):
                return answer.left
            await asyncio.sleep(0.05)


def names_of(files) -> list[str]:
    return [Path(one.path).name for one in files]


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


def test_others_are_appended_to_and_published_meanwhile_in_every_shard(tmp_path):
    config = replace(SLOW, cluster=Cluster(shards=2))

    async def go_on(node, topic: Marked, until: asyncio.Event) -> None:
        while not until.is_set():
            await topic.append(node, 3, 50_000)

    async def run():
        over = asyncio.Event()
        async with a_node(tmp_path, config) as node:
            gone = [await marked(node, f"shop/gone{n}", n) for n in range(2)]
            other = [await marked(node, f"shop/other{n}", 2 + n) for n in range(2)]
            assert {topic.info.shard for topic in gone} == {1, 2}
            receipts = [await topic.stage(node, 1_000) for topic in other]
            for topic in (*gone, *other):
                await topic.append(node, 3, 50_000)
            for number in (1, 2):
                await seal(node, number)
            busy = [asyncio.ensure_future(go_on(node, topic, over)) for topic in other]
            for topic in gone:
                await topic.delete(node)
            await erase(node)
            for topic in gone:
                assert holding(tmp_path, topic.mark) == []
            over.set()
            await asyncio.gather(*busy)
            for topic, publish in zip(other, receipts, strict=True):
                assert (await ask(node, publish)).ranges
                topic.rows[0].append(1)
        async with a_node(tmp_path, config) as node:
            for topic in other:
                assert topic.count > 3
                assert await is_whole(node, topic)

    asyncio.run(run())


def test_a_leased_file_is_named_with_its_time_and_goes_when_that_ends(tmp_path):
    async def run():
        async with a_node(tmp_path, SLOW) as node:
            gone, other = await sealed(node)
            lease = LeaseFiles(b"lease of sixteen", 60_000, (gone.info.partitions[0],))
            (leased,) = (await ask(node, lease)).partitions
            await gone.delete(node)
            names = [file.name for file in leased.files]
            files = await left(node, lambda files: names_of(files) == names)
            assert files[0].why.startswith("a reader holds a lease on it, for ")
            assert 0 < float(files[0].why.split()[8]) <= 60
            assert kinds(holding(tmp_path, gone.mark)) == {"segments.parquet"}
            await ask(node, ReleaseLease(b"lease of sixteen"))
            await erase(node)
            assert holding(tmp_path, gone.mark) == []
            assert await is_whole(node, other)

    asyncio.run(run())


def test_stuck_files_are_named_with_their_error_and_go_when_they_can(tmp_path):
    async def run():
        async with a_node(tmp_path, SLOW) as node:
            gone, other = await sealed(node)
            found = holding(tmp_path, gone.mark)
            rooms = "segments", "carry", "journal", "spare"
            stuck = [
                next(tmp_path / one for one in found if Path(one).parent.name == room)
                for room in rooms
            ]
            with immutable(*stuck) as release:
                await gone.delete(node)
                names = sorted(one.name for one in stuck)
                files = await left(node, lambda files: sorted(names_of(files)) == names)
                whys = {one.why.partition("; ")[0] for one in files}
                assert whys == {"cannot be deleted: Operation not permitted"}
                assert len(holding(tmp_path, gone.mark)) == len(stuck)
                release()
                await erase(node)
            assert holding(tmp_path, gone.mark) == []
            assert await is_whole(node, other)

    asyncio.run(run())


def test_what_is_in_quarantine_is_named_and_left_alone(tmp_path):
    async def run():
        async with a_node(tmp_path, SLOW) as node:
            gone, other = await sealed(node)
            for topic in (gone, other):
                (place,) = (
                    await ask(node, LeaseFiles(bytes(16), 1_000, (topic.info.partitions[0],)))
                ).partitions
                node.boot.stores[1].keeper.files.quarantine_segment(place.files[0].name, "rot")
            await gone.delete(node)
            found = holding(tmp_path, gone.mark)
            (name,) = [Path(one).name for one in found if "quarantine" in one]
            (one,) = await left(node, lambda files: names_of(files) == [name])
            assert one.why.startswith("in quarantine: delete it")
            assert kinds(holding(tmp_path, gone.mark)) == {"quarantine.parquet"}
            tmp_path.joinpath("groups", "00001", "quarantine", name).unlink()
            await erase(node)
            assert holding(tmp_path, gone.mark) == []

    asyncio.run(run())


def test_a_carry_file_of_which_another_s_entry_cannot_be_read_stays_and_is_named(tmp_path):
    async def run():
        async with a_node(tmp_path, SLOW) as node:
            gone, other = (
                await marked(node, "shop/gone", 1),
                await marked(node, "shop/other", 2),
            )
            for topic in (gone, other):
                await topic.append(node, 1, 1_000)
            await seal(node)
            (carry,) = tmp_path.joinpath("groups", "00001", "carry").glob("*.carry")
            content = carry.read_bytes()
            place = content.index(other.mark)
            with carry.open("r+b") as file:
                file.seek(place)
                file.write(b"rot")
            for _ in range(2):  # the journal has another copy until then
                await seal(node)
            await gone.delete(node)
            (one,) = await left(
                node,
                lambda files: names_of(files) == [carry.name] and "left it" in files[0].why,
            )
            assert one.why.startswith("two checkpoints left it in place: check")
            with pytest.raises(CorruptEntry):
                await is_whole(node, other)
            carry.write_bytes(content)
            await erase(node)
            assert holding(tmp_path, gone.mark) == []
            assert await is_whole(node, other)

    asyncio.run(run())


def test_rows_that_were_being_judged_when_their_topic_went_reach_no_file(tmp_path):
    async def run():
        async with a_node(tmp_path, SLOW) as node:
            gone = await marked(node, "shop/gone", 1)
            await gone.append(node, 1, 1_000)
            busy = threading.Event()
            for _ in range(2):  # both threads that judge
                node.boot.judges.submit(busy.wait)
            late = asyncio.ensure_future(gone.append(node, 2, 1_000_000))
            await asyncio.sleep(0)
            await gone.delete(node)
            await erase(node)
            busy.set()
            with pytest.raises(PartitionUnknown):
                await late
            await seal(node)
            assert holding(tmp_path, gone.mark) == []

    asyncio.run(run())


def test_a_node_that_is_behind_says_so_and_a_shard_that_does_not_serve_is_named(tmp_path):
    async def run():
        async with a_node(tmp_path, SLOW) as node:
            gone = await marked(node, "shop/gone", 1)
            await gone.append(node, 1, 1_000)
            with pytest.raises(NotYet) as caught:
                await ask(node, EraseDeleted(99 << 20))
            assert caught.value.code == "metadata_behind"
            pump = node.node.shards[1].driver.pump
            pump.halted = ApplyFailed("op 7", path="journal")
            with pytest.raises(NotReady, match="op 7"):
                await ask(node, EraseDeleted(0))
            pump.halted = None
            shard = node.node.shards.pop(1)
            with pytest.raises(NotReady, match="shard 1 is not serving"):
                await ask(node, EraseDeleted(0))
            node.node.shards[1] = shard
            node.node.doubt = Doubt(
                ("group 1 says so",), (), Revision(0), False, *[frozenset()] * 3, 24
            )
            with pytest.raises(
                MetadataInDoubt, match="cannot erase deleted rows while the metadata is"
            ):
                await ask(node, EraseDeleted(0))
            node.node.doubt = None

    asyncio.run(run())
