"""Exactly once, whatever is lost: lanes against a log in memory that keeps the writer rule."""

import asyncio

from hypothesis import example, given
from hypothesis import strategies as st
from tests.client import jumping
from tests.client.memory_log import (
    BUSY,
    DELIVER,
    FAULTS,
    FORGET,
    LATE,
    LOSE,
    LOSE_ANSWER,
    REJECT,
    MemoryChannel,
    a_channel,
)

from headrace.client.connect.retry import Caller
from headrace.client.values.answers import Range
from headrace.client.write.in_flight import COUNT_MAX
from headrace.client.write.partition_sender import new_writer
from headrace.client.write.sender import Sender
from headrace.errors import (
    BadBatch,
    ConnectionLost,
    HeadraceError,
    PartitionUnknown,
    TimedOut,
    TopicUnknown,
    Unknown,
)
from headrace.model.split import Parcel
from headrace.wire.topic_messages import PartitionInfo

P0 = PartitionInfo(namespace=7, created=3)


def a_batch(number):
    return Parcel(0, 1, 1, memoryview(b"batch %d" % number))


async def append_all(channel, count, timeout=30.0, probe=None):  # noqa: ASYNC109
    """Append `count` batches of one row at once; return what became of each."""
    writer = Sender(Caller(channel, timeout, probe), "default/orders")
    loop = asyncio.get_running_loop()
    futures = [
        await writer.put(a_batch(number), P0, loop.time() + timeout) for number in range(count)
    ]
    results = await asyncio.gather(*futures, return_exceptions=True)
    await asyncio.sleep(1)  # for what arrives late
    await writer.close()
    return results


def appended(channel: MemoryChannel) -> list[int]:
    return [int(body.split()[1]) for body in channel.partition.batches]


def check_exactly_once(channel, results):
    """What is told as appended is there once, at its offset, in order; refused is not there."""
    found = appended(channel)
    for number, result in enumerate(results):
        if isinstance(result, Range):
            assert found.count(number) == 1
            assert found[result.start] == number
            assert result.end == result.start + 1
        elif isinstance(result, Unknown):
            assert found.count(number) <= 1
        else:
            assert isinstance(result, HeadraceError)
            assert found.count(number) == 0
    assert [number for number in found if isinstance(results[number], Range)] == sorted(
        number for number, result in enumerate(results) if isinstance(result, Range)
    )


def test_batches_in_flight_land_once_and_in_order():
    channel = a_channel()
    results = jumping.run(append_all(channel, 200))
    assert results == [Range(0, number, number + 1) for number in range(200)]
    assert appended(channel) == list(range(200))


def test_no_more_versions_are_in_flight_than_the_log_remembers():
    channel = a_channel([LOSE_ANSWER] * COUNT_MAX)
    results = jumping.run(append_all(channel, COUNT_MAX + 10))
    assert appended(channel) == list(range(COUNT_MAX + 10))
    assert all(isinstance(each, Range) for each in results)
    # All of the first were sent before any was repeated, and no other joined them.
    assert [version for _, version in channel.seen[:COUNT_MAX]] == list(range(1, COUNT_MAX + 1))
    assert [version for _, version in channel.seen[COUNT_MAX:][:COUNT_MAX]] == list(
        range(1, COUNT_MAX + 1)
    )


def test_a_lost_answer_is_repeated_under_its_own_version():
    channel = a_channel([LOSE_ANSWER])
    assert jumping.run(append_all(channel, 1)) == [Range(0, 0, 1)]
    assert channel.seen == [(LOSE_ANSWER, 1), (DELIVER, 1)]


def test_a_refused_batch_leaves_no_gap():
    channel = a_channel([DELIVER, REJECT])
    results = jumping.run(append_all(channel, 4))
    assert isinstance(results[1], BadBatch)
    assert appended(channel) == [0, 2, 3]
    # Those behind it came back out of order, and moved down by one.
    assert channel.seen[4:] == [(DELIVER, 2), (DELIVER, 3)]


def test_behind_a_refused_batch_a_copy_under_way_is_not_appended_twice():
    # Version 2 is refused; a copy of 3 is still on its way when the batch goes as version 2.
    channel = a_channel([DELIVER, REJECT, LATE])
    results = jumping.run(append_all(channel, 3))
    assert isinstance(results[1], BadBatch)
    assert appended(channel) == [0, 2]
    check_exactly_once(channel, results)


def test_a_first_version_that_is_lost_is_no_unknown_writer():
    channel = a_channel([LOSE])
    results = jumping.run(append_all(channel, 3))
    assert appended(channel) == [0, 1, 2]
    assert all(isinstance(each, Range) for each in results)


def test_a_forgotten_writer_goes_on_as_a_new_one():
    async def scene():
        writer = Sender(Caller(channel, 30.0), "default/orders")

        async def put(number):
            deadline = asyncio.get_running_loop().time() + 30
            return await (await writer.put(a_batch(number), P0, deadline))

        found = [await put(0), await put(1)]
        found.append(await put(2))
        await writer.close()
        return found

    channel = a_channel([DELIVER, DELIVER, FORGET])
    assert jumping.run(scene()) == [Range(0, n, n + 1) for n in range(3)]
    assert channel.seen[-1] == (DELIVER, 1)


def test_what_was_in_flight_when_the_writer_was_forgotten_is_unknown():
    # The answer to 3 is lost; its repeat meets a log that has forgotten the writer.
    channel = a_channel([DELIVER, DELIVER, LOSE_ANSWER, FORGET])
    results = jumping.run(append_all(channel, 3))
    assert isinstance(results[2], Unknown)
    check_exactly_once(channel, results)


def test_busy_is_honoured():
    async def scene():
        before = asyncio.get_running_loop().time()
        await append_all(channel, 1)
        return asyncio.get_running_loop().time() - before - 1

    channel = a_channel([BUSY, BUSY])
    assert 0.06 <= jumping.run(scene()) < 0.1


def test_a_deadline_ends_what_surely_did_not_happen_as_such():
    channel = a_channel([LOSE] * 10_000)
    results = jumping.run(append_all(channel, 2, timeout=2.0))
    assert [type(each) for each in results] == [ConnectionLost, ConnectionLost]
    assert appended(channel) == []


def test_a_deadline_ends_what_may_have_happened_as_unknown():
    channel = a_channel([LOSE_ANSWER, *[LOSE] * 10_000])
    (result,) = jumping.run(append_all(channel, 1, timeout=2.0))
    assert isinstance(result, Unknown)
    assert appended(channel) == [0]


def test_a_topic_that_is_gone_is_not_waited_for():
    async def gone():
        raise TopicUnknown("there is no such topic")

    async def scene():
        before = asyncio.get_running_loop().time()
        results = await append_all(channel, 2, probe=gone)
        return results, asyncio.get_running_loop().time() - before

    channel = Unknowing(iter(()))
    results, seconds = jumping.run(scene())
    assert [type(each) for each in results] == [TopicUnknown, TopicUnknown]
    assert seconds < 2


class Unknowing(MemoryChannel):
    async def call(self, request, body=(), *, timeout, on_head=None):  # noqa: ASYNC109
        await asyncio.sleep(0)
        raise PartitionUnknown("7")


def test_closing_tells_what_was_sent_from_what_was_not():
    async def scene():
        channel = Silent(iter(()))
        writer = Sender(Caller(channel, 30.0), "default/orders")
        deadline = asyncio.get_running_loop().time() + 30
        futures = [
            await writer.put(a_batch(number), P0, deadline) for number in range(COUNT_MAX + 1)
        ]
        await asyncio.sleep(0.1)
        await writer.close()
        return await asyncio.gather(*futures, return_exceptions=True)

    *sent, waiting = jumping.run(scene())
    assert {type(each) for each in sent} == {Unknown}
    assert type(waiting) is ConnectionLost


def test_a_try_that_somebody_cancels_is_told_and_the_next_is_sent():
    async def scene():
        channel = CutShort(iter(()))
        writer = Sender(Caller(channel, 30.0), "default/orders")

        async def put(number):
            deadline = asyncio.get_running_loop().time() + 30
            return await writer.put(a_batch(number), P0, deadline)

        first, second = await put(0), await put(1)
        done, _ = await asyncio.wait({first}, timeout=5)
        assert done
        found = await asyncio.gather(first, second, await put(2), return_exceptions=True)
        await writer.close()
        return [type(each) for each in found]

    assert jumping.run(scene()) == [Unknown, Unknown, Range]


class CutShort(MemoryChannel):
    count = 0

    async def call(self, request, body=(), *, timeout, on_head=None):  # noqa: ASYNC109
        self.count += 1
        if self.count <= 2:
            raise asyncio.CancelledError
        return await super().call(request, body, timeout=timeout)


class Silent(MemoryChannel):
    async def call(self, request, body=(), *, timeout, on_head=None):  # noqa: ASYNC109
        await asyncio.sleep(timeout)
        raise TimedOut("never")


@given(
    script=st.lists(st.sampled_from((DELIVER, *FAULTS)), max_size=60),
    count=st.integers(1, 40),
)
@example(script=[DELIVER, REJECT, LATE], count=3)
@example(script=[LATE, DELIVER, DELIVER, LATE], count=3)
@example(script=[DELIVER, LOSE_ANSWER, LOSE_ANSWER, FORGET], count=3)
@example(script=[DELIVER, LATE, REJECT, REJECT, LATE], count=5)
@example(script=[DELIVER, FORGET, REJECT, DELIVER, DELIVER, LATE, DELIVER, FORGET], count=5)
def test_whatever_is_lost_each_batch_is_appended_once_or_told(script, count):
    channel = a_channel(script)
    results = jumping.run(append_all(channel, count))
    check_exactly_once(channel, results)
    # Only a refusal, a forgotten writer, or what is behind them, is not appended in the end.
    if not {REJECT, FORGET} & set(script):
        assert all(isinstance(each, Range) for each in results)


@given(
    script=st.lists(st.sampled_from((DELIVER, *FAULTS)), max_size=200),
    timeout=st.sampled_from([0.05, 0.2, 1.0]),
)
def test_deadlines_leave_nothing_in_doubt_without_saying_so(script, timeout):
    channel = a_channel(script)
    results = jumping.run(append_all(channel, 20, timeout=timeout))
    check_exactly_once(channel, results)


def test_writers_are_random():
    assert new_writer() != new_writer()
