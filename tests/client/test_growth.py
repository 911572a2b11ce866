"""Readers without an end: they see partitions that are new, and end without noise."""

import asyncio
import gc
import threading
import time

import pytest
from tests.client.doors import soon

import headrace
from headrace.client.read.rows import endless
from headrace.client.sync_streams import Taking
from headrace.errors import BadRequest, HeadraceError


def rows(first, count):
    return [{"i": n} for n in range(first, first + count)]


async def taken(batches, found, count):
    async for batch in batches:
        found += batch.column("i").to_pylist()
        if len(found) >= count:
            return


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_follow_reads_partitions_that_are_added(tmp_path, start):
    async with await headrace.open_async(tmp_path) as log, soon():
        topic = await log.create_topic("a", {"i": "int64"})
        await topic.append(rows(0, 5))
        batches, found = topic.follow(start=start), []
        old = 5 if start == "earliest" else 0
        reading = asyncio.create_task(taken(batches, found, old + 3))
        await asyncio.sleep(0.2)
        await topic.add_partitions(2)
        await topic.append(rows(5, 2), partition=1)
        await topic.append(rows(7, 1), partition=2)
        await reading
        assert sorted(found) == [*range(5 - old, 8)]
        await batches.aclose()


async def test_a_consumer_reads_partitions_that_are_added(tmp_path):
    async with await headrace.open_async(tmp_path) as log, soon():
        topic = await log.create_topic("a", {"i": "int64"})
        await topic.append(rows(0, 5))
        consumer, found = topic.consumer("g", hold=True), []
        await taken(consumer, found, 5)
        await topic.add_partitions(2)
        await topic.append(rows(5, 5), partition=2)
        await taken(consumer, found, 10)
        assert found == [*range(10)]
        assert await consumer.commit() == {0: 5, 1: 0, 2: 5}
        assert [each.next for each in await topic.cursors("g")] == [5, 0, 5]
        await topic.add_partitions(1)
        assert await consumer.seek("latest") == {0: 5, 1: 0, 2: 5, 3: 0}
        await consumer.close()


async def test_a_consumer_of_named_partitions_keeps_to_them(tmp_path):
    async with await headrace.open_async(tmp_path) as log, soon():
        topic = await log.create_topic("a", {"i": "int64"})
        async with topic.consumer("g", partition=0) as consumer:
            await topic.add_partitions(1)
            await topic.append(rows(0, 5), partition=1)
            assert await consumer.poll("1500ms") is None
            assert await consumer.positions() == {0: 0}


class Failing:
    """A feed of which nothing comes but an error."""

    wait_ms = 0

    async def next(self):
        raise BadRequest("the log is closed")


@pytest.fixture
def noise():
    """What a loop says of errors that nobody has looked at."""
    found = []
    yield found
    assert not found


async def test_feeds_that_fail_together_are_told_once(noise):
    asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(context))
    with pytest.raises(BadRequest):
        await anext(endless([Failing() for _ in range(5)]))
    await asyncio.sleep(0.01)
    gc.collect()
    await asyncio.sleep(0)


async def test_a_log_that_closes_under_a_consumer_says_nothing(noise, tmp_path):
    asyncio.get_running_loop().set_exception_handler(lambda _, context: noise.append(context))
    log = await headrace.open_async(tmp_path)
    topic = await log.create_topic("a", {"i": "int64"}, partitions=4)
    consumer = topic.consumer("g")
    assert await consumer.poll("100ms") is None
    await log.close()
    await asyncio.sleep(0.2)
    del consumer
    gc.collect()
    await asyncio.sleep(0)


async def test_closing_waits_for_one_who_is_taking():
    async def batches():
        try:
            await asyncio.sleep(60)
            yield 1
        finally:
            await asyncio.sleep(0.05)  # as one that lets go of its fetches

    taking = Taking(batches())
    task = asyncio.create_task(taking.next())
    await asyncio.sleep(0.01)
    task.cancel()
    await taking.close()
    assert task.cancelled()


def test_a_sync_follow_ends_with_its_log(tmp_path):
    log = headrace.open(tmp_path)
    topic, found = log.create_topic("a", {"i": "int64"}), []

    def follow():
        try:
            for _ in topic.follow():
                pass
        except HeadraceError as error:
            found.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    time.sleep(0.3)
    log.close()
    thread.join(10)
    assert len(found) == 1
