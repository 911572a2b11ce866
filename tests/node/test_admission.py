"""Batches are judged in their writer's order, beside the loop where that takes long."""

import asyncio
from concurrent.futures import Executor, Future

import pyarrow as pa
import pytest

from headrace.errors import BadBatch, HeadraceError
from headrace.model import batch
from headrace.model.proposal import EntryProposal
from headrace.model.schema import canonical
from headrace.node.requests.admission import (
    INLINE_SIZE_MAX,
    Admission,
    Batch,
    BatchSchema,
)
from headrace.wire.write_messages import AppendRequest

SCHEMA = canonical(pa.schema([("data", pa.binary())]))
KIND = BatchSchema(SCHEMA, batch.layout(SCHEMA))
ONE, OTHER = b"writer number 1.", b"writer number 2."


class ByHand(Executor):
    """Runs what it was given when it is told to."""

    def __init__(self):
        self.waiting = []

    def submit(self, work, *args):
        self.waiting.append((work, args))
        return Future()

    def run(self, place=0):
        work, args = self.waiting.pop(place)
        work(*args)


class Desk:
    """An admission, and what came through it, in order."""

    def __init__(self):
        self.threads = ByHand()
        self.admission = Admission(asyncio.get_running_loop(), self.threads)
        self.through = []

    def admit(self, name, body, writer=ONE):
        request = AppendRequest(1, 1, writer, 1, 1, 1, b"")

        def then(outcome):
            assert isinstance(outcome, EntryProposal | HeadraceError)
            self.through.append((name, type(outcome)))

        now = self.admission.admit(Batch(request, body, KIND), then)
        if now is not None:
            then(now)

    async def judge_one(self, place=0):
        self.threads.run(place)
        await asyncio.sleep(0)


def a_body(size, codec=None):
    rows = pa.record_batch([pa.array([bytes(size)], pa.binary())], schema=SCHEMA)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
        writer.write_batch(rows)
    messages = list(pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue())))
    return bytes(memoryview(messages[1].serialize()))


def test_a_small_batch_is_judged_at_once():
    async def scene():
        desk = Desk()
        desk.admit("a", a_body(10))
        desk.admit("b", b"no batch")
        assert desk.through == [("a", EntryProposal), ("b", BadBatch)]
        assert desk.threads.waiting == []

    asyncio.run(scene())


@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
def test_a_batch_that_is_or_becomes_large_is_judged_beside_the_loop(codec):
    async def scene():
        desk = Desk()
        body = a_body(4 * INLINE_SIZE_MAX, codec)
        assert (len(body) < INLINE_SIZE_MAX) == (codec is not None)
        desk.admit("large", body)
        assert desk.through == []
        await desk.judge_one()
        assert desk.through == [("large", EntryProposal)]

    asyncio.run(scene())


def test_a_writer_s_batches_leave_in_their_order_and_hold_nobody_else_up():
    async def scene():
        desk = Desk()
        large, small = a_body(2 * INLINE_SIZE_MAX), a_body(10)
        desk.admit("first", large)
        desk.admit("second", small)
        desk.admit("third", large)
        desk.admit("of another", small, OTHER)
        assert desk.through == [("of another", EntryProposal)]
        await desk.judge_one(1)
        assert len(desk.through) == 1
        await desk.judge_one(0)
        assert [name for name, _ in desk.through[1:]] == ["first", "second", "third"]
        desk.admit("fourth", small)
        assert desk.through[-1] == ("fourth", EntryProposal)

    asyncio.run(scene())
