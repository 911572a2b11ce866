"""The small parts: times and sizes, values, the basket, the budget, the ledger, patience."""

import asyncio
import json
import os
import threading
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from tests.client import jumping

import headrace
from headrace.client.connect.embedded_nodes import home_of
from headrace.client.connect.retry import Caller
from headrace.client.show import as_html, as_text
from headrace.client.values.answers import Appended, Range, Retention, merged, shown_size
from headrace.client.values.parse import duration, microseconds, size
from headrace.client.write.accumulator import Accumulator, Signal
from headrace.client.write.convert import row_size
from headrace.client.write.ledger import Ledger, Line
from headrace.client.write.sender import Budget
from headrace.errors import (
    BadFrame,
    BadRequest,
    Busy,
    ConnectionLost,
    Diverged,
    NotReady,
    PartitionUnknown,
    StorageFailed,
    TopicUnknown,
    Unknown,
)
from headrace.model.results import CursorStored
from headrace.wire.read_messages import StoreCursorRequest
from headrace.wire.topic_messages import Changed, CreateStreamRequest, ListTopics, Topics


def test_moments_are_read():
    assert microseconds(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1_000_000
    assert microseconds("1970-01-01T01:00:01+01:00") == 1_000_000
    now = datetime.now(UTC)
    ago = now - timedelta(minutes=15)
    assert abs(microseconds("-15m") - microseconds(ago)) < 5_000_000
    assert abs(microseconds("now") - microseconds(now)) < 5_000_000


@pytest.mark.parametrize(
    "text", ["", "soon", "15m", "-15", "-15 parsecs", "2026-13-01", "2026-01-01"]
)
def test_what_is_no_moment_is_told(text):
    with pytest.raises(BadRequest):
        microseconds(text)


def test_durations_and_sizes_are_read():
    assert duration("5ms", "linger").us == 5_000
    assert duration(0.5, "linger").us == 500_000
    assert duration(timedelta(days=1), "linger").seconds == 86_400
    assert size("4MiB", "size") == 4 * 2**20
    assert size(7, "size") == 7
    for bad in ("5", "-5ms", -1, "much"):
        with pytest.raises(BadRequest, match="linger"):
            duration(bad, "linger")
    for bad in ("5 apples", -1):
        with pytest.raises(BadRequest, match="size"):
            size(bad, "size")


def test_ranges_that_follow_one_another_are_one():
    ranges = [Range(1, 0, 2), Range(0, 5, 7), Range(0, 0, 5), Range(0, 9, 10)]
    assert merged(ranges) == (Range(0, 0, 7), Range(0, 9, 10), Range(1, 0, 2))
    appended = Appended(merged(ranges))
    assert appended.row_count == 10
    assert appended.offsets == {0: (Range(0, 0, 7), Range(0, 9, 10)), 1: (Range(1, 0, 2),)}


def test_people_read_ages_and_sizes():
    assert str(Retention(timedelta(days=7), 10 * 2**30)) == "7d or 10 GiB"
    assert str(Retention(None, None)) == "forever"
    assert str(Retention(timedelta(0), None)) == "0s"
    assert [shown_size(n) for n in (0, 1023, 1536, 3 * 2**20)] == [
        *("0 B", "1023 B", "1.5 KiB", "3 MiB"),
    ]


def test_tables_are_aligned_and_escaped():
    lines = [("topic", "rows"), ("<b>", "1,000")]
    assert as_text("log", lines, 2).splitlines() == [
        *("log", "  topic   rows", "  <b>    1,000", "  and 2 more"),
    ]
    html = as_html("<log>", lines)
    assert "&lt;b&gt;" in html
    assert "<log>" not in html


def test_a_basket_says_what_to_do():
    basket = Accumulator(batch_rows=3, batch_size=1_000, rows_max=5)

    def put(*rows):
        return basket.put([*rows], sum(map(row_size, rows)))

    assert put({"a": 1}) is Signal.LINGER
    assert put({"a": 2}) is Signal.NOTHING
    assert put({"a": 3}, {"a": 4}) is Signal.SEND
    assert put({"a": 5}) is Signal.NOTHING
    assert put({"a": 6}) is Signal.FULL
    batch = pa.record_batch({"a": [7]})
    assert basket.take() == [[{"a": n} for n in range(1, 6)]]
    assert basket.put(batch, 8) is Signal.LINGER
    assert put({"a": 8}) is Signal.NOTHING
    assert basket.take() == [batch, [{"a": 8}]]
    # One item that is larger than the whole basket still gets through.
    assert put(*({"a": n} for n in range(9))) is Signal.SEND


def test_a_basket_takes_rows_one_by_one_as_it_takes_many():
    basket = Accumulator(batch_rows=3, batch_size=1_000, rows_max=5)
    row = {"a": 0}
    signals = []
    for number in range(6):
        row["a"] = number  # it keeps what the row was
        signals.append(basket.put_row(row))
    batch = pa.record_batch({"a": [7]})
    assert signals == [
        *(Signal.LINGER, Signal.NOTHING, Signal.SEND, Signal.NOTHING, Signal.NOTHING),
        Signal.FULL,
    ]
    assert basket.take() == [[{"a": n} for n in range(5)]]
    assert basket.put(batch, 8) is Signal.LINGER
    assert basket.put_row({"a": 8}) is Signal.NOTHING
    assert basket.put_row({"a": 9}) is Signal.SEND
    assert basket.take() == [batch, [{"a": 8}, {"a": 9}]]
    assert basket.put_row({"a": "x" * 2_000}) is Signal.SEND  # an empty one takes any size
    assert basket.put_row({"a": 1}) is Signal.NOTHING
    basket.close()
    with pytest.raises(BadRequest, match="closed"):
        basket.put_row({"a": 2})
    assert len(basket.take()[0]) == 2


async def test_a_budget_serves_in_order_and_survives_those_who_leave():
    budget = Budget(10)
    assert await budget.take(100) == 10
    order = []

    async def take(name, amount):
        await budget.take(amount)
        order.append(name)

    tasks = [asyncio.create_task(take(n, amount)) for n, amount in enumerate((6, 8, 1))]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.sleep(0)
    budget.give(10)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [1, 2]
    budget.give(9)
    assert await asyncio.wait_for(budget.take(10), 1) == 10


def a_line(start):
    return Line("default/orders", 0, 1, start, start + 1, 1, "ab", 1, "cd")


async def test_a_ledger_has_a_whole_line_for_each_append(tmp_path):
    path = tmp_path / "ledger"
    ledger = Ledger(str(path))
    await asyncio.gather(*(ledger.record(a_line(n)) for n in range(50)))
    assert [json.loads(line)["start"] for line in path.read_text().splitlines()] == [*range(50)]
    ledger.close()


async def test_a_line_is_on_disk_before_it_is_told(tmp_path, monkeypatch):
    synced = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (real(fd), synced.append(fd)))
    ledger = Ledger(str(tmp_path / "ledger"))
    await ledger.record(a_line(0))
    assert len(synced) == 1
    ledger.close()


async def test_a_ledger_that_fails_once_is_not_trusted_again(tmp_path):
    ledger = Ledger(str(tmp_path / "ledger"))
    ledger.close()
    for _ in range(2):
        with pytest.raises(StorageFailed, match="ledger"):
            await ledger.record(a_line(0))


async def test_who_leaves_a_ledger_takes_no_others_sync_along(tmp_path, monkeypatch):
    synced, begun, gate = [], threading.Semaphore(0), threading.Semaphore(0)
    real = os.fdatasync

    def sync_when_told(descriptor):
        begun.release()
        gate.acquire(timeout=10)
        real(descriptor)
        synced.append(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync_when_told)
    ledger = Ledger(str(tmp_path / "ledger"))
    first, second, third = (asyncio.ensure_future(ledger.record(a_line(n))) for n in range(3))
    assert await asyncio.to_thread(begun.acquire, timeout=10)
    gate.release()
    await asyncio.wait_for(first, 10)
    # The second brings the line of the third along.
    assert await asyncio.to_thread(begun.acquire, timeout=10)
    second.cancel()
    await asyncio.sleep(0.05)
    assert not third.done()
    gate.release()
    await asyncio.wait_for(third, 10)
    assert len(synced) == 2
    ledger.close()


def test_a_ledger_that_cannot_be_opened_is_told(tmp_path):
    with pytest.raises(BadRequest, match="No such file or directory"):
        Ledger(str(tmp_path / "no" / "such" / "place"))


class Scripted:
    """Answers with what is next: a reply, or an error."""

    address, body_size_max = "script", 1024

    def __init__(self, *answers):
        self.answers = list(answers)
        self.count = 0

    async def call(self, request, body=(), *, timeout, on_head=None):  # noqa: ASYNC109
        self.count += 1
        answer = self.answers.pop(0) if self.answers else NotReady("later")
        if isinstance(answer, Exception):
            raise answer
        return answer, b""

    async def close(self):
        return


TOPICS = Topics((), ())


def test_what_is_not_ready_is_asked_again():
    channel = Scripted(NotReady("later"), ConnectionLost("lost"), Busy("full", 70), TOPICS)
    assert jumping.run(Caller(channel, 5.0).get(ListTopics(), Topics)) == TOPICS
    assert channel.count == 4


def test_asking_ends_at_the_deadline_with_the_last_reason():
    channel = Scripted()

    async def scene():
        began = asyncio.get_running_loop().time()
        with pytest.raises(NotReady, match="later"):
            await Caller(channel, 5.0).get(ListTopics(), Topics)
        return asyncio.get_running_loop().time() - began

    assert 3 < jumping.run(scene()) <= 5
    assert channel.count > 5


def test_a_change_that_may_have_happened_is_not_repeated():
    channel = Scripted(Unknown("lost"), Changed(1))
    with pytest.raises(Unknown):
        jumping.run(Caller(channel, 5.0).get(CreateStreamRequest("shop"), Changed))
    assert channel.count == 1


def test_a_change_that_may_be_repeated_is():
    channel = Scripted(Unknown("lost"), CursorStored(5))
    request = StoreCursorRequest(1, 1, "billing", 5, 0, hold=False)
    assert jumping.run(Caller(channel, 5.0).get(request, CursorStored)) == CursorStored(5)


def test_an_unknown_partition_is_looked_for():
    async def gone():
        raise TopicUnknown("gone")

    channel = Scripted(PartitionUnknown("7"), TOPICS)
    with pytest.raises(TopicUnknown):
        jumping.run(Caller(channel, 5.0, gone).get(ListTopics(), Topics))


def test_an_answer_of_another_kind_is_told():
    with pytest.raises(BadFrame, match="expected Topics"):
        jumping.run(Caller(Scripted(Changed(1)), 5.0).get(ListTopics(), Topics))


def test_a_consumer_whose_cursor_is_beyond_the_end_is_told_that_rows_are_gone(tmp_path):
    """A node refuses such a cursor: it is what a disk that lost acknowledged rows leaves."""
    with headrace.open(tmp_path / "log") as log:
        topic = log.create_topic("orders", pa.schema([("id", pa.int64())]))
        topic.append([{"id": 1}])
        with topic.consumer("billing") as consumer:
            assert consumer.poll("5s").num_rows == 1
            consumer.commit()
        home = home_of(str(tmp_path / "log"))
        (running,) = home.channel._serving.boot.node.shards.values()
        (partition,) = running.shard.state.partitions.values()
        cursor = partition.cursors["billing"]
        partition.cursors["billing"] = cursor._replace(next=200)
        with pytest.raises(Diverged, match="is at offset 200, beyond the end") as caught:
            topic.consumer("billing").poll("1s")
        assert (caught.value.expected, caught.value.found) == ("at most 1", 200)
