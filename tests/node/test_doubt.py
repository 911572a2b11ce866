"""Metadata that lost something: nothing of it is removed, hidden or shown as something else."""

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.node.nodes import Writer, a_config, a_node, a_topic, append, ask, ids
from tests.node.test_heads import at_rest, contents, damage_end, heads_of, journal_of

from headrace.errors import Corrupt, HeadraceError, MetadataInDoubt, TopicUnknown
from headrace.model.ids import GroupId, Revision
from headrace.model.namespace import Namespace
from headrace.model.revisions import STAMP_BITS, Order, compare, shown
from headrace.node.bootstrap import start
from headrace.node.config.settings import Cluster
from headrace.node.doubt.doubt import judge
from headrace.node.doubt.metadata_copy import NAME as COPY_NAME
from headrace.node.group.driver import Driver
from headrace.partition.reader import Key
from headrace.wire import read_messages, topic_messages, write_messages

STEP = 1_000  # the ids of each topic begin at its number times this
TWO = a_config(cluster=replace(Cluster(), shards=2))
ONE = a_config()


class Numbered(Writer):
    """A producer whose rows tell of which topic they are."""

    def __init__(self, info: topic_messages.TopicInfo, number: int) -> None:
        super().__init__(info)
        self.rows = number * STEP


async def add_topic(node, number: int, rows: int = 3) -> str:
    """Make a topic with `rows` rows of its own, and return its name."""
    name = f"shop/t{number}"
    writer = Numbered(await a_topic(node, name), number)
    for _ in range(rows):
        await append(node, writer, 1)
    return name


def rows_of(number: int, rows: int = 3) -> list[int]:
    return list(range(number * STEP, number * STEP + rows))


def copied(path: Path, to: Path) -> Path:
    """Copy a log without the copy of its metadata: group 0 would be healed from there."""
    without = shutil.ignore_patterns("*.sock", "*.tmp", "metadata.copy")
    return shutil.copytree(path, to, ignore=without)


@pytest.fixture(scope="module")
def two_topics(tmp_path_factory):
    """A directory that was copied from a running node, a second after its last append."""
    place = tmp_path_factory.mktemp("doubt")

    async def run():
        async with a_node(place / "live") as node:
            for number in (1, 2):
                await add_topic(node, number)
            await at_rest(node)
            copied(place / "live", place / "copy")

    asyncio.run(run())
    return place / "copy"


@pytest.fixture(params=["with heads", "without heads"])
def short(two_topics, tmp_path, request):
    """The same with the last sector of its metadata overwritten: the second topic is lost."""
    data = copied(two_topics, tmp_path / "data")
    damage_end(journal_of(data, 0), 512)
    if request.param == "without heads":
        (data / "heads").unlink()
    return data


async def passes(node, count: int = 8) -> None:
    """Let reconcilers look again and again."""
    for _ in range(count):
        node.node.on_metadata()
        await asyncio.sleep(0.05)


async def accounted(node, expected: dict[str, list[int]]) -> set[str]:
    """Check that each topic is served whole, or named; return those that are served.

    None shows rows of another, and what is not served is an orphan with just so many rows, or
    its group says why it does not start.
    """
    status = node.node.status()
    refused = any(one["refused"] for one in status["groups"].values())
    named = sorted(one["rows"] for one in status["orphans"])
    try:
        known = (await ask(node, topic_messages.ListTopics())).topics
    except HeadraceError:
        known = ()
    served = set()
    for name in known:
        info = await ask(node, topic_messages.DescribeTopic(name))
        found = []
        for where in info.partitions:
            try:
                found += await ids(node, where)
            except HeadraceError:
                assert status["degraded"] or refused
                break
        else:
            assert found == expected.get(name, []), f"{name} shows rows that are not its own"
            served.add(name)
    for name in expected.keys() - served:
        assert refused or len(expected[name]) in named, f"{name} is gone without a word"
        assert status["degraded"] or refused
    return served


EXPECTED = {"shop/t1": rows_of(1), "shop/t2": rows_of(2)}


@pytest.mark.parametrize("name", ["other/c", "shop/c"])
def test_a_topic_that_metadata_lost_is_neither_removed_nor_given_to_another(
    short, two_topics, name
):
    async def run():
        async with a_node(short) as node:
            assert node.node.status()["ready"]
            assert await accounted(node, EXPECTED) == {"shop/t1"}
            for request in (
                lambda: a_topic(node, name),
                lambda: ask(node, topic_messages.DeleteStreamRequest("shop", True)),
                lambda: ask(node, topic_messages.CreateStreamRequest("more")),
            ):
                with pytest.raises(MetadataInDoubt) as caught:
                    await request()
                assert "metadata adopt" in caught.value.hint
            await passes(node)
            assert await accounted(node, EXPECTED) == {"shop/t1"}

    asyncio.run(run())
    shutil.rmtree(short / "groups" / "00000")
    copied(two_topics / "groups" / "00000", short / "groups" / "00000")

    async def again():
        async with a_node(short) as node:
            assert node.node.status()["degraded"] == []
            assert await accounted(node, EXPECTED) == set(EXPECTED)

    asyncio.run(again())


def test_what_is_not_known_is_doubted_and_not_denied(short):
    async def run():
        async with a_node(short) as node:
            with pytest.raises(
                MetadataInDoubt, match="'shop/t2' not found, and the metadata is"
            ):
                await ask(node, topic_messages.DescribeTopic("shop/t2"))
            (orphan,) = node.node.doubt.orphans
            where = topic_messages.PartitionInfo(orphan.key.namespace, orphan.key.created)
            with pytest.raises(MetadataInDoubt, match="is not served"):
                await ids(node, where)
            with pytest.raises(MetadataInDoubt):
                await ask(node, read_messages.GetBounds((where,)))

    asyncio.run(run())


def test_an_orphan_is_named_with_all_that_tells_what_it_is(short):
    async def run():
        async with a_node(short) as node:
            status = json.loads((await ask(node, reading_status())).text)
            return status["orphans"], status["degraded"]

    (orphan,), degraded = asyncio.run(run())
    assert (orphan["group"], orphan["rows"], shown(orphan["created"])) == (1, 3, 2)
    assert orphan["first_at"] <= orphan["last_at"]
    assert orphan["bytes"] > 0
    assert orphan["schema"] == ["id: int64", "name: string"]
    assert any(orphan["partition"] in each for each in degraded)


def reading_status():
    from headrace.wire.greeting import GetStatus

    return GetStatus()


def test_in_doubt_nothing_is_trimmed_purged_or_expired(short):
    async def run():
        async with a_node(short) as node:
            info = await ask(node, topic_messages.DescribeTopic("shop/t1"))
            where = info.partitions[0]
            for request in (
                write_messages.TrimRequest(where.namespace, where.created, 2, False),
                write_messages.PurgeRequest(where.namespace, where.created),
            ):
                with pytest.raises(MetadataInDoubt):
                    await ask(node, request)
            running = node.node.shards[GroupId(1)]
            assert running.driver.pump.expires is False
            assert running.shard.store.keeper.files.segments_stay is True

    asyncio.run(run())


def test_a_seal_that_is_due_at_the_start_expires_nothing_in_doubt(short, monkeypatch):
    seen = []
    start_of = Driver.start

    def watched(self):
        seen.append((self.name, self.pump.expires))
        start_of(self)

    monkeypatch.setattr(Driver, "start", watched)

    async def run():
        async with a_node(short):
            pass

    asyncio.run(run())
    assert ("1", False) in seen


def test_a_topic_that_both_agree_on_is_written_to_unless_metadata_is_held(short):
    is_held = (short / "heads").exists()

    async def run():
        async with a_node(short) as node:
            info = await ask(node, topic_messages.DescribeTopic("shop/t1"))
            if is_held:
                with pytest.raises(
                    MetadataInDoubt, match="cannot append while the metadata is damaged"
                ):
                    await append(node, Writer(info))
            else:
                assert (await append(node, Writer(info), 1)).start == 3

    asyncio.run(run())


def test_a_held_group_0_keeps_each_byte_and_its_head(two_topics, tmp_path):
    data = copied(two_topics, tmp_path / "data")
    damage_end(journal_of(data, 0), 512)
    before, heads = contents(data / "groups" / "00000"), heads_of(data)
    for _ in range(2):
        asyncio.run(_started(data))
        assert contents(data / "groups" / "00000") == before
        assert heads_of(data)[0] == heads[0]


def test_in_doubt_the_copy_of_metadata_stays_as_it_is(short):
    """It cannot be read now, and may know what was lost."""
    (short / COPY_NAME).write_bytes(b"?" * 1_000)

    async def run():
        async with a_node(short) as node:
            assert node.node.doubt is not None

    asyncio.run(run())
    assert (short / COPY_NAME).read_bytes() == b"?" * 1_000


async def _started(data: Path) -> None:
    async with a_node(data) as node:
        assert node.boot.groups[0].held is not None
        await asyncio.sleep(1.2)


# ---- metadata and shards of different moments ----

MOMENTS = 10


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Two shards that grew over ten starts; copies of the directory as each stop left it."""
    place = tmp_path_factory.mktemp("history")
    data = place / "data"

    async def grow(number: int) -> None:
        async with a_node(data, TWO) as node:
            name = await add_topic(node, number, rows=number)
            if number == 4:
                doomed = await ask(node, topic_messages.DescribeTopic("shop/t3"))
                await ask(node, topic_messages.DeleteTopicRequest("shop/t3", doomed.created))
            if number == 6:
                info = await ask(node, topic_messages.DescribeTopic(name))
                await ask(node, topic_messages.AddPartitionsRequest(name, info.created, 1, 1))
            await passes(node, 4)
            await at_rest(node)

    for number in range(1, MOMENTS + 1):
        asyncio.run(grow(number))
        copied(data, place / str(number))
    return place


def expected_of(numbers) -> dict[str, list[int]]:
    return {f"shop/t{one}": rows_of(one, one) for one in numbers if one != 3}


ALL = expected_of(range(1, MOMENTS + 1))


def mixed(
    history: Path, to: Path, groups: dict[int, int | None], *, heads: bool, copy: bool = False
) -> Path:
    """Take the newest directory, with some groups as they were at other moments, or not.

    `heads`, `copy`: whether these files are there.
    """
    data = copied(history / str(MOMENTS), to)
    for group, moment in groups.items():
        place = data / "groups" / f"{group:05}"
        shutil.rmtree(place)
        if moment is not None:
            copied(history / str(moment) / "groups" / f"{group:05}", place)
    if not heads:
        (data / "heads").unlink()
    if copy:
        shutil.copy(history / "data" / COPY_NAME, data / COPY_NAME)
    return data


async def tried(data: Path, expected: dict[str, list[int]]) -> set[str]:
    """Start, try to change topics, let reconcilers look, and start once more."""
    for _ in range(2):
        async with a_node(data, TWO, strict=False) as node:
            await accounted(node, expected)
            for name in ("other/c", "shop/c"):
                try:
                    made = await a_topic(node, name)
                    assert await ids(node, made.partitions[0]) == []
                except HeadraceError:
                    pass
            await passes(node)
            served = await accounted(node, expected)
    return served


@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize("moment", range(1, MOMENTS))
def test_metadata_of_any_earlier_moment_costs_no_row(history, tmp_path, moment, heads):
    data = mixed(history, tmp_path / "data", {0: moment}, heads=heads)
    served = asyncio.run(tried(data, ALL))
    assert served >= expected_of(range(1, moment + 1)).keys() - {"shop/t3"}
    assert served < ALL.keys()


@pytest.mark.parametrize("heads", [True, False])
def test_metadata_that_is_gone_costs_no_row(history, tmp_path, heads):
    data = mixed(history, tmp_path / "data", {0: None}, heads=heads)
    assert asyncio.run(tried(data, ALL)) == set()
    assert not (data / "groups" / "00000").exists()


@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize("moment", [None, 1, 5, 9])
def test_with_its_copy_metadata_of_any_earlier_moment_costs_nothing(
    history, tmp_path, moment, heads
):
    data = mixed(history, tmp_path / "data", {0: moment}, heads=heads, copy=True)

    async def run():
        async with a_node(data, TWO) as node:
            assert "healed" in node.node.status()["steps"]["healing"]
            assert node.node.status()["degraded"] == []
            assert await accounted(node, ALL) == ALL.keys()
            assert await ids(node, (await a_topic(node, "shop/c")).partitions[0]) == []

    asyncio.run(run())


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("moment", [2, 5, 9])
@pytest.mark.parametrize("groups", [(1,), (2,), (0, 1), (0, 1, 2)])
def test_shards_of_an_earlier_moment_are_named(history, tmp_path, moment, groups, copy):
    earlier = dict.fromkeys(groups, moment)
    data = mixed(history, tmp_path / "data", earlier, heads=True, copy=copy)
    asyncio.run(tried(data, ALL))


@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize("ahead", [1, 2])
def test_one_shard_that_is_ahead_of_all_else_is_found_out(history, tmp_path, ahead, heads):
    earlier = dict.fromkeys({0, 1, 2} - {ahead}, 5)
    data = mixed(history, tmp_path / "data", earlier, heads=heads)
    expected = ALL if heads else None

    async def run():
        async with a_node(data, TWO, strict=False) as node:
            if expected is not None:
                await accounted(node, expected)
            assert node.node.doubt is not None
            assert node.node.doubt.orphans
            with pytest.raises(Corrupt):
                await a_topic(node, "other/c")

    asyncio.run(run())


def test_a_whole_log_of_an_earlier_moment_is_in_no_doubt(history, tmp_path):
    data = copied(history / "7", tmp_path / "data")

    async def run():
        async with a_node(data, TWO) as node:
            assert node.node.status()["degraded"] == []
            expected = expected_of(range(1, 8))
            assert await accounted(node, expected) == expected.keys()

    asyncio.run(run())


# ---- the judgement itself ----


def test_a_life_of_a_lost_history_is_never_taken_for_one_that_came_in_its_place(tmp_path):
    """Two logs go on from one moment; metadata is of one, and the shard of the other.

    With plain counts both histories gave their second topic the same place and revision.
    """
    data, other = tmp_path / "data", tmp_path / "other"

    async def grow(path: Path, number: int, name: str) -> topic_messages.TopicInfo:
        async with a_node(path) as node:
            info = await a_topic(node, name)
            await append(node, Numbered(info, number), 3)
            return info

    asyncio.run(grow(data, 1, "shop/t1"))
    copied(data, other)
    lost = asyncio.run(grow(data, 2, "shop/t2"))
    came = asyncio.run(grow(other, 3, "shop/t3"))
    assert lost.partitions[0].namespace == came.partitions[0].namespace
    assert shown(lost.created) == shown(came.created)
    assert compare(lost.created, came.created) is Order.BRANCHED
    shutil.rmtree(data / "groups" / "00000")
    copied(other / "groups" / "00000", data / "groups" / "00000")
    for name in ("heads", "LOCK", "metadata.copy"):
        (data / name).unlink()

    async def run():
        async with a_node(data) as node:
            assert any("of another history" in each for each in node.node.doubt.reasons)
            (orphan,) = node.node.doubt.orphans
            assert (orphan.row_count, orphan.key.created) == (3, lost.created)
            for where in (lost.partitions[0], came.partitions[0]):
                with pytest.raises(MetadataInDoubt):
                    await ids(node, where)
            await passes(node)
            assert await accounted(node, {"shop/t1": rows_of(1), "shop/t3": rows_of(3)}) == {
                "shop/t1"
            }
            assert len(states(node)[1].partitions) == 2

    asyncio.run(run())


def states(node):
    return {number: one.shard.state for number, one in node.node.shards.items()}


def test_a_shard_with_more_schemas_or_others_is_doubted(tmp_path):
    async def run():
        async with a_node(tmp_path) as node:
            await add_topic(node, 1)
            metadata = node.node.metadata
            assert judge(metadata, states(node)) is None
            (topic,) = states(node)[1].topics.values()
            known = topic.schemas
            topic.schemas = (*known, replace_version(known[0], 2))
            found = judge(metadata, states(node))
            assert "has 2 schemas of topic" in found.reasons[0]
            assert not found.orphans
            topic.schemas = (replace_version(known[0], 1, b"other"),)
            found = judge(metadata, states(node))
            assert [one.row_count for one in found.orphans] == [3]
            topic.schemas = known

    asyncio.run(run())


def replace_version(schema, version, data=None):
    return type(schema)(version, schema.schema if data is None else data)


def test_a_life_of_which_metadata_says_another_shard_is_an_orphan(tmp_path):
    async def run():
        async with a_node(tmp_path, TWO) as node:
            await add_topic(node, 1)
            known = states(node)
            swapped = {GroupId(1): known[2], GroupId(2): known[1]}
            (orphan,) = judge(node.node.metadata, swapped).orphans
            assert orphan.row_count == 3

    asyncio.run(run())


def test_what_is_on_its_way_is_in_no_doubt(tmp_path):
    """A deletion that the shard has not followed yet."""

    async def run():
        async with a_node(tmp_path) as node:
            await add_topic(node, 1)
            metadata, shard = node.node.metadata, states(node)
            (key, partition) = next(iter(shard[1].partitions.items()))
            topic = metadata.topic("shop", "t1")
            metadata.remove_topic(topic)
            assert judge(metadata, shard) is None
            for other in (partition.created - 1, partition.created + (1 << STAMP_BITS)):
                metadata.deleted[key] = (Revision(other),)  # of another life, earlier or later
                (orphan,) = judge(metadata, shard).orphans
                assert orphan.key == Key(Namespace(key), partition.created)

    asyncio.run(run())


def test_a_client_is_told_that_a_topic_is_not_there_where_nothing_is_in_doubt(tmp_path):
    async def run():
        started = await start(str(tmp_path), ONE)
        try:
            with pytest.raises(TopicUnknown):
                await ask(started, topic_messages.DescribeTopic("shop/none"))
        finally:
            await started.stop()

    asyncio.run(run())
