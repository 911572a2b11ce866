"""The client as users see it: each claim holds embedded and remote, sync and async."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.client.doors import Door, RunningNode, each, it, soon, table, within

import headrace
from headrace.client.connect.channel import Channel
from headrace.client.write.transaction import writer_of
from headrace.errors import (
    BadBatch,
    BadName,
    BadRequest,
    BadSchema,
    Behind,
    ConnectionLost,
    Expired,
    NotErased,
    Recreated,
    Refused,
    TopicExists,
    TopicUnknown,
)
from headrace.model.partition_keys import partitions_of
from headrace.wire.read_messages import GetBounds, GetCursors

ORDERS = pa.schema([("id", pa.int64()), ("name", pa.string())])
WAYS = list(itertools.product(("embedded", "remote"), ("sync", "async")))


@pytest.fixture(params=WAYS, ids="-".join)
def door(request, tmp_path):
    place, api = request.param
    if place == "embedded":
        yield Door(place, api, tmp_path / "data")
        return
    with RunningNode(tmp_path / "data") as node:
        yield Door(place, api, tmp_path / "data", node.address)


def rows(first, count):
    return [{"id": n, "name": f"name {n}"} for n in range(first, first + count)]


def ids(found: pa.Table) -> list[int]:
    return found["id"].to_pylist()


async def test_what_was_appended_is_read_with_its_place(door):
    async with door.log() as log:
        topic = await it(log.create_topic("shop/orders", ORDERS))
        before = datetime.now(UTC)
        appended = await it(topic.append(rows(0, 3)))
        assert appended.ranges == (headrace.Range(0, 0, 3),)
        assert appended.row_count == 3
        found = await table(await it(topic.read()))
    assert found.schema.names == ["_partition", "_offset", "_timestamp", "id", "name"]
    assert found["_partition"].to_pylist() == [0, 0, 0]
    assert found["_offset"].to_pylist() == [0, 1, 2]
    assert all(before <= time <= datetime.now(UTC) for time in found["_timestamp"].to_pylist())
    assert found.select(["id", "name"]).to_pylist() == rows(0, 3)


async def test_what_was_acknowledged_is_there_after_a_new_start(tmp_path):
    for api in ("sync", "async"):
        door = Door("embedded", api, tmp_path / "data")
        async with door.log() as log:
            topic = await it(log.create_topic("orders", ORDERS, if_not_exists=True))
            await it(topic.append(rows(0, 5)))
    async with door.log() as log:
        topic = await it(log.topic("orders"))
        assert ids(await table(await it(topic.read()))) == [0, 1, 2, 3, 4] * 2
        assert (await it(log.recovery_report())).keys() == {"0", "1"}
        assert (await it(log.status()))["ready"] is True


async def test_topics_and_streams_come_and_go(door):
    async with door.log() as log:
        await it(log.create_topic("shop/orders", ORDERS))
        await it(log.create_topic("plain", ORDERS))
        await it(log.create_stream("empty"))
        assert await it(log.topics()) == ["default/plain", "shop/orders"]
        assert await it(log.streams()) == ["default", "empty", "shop"]
        with pytest.raises(TopicExists, match=r"created at revision [1-9]\."):
            await it(log.create_topic("plain", ORDERS))
        await it(log.delete_topic("plain"))
        with pytest.raises(Refused, match="still has 1 topics"):
            await it(log.delete_stream("shop"))
        await it(log.delete_stream("shop", with_topics=True))
        await it(log.delete_stream("empty"))
        assert await it(log.topics()) == []
        with pytest.raises(BadName):
            await it(log.create_stream("no/name"))


async def test_rows_of_a_deleted_topic_are_erased_and_what_is_left_is_told(door):
    told = []
    async with door.log() as log, soon():
        topic = await it(log.create_topic("orders", ORDERS))
        await it(topic.append(rows(0, 5)))
        journal = door.path / "groups" / "00001" / "journal"
        assert any(b"name 3" in one.read_bytes() for one in journal.rglob("*.wal"))
        for bad in ("bogus", None, 0, -1, "0s"):
            with pytest.raises(BadRequest, match="erase_timeout"):
                await it(topic.delete(wait_erased=True, erase_timeout=bad))
        await it(log.topic(topic.name))  # it is there: every argument is judged first
        await it(topic.delete(wait_erased=True, told=told.append))
        assert told[-1] == ()
        assert told[0]
        assert all(isinstance(one, headrace.Unerased) for one in told[0])
        assert not any(b"name 3" in one.read_bytes() for one in journal.rglob("*.wal"))
        stuck = door.path / "groups" / "00001" / "quarantine" / "0123456789abcdef.wal"
        stuck.touch()
        with pytest.raises(NotErased, match=f"after 0.2 s: {stuck}: in quarantine"):
            await it(log.erase_deleted(erase_timeout=0.2))
        stuck.unlink()
        await it(log.erase_deleted())
        with pytest.raises(BadRequest, match="erase_timeout"):
            await it(log.erase_deleted(erase_timeout="soon"))


async def test_an_unknown_topic_suggests_a_near_name(door):
    async with door.log() as log:
        await it(log.create_topic("shop/orders", ORDERS))
        with pytest.raises(TopicUnknown, match="shop/orders"):
            await it(log.topic("shop/ordres"))


async def test_if_not_exists_takes_what_is_there_unless_it_differs(door):
    async with door.log() as log:
        made = await it(log.create_topic("orders", ORDERS, if_not_exists=True))
        again = await it(log.create_topic("orders", ORDERS, if_not_exists=True))
        assert made.created == again.created
        with pytest.raises(TopicExists, match="a different schema"):
            await it(log.create_topic("orders", {"id": "int64"}, if_not_exists=True))


async def test_a_topic_tells_about_itself(door):
    async with door.log() as log:
        topic = await it(
            log.create_topic(
                "shop/orders",
                ORDERS,
                partitions=3,
                key="name",
                retention="7d",
                retention_size="10GiB",
            )
        )
        assert topic.name == "shop/orders"
        assert topic.schema == ORDERS
        assert topic.partitions == 3
        assert topic.key == "name"
        assert topic.retention == headrace.Retention(timedelta(days=7), 10 * 2**30)
        assert abs(topic.created_at - datetime.now(UTC)) < timedelta(minutes=1)
        await it(topic.alter(retention=None))
        assert topic.retention == headrace.Retention(None, 10 * 2**30)
        await it(topic.alter(retention_size="1MiB", retention="1h"))
        await it(topic.refresh())
        assert topic.retention == headrace.Retention(timedelta(hours=1), 2**20)


@dataclass
class Order:
    id: int
    name: str | None


def shapes_of_rows():
    import pandas as pd
    import polars as pl

    columns = {"id": [1, 2], "name": ["a", None]}
    made = pa.table(columns, schema=ORDERS)
    return {
        "table": made,
        "batch": made.to_batches()[0],
        "reader": made.to_reader(),
        "dicts": made.to_pylist(),
        "columns": columns,
        "other order": made.select(["name", "id"]),
        "pandas": pd.DataFrame(columns),
        "polars": pl.DataFrame(columns),
        "dataclasses": [Order(1, "a"), Order(2, None)],
        "missing key": [{"id": 1, "name": "a"}, {"id": 2}],
    }


@pytest.mark.parametrize("shape", sorted(shapes_of_rows()))
async def test_rows_may_come_in_any_shape(door, shape):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS))
        await it(topic.append(shapes_of_rows()[shape]))
        found = await table(await it(topic.read(columns=["id", "name"])))
    assert found.to_pydict() == {"id": [1, 2], "name": ["a", None]}


async def test_a_batch_that_does_not_fit_names_the_column(door):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS))
        with pytest.raises(BadBatch, match=r"column 'nam'.*'name'"):
            await it(topic.append([{"id": 1, "nam": "a"}]))
        with pytest.raises(BadBatch, match="column 'id'"):
            await it(topic.append([{"id": "one", "name": "a"}]))
        assert (await it(topic.bounds()))[0].row_count == 0


async def test_an_empty_append_is_none(door):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS))
        assert await it(topic.append([])) == headrace.Appended(())
        assert await it(topic.append(ORDERS.empty_table())) == headrace.Appended(())


async def test_a_large_table_goes_in_batches_and_comes_back_whole(door):
    large = pa.table({"id": range(400_000), "name": ["x" * 40] * 400_000})
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS))
        appended = await it(topic.append(large))
        assert appended.ranges == (headrace.Range(0, 0, 400_000),)
        read = await it(topic.read())
        batches = await each(read)
        assert len(batches) > 3
        assert max(batch.nbytes for batch in batches) < 16 * 2**20
        found = pa.Table.from_batches(batches)
        assert ids(found) == list(range(400_000))
        # The same rows once more: a read may be repeated.
        assert (await table(read)).num_rows == read.row_count == 400_000


async def test_rows_with_a_key_go_where_their_key_says_and_keep_their_order(door):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS, partitions=4, key="name"))
        names = [f"customer {n % 17}" for n in range(1_000)]
        await it(topic.append({"id": list(range(1_000)), "name": names}))
        found = await table(await it(topic.read()))
    expected = partitions_of(pa.array(names), 4).to_pylist()
    assert len(set(expected)) == 4
    for row in found.to_pylist():
        assert row["_partition"] == expected[row["id"]]
    for partition in range(4):
        own = [row["id"] for row in found.to_pylist() if row["_partition"] == partition]
        assert own == sorted(own)


async def test_rows_without_a_key_take_turns_or_go_where_they_are_told(door):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS, partitions=2))
        for n in range(4):
            await it(topic.append(rows(n, 1)))
        assert [each.row_count for each in await it(topic.bounds())] == [2, 2]
        appended = await it(topic.append(rows(9, 3), partition=1))
        assert appended.offsets == {1: (headrace.Range(1, 2, 5),)}
        with pytest.raises(BadRequest, match="no partition 2"):
            await it(topic.append(rows(0, 1), partition=2))


async def test_reads_have_a_start_an_end_a_last_and_columns(door):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS))
        await it(topic.append(rows(0, 5)))
        await asyncio.sleep(0.01)
        middle = datetime.now(UTC)
        await asyncio.sleep(0.01)
        await it(topic.append(rows(5, 5)))

        async def read(**options):
            return ids(await table(await it(topic.read(**options))))

        assert await read(start=2, end=4) == [2, 3]
        assert await read(start=7) == [7, 8, 9]
        assert await read(end=2) == [0, 1]
        assert await read(last=3) == [7, 8, 9]
        assert await read(last=100) == list(range(10))
        assert await read(start=middle) == [5, 6, 7, 8, 9]
        assert await read(end=middle) == [0, 1, 2, 3, 4]
        assert await read(start="-1h") == list(range(10))
        assert await read(start="earliest", end={0: 1}) == [0]
        assert await read(start="latest") == []
        assert await read(start=10) == []
        assert await read(partition=0, columns=["id"]) == list(range(10))
        found = await table(await it(topic.read(last=1, columns=["name", "_offset"])))
        assert found.to_pylist() == [{"name": "name 9", "_offset": 9}]
        assert await it(topic.offsets_at(middle)) == {0: 5}
        with pytest.raises(Behind):
            await read(start=11)
        with pytest.raises(BadRequest, match="name"):
            await read(columns=["nam"])
        with pytest.raises(BadRequest, match="time zone"):
            await read(start=datetime.now())  # noqa: DTZ005
        with pytest.raises(BadRequest, match="cannot be combined"):
            await read(start=1, last=1)


async def test_a_read_is_bounded_by_the_end_at_the_call(door):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS))
        await it(topic.append(rows(0, 2)))
        read = await it(topic.read())
        await it(topic.append(rows(2, 2)))
        assert ids(await table(read)) == [0, 1]


async def test_following_gives_what_comes(door):
    async with door.log() as log, soon():
        topic = await it(log.create_topic("orders", ORDERS, partitions=2))
        await it(topic.append(rows(0, 1), partition=0))
        following = topic.follow(start="earliest")
        first = await each(following, 1)
        assert first[0]["id"].to_pylist() == [0]

    async with door.log() as log, soon():
        topic = await it(log.topic("orders"))

        async def append_later():
            await asyncio.sleep(0.2)
            other = await headrace.connect_async(f"unix:{door.path}/headrace.sock")
            async with other:
                await (await other.topic("orders")).append(rows(7, 1), partition=1)

        if door.api == "async":
            following = topic.follow()
            later = asyncio.create_task(append_later())
            async with aclosing(following):
                async for batch in following:
                    assert batch["id"].to_pylist() == [7]
                    break
            await later


async def test_a_topic_evolves_and_old_rows_are_shown_in_the_new_schema(door):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", {"id": "int32"}))
        await it(topic.append([{"id": 1}]))
        await it(topic.evolve({"id": "int64", "note": "string"}))
        await it(topic.append([{"id": 2**40, "note": "big"}]))
        found = await table(await it(topic.read(columns=["id", "note"])))
        assert found.to_pylist() == [{"id": 1, "note": None}, {"id": 2**40, "note": "big"}]
        assert (await it(topic.bounds()))[0].versions == ((1, 0), (2, 1))
        with pytest.raises(BadSchema, match="note"):
            await it(topic.evolve({"id": "int64"}))


async def test_a_follower_goes_on_in_a_newer_schema(tmp_path):
    door = Door("embedded", "async", tmp_path / "data")
    async with door.log() as log, soon():
        topic = await log.create_topic("orders", {"id": "int64"})
        await topic.append([{"id": 1}])
        async with aclosing(topic.follow(start="earliest")) as following:
            assert (await anext(following)).schema.names[3:] == ["id"]
            other = await headrace.connect_async(f"unix:{door.path}/headrace.sock")
            async with other:
                twin = await other.topic("orders")
                await twin.evolve({"id": "int64", "note": "string"})
                await twin.append([{"id": 2, "note": "new"}])
            later = await anext(following)
            assert later.schema.names[3:] == ["id", "note"]
            assert later["note"].to_pylist() == ["new"]


async def test_partitions_are_added(door):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS))
        await it(topic.add_partitions(2))
        assert topic.partitions == 3
        await it(topic.append(rows(0, 2), partition=2))
        assert [each.row_count for each in await it(topic.bounds())] == [0, 0, 2]


async def test_trim_and_purge_drop_rows_and_expired_ones_are_told(door):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS))
        for n in range(4):
            await it(topic.append(rows(n, 1)))
        assert await it(topic.trim(2)) == [headrace.Trimmed(0, 2, ())]
        with pytest.raises(Expired):
            await table(await it(topic.read(start=1)))
        assert ids(await table(await it(topic.read()))) == [2, 3]
        await it(topic.purge())
        assert (await it(topic.bounds()))[0].first == 4
        assert ids(await table(await it(topic.read()))) == []


async def test_a_topic_made_again_is_another_one(door):
    async with door.log() as log:
        old = await it(log.create_topic("orders", ORDERS))
        await it(old.append(rows(0, 1)))
        await it(log.delete_topic("orders"))
        with pytest.raises(TopicUnknown):
            await it(old.append(rows(1, 1)))
        new = await it(log.create_topic("orders", ORDERS))
        with pytest.raises(Recreated):
            await it(old.append(rows(2, 1)))
        with pytest.raises(Recreated):
            await it(old.read())
        await it(new.append(rows(3, 1)))
        assert ids(await table(await it(new.read()))) == [3]


async def test_a_read_with_a_condition_gives_the_rows_that_have_it(door):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS, partitions=2))
        await it(topic.append(rows(0, 5), partition=0))
        await it(topic.append(rows(5, 5), partition=1))

        async def found(where, **options):
            return await table(await it(topic.read(where=where, **options)))

        assert ids(await found("id in (1, 7) or name = 'name 9'")) == [1, 7, 9]
        assert ids(await found("_offset = 4 and _partition = 1")) == [9]
        assert ids(await found("id >= 3", last=2)) == [3, 4, 8, 9]
        some = await found("id > 8", columns=["name"])
        assert some.to_pydict() == {"name": ["name 9"]}
        nothing = await found("id < 0")
        assert (nothing.num_rows, nothing.schema.names[-2:]) == (0, ["id", "name"])
        read = await it(topic.read(where="id > 8"))
        with pytest.raises(TypeError, match="no length"):
            len(read)
        with pytest.raises(BadRequest, match="id > 8"):
            _ = read.row_count
        with pytest.raises(
            BadRequest, match=r"where: there is no column 'idd'. Did you mean 'id'"
        ):
            await it(topic.read(where="idd > 3"))
        with pytest.raises(BadRequest, match="where"):
            await it(topic.read(where=5))


async def test_rows_have_a_length_and_become_frames(door):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS))
        await it(topic.append(rows(0, 3)))
        read = await it(topic.read())
        assert len(read) == 3
        assert bool(await it(topic.read(start=3)))
        assert (await it(read.to_pandas()))["id"].tolist() == [0, 1, 2]
        assert (await it(read.to_polars()))["id"].to_list() == [0, 1, 2]
        if door.api == "sync":
            assert pl.DataFrame(read)["id"].to_list() == [0, 1, 2]
            with pytest.raises(TypeError, match=r"to_pandas\(\)"):
                pd.DataFrame(read)
            assert [each.num_rows for each in list(read)] == [3]


async def test_a_consumer_group_goes_on_where_it_committed(door):
    async with door.log() as log, soon():
        topic = await it(log.create_topic("orders", ORDERS, partitions=2))
        await it(topic.append(rows(0, 2), partition=0))
        await it(topic.append(rows(2, 3), partition=1))
        async with within(topic.consumer("billing")) as consumer:
            seen = await each(consumer, 2)
            given = sorted(n for batch in seen for n in batch["id"].to_pylist())
            assert given == [0, 1, 2, 3, 4]
            assert await it(consumer.commit()) == {0: 2, 1: 3}
        async with within(topic.consumer("billing")) as consumer:
            assert await it(consumer.poll("50ms")) is None
            await it(topic.append(rows(5, 1), partition=1))
            assert (await it(consumer.poll("5s")))["id"].to_pylist() == [5]
            # Not committed: it comes again.
        async with within(topic.consumer("billing")) as consumer:
            assert (await it(consumer.poll("5s")))["id"].to_pylist() == [5]
            await it(consumer.seek("earliest"))
            assert await it(consumer.positions()) == {0: 0, 1: 0}
        lags = {cursor.partition: cursor.lag for cursor in await it(topic.cursors("billing"))}
        assert lags == {0: 0, 1: 1}
        await it(topic.delete_cursors("billing"))
        assert await it(topic.cursors()) == []


async def test_auto_commit_commits_what_was_given_when_more_is_asked_for(door):
    async with door.log() as log, soon():
        topic = await it(log.create_topic("orders", ORDERS))
        await it(topic.append(rows(0, 1)))
        async with within(topic.consumer("audit", auto_commit=True)) as consumer:
            await it(consumer.poll("5s"))
            assert (await it(topic.cursors("audit")))[0].next == 0  # where it joined
            assert await it(consumer.poll("10ms")) is None
            assert (await it(topic.cursors("audit")))[0].next == 1


async def test_a_second_consumer_takes_the_group_over_and_the_first_is_told(door):
    async with door.log() as log, soon():
        topic = await it(log.create_topic("orders", ORDERS, partitions=2))
        await it(topic.append(rows(0, 2), partition=0))
        await it(topic.append(rows(2, 2), partition=1))
        first, second = topic.consumer("billing"), topic.consumer("billing")
        for consumer in (first, second):
            assert len(await each(consumer, 2)) == 2
        with pytest.raises(Refused, match="another consumer has taken over group 'billing'"):
            await it(first.commit())
        assert await it(second.commit()) == {0: 2, 1: 2}
        with pytest.raises(Refused, match="of 'default/orders'"):
            await it(first.commit())
        await it(topic.append(rows(4, 1), partition=0))
        assert (await it(second.poll("5s")))["id"].to_pylist() == [4]
        await it(second.commit())  # as often as it likes
        for consumer in (first, second):
            await it(consumer.close())


@dataclass
class Interrupted:
    """A channel with something done after each answer to a question of one kind."""

    channel: Channel
    kind: type
    between: Callable[[], Awaitable[object]]

    def __getattr__(self, name):
        return getattr(self.channel, name)

    async def call(self, request, body=(), **options):
        answer = await self.channel.call(request, body, **options)
        if isinstance(request, self.kind):
            await self.between()
        return answer


def interrupted(topic, kind, between):
    topic.caller = replace(
        topic.caller, channel=Interrupted(topic.caller.channel, kind, between)
    )
    return topic


@pytest.mark.parametrize("kind", [GetCursors, GetBounds], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("is_new", [False, True], ids=["known group", "new group"])
async def test_a_newcomer_keeps_what_was_committed_while_it_joined(tmp_path, kind, is_new):
    """Whatever is acknowledged between two of its questions: no commit moves back."""
    with RunningNode(tmp_path) as node:
        near = await headrace.connect_async(node.address)
        far = await headrace.connect_async(node.address)
        async with near, far, soon():
            topic = await near.create_topic("orders", ORDERS)
            first, acknowledged = topic.consumer("billing"), [0]
            for n in range(5):
                await topic.append(rows(n, 1))
            if not is_new:
                await first.positions()

            async def commit():
                if acknowledged[0] < 4:
                    await first.poll("5s")
                    acknowledged[0] = (await first.commit())[0]

            there = interrupted(await far.topic("orders"), kind, commit)
            second = there.consumer("billing", start="latest")
            try:
                began = (await second.positions())[0]
            except Refused:  # the other joined in between, as the newer one
                assert is_new
                began = (await there.consumer("billing", start="latest").positions())[0]
            assert began == acknowledged[0] > 0
            assert [each.next for each in await topic.cursors("billing")] == [began]
            with pytest.raises(Refused, match="taken over"):
                await first.commit()
            await first.close()
            await second.close()


async def test_no_commit_of_a_busy_member_moves_back_when_another_joins(tmp_path):
    with RunningNode(tmp_path) as node:
        near = await headrace.connect_async(node.address)
        far = await headrace.connect_async(node.address)
        async with near, far, soon():
            topic = await near.create_topic("orders", ORDERS)
            await topic.append(rows(0, 1_000))
            there = await far.topic("orders")
            for number in range(20):
                group = f"group-{number}"
                first, second = topic.consumer(group), there.consumer(group)
                await first.positions()
                acknowledged, is_busy = [0], asyncio.Event()

                async def work(first=first, acknowledged=acknowledged, is_busy=is_busy):
                    with contextlib.suppress(Refused):
                        for place in range(1, 1_000):
                            await first.seek(place)
                            acknowledged[0] = (await first.commit())[0]
                            is_busy.set()

                working = asyncio.create_task(work())
                await is_busy.wait()
                began = (await second.positions())[0]
                await working
                assert began == acknowledged[0]


async def test_what_a_newcomer_joins_stays_held(tmp_path):
    async with await headrace.open_async(tmp_path) as log:
        topic = await log.create_topic("orders", ORDERS)
        await topic.append(rows(0, 2))
        async with topic.consumer("billing", hold=True) as first:
            await first.poll("5s")
            await first.commit()
        async with topic.consumer("billing"):
            (cursor,) = await topic.cursors("billing")
        assert (cursor.next, cursor.hold) == (2, True)


async def test_a_member_that_was_taken_over_neither_commits_nor_reads_on(door):
    async with door.log() as log, soon():
        topic = await it(log.create_topic("orders", ORDERS, partitions=2))
        for number in range(2):
            await it(topic.append(rows(2 * number, 2), partition=number))
        first, second = topic.consumer("billing"), topic.consumer("billing")
        assert len(await each(first, 2)) == 2
        assert await it(first.commit()) == {0: 2, 1: 2}
        assert await it(first.commit()) == {0: 2, 1: 2}  # as often as it likes
        await it(second.positions())
        for _ in range(2):  # nothing has moved since, and still it is told
            with pytest.raises(
                Refused, match="another consumer has taken over group 'billing'"
            ):
                await it(first.commit())
        await it(topic.append(rows(4, 1), partition=0))
        for refused in (
            lambda: first.poll("5s"),
            lambda: first.seek("earliest"),
            first.commit,
            lambda: each(first, 1),
        ):
            with pytest.raises(Refused, match="of 'default/orders'"):
                await it(refused())
        assert (await it(second.poll("5s")))["id"].to_pylist() == [4]
        assert await it(second.commit()) == {0: 3, 1: 2}
        for consumer in (first, second):
            await it(consumer.close())


async def test_a_seek_back_to_an_older_commit_does_not_hide_that_a_member_was_taken_over(door):
    async with door.log() as log, soon():
        topic = await it(log.create_topic("orders", ORDERS))
        await it(topic.append(rows(0, 2)))
        first, second = topic.consumer("billing"), topic.consumer("billing")
        assert len(await each(first, 1)) == 1
        assert len(await each(second, 1)) == 1
        assert await it(second.commit()) == {0: 2}
        await it(first.seek("earliest"))  # where its own last commit was
        with pytest.raises(Refused, match="taken over"):
            await it(first.commit())
        assert [each.next for each in await it(topic.cursors("billing"))] == [2]
        for consumer in (first, second):
            await it(consumer.close())


async def test_a_member_outlives_its_connection_and_its_node(tmp_path):
    settings = {}
    with RunningNode(tmp_path) as node:
        settings["listen__address"] = node.address
        log = await headrace.connect_async(node.address)
        topic = await log.create_topic("orders", ORDERS)
        await topic.append(rows(0, 1))
        consumer = topic.consumer("billing")
        assert (await consumer.poll("5s"))["id"].to_pylist() == [0]
        log.caller.channel._connection.abort(ConnectionLost("cut by the test"))
        assert await consumer.commit() == {0: 1}
        await topic.append(rows(1, 1))
    with RunningNode(tmp_path, **settings):
        assert (await consumer.poll("20s"))["id"].to_pylist() == [1]
        assert await consumer.commit() == {0: 2}
        # It dies without a word: the next one goes on where it was, at once.
        async with within(topic.consumer("billing")) as after:
            assert await after.positions() == {0: 2}
            await topic.append(rows(2, 1))
            assert (await after.poll("5s"))["id"].to_pylist() == [2]
            assert await after.commit() == {0: 3}
        await log.close()


async def test_members_that_name_their_partitions_are_of_one_group(door):
    async with door.log() as log, soon():
        topic = await it(log.create_topic("orders", ORDERS, partitions=2))
        for number in range(2):
            await it(topic.append(rows(number, 1), partition=number))
        members = [topic.consumer("billing", partition=number) for number in range(2)]
        for number, member in enumerate(members):
            assert (await it(member.poll("5s")))["id"].to_pylist() == [number]
        for number, member in enumerate(members):
            assert await it(member.commit()) == {number: 1}
            await it(member.close())


async def test_a_holding_group_keeps_its_rows_from_being_trimmed(door):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS))
        for n in range(3):
            await it(topic.append(rows(n, 1)))
        async with within(topic.consumer("slow", hold=True)):
            pass
        assert await it(topic.trim(3)) == [headrace.Trimmed(0, 0, (("slow", 0),))]


async def test_a_producer_sends_rows_in_batches_and_tells_where_they_are(door, tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    async with door.log() as log, soon():
        topic = await it(log.create_topic("orders", ORDERS, partitions=2, key="name"))
        making = log.producer("orders", linger="1ms", batch_rows=100, ledger=ledger)
        async with within(making) as producer:
            for row in rows(0, 1_000):
                await it(producer.send(row))
            await it(producer.send(rows(1_000, 10)))
            await it(producer.send(pa.Table.from_pylist(rows(1_010, 10), ORDERS)))
            appended = await it(producer.flush())
            assert appended.row_count == 1_020
        found = await table(await it(topic.read()))
        assert sorted(ids(found)) == list(range(1_020))
        lines = [json.loads(line) for line in ledger.read_text().splitlines()]
        assert sum(line["rows"] for line in lines) == 1_020
        assert 2 <= len(lines) < 100
        for line in lines:
            assert line.keys() == {
                *("topic", "partition", "created", "start", "end", "rows"),
                *("writer", "version", "checksum"),
            }
            assert line["end"] - line["start"] == line["rows"]


async def test_a_producers_failure_is_told_by_the_next_call(door):
    async with door.log() as log, soon():
        await it(log.create_topic("orders", ORDERS))
        producer = await it(log.producer("orders"))
        await it(producer.send({"id": "no number"}))
        with pytest.raises(BadBatch, match="id"):
            await it(producer.flush())
        await it(producer.send({"id": 1}))
        assert (await it(producer.flush())).row_count == 1
        await it(producer.close())
        with pytest.raises(BadRequest, match="closed"):
            await it(producer.send({"id": 2}))


async def test_closing_the_log_flushes_its_producers(door):
    async with door.log() as log:
        await it(log.create_topic("orders", ORDERS))
        producer = await it(log.producer("orders", linger="1h"))
        await it(producer.send(rows(0, 3)))
    async with door.log() as log:
        topic = await it(log.topic("orders"))
        assert ids(await table(await it(topic.read()))) == [0, 1, 2]


async def test_a_producer_that_cannot_be_closed_keeps_no_other_from_its_rows(tmp_path):
    async def refuse():
        raise ZeroDivisionError

    log = await headrace.open_async(tmp_path / "data")
    await log.create_topic("orders", ORDERS)
    producers = [await log.producer("orders", linger="1h") for _ in range(3)]
    for number, producer in enumerate(producers):
        await producer.send(rows(number, 1))
        producer._writer.close = refuse  # after the flush
    with pytest.raises(ZeroDivisionError):
        await log.close()
    async with await headrace.open_async(tmp_path / "data") as again:
        found = await (await (await again.topic("orders")).read()).to_table()
        assert sorted(ids(found)) == [0, 1, 2]


async def test_a_transaction_is_readable_whole_and_counts_once(door):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS, partitions=2))
        async with within(log.transaction("orders", "job", 7)) as transaction:
            await it(transaction.append(rows(0, 2), partition=0))
            await it(transaction.append(rows(2, 2), partition=1))
            await it(transaction.append(rows(4, 1), partition=0))
            assert ids(await table(await it(topic.read()))) == []
        assert transaction.result == headrace.Published(
            (headrace.Range(0, 0, 3), headrace.Range(1, 0, 2)), repeated=False, same=None
        )
        assert ids(await table(await it(topic.read()))) == [0, 1, 4, 2, 3]

        async with within(log.transaction(topic, "job", 7)) as again:
            await it(again.append(rows(0, 5)))
        assert again.result.repeated
        assert again.result.ranges == transaction.result.ranges
        assert (await table(await it(topic.read()))).num_rows == 5

        with pytest.raises(Refused, match="not above the published 7"):
            async with within(log.transaction(topic, "job", 6)) as late:
                await it(late.append(rows(0, 5)))


async def test_a_transaction_that_fails_leaves_nothing(door):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS))

        async def failing():
            async with within(log.transaction(topic, "job", 1)) as transaction:
                await it(transaction.append(rows(0, 2)))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await failing()
        assert ids(await table(await it(topic.read()))) == []
        # The version is free, and nothing of the first try is in it.
        async with within(log.transaction(topic, "job", 1)) as transaction:
            await it(transaction.append(rows(5, 1)))
        assert ids(await table(await it(topic.read()))) == [5]


async def test_a_transaction_that_is_over_takes_no_rows(door):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS))
        published = await it(log.transaction(topic, "job", 1))
        await it(published.append(rows(0, 2)))
        await it(published.publish())
        with pytest.raises(BadRequest, match="'job' version 1 is already published"):
            await it(published.append(rows(2, 2)))
        assert (await it(published.publish())).ranges == (headrace.Range(0, 0, 2),)

        discarded = await it(log.transaction(topic, "job", 2))
        await it(discarded.append(rows(4, 2)))
        await it(discarded.discard())
        for act in (lambda: discarded.append(rows(6, 2)), discarded.publish):
            with pytest.raises(BadRequest, match="'job' version 2 is already discarded"):
                await it(act())
        assert ids(await table(await it(topic.read()))) == [0, 1]


async def test_a_transaction_with_a_part_of_an_append_is_not_published(door):
    def breaking():
        for n in range(30):  # more than goes in one request
            row = {"id": n, "name": "x" * 1024 * 1024}
            yield pa.RecordBatch.from_pylist([row], ORDERS)
        raise ValueError("the source is gone")

    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS))
        transaction = await it(log.transaction(topic, "job", 1))
        await it(transaction.append(rows(7, 1)))
        broken = pa.RecordBatchReader.from_batches(ORDERS, breaking())
        with pytest.raises(BadBatch, match="the source is gone") as told:
            await it(transaction.append(broken))
        assert "\n" not in str(told.value)
        with pytest.raises(BadRequest, match="Discard it"):
            await it(transaction.publish())
        await it(transaction.discard())

        # What is refused as a whole leaves nothing behind, and the version is still free.
        async with within(log.transaction(topic, "job", 1)) as again:
            with pytest.raises(BadBatch):
                await it(again.append([{"id": "no number"}]))
            await it(again.append(rows(8, 1)))
        assert ids(await table(await it(topic.read()))) == [8]


async def test_a_topic_that_is_refused_leaves_no_stream(door):
    async with door.log() as log:
        for count, words in ((0, "Use at least 1"), (2**40, "Use fewer")):
            with pytest.raises(Refused, match=words):
                await it(log.create_topic("shop/orders", ORDERS, partitions=count))
        assert "shop" not in await it(log.streams())


async def test_values_come_back_as_they_went(door):
    schema = {
        "flag": "bool",
        "small": "int8",
        "price": "decimal(10, 2)",
        "at": "timestamp",
        "day": "date",
        "tags": "list<string>",
        "where": "struct<lat: float64, lon: float64>",
        "counts": "map<string, int64>",
        "raw": "binary not null",
    }
    row = {
        "flag": True,
        "small": -3,
        "price": Decimal("12.50"),
        "at": datetime(2026, 11, 15, 10, tzinfo=UTC),
        "day": datetime(2026, 11, 15, tzinfo=UTC).date(),
        "tags": ["a", None],
        "where": {"lat": 1.5, "lon": -0.5},
        "counts": [("x", 1)],
        "raw": b"\0\xff",
    }
    empty = dict.fromkeys(row, None) | {"raw": b""}
    async with door.log() as log:
        topic = await it(log.create_topic("all", schema))
        await it(topic.append([row, empty]))
        found = await table(await it(topic.read(columns=list(schema))))
    assert found.to_pylist() == [row, empty]


async def test_a_summary_has_a_line_for_each_topic(door):
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS, partitions=2))
        await it(topic.append(rows(0, 3)))
        (line,) = await it(log.summary())
        assert (line.name, line.partition_count, line.row_count) == ("default/orders", 2, 3)
        assert line.size > 0
        assert repr(log)
        assert repr(topic)


def test_the_writer_of_an_app_id_is_as_specified():
    assert writer_of("job").hex() == "5e8c9902207afaeb7120430c585a445f"


async def test_a_read_beyond_the_committed_rows_is_refused_before_it_counts_them(door):
    """Ten rows in four partitions: no `len` says that there are more."""
    async with door.log() as log:
        topic = await it(log.create_topic("orders", ORDERS, partitions=4))
        await it(topic.append(rows(0, 10), partition=0))
        for places in ({"end": 99}, {"end": {0: 10, 1: 0, 2: 0, 3: 1}}, {"end": 99, "last": 5}):
            with pytest.raises(Behind):
                await it(topic.read(**places))
        assert (await it(topic.read(end={0: 10, 1: 0, 2: 0, 3: 0}))).row_count == 10
