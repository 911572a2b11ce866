"""Answers ahead of the reader: asked for by their heads, in order, whatever becomes of one."""

import asyncio

from tests.client import jumping
from tests.client.test_feed import SCHEMA, VIEW, an_entry, fetched, same

from headrace.client.connect.retry import Caller
from headrace.client.read.feed import Feed
from headrace.client.read.prefetch import ANSWERS_MAX
from headrace.client.read.rows import AsyncRows
from headrace.client.values.answers import Range
from headrace.errors import ConnectionLost
from headrace.model.projection import Projection

STEP = 5  # rows in an answer


class Node:
    """Tells heads at once; bodies come when the test lets them."""

    address, body_size_max = "test", 1024

    def __init__(self):
        self.asked = []
        self.timeouts = []
        self.bodies = asyncio.Semaphore(0)
        self.lost = []  # how far the answers went that are lost after their heads
        self.cancelled = 0

    async def call(self, request, body=(), *, timeout, on_head):  # noqa: ASYNC109
        self.asked.append(request.start)
        self.timeouts.append(round(timeout))
        count = min(STEP, request.end - request.start)
        if self.lost:
            head, _ = fetched(request.start + self.lost.pop(), an_entry(request.start, 1))
            on_head(head)
            await asyncio.sleep(0.1)
            raise ConnectionLost("in the middle of a body")
        answer = fetched(request.start + count, an_entry(request.start, count))
        on_head(answer[0])
        try:
            await self.bodies.acquire()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return answer

    def rows(self, start, end):
        def feed(each):
            return Feed(Caller(self, 60.0), VIEW, 0, each.start, each.end, None, same)

        return AsyncRows(Projection.of(SCHEMA, None).schema, (Range(0, start, end),), feed)


def ids(batches):
    return [each for batch in batches for each in batch["id"].to_pylist()]


def test_the_next_is_asked_for_by_the_head_and_no_more_than_may_be():
    async def scene():
        node = Node()
        reading = node.rows(0, 4 * STEP).__aiter__()
        first = asyncio.ensure_future(anext(reading))
        await asyncio.sleep(1)
        assert ANSWERS_MAX == 2
        assert node.asked == [0, STEP]  # no body has come
        assert node.timeouts == [60, 120]  # one may come behind the other
        node.bodies.release()
        found = [await first]
        await asyncio.sleep(1)
        assert node.asked == [0, STEP, 2 * STEP]  # the reader holds one, two are on their way
        for _ in range(9):
            node.bodies.release()
        found += [each async for each in reading]
        assert ids(found) == list(range(4 * STEP))
        assert node.asked == [0, STEP, 2 * STEP, 3 * STEP]

    jumping.run(scene())


def test_an_answer_that_is_asked_for_again_may_end_elsewhere():
    async def scene(lost):
        node = Node()
        node.lost = [lost]
        for _ in range(99):
            node.bodies.release()
        assert ids([each async for each in node.rows(0, 20)]) == list(range(20))
        return node.asked

    assert jumping.run(scene(STEP)) == [0, 5, 0, 10, 15]
    assert jumping.run(scene(3)) == [0, 3, 0, 5, 10, 15]  # 3 is what the lost head had said


def test_a_reader_that_leaves_waits_for_nothing():
    async def scene():
        node = Node()
        node.bodies.release()
        reading = node.rows(0, 10 * STEP).__aiter__()
        assert ids([await anext(reading)]) == [0, 1, 2, 3, 4]
        await asyncio.sleep(1)
        await reading.aclose()
        assert node.cancelled == 2

    jumping.run(scene())
