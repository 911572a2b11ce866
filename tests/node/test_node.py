"""A node at work: topics come and go, rows in and out, every request answered once."""

import asyncio
import time

import pytest
from tests.node.nodes import (
    NEWER,
    SCHEMA,
    Writer,
    a_config,
    a_node,
    a_topic,
    append,
    ask,
    ask_whole,
    fetch_of,
    ids,
    some_rows,
)

from headrace.errors import (
    BadBatch,
    BadName,
    BadRequest,
    BadSchema,
    Behind,
    Expired,
    HeadraceError,
    NotReady,
    NotYet,
    PartitionUnknown,
    Recreated,
    Refused,
    TimedOut,
    TopicExists,
    TopicUnknown,
    WriterUnknown,
)
from headrace.model import batch
from headrace.model.ids import KEEP_NEXT
from headrace.model.results import Receipt, StoredCursor
from headrace.model.schema import encode_schema
from headrace.model.units import MILLISECOND
from headrace.node.config.settings import Cluster, RetentionSettings, SealSettings
from headrace.partition.segments import row_group_cache
from headrace.wire import read_messages, topic_messages, write_messages


def on_node(path, work, config=None):
    async def run():
        async with a_node(path, config) as node:
            return await work(node)

    return asyncio.run(run())


async def eventually(check, seconds=10.0):
    """Wait until `check` holds; fail if it does not in time."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


class TestTopics:
    def test_a_topic_can_be_used_at_once(self, tmp_path):
        """What arrives before the partition is there is parked, in order."""

        async def work(node):
            info = await a_topic(node, partitions=3)
            writers = [Writer(info, number) for number in range(3)]
            asked = [ask(node, *writer.request()) for writer in writers for _ in range(4)]
            found = await asyncio.gather(*asked)
            assert [(one.start, one.end) for one in found] == [
                (n, n + 10) for _ in range(3) for n in (0, 10, 20, 30)
            ]
            assert node.node.shards[1].shard.parking.parked_count > 0
            return info

        info = on_node(tmp_path, work)
        assert [each.namespace & 0xFF for each in info.partitions] == [0, 1, 2]

    def test_names_that_are_taken_or_missing_are_said_with_a_suggestion(self, tmp_path):
        async def work(node):
            await a_topic(node)
            with pytest.raises(TopicExists):
                await a_topic(node)
            with pytest.raises(TopicUnknown, match=r"Did you mean 'shop/orders'\?"):
                await ask(node, topic_messages.DescribeTopic("shop/order"))
            for name in ("../etc", "a/b/c", "", ".hidden", "x" * 65, "shop/\0", "ünicode"):
                with pytest.raises(BadName):
                    await a_topic(node, name)
            return await ask(node, topic_messages.ListTopics())

        found = on_node(tmp_path, work)
        assert found.topics == ("shop/orders",)
        assert found.streams == ("default", "shop")

    def test_a_schema_that_cannot_be_kept_names_its_column(self, tmp_path):
        async def work(node):
            with pytest.raises(BadSchema):
                await ask(
                    node,
                    topic_messages.CreateTopicRequest("t", b"no schema", 1, None, None, ()),
                )
            with pytest.raises(BadSchema, match="'nobody'"):
                await a_topic(node, "t", options=(("key", "nobody"),))

        on_node(tmp_path, work)

    def test_topics_spread_over_shards(self, tmp_path):
        async def work(node):
            infos = [await a_topic(node, f"t{n}", 2) for n in range(4)]
            for info in infos:
                await append(node, Writer(info))
            return [info.shard for info in infos]

        config = a_config(cluster=Cluster(shards=2))
        assert on_node(tmp_path, work, config) == [1, 2, 1, 2]

    def test_a_deleted_topic_is_refused_at_once_and_its_files_go(self, tmp_path):
        async def work(node):
            info = await a_topic(node)
            writer = Writer(info)
            await append(node, writer)
            changed = await ask(
                node, topic_messages.DeleteTopicRequest("shop/orders", info.created)
            )
            assert changed.revision > info.revision
            with pytest.raises(PartitionUnknown):
                await append(node, writer)
            with pytest.raises(TopicUnknown):
                await ask(node, topic_messages.DescribeTopic("shop/orders"))
            shard = node.node.shards[1].shard
            await eventually(lambda: not shard.reconciler.tombstones)
            assert not shard.state.partitions
            assert shard.reconciler.counters.removal_count == 1

        on_node(tmp_path, work)

    def test_t14_a_new_life_under_an_old_name_shows_nothing_of_the_old(self, tmp_path):
        async def work(node):
            old = await a_topic(node)
            writer = Writer(old)
            await append(node, writer)
            await ask(node, topic_messages.DeleteTopicRequest("shop/orders", old.created))
            new = await a_topic(node)
            assert new.partitions[0].namespace == old.partitions[0].namespace
            assert new.created > old.created
            for request in (*[writer.request()[0]], fetch_of(old.partitions[0])):
                with pytest.raises(Recreated):
                    await ask(node, request, writer.request()[1])
            with pytest.raises(Recreated):
                await ask(node, topic_messages.DeleteTopicRequest("shop/orders", old.created))
            found = await append(node, Writer(new))
            assert (found.start, found.end) == (0, 10)
            return await ids(node, new.partitions[0])

        assert on_node(tmp_path, work) == list(range(10))

    def test_a_new_schema_reaches_the_shard_and_old_batches_stay_welcome(self, tmp_path):
        async def work(node):
            info = await a_topic(node)
            writer = Writer(info)
            await append(node, writer)
            with pytest.raises(BadSchema, match="nothing changes"):
                await ask(
                    node,
                    topic_messages.AddSchemaRequest(
                        "shop/orders", info.created, 2, encode_schema(SCHEMA)
                    ),
                )
            newer = topic_messages.AddSchemaRequest(
                "shop/orders", info.created, 2, encode_schema(NEWER)
            )
            found = await ask(node, newer)
            assert [each.version for each in found.schemas] == [1, 2]
            with pytest.raises(Refused, match="already"):
                await ask(node, newer)
            while True:
                try:
                    request, body = writer.request(10, NEWER, 2)
                    await ask(node, request, body)
                    break
                except NotYet:  # on its way
                    writer.version, writer.rows = writer.version - 1, writer.rows - 10
                    await asyncio.sleep(0.01)
            await append(node, writer)
            reply, _ = await ask_whole(node, fetch_of(info.partitions[0], version=2))
            return [(piece.first, piece.schema_id) for piece in reply.pieces]

        assert on_node(tmp_path, work) == [(0, 1), (10, 2), (20, 1)]


class TestAppends:
    def test_a_repeat_is_answered_with_its_own_offsets(self, tmp_path):
        async def work(node):
            writer = Writer(await a_topic(node))
            request, body = writer.request()
            first = await ask(node, request, body)
            again = await ask(node, request, body)
            assert (again.start, again.end, again.repeated) == (first.start, first.end, True)
            other = memoryview(batch.encode(some_rows(5, 10)))
            with pytest.raises(Refused, match="different content"):
                await ask(node, request, other)
            writer.version = 70
            with pytest.raises(NotYet):
                await append(node, writer)

        on_node(tmp_path, work)

    def test_an_unknown_writer_begins_at_one(self, tmp_path):
        async def work(node):
            writer = Writer(await a_topic(node))
            writer.version = 4
            with pytest.raises(WriterUnknown):
                await append(node, writer)

        on_node(tmp_path, work)

    def test_large_and_small_batches_of_a_writer_stay_in_order(self, tmp_path):
        """Large ones are judged in threads, small ones at once: none overtakes another."""

        async def work(node):
            writer = Writer(await a_topic(node))
            sizes = [50_000, 1, 1, 60_000, 1, 40_000, 1, 1]
            found = await asyncio.gather(*(ask(node, *writer.request(n)) for n in sizes))
            assert [one.end - one.start for one in found] == sizes
            assert [one.start for one in found] == [sum(sizes[:n]) for n in range(8)]

        on_node(tmp_path, work)

    def test_bad_batches_are_refused_and_leave_no_gap(self, tmp_path):
        async def work(node):
            writer = Writer(await a_topic(node))
            request, body = writer.request()
            wrong = bytearray(body)
            wrong[-20] ^= 0xFF
            bad = {
                "rubbish": (request, b"rubbish"),
                "empty": (request, b""),
                "cut": (request, body[:-64]),
                "more rows": (_with(request, row_count=11), body),
                "no rows": (_with(request, row_count=0), body),
                "checksum": (_with(request, checksum=b"x" * 16), body),
                "short checksum": (_with(request, checksum=b"x"), body),
                "nobody": (_with(request, writer=bytes(16)), body),
                "short writer": (_with(request, writer=b"me"), body),
                "version 0": (_with(request, version=0), body),
                "negative": (_with(request, version=-1), body),
                "negative rows": (_with(request, row_count=-1), body),
            }
            for what, (asked, content) in bad.items():
                with pytest.raises(BadBatch):
                    raise AssertionError(f"{what}: {await ask(node, asked, content)}")
            with pytest.raises(NotYet, match="schema version 9"):
                await ask(node, _with(request, schema_id=9), body)
            assert (await ask(node, request, body)).start == 0

        on_node(tmp_path, work)

    def test_rows_reach_segments_and_read_the_same(self, tmp_path):
        async def work(node):
            info = await a_topic(node)
            writer = Writer(info)
            for _ in range(40):
                await append(node, writer, 20_000)
            bounds = (await ask(node, read_messages.GetBounds(info.partitions))).bounds[0]
            while bounds.sealed_end == 0:
                await asyncio.sleep(0.05)
                bounds = (await ask(node, read_messages.GetBounds(info.partitions))).bounds[0]
            assert bounds.end == 800_000
            return await ids(node, info.partitions[0])

        config = a_config(seal=SealSettings(size=9 * 1024 * 1024, children=1))
        assert on_node(tmp_path, work, config) == list(range(800_000))


class TestReads:
    def test_ranges_are_whole_or_an_error(self, tmp_path):
        async def work(node):
            info = await a_topic(node)
            writer = Writer(info)
            for _ in range(3):
                await append(node, writer)
            where = info.partitions[0]
            with pytest.raises(Behind):
                await ask(node, fetch_of(where, 0, 31))
            with pytest.raises(Behind):
                await ask(node, fetch_of(where, 31))
            with pytest.raises(BadRequest):
                await ask(node, fetch_of(where, 5, 4))
            with pytest.raises(BadRequest):
                await ask(node, fetch_of(where, -1, 4))
            with pytest.raises(BadRequest, match="'idd'"):
                await ask(node, fetch_of(where, columns=("idd",)))
            await ask(
                node, write_messages.TrimRequest(where.namespace, where.created, 10, False)
            )
            with pytest.raises(Expired):
                await ask(node, fetch_of(where, 5))
            reply = await ask(node, fetch_of(where, 12, 25))
            assert (reply.first, reply.next, reply.end) == (10, 25, 30)

        on_node(tmp_path, work)

    def test_columns_are_chosen_by_the_node(self, tmp_path):
        async def work(node):
            info = await a_topic(node)
            await append(node, Writer(info))
            asked = fetch_of(info.partitions[0], 3, 7, columns=("_offset", "id"))
            reply, body = await ask_whole(node, asked)
            assert [(p.is_entry, p.first, p.row_count) for p in reply.pieces] == [(False, 3, 4)]
            return len(b"".join(body))

        assert on_node(tmp_path, work) > 0

    def test_a_waiting_fetch_wakes_with_the_first_row(self, tmp_path):
        async def work(node):
            info = await a_topic(node)
            where = info.partitions[0]
            waiting = asyncio.ensure_future(ask(node, fetch_of(where, wait_ms=10_000)))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            await append(node, Writer(info))
            reply = await asyncio.wait_for(waiting, 2)
            assert reply.next == 10
            began = time.monotonic()
            nothing = await ask(node, fetch_of(where, 10, wait_ms=200))
            assert nothing.next == 10
            assert 0.15 < time.monotonic() - began < 2

        on_node(tmp_path, work)

    def test_a_waiting_fetch_ends_when_its_topic_does(self, tmp_path):
        async def work(node):
            info = await a_topic(node)
            await ask(node, read_messages.GetBounds(info.partitions))
            waiting = asyncio.ensure_future(
                ask(node, fetch_of(info.partitions[0], wait_ms=15_000))
            )
            await asyncio.sleep(0.1)
            await ask(node, topic_messages.DeleteTopicRequest("shop/orders", info.created))
            with pytest.raises(PartitionUnknown):
                await asyncio.wait_for(waiting, 5)

        on_node(tmp_path, work)

    def test_cursors_are_kept_and_fenced(self, tmp_path):
        async def work(node):
            info = await a_topic(node)
            await append(node, Writer(info))
            where = info.partitions[0]
            key = (where.namespace, where.created)
            await ask(node, read_messages.StoreCursorRequest(*key, "readers", 7, 2, False))
            with pytest.raises(Refused, match="generation"):
                await ask(node, read_messages.StoreCursorRequest(*key, "readers", 3, 1, False))
            with pytest.raises(Refused, match="is not between"):
                await ask(node, read_messages.StoreCursorRequest(*key, "readers", 11, 2, False))
            for place in (-2, -(2**63)):
                request = read_messages.StoreCursorRequest(*key, "readers", place, 2, False)
                with pytest.raises(BadRequest):
                    await ask(node, request)
            return await ask(node, read_messages.GetCursors(*key))

        found = on_node(tmp_path, work)
        assert found.cursors == (StoredCursor("readers", 7, 2, False),)

    def test_a_cursor_is_taken_over_where_it_is(self, tmp_path):
        async def work(node):
            info = await a_topic(node)
            await append(node, Writer(info))
            where = info.partitions[0]
            key = (where.namespace, where.created)
            claim = read_messages.StoreCursorRequest(*key, "readers", KEEP_NEXT, 3, False)
            with pytest.raises(Refused) as refused:
                await ask(node, claim)
            assert refused.value.code == "cursor_unknown"
            # Both are on their way at once: the claim finds what was stored right before it.
            stored, claimed = await asyncio.gather(
                ask(node, read_messages.StoreCursorRequest(*key, "readers", 7, 2, False)),
                ask(node, claim),
            )
            assert (stored.next, claimed.next) == (7, 7)
            with pytest.raises(Refused, match="generation"):
                await ask(node, read_messages.StoreCursorRequest(*key, "readers", 8, 2, False))

        on_node(tmp_path, work)


def test_t11_an_unknown_namespace_is_never_sent_to_some_shard(tmp_path):
    async def work(node):
        info = await a_topic(node)
        await append(node, Writer(info))
        durable = node.node.shards[1].shard.store.group.journal.durable
        for namespace in (0, 1, 2**40, 2**64 - 1, 2**63, -1, 2**70):
            with pytest.raises((PartitionUnknown, Recreated)):
                await ask(node, fetch_of(topic_messages.PartitionInfo(namespace, 99)))
        assert node.node.shards[1].shard.store.group.journal.durable == durable

    on_node(tmp_path, work)


def test_retention_trims_by_age_and_says_so_in_bounds(tmp_path):
    async def work(node):
        info = await a_topic(node, age_ms=300)
        writer = Writer(info)
        await append(node, writer)
        while True:
            bounds = (await ask(node, read_messages.GetBounds(info.partitions))).bounds[0]
            if bounds.first == 10:
                return await append(node, writer)
            await asyncio.sleep(0.05)

    config = a_config(retention=RetentionSettings(tick=100 * MILLISECOND))
    found = on_node(tmp_path, work, config)
    assert (found.start, found.end) == (10, 20)


def _with(request, **changes):
    from dataclasses import replace

    return replace(request, **changes)


class TestTrouble:
    def test_a_shard_that_halted_says_so_and_leaves_the_loop_in_peace(self, tmp_path):
        async def work(node):
            info = await a_topic(node)
            await append(node, Writer(info))
            running = node.node.shards[1]
            running.driver.perform(running.driver.pump.on_halted(HeadraceError("a defect")))
            other = await a_topic(node, "other")
            with pytest.raises(NotReady, match="a defect"):
                await append(node, Writer(other))
            status = node.node.status()
            assert status["ready"] is False
            assert "a defect" in status["groups"]["1"]["halted"]
            passes = running.shard.reconciler.counters.pass_count
            began = time.process_time()
            await asyncio.sleep(0.5)
            assert time.process_time() - began < 0.3
            assert running.shard.reconciler.counters.pass_count - passes < 5

        on_node(tmp_path, work)

    def test_a_checkpoint_that_dies_of_a_defect_halts_its_group(self, tmp_path, monkeypatch):
        async def work(node):
            info = await a_topic(node)
            await append(node, Writer(info))
            running = node.node.shards[1]

            def dying(*_):
                raise MemoryError("none left")

            monkeypatch.setattr(type(running.shard.store.keeper), "seal", dying)
            running.driver.perform(running.driver.pump.request_seal(1))
            await eventually(lambda: running.driver.pump.halted is not None)
            with pytest.raises(NotReady, match="none left"):
                await append(node, Writer(info))

        on_node(tmp_path, work)

    def test_a_defect_in_a_read_is_an_answer(self, tmp_path, monkeypatch):
        async def work(node):
            info = await a_topic(node)
            await append(node, Writer(info))

            def dying(*_):
                raise ZeroDivisionError

            monkeypatch.setattr("headrace.node.node.fetch", dying)
            with pytest.raises(NotReady, match="ZeroDivisionError"):
                await ask(node, fetch_of(info.partitions[0]))

        on_node(tmp_path, work)

    def test_a_read_whose_deadline_is_over_is_not_begun(self, tmp_path):
        async def work(node):
            info = await a_topic(node)
            await append(node, Writer(info))
            with pytest.raises(TimedOut):
                await ask(node, fetch_of(info.partitions[0]), timeout=-0.01)
            writer = Writer(info)
            with pytest.raises(TimedOut):
                await ask(node, *writer.request(), timeout=-0.01)
            assert (await append(node, Writer(info))).start == 10

        on_node(tmp_path, work)

    def test_many_who_wait_for_rows_cost_little_each(self, tmp_path):
        async def work(node):
            info = await a_topic(node)
            await ask(node, read_messages.GetBounds(info.partitions))
            waiting = [
                asyncio.ensure_future(ask(node, fetch_of(info.partitions[0], wait_ms=15_000)))
                for _ in range(3_000)
            ]
            await asyncio.sleep(0)
            shard = node.node.shards[1].shard
            assert sum(map(len, shard.waiters.values())) == 3_000
            began = time.process_time()
            shard._wake_readers(info.partitions[0].namespace, info.partitions[0].created)
            assert time.process_time() - began < 1.0
            await asyncio.gather(*waiting)

        on_node(tmp_path, work)

    def test_a_request_that_no_log_can_hold_is_answered_all_the_same(self, tmp_path):
        """A number that does not fit its field: sockets refuse it, a program may not."""

        async def work(node):
            info = await a_topic(node)
            where = info.partitions[0]
            await append(node, Writer(info))
            receipt = Receipt(b"s" * 16, 1, 1, b"d" * 16)
            bad = write_messages.PublishRequest(
                where.namespace, where.created, b"w" * 16, 1.5, (receipt,)
            )
            with pytest.raises(HeadraceError):
                await ask(node, bad, timeout=2)
            assert (await append(node, Writer(info))).start == 10

        on_node(tmp_path, work)


def test_rows_decoded_for_a_reader_who_left_are_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(row_group_cache, "WAIT_SECONDS", 0.3)

    async def work(node):
        (running,) = node.node.shards.values()
        kept = running.shard.store.keeper.files.groups
        kept.keep((b"file", 0, ("id",)), [some_rows(0, 3)])
        assert kept.size > 0
        await eventually(lambda: kept.size == 0)

    on_node(tmp_path, work)
