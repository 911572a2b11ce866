"""Heads: damage to the end of a journal at rest is refused by name, and never cut."""

import asyncio
import errno
import shutil
from pathlib import Path
from random import Random

import pytest
from tests.node.nodes import Writer, a_config, a_node, a_topic, append, ask

from headrace.errors import Corrupt, CorruptEntry, ForeignFile, MissingFile
from headrace.journal.heads import SLOT_SIZE, Head, read_heads
from headrace.model.ids import GroupId, Op
from headrace.node.bootstrap import start
from headrace.node.doubt.heads_writer import HeadsWriter
from headrace.node.identity import look
from headrace.storage.file import FileDirectory
from headrace.wire import read_messages, topic_messages
from headrace_lab.disk.faults import Fail
from headrace_lab.disk.memory import MemoryDisk

TIMEOUT = 10.0


async def until(holds) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not holds():  # noqa: ASYNC110 - the node has no event for it
            await asyncio.sleep(0.01)


async def at_rest(node) -> None:
    """Wait until the heads of all groups are on disk, as they are a second after the last."""
    heads = node.boot.heads.file
    await until(lambda: not heads.is_behind(node.node.heads))


async def a_log_at_rest(path: Path, copy: Path, rows: int = 20) -> None:
    """Append rows one by one and store a cursor; copy the directory of the running node."""
    async with a_node(path) as node:
        info = await a_topic(node)
        writer = Writer(info)
        for _ in range(rows):
            await append(node, writer, 1)
        where = info.partitions[0]
        await ask(
            node,
            read_messages.StoreCursorRequest(
                where.namespace, where.created, "readers", rows, 0, False
            ),
        )
        await at_rest(node)
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*.sock", "*.tmp"))


def journal_of(path: Path, group: int) -> Path:
    (journal,) = (path / "groups" / f"{group:05}" / "journal").glob("*.wal")
    return journal


def damage_end(journal: Path, size: int) -> None:
    """Overwrite the last `size` bytes of what was written, with random ones."""
    data = journal.read_bytes()
    end = len(data.rstrip(b"\0"))
    with journal.open("r+b") as file:
        file.seek(max(8192, end - size))
        file.write(Random(size).randbytes(min(size, end - 8192)))


@pytest.fixture(scope="module")
def at_rest_copy(tmp_path_factory):
    place = tmp_path_factory.mktemp("heads")
    asyncio.run(a_log_at_rest(place / "live", place / "copy"))
    return place / "copy"


@pytest.fixture
def copy(at_rest_copy, tmp_path):
    return shutil.copytree(at_rest_copy, tmp_path / "data")


def refusal(path: Path) -> Exception:
    async def run():
        with pytest.raises(Corrupt) as caught:
            await start(str(path), a_config())
        return caught.value

    return asyncio.run(run())


def contents(path: Path) -> dict[str, bytes]:
    return {str(one.relative_to(path)): one.read_bytes()
            for one in path.rglob("*") if one.is_file() and one.name != "LOCK"}  # fmt: skip


@pytest.mark.parametrize("size", [512, 4096, 8192])
def test_a_damaged_end_of_a_log_at_rest_is_refused_by_name(copy, size):
    damage_end(journal_of(copy, 1), size)
    before = contents(copy / "groups" / "00001")
    error = refusal(copy)
    assert isinstance(error, CorruptEntry)
    assert str(journal_of(copy, 1)) in str(error)
    assert "the file `heads` records op" in str(error)
    assert "doctor --salvage" in error.hint
    assert contents(copy / "groups" / "00001") == before


@pytest.mark.parametrize("size", [512, 4096, 8192])
def test_a_damaged_end_of_metadata_at_rest_is_held_by_name_and_not_cut(copy, size):
    damage_end(journal_of(copy, 0), size)
    (copy / "metadata.copy").unlink()  # without it: group 0 is healed from there
    before, heads = contents(copy / "groups" / "00000"), heads_of(copy)

    async def run():
        async with a_node(copy) as node:
            await asyncio.sleep(1.2)  # so that heads would be written
            return node.boot.groups[0].held

    error = asyncio.run(run())
    assert isinstance(error, CorruptEntry)
    assert str(journal_of(copy, 0)) in str(error)
    assert "the file `heads` records op" in str(error)
    assert contents(copy / "groups" / "00000") == before
    assert heads_of(copy)[0] == heads[0]


def test_a_node_with_a_short_shard_is_up_and_says_so(copy):
    damage_end(journal_of(copy, 1), 4096)

    async def run():
        async with a_node(copy, strict=False) as node:
            status = node.node.status()
            return status["ready"], status["groups"]["1"]["refused"], node.boot.groups[1].head

    ready, refused, head = asyncio.run(run())
    assert not ready
    assert f"records op {head.op} here" in refused


def test_a_refused_group_keeps_its_head(copy):
    damage_end(journal_of(copy, 1), 8192)
    before = heads_of(copy)

    async def run():
        async with a_node(copy, strict=False) as node:
            await a_topic(node, "shop/more")
            await at_rest(node)

    asyncio.run(run())
    after = heads_of(copy)
    assert after[1] == before[1]
    assert after[0].op > before[0].op
    assert isinstance(refusal(copy), CorruptEntry)


def test_an_older_copy_of_a_shard_is_refused(tmp_path):
    shard = tmp_path / "data" / "groups" / "00001"

    async def run():
        async with a_node(tmp_path / "data") as node:
            writer = Writer(await a_topic(node))
            await append(node, writer)
        shutil.copytree(shard, tmp_path / "older")
        async with a_node(tmp_path / "data") as node:
            await append(node, writer)

    asyncio.run(run())
    shutil.rmtree(shard)
    (tmp_path / "older").rename(shard)
    assert "were acknowledged but are missing from its end" in str(refusal(tmp_path / "data"))


def test_a_shard_whose_files_are_gone_is_refused_whatever_else_is_lost(copy):
    (copy / "node.toml").unlink()
    shutil.rmtree(copy / "groups" / "00001")
    shutil.rmtree(copy / "groups" / "00000")

    async def run():
        async with a_node(copy, strict=False) as node:
            return node.boot.groups

    groups = asyncio.run(run())
    assert "its head was op" in str(groups[0].held)
    assert isinstance(groups[1].refused, MissingFile)


def heads_of(path: Path) -> dict[int, Head]:
    root = FileDirectory.open_root(str(path), create=False)
    cluster = look(root).cluster
    return dict(read_heads(root, cluster.identity.cluster).heads)


def end_after_a_start(path: Path) -> tuple[int, dict]:
    """Start, append ten rows, and return where they began and what the status says."""

    async def run():
        async with a_node(path) as node:
            topic = await ask(node, topic_messages.DescribeTopic("shop/orders"))
            appended = await append(node, Writer(topic))
            await at_rest(node)
            return appended.start, node.node.status()

    return asyncio.run(run())


@pytest.mark.parametrize("harm", ["missing", "empty", "short", "noise", "one slot", "older"])
def test_weak_heads_are_noted_and_written_again(copy, harm):
    file = copy / "heads"
    data = file.read_bytes()
    slots = [data[:SLOT_SIZE], data[SLOT_SIZE:]]
    newest = heads_of(copy)
    weak = {
        "empty": b"",
        "short": data[:100],
        "noise": Random(1).randbytes(len(data)),
        "one slot": slots[0] + slots[1][:500] + b"?" + slots[1][501:],
        "older": slots[0] + bytes(SLOT_SIZE),
    }
    file.unlink() if harm == "missing" else file.write_bytes(weak[harm])
    first, status = end_after_a_start(copy)
    assert first == 20
    assert bool(status["heads"]["flaws"]) == (harm not in ("missing", "older"))
    if harm == "missing":
        assert "file 'heads' is missing" in status["steps"]["heads"]
    again = heads_of(copy)
    assert again[1].op > newest[1].op
    assert file.stat().st_size == 2 * SLOT_SIZE


def test_heads_of_another_cluster_are_refused_by_name(copy, tmp_path):
    async def run():
        async with a_node(tmp_path / "other") as node:
            await a_topic(node)
        shutil.copy(tmp_path / "other" / "heads", copy / "heads")
        with pytest.raises(ForeignFile) as caught:
            await start(str(copy), a_config(), strict=False)
        return caught.value

    assert asyncio.run(run()).path == str(copy / "heads")


def test_what_cannot_be_written_is_a_finding_and_stops_nothing(tmp_path):
    (tmp_path / "heads").mkdir(parents=True)

    async def run():
        async with a_node(tmp_path) as node:
            writer = Writer(await a_topic(node))
            await append(node, writer)
            await until(lambda: node.node.heads_writer.failure)
            await append(node, writer)
            status = node.node.status()
            return status["ready"], status["heads"]["failure"]

    ready, failure = asyncio.run(run())
    assert ready
    assert str(tmp_path / "heads") in failure
    first_start = asyncio.run(_report_of(tmp_path))
    assert first_start.was_clean


async def _report_of(path: Path):
    async with a_node(path) as node:
        return node.boot.groups[1].report


def test_a_new_log_has_the_head_of_its_first_op_alone(tmp_path):
    async def run():
        async with a_node(tmp_path):
            pass

    asyncio.run(run())
    assert {group: head.op for group, head in heads_of(tmp_path).items()} == {0: 1}


class Clock:
    """A loop of which only the time is asked, and which calls back at once."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls = []

    def time(self) -> float:
        return self.now

    def call_soon_threadsafe(self, call, *arguments) -> None:
        self.calls.append((call, arguments))


@pytest.fixture
def writer():
    disk = MemoryDisk()
    clock = Clock()
    made = HeadsWriter.of(disk.root, CLUSTER, clock)
    yield made, disk, clock
    made.abandon()


CLUSTER = b"headrace-cluster"


def ticked(made: HeadsWriter, clock: Clock, now: float, op: int) -> bool:
    """Tick with group 1 at `op`, and return whether that began a write, which is ended."""
    clock.now = now
    made.tick({GroupId(1): Head(Op(op), bytes(16))}, now)
    if not made._is_writing:
        return False
    made._thread.submit(lambda: None).result()
    while clock.calls:
        call, arguments = clock.calls.pop()
        call(*arguments)
    return True


def test_while_groups_move_it_is_written_once_a_second(writer):
    made, _, clock = writer
    written = [now for now in range(100) if ticked(made, clock, now / 10, now + 1)]
    assert written == list(range(0, 100, 10))


def test_what_rests_is_written_within_a_second(writer):
    made, _, clock = writer
    for last in range(1, 30):
        began = last * 10.0
        for tick in range(last):
            ticked(made, clock, began + tick / 10, last * 100 + tick)
        rested = began + last / 10
        for tick in range(9):
            ticked(made, clock, rested + tick / 10, last * 100 + last - 1)
        assert made.file.heads[1].op == last * 100 + last - 1


def test_nothing_new_is_not_written(writer):
    made, disk, clock = writer
    assert ticked(made, clock, 0.0, 5)
    effects = disk.effect_count
    assert not any(ticked(made, clock, now, 5) for now in range(1, 50))
    assert disk.effect_count == effects


def test_a_failed_write_is_repeated_with_backoff_and_then_forgotten(writer):
    made, disk, clock = writer
    assert ticked(made, clock, 0.0, 1)
    disk.hook = lambda effect: Fail(errno.EIO) if effect.kind == "sync" else None
    tried = [now for now in range(1, 20) if ticked(made, clock, float(now), now + 1)]
    assert tried == [1, 2, 4, 8, 16]
    assert "Input/output error" in made.failure
    assert made.file.heads[1].op == 1
    disk.hook = None
    assert ticked(made, clock, 40.0, 99)
    assert made.failure == ""
    assert read_heads(disk.root, CLUSTER).heads[1].op == 99


def test_a_clean_stop_does_not_fail_for_it(writer):
    made, disk, _ = writer
    disk.hook = lambda effect: Fail(errno.ENOSPC) if effect.kind == "write" else None
    made.stop({GroupId(1): Head(Op(3), bytes(16))})
    assert "No space left" in made.failure
