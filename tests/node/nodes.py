"""Builders of real nodes in real directories, and a way to ask them."""

import asyncio
import secrets
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest

from headrace.errors import HeadraceError
from headrace.model import batch
from headrace.model.results import AppendResult
from headrace.model.schema import canonical, encode_schema
from headrace.node import bootstrap
from headrace.node.bootstrap import StartedNode, start
from headrace.node.config.settings import Commit, Config, JournalSettings, Listen, SealSettings
from headrace.node.requests.catalog import Catalog
from headrace.wire import read_messages, topic_messages, write_messages

SCHEMA = canonical(pa.schema([("id", pa.int64()), ("name", pa.string())]))
NEWER = canonical(pa.schema([("id", pa.int64()), ("name", pa.string()), ("note", pa.string())]))
TIMEOUT = 20.0


def a_config(**changes) -> Config:
    """Small files, so that a node is made quickly."""
    small = Config(
        listen=Listen(socket=False),
        journal=JournalSettings(file_size=4 * 1024 * 1024, slots=4096, metadata_slots=4096),
        commit=Commit(pipeline=256),
        seal=SealSettings(size=64 * 1024 * 1024, children=1),
    )
    return replace(small, **changes)


@asynccontextmanager
async def a_node(path, config: Config | None = None, *, strict: bool = True):
    started = await start(str(path), config or a_config(), strict=strict)
    try:
        yield started
    finally:
        await started.stop()


async def ask(started: StartedNode, request, body=b"", timeout: float = TIMEOUT):  # noqa: ASYNC109
    """Return the reply, or raise the error that is the answer."""
    reply, _ = await ask_whole(started, request, body, timeout)
    return reply


async def ask_whole(started: StartedNode, request, body=b"", timeout: float = TIMEOUT):  # noqa: ASYNC109
    loop = asyncio.get_running_loop()
    answered = loop.create_future()

    def answer(reply, rows):
        assert not answered.done(), "answered twice"
        answered.set_result((reply, rows))

    started.node.submit(request, body, loop.time() + timeout, answer)
    reply, rows = await asyncio.wait_for(answered, timeout + 5)
    if isinstance(reply, HeadraceError):
        raise reply
    return reply, rows


@contextmanager
def as_an_older_release():
    """Logs that are made in here are of before level 2: their lives have plain counts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Catalog, "begin_level", lambda _: None)
        patch.setattr(bootstrap, "LEVEL", 1)
        yield


async def a_topic(
    started: StartedNode, name="shop/orders", partitions=1, schema=SCHEMA, **more
):
    return await ask(
        started,
        topic_messages.CreateTopicRequest(
            name,
            encode_schema(schema),
            partitions,
            more.get("age_ms"),
            more.get("size"),
            more.get("options", ()),
        ),
    )


def some_rows(first: int, count: int, schema=SCHEMA) -> pa.RecordBatch:
    numbers = range(first, first + count)
    columns = {"id": list(numbers), "name": [f"n{n}" for n in numbers], "note": ["x"] * count}
    return pa.record_batch([pa.array(columns[f.name], f.type) for f in schema], schema=schema)


class Writer:
    """A producer that counts its versions."""

    def __init__(self, info: topic_messages.TopicInfo, partition: int = 0) -> None:
        self.where = info.partitions[partition]
        self.writer = secrets.token_bytes(16)
        self.version = 0
        self.rows = 0

    def request(self, count: int = 10, schema=SCHEMA, schema_id: int = 1):
        """Return the next append and its body."""
        self.version += 1
        body = memoryview(batch.encode(some_rows(self.rows, count, schema)))
        self.rows += count
        request = write_messages.AppendRequest(
            self.where.namespace,
            self.where.created,
            self.writer,
            self.version,
            schema_id,
            count,
            b"",
        )
        return request, body


async def append(started: StartedNode, writer: Writer, count: int = 10) -> AppendResult:
    return await ask(started, *writer.request(count))


def fetch_of(
    where: topic_messages.PartitionInfo, start=0, end=None, **more
) -> read_messages.Fetch:
    return read_messages.Fetch(
        where.namespace,
        where.created,
        start,
        end,
        more.get("size_max", 1 << 20),
        more.get("wait_ms", 0),
        more.get("columns"),
        more.get("version", 1),
    )


async def ids(
    started: StartedNode, where: topic_messages.PartitionInfo, schema=SCHEMA
) -> list[int]:
    """Read all ids of a partition through fetches."""
    found, start = [], 0
    while True:
        reply, body = await ask_whole(started, fetch_of(where, start))
        data, position = b"".join(body), 0
        for piece in reply.pieces:
            body_of = data[position : position + piece.size]
            position += piece.size + -piece.size % 64
            shown = schema if piece.is_entry else _with_system(schema)
            rows = batch.decode(body_of, shown, piece.row_count)
            found += rows.column("id").to_pylist()
        start = reply.next
        if start >= reply.end:
            return found


def _with_system(schema):
    from headrace.partition.segments.segment import segment_schema

    return segment_schema(schema)
