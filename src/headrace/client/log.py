"""A log, as asyncio programs use it."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from os import PathLike
from typing import Any

import pyarrow as pa

from headrace.client.connect.channel import Channel
from headrace.client.connect.retry import Caller
from headrace.client.erasing import ERASE_TIMEOUT, Told, erase_seconds, wait_for_erasure
from headrace.client.read.spans import Spans
from headrace.client.topic import AsyncTopic, age_of, size_of
from headrace.client.values.answers import (
    AdoptedOrphans,
    OrphanedPartition,
    TopicSummary,
    namespace_of,
    orphaned,
)
from headrace.client.values.parse import duration, path_of, size, whole, word
from headrace.client.values.topic_view import KEY_OPTION, View
from headrace.client.write.ledger import Ledger
from headrace.client.write.producer import BATCH_ROWS, AsyncProducer
from headrace.client.write.schemas import SchemaLike, schema_of
from headrace.client.write.transaction import AsyncTransaction
from headrace.errors import BadFrame, BadRequest, TopicExists, TopicUnknown
from headrace.model.namespace import check_name, parse_topic
from headrace.model.partition_keys import check_key
from headrace.model.schema import encode_schema
from headrace.wire.greeting import GetStatus, StatusReply
from headrace.wire.topic_messages import (
    Adoption,
    AdoptOrphans,
    Changed,
    CreateStreamRequest,
    CreateTopicRequest,
    DeleteStreamRequest,
    DescribeOrphans,
    DescribeTopic,
    ForgetOrphan,
    ListTopics,
    Orphans,
    TopicInfo,
    Topics,
)


class AsyncLog:
    """Streams of topics. Made by `headrace.open_async` and `headrace.connect_async`."""

    def __init__(self, channel: Channel, timeout: float) -> None:
        self.caller = Caller(channel, timeout)
        # One handle of each topic, so that it has one writer however often it is asked for.
        self._topics: dict[str, AsyncTopic] = {}
        self._producers: set[AsyncProducer] = set()
        self._is_closed = False

    @property
    def address(self) -> str:
        """Where the log is: a path, or an address."""
        return self.caller.channel.address

    def __repr__(self) -> str:
        return f"<log at {self.address}>"

    async def __aenter__(self) -> "AsyncLog":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def create_topic(
        self,
        name: str,
        schema: SchemaLike | pa.Schema,
        *,
        partitions: int = 1,
        key: str | None = None,
        retention: str | float | timedelta | None = None,
        retention_size: str | int | None = None,
        if_not_exists: bool = False,
    ) -> AsyncTopic:
        """Create a topic, and its stream if needed.

        `schema` is a pa.Schema, a pydantic model or dataclass, a dict of type names, or data to
        derive it from. `key` is the column whose value chooses a row's partition.
        """
        parse_topic(word(name, "topic"))
        wanted = schema_of(schema)
        if key is not None:
            check_key(wanted, word(key, "key"))
        request = CreateTopicRequest(
            topic=name,
            schema=encode_schema(wanted),
            partition_count=whole(partitions, "partitions"),
            retention_age_ms=age_of(retention),
            retention_size=size_of(retention_size),
            options=() if key is None else ((KEY_OPTION, key),),
        )
        if if_not_exists:
            with suppress(TopicUnknown):
                return await self._existing(name, wanted)
        try:
            info = await self.caller.get(request, TopicInfo)
        except TopicExists:
            if if_not_exists:
                return await self._existing(name, wanted)
            raise
        return self._handle(info)

    async def topic(self, name: str) -> AsyncTopic:
        """Return an existing topic. TopicUnknown suggests a similar name."""
        parse_topic(word(name, "topic"))
        return self._handle(await self.caller.get(DescribeTopic(name), TopicInfo))

    async def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return list((await self.caller.get(ListTopics(), Topics)).topics)

    async def streams(self) -> list[str]:
        """Return the names of all streams, sorted."""
        return list((await self.caller.get(ListTopics(), Topics)).streams)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and its rows."""
        await (await self.topic(name)).delete()

    async def erase_deleted(
        self,
        *,
        erase_timeout: str | float | timedelta = ERASE_TIMEOUT,
        told: Told | None = None,
    ) -> None:
        """Wait until no file of the log holds bytes of rows of deleted topics.

        `told` is called with what is left, on the log's own loop. NotErased on timeout.
        """
        await wait_for_erasure(self.caller, erase_seconds(erase_timeout), told)

    async def create_stream(self, name: str) -> None:
        await self.caller.get(CreateStreamRequest(_stream(name)), Changed)

    async def delete_stream(self, name: str, *, with_topics: bool = False) -> None:
        """Delete a stream. If it has topics, pass `with_topics`."""
        request = DeleteStreamRequest(_stream(name), with_topics)
        await self.caller.get(request, Changed)

    async def producer(
        self,
        topic: str | AsyncTopic,
        *,
        linger: str | float = "5ms",
        batch_rows: int = BATCH_ROWS,
        batch_size: str | int = "4MiB",
        partition: int | None = None,
        ledger: str | PathLike[str] | None = None,
    ) -> AsyncProducer:
        """Create a producer, which sends rows in batches of limited rows and bytes.

        A row waits at most `linger` for its batch to fill, and goes to `partition` if given.
        `ledger` is a file that gets a line for each acknowledged batch, before it is reported.
        """
        rows_max = whole(batch_rows, "batch_rows")
        if rows_max < 1:
            raise BadRequest(f"batch_rows must be 1 or more, got {rows_max}")
        bytes_max = size(batch_size, "batch_size")
        seconds = duration(linger, "linger").seconds
        path = None if ledger is None else path_of(ledger, "ledger")
        found = await self._topic(topic)
        if partition is not None:
            found.view.partition(partition)
        producer = AsyncProducer(
            found,
            linger=seconds,
            batch_rows=rows_max,
            batch_size=max(1, bytes_max),
            partition=partition,
            ledger=None if path is None else Ledger(path),
        )
        self._producers = {each for each in self._producers if not each.is_closed}
        self._producers.add(producer)
        return producer

    async def transaction(
        self, topic: str | AsyncTopic, app_id: str, version: int
    ) -> AsyncTransaction:
        """Start a transaction: `async with await log.transaction(…) as transaction`."""
        word(app_id, "app_id")
        number = whole(version, "version")
        return AsyncTransaction(await self._topic(topic), app_id, number)

    async def adopt_orphans(
        self, names: Mapping[str, str] | None = None, *, dry_run: bool = False
    ) -> AdoptedOrphans:
        """Turn partitions that the metadata has lost back into topics, under new names.

        `names` maps the hex namespace of a partition to the name of its topic. This ends the
        doubt. With `dry_run` nothing is changed; it returns what would happen to each.
        """
        chosen = tuple((namespace_of(key), name) for key, name in (names or {}).items())
        answer = await self.caller.get(AdoptOrphans(dry_run, chosen), Adoption)
        return AdoptedOrphans(answer.revision, answer.adopted, answer.left)

    async def orphans(self, partition: str) -> tuple[OrphanedPartition, ...]:
        """Return what shards have of a lost partition, given in hex."""
        answer = await self.caller.get(DescribeOrphans(namespace_of(partition)), Orphans)
        return tuple(orphaned(one) for one in answer.orphans)

    async def forget_orphan(self, partition: str, created: int) -> None:
        """Give up a partition that the metadata has lost. Its rows are removed."""
        await self.caller.get(ForgetOrphan(namespace_of(partition), created), Changed)

    async def status(self) -> dict[str, Any]:
        """Return the state of the node."""
        answer = await self.caller.get(GetStatus(), StatusReply)
        try:
            found = json.loads(answer.text)
        except ValueError as error:
            raise BadFrame(f"a status that is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise BadFrame("a status that is no JSON object")
        return found

    async def recovery_report(self) -> dict[str, list[str]]:
        """Return what each group found when the node started, as text."""
        groups = (await self.status()).get("groups")
        if not isinstance(groups, Mapping):
            return {}
        return {
            str(group): [str(line) for line in said["recovery"]]
            for group, said in groups.items()
            if isinstance(said, Mapping) and isinstance(said.get("recovery"), list)
        }

    async def summary(self, count_max: int | None = None) -> list[TopicSummary]:
        """Return a summary of each topic: its rows, bytes and settings."""
        found = []
        wanted = None if count_max is None else max(0, whole(count_max, "count_max"))
        for name in (await self.topics())[:wanted]:
            with suppress(TopicUnknown):  # deleted meanwhile
                found.append(await self._summary(name))
        return found

    async def close(self) -> None:
        """Close the log. Producers are flushed first."""
        if self._is_closed:
            return
        self._is_closed = True
        failure: Exception | None = None
        try:
            for producer in list(self._producers):
                try:
                    await producer.close()
                except Exception as error:  # noqa: BLE001 - the others have rows to send, too
                    failure = failure or error
        finally:
            await asyncio.gather(*(each.close() for each in self._topics.values()))
            await self.caller.channel.close()
        if failure is not None:
            raise failure

    async def _existing(self, name: str, schema: pa.Schema) -> AsyncTopic:
        found = await self.topic(name)
        if not found.schema.equals(schema):
            raise TopicExists(
                f"topic {found.name!r} is there already, with another schema",
                hint=f"Take it as it is: log.topic({name!r}), or evolve it",
            )
        return found

    async def _summary(self, name: str) -> TopicSummary:
        view = View.of(await self.caller.get(DescribeTopic(name), TopicInfo))
        bounds = (await Spans(self.caller, view).bounds(view.numbers(None))).values()
        return TopicSummary(
            name=view.name,
            partition_count=len(view.info.partitions),
            row_count=sum(each.row_count for each in bounds),
            size=sum(each.size for each in bounds),
            retention=view.retention,
            created_at=view.created_at,
        )

    async def _topic(self, given: str | AsyncTopic) -> AsyncTopic:
        return given if isinstance(given, AsyncTopic) else await self.topic(given)

    def _handle(self, info: TopicInfo) -> AsyncTopic:
        known = self._topics.get(info.topic)
        if known is not None and known.created == info.created:
            known.take(info)
            return known
        topic = self._topics[info.topic] = AsyncTopic(self.caller, View.of(info))
        return topic


def _stream(name: str) -> str:
    return check_name("stream", word(name, "stream"))
