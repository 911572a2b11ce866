"""Calls that are cut short: cancelled, interrupted, or overtaken by a close."""

import asyncio
import gc
import json
import os
import threading
import time
from functools import partial

import pyarrow as pa
import pytest
from tests.client.doors import soon
from tests.client.interrupts import interrupted
from tests.client.memory_log import a_channel

import headrace
from headrace.client.connect.channel import begin_task
from headrace.client.connect.loop_thread import LoopThread
from headrace.client.connect.retry import Caller
from headrace.client.log import AsyncLog
from headrace.client.values.answers import Range
from headrace.client.write import sender as writers
from headrace.client.write.in_flight import Draft
from headrace.client.write.ledger import Ledger
from headrace.client.write.partition_sender import PartitionSender, SendTarget, new_writer
from headrace.client.write.sender import Sender
from headrace.errors import BadBatch, BadRequest, ConnectionLost, HeadraceError, Unknown
from headrace.model.namespace import Namespace
from headrace.model.split import Parcel
from headrace.server.serve import Serving
from headrace.wire.topic_messages import PartitionInfo
from headrace.wire.write_messages import AppendRequest, DiscardRequest

SCHEMA = {"id": "int64", "name": "string"}
P0 = PartitionInfo(namespace=7, created=3)


class Gate:
    """A channel that keeps appends back until it is open, and loses what undoes a stage."""

    def __init__(self, channel):
        self.channel = channel
        self.address, self.body_size_max = channel.address, channel.body_size_max
        self.is_open = asyncio.Event()
        self.close = channel.close

    async def call(self, request, body=(), *, timeout, on_head=None):  # noqa: ASYNC109
        if isinstance(request, AppendRequest):
            await self.is_open.wait()
        if isinstance(request, DiscardRequest):
            raise Unknown("the connection was lost; what was asked may have happened")
        return await self.channel.call(request, body, timeout=timeout)

    def begin(self, request, body, *, deadline, done):
        timeout = deadline - asyncio.get_running_loop().time()
        return begin_task(self.call(request, body, timeout=timeout), done)


async def a_gated_log(path, timeout=30.0):  # noqa: ASYNC109
    gate = Gate((await headrace.open_async(path)).caller.channel)
    return gate, AsyncLog(gate, timeout)


def some_rows(count):
    return [{"id": n, "name": "x" * 100} for n in range(count)]


async def test_a_flush_that_is_cancelled_loses_no_row(tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "IN_FLIGHT_SIZE_MAX", 4_000)  # the first batches fill it
    gate, log = await a_gated_log(tmp_path / "data")
    async with log, soon():
        topic = await log.create_topic("orders", SCHEMA)
        producer = await log.producer(topic, linger="1h", batch_size="1KiB")
        await producer.send(some_rows(300))
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.flush(), 0.1)
        gate.is_open.set()
        assert (await producer.flush()).row_count == 300
        found = await (await topic.read()).to_table()
        assert found["id"].to_pylist() == [*range(300)]


async def test_a_close_that_is_cancelled_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "IN_FLIGHT_SIZE_MAX", 4_000)
    gate, log = await a_gated_log(tmp_path / "data")
    async with soon():
        topic = await log.create_topic("orders", SCHEMA)
        producer = await log.producer(topic, linger="1h", batch_size="1KiB")
        await producer.send(some_rows(300))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(log.close(), 0.2)
        gate.is_open.set()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        # The node has stopped, too: with other settings it could not be opened otherwise.
        async with await headrace.open_async(tmp_path / "data", seal__size="128MiB") as again:
            assert await again.topics() == ["default/orders"]


async def test_rows_put_into_a_transaction_at_once_are_all_in_it(tmp_path):
    async with await headrace.open_async(tmp_path / "data") as log:
        topic = await log.create_topic("orders", SCHEMA)
        async with await log.transaction(topic, "job", 1) as transaction:
            same = {"id": 1, "name": "same"}
            rows = [same, same, same, {"id": 2, "name": "other"}]
            await asyncio.gather(*(transaction.append([row]) for row in rows))
        assert transaction.result.ranges == (headrace.Range(0, 0, 4),)
        found = await (await topic.read()).to_table()
        assert sorted(found["id"].to_pylist()) == [1, 1, 1, 2]


async def test_a_block_fails_with_its_own_error_whatever_becomes_of_its_rows(tmp_path):
    _, log = await a_gated_log(tmp_path / "data", timeout=1.0)

    async def failing():
        async with await log.transaction("orders", "job", 1) as transaction:
            await transaction.append(some_rows(1))
            raise ZeroDivisionError

    async with log:
        await log.create_topic("orders", SCHEMA)
        with pytest.raises(ZeroDivisionError):
            await failing()


async def put(writer, number=0):
    deadline = asyncio.get_running_loop().time() + 30
    return await writer.put(Parcel(number, 1, 1, memoryview(b"batch 0")), P0, deadline)


async def test_a_batch_that_landed_is_told_although_its_writer_is_closed(tmp_path, monkeypatch):
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (time.sleep(0.3), real(fd)))
    path = tmp_path / "ledger"
    ledger = Ledger(str(path))
    channel = a_channel()
    writer = Sender(Caller(channel, 30.0), "default/orders", ledger)
    done = await put(writer)
    await asyncio.sleep(0.1)
    assert channel.partition.end == 1
    assert not done.done()
    await writer.close()
    ledger.close()
    assert await asyncio.wait_for(done, 1) == Range(0, 0, 1)
    assert json.loads(path.read_text())["rows"] == 1


async def test_a_stop_that_is_cancelled_tells_what_landed_as_unknown(tmp_path, monkeypatch):
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (time.sleep(0.3), real(fd)))
    ledger = Ledger(str(tmp_path / "ledger"))
    writer = Sender(Caller(a_channel(), 30.0), "default/orders", ledger)
    done = await put(writer)
    await asyncio.sleep(0.1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(writer.close(), 0.05)
    with pytest.raises(Unknown):
        await asyncio.wait_for(done, 1)
    await asyncio.sleep(0.4)
    ledger.close()


async def test_a_closed_writer_takes_nothing_for_any_partition():
    channel = a_channel()
    writer = Sender(Caller(channel, 30.0), "default/orders")
    await (await put(writer))
    await writer.close()
    for number in (0, 1):
        with pytest.raises(ConnectionLost, match="closed"):
            await put(writer, number)
    assert channel.partition.end == 1


async def test_a_stopped_lane_makes_no_noise_about_what_nobody_waits_for():
    noise = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: noise.append(context))
    target = SendTarget("default/orders", 0, P0)
    lane = PartitionSender(Caller(a_channel(), 30.0), target, new_writer(), None)
    await lane.stop()
    draft = Draft(memoryview(b"x"), 1, 1, b"", loop.time() + 30, loop.create_future())
    lane.put(draft)
    assert isinstance(draft.done._exception, ConnectionLost)
    del draft
    gc.collect()
    assert noise == []


def test_a_call_that_is_under_way_when_its_loop_ends_is_told():
    runner = LoopThread("test")
    told = []
    under_way = threading.Semaphore(0)

    async def work():
        under_way.release()
        await asyncio.sleep(30)

    def call():
        try:
            runner.run(work())
        except BaseException as error:  # noqa: BLE001
            told.append(error)

    async def join():
        with pytest.raises(Unknown, match="closed"):
            await runner.join(work())

    threads = [threading.Thread(target=each) for each in (call, lambda: asyncio.run(join()))]
    for thread in threads:
        thread.start()
    assert all(under_way.acquire(timeout=10) for _ in threads)
    runner.stop()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert [type(each) for each in told] == [Unknown]


def test_a_thread_that_waits_is_told_when_the_loop_ends():
    runner, told = LoopThread("test"), []
    begun = threading.Event()

    def call():
        try:
            runner.wait_for(lambda tell: begun.set())
        except HeadraceError as error:
            told.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(10)
    runner.stop()
    thread.join(5)
    assert [type(each) for each in told] == [Unknown]
    with pytest.raises(BadRequest, match="closed"):
        runner.wait_for(lambda tell: None)


def test_a_thread_that_waits_gets_what_came_or_its_interrupt():
    runner = LoopThread("test")

    def later(tell):
        done = runner.loop.create_future()
        done.add_done_callback(tell)
        runner.loop.call_later(0.7, done.set_result, 42)

    assert runner.wait_for(later) == 42
    with pytest.raises(ZeroDivisionError):
        runner.wait_for(lambda tell: 1 / 0)
    with interrupted(0.1):
        runner.wait_for(lambda tell: None)
    runner.stop()


def test_what_came_before_a_bad_batch_of_a_stream_is_appended_and_told(tmp_path):
    schema = pa.schema([("id", pa.int64()), ("name", pa.binary())])
    large = pa.record_batch([[1, 2], [b"x" * 5_000_000] * 2], schema=schema)
    bad = pa.record_batch([[3], [None]], schema=schema)
    wanted = pa.schema([("id", pa.int64()), pa.field("name", pa.binary(), nullable=False)])
    with headrace.open(tmp_path) as log:
        topic = log.create_topic("orders", wanted)
        stream = pa.RecordBatchReader.from_batches(schema, iter([large, bad]))
        with pytest.raises(BadBatch) as caught:
            topic.append(stream)
        assert "2 rows were appended" in caught.value.__notes__[0]
        assert topic.read(columns=["id"]).to_table()["id"].to_pylist() == [1, 2]


async def test_an_error_that_a_node_of_this_process_knows_at_once_is_told_after(tmp_path):
    async with await headrace.open_async(tmp_path) as log:
        loop, told = asyncio.get_running_loop(), asyncio.Queue()
        request = AppendRequest(Namespace(77), 1, b"w" * 16, 1, 1, 1, b"")
        channel = log.caller.channel
        home = channel._home.runner

        async def begin():
            done = partial(loop.call_soon_threadsafe, told.put_nowait)
            seen = []
            deadline = asyncio.get_running_loop().time() + 5
            channel.begin(request, (b"",), deadline=deadline, done=seen.append)
            assert seen == []
            channel.begin(request, (b"",), deadline=deadline, done=done)

        await home.join(begin())
        assert isinstance(await asyncio.wait_for(told.get(), 5), HeadraceError)


def test_no_call_hangs_or_ends_strangely_while_the_log_is_closed(tmp_path):
    strange = []
    with headrace.open(tmp_path / "data") as outer:
        outer.create_topic("orders", SCHEMA)
        for _ in range(10):
            log = headrace.connect(f"unix:{tmp_path}/data/headrace.sock")
            threads = [
                threading.Thread(target=_append_until_closed, args=(log, strange), daemon=True)
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            time.sleep(0.02)
            log.close()
            for thread in threads:
                thread.join(5)
                assert not thread.is_alive()
    assert strange == []


def _append_until_closed(log, strange):
    while True:
        try:
            log.topic("orders").append([{"id": 1, "name": "x"}])
        except BadRequest:
            return
        except HeadraceError:
            continue
        except BaseException as error:  # noqa: BLE001
            strange.append(error)
            return


@pytest.fixture
def stopped(monkeypatch):
    """Has an entry for each node that has stopped. Each takes a while."""
    found = []
    real = Serving.stop

    async def slow(serving):
        await asyncio.sleep(2)
        await real(serving)
        found.append(serving)

    monkeypatch.setattr(Serving, "stop", slow)
    return found


def test_an_interrupted_close_stops_the_node_whole(tmp_path, stopped):
    log = headrace.open(tmp_path / "data")
    log.create_topic("orders", SCHEMA)
    with interrupted(0.5, 1.0):
        log.close()
    assert len(stopped) == 1
    with headrace.open(tmp_path / "data", seal__size="128MiB") as again:
        assert again.topics() == ["default/orders"]


async def test_a_cancelled_close_stops_the_node_whole(tmp_path, stopped):
    log = await headrace.open_async(tmp_path / "data")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(log.close(), 0.2)
    assert len(stopped) == 1
