"""A topic, for asyncio programs."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta

import pyarrow as pa

from headrace.client.connect.retry import Caller
from headrace.client.erasing import ERASE_TIMEOUT, Told, erase_seconds, wait_for_erasure
from headrace.client.read.consumer import AsyncConsumer
from headrace.client.read.feed import Feed
from headrace.client.read.lease import AsyncLease, take_lease
from headrace.client.read.rows import AsyncRows, endless
from headrace.client.read.spans import LATEST, Spans, Where
from headrace.client.values.answers import Appended, Bounds, Cursor, Range, Retention, Trimmed
from headrace.client.values.parse import duration, microseconds, size, whole, word
from headrace.client.values.topic_view import View
from headrace.client.where.grammar import parse_where
from headrace.client.write.appending import Appending, parcels
from headrace.client.write.convert import Converter, Data
from headrace.client.write.schemas import SchemaLike, schema_of
from headrace.client.write.sender import Sender
from headrace.errors import BadRequest, HeadraceError, Recreated, Rejected
from headrace.model.namespace import check_name
from headrace.model.projection import Projection
from headrace.model.results import CursorDeleted, CursorStored, TrimResult
from headrace.model.revisions import is_past
from headrace.model.schema import SYSTEM_FIELDS, check_evolution, encode_schema
from headrace.model.split import Parcel
from headrace.wire import read_messages, write_messages
from headrace.wire.topic_messages import (
    AddPartitionsRequest,
    AddSchemaRequest,
    AlterTopicRequest,
    Changed,
    DeleteTopicRequest,
    DescribeTopic,
    TopicInfo,
)

AS_IT_IS = "as it is"  # a retention that `alter` leaves unchanged


class AsyncTopic:
    """A topic. If it is deleted and created again, this handle raises Recreated."""

    def __init__(self, caller: Caller, view: View) -> None:
        self.view = view
        self.caller = replace(caller, probe=self._probe)
        self._converter = Converter(view.schema, view.layout.required)
        self._turns = itertools.count()
        self._writer = Sender(self.caller, view.name)
        self._leases: list[AsyncLease] = []

    def __repr__(self) -> str:
        return f"<topic {self.name!r}: {self.partitions} partitions>"

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def schema(self) -> pa.Schema:
        """The newest schema known to this handle; see `refresh`."""
        return self.view.schema

    @property
    def schemas(self) -> dict[int, pa.Schema]:
        """Every schema version known to this handle, oldest first."""
        return dict(sorted(self.view.schemas.items()))

    @property
    def partitions(self) -> int:
        return len(self.view.info.partitions)

    @property
    def key(self) -> str | None:
        """The column whose value chooses a row's partition."""
        return self.view.key

    @property
    def retention(self) -> Retention:
        return self.view.retention

    @property
    def cluster(self) -> str:
        """The unique id of its log."""
        return self.caller.channel.cluster.hex()

    @property
    def created(self) -> int:
        """The revision at which this topic was created."""
        return self.view.info.created

    @property
    def created_at(self) -> datetime:
        return self.view.created_at

    def converter(self, view: View) -> Converter:
        """Return the converter to a view's newest schema. Thread-safe."""
        found = self._converter
        if found.schema is not view.schema:
            found = self._converter = Converter(view.schema, view.layout.required)
        return found

    async def append(self, data: Data, partition: int | None = None) -> Appended:
        """Append rows. Returns their offsets once they are on disk.

        A large append is split into batches, each appended exactly once. If one fails, the
        error's notes list what was appended. For all or nothing, use a transaction.
        """
        job = self.appending()
        try:
            for parcel in self.parcels(data, partition):
                await job.put(parcel)
        except HeadraceError as error:
            await job.fail(error)
        return await job.finish()

    def appending(self) -> Appending:
        return Appending(self.caller, self._writer, self.view)

    def parcels(self, data: Data, partition: int | None) -> Iterator[Parcel]:
        limit = self.caller.channel.body_size_max
        number = None if partition is None else whole(partition, "partition")
        view = self.view
        batches = self.converter(view).batches_of(data)
        return parcels(view, batches, number, self._turns, limit=limit)

    async def read(
        self,
        partition: int | Sequence[int] | None = None,
        *,
        start: Where = None,
        end: Where = None,
        last: int | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
    ) -> AsyncRows:
        """Return the rows from `start` up to but not including `end`; by default all rows.

        `start` and `end` are offsets, times (`datetime`, `-15m`, ISO 8601), `earliest`,
        `latest`, or a dict with an offset for each partition. `last` reads that many rows from
        the end of each partition, which `where` then filters. `where` is a condition like that
        of `headrace read --where`: `"amount > 10 and customer = 'ann'"`.
        """
        view = await self.refresh()
        numbers = view.numbers(partition)
        chosen = chosen_of(columns)
        shape = Projection.of(view.schema, chosen)
        condition = None
        if where is not None:
            whole = pa.schema([*SYSTEM_FIELDS, *view.schema])
            # Off the loop: Arrow's evaluation is slow to load.
            condition = await asyncio.to_thread(parse_where, word(where, "where"), whole)
        fetched = chosen
        if chosen is not None and condition is not None:
            fetched = tuple(dict.fromkeys([*chosen, *condition.columns]))
        ranges = await Spans(self.caller, view).ranges(numbers, start, end, last)

        def feed(each: Range) -> Feed:
            return Feed(
                self.caller, view, each.partition, each.start, each.end, fetched, self.refresh
            )

        return AsyncRows(shape.schema, ranges, feed, condition)

    async def follow(
        self,
        partition: int | Sequence[int] | None = None,
        *,
        start: Where = LATEST,
        columns: Sequence[str] | None = None,
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield rows from `start` on as they arrive, forever; by default only new ones.

        When the topic gets a newer schema, later batches use it. New partitions are read from
        their beginning, unless `partition` names others.
        """
        view = await self.refresh()
        spans = Spans(self.caller, view)
        bounds = await spans.bounds(view.numbers(partition))
        places = await spans.places(start, bounds)

        async def more() -> list[Feed]:
            view = await self.refresh()
            fresh = [number for number in view.numbers(None) if number not in places]
            found = {
                number: each.first
                for number, each in (await Spans(self.caller, view).bounds(fresh)).items()
            }
            feeds = self.feeds(found, columns)
            places.update(found)
            return feeds

        feeds = self.feeds(places, columns)
        async with aclosing(endless(feeds, more if partition is None else None)) as slabs:
            async for slab in slabs:
                yield slab.rows

    def feeds(self, places: dict[int, int], columns: Sequence[str] | None) -> list[Feed]:
        """Return unbounded feeds from these places on."""
        chosen = chosen_of(columns)
        return [
            Feed(self.caller, self.view, number, place, None, chosen, self.refresh)
            for number, place in places.items()
        ]

    def consumer(
        self,
        group: str,
        *,
        partition: int | Sequence[int] | None = None,
        start: Where = None,
        columns: Sequence[str] | None = None,
        hold: bool = False,
        auto_commit: bool = False,
    ) -> AsyncConsumer:
        """Read as a consumer group, from its cursors, or from `start` where it has none.

        `hold` keeps retention from dropping rows that the group has not read.
        """
        return AsyncConsumer(
            self,
            group,
            partition=partition,
            start=start,
            columns=columns,
            hold=hold,
            auto_commit=auto_commit,
        )

    async def bounds(self) -> list[Bounds]:
        """Return the first and end offset of each partition."""
        view = await self.refresh()
        return list((await Spans(self.caller, view).bounds(view.numbers(None))).values())

    async def lease_files(
        self, lasting: str | float = "60s", is_needed: Callable[[], bool] = lambda: True
    ) -> AsyncLease:
        """Keep the topic's segments from being deleted, for readers that open them directly.

        The lease is renewed until it is released, the log is closed, or `is_needed` returns
        false. `lasting` is the length of each renewal: files stay that long after a crash.
        """
        seconds = duration(lasting, "lasting").seconds
        lease = await take_lease(self.caller, self.refresh, seconds, is_needed)
        self._leases = [each for each in self._leases if not each.is_released]
        self._leases.append(lease)
        return lease

    async def offsets_at(self, time: datetime | str) -> dict[int, int]:
        """Return the first offset of each partition appended at `time` or later."""
        view = await self.refresh()
        spans, moment = Spans(self.caller, view), microseconds(time)
        return {number: await spans.at(number, moment) for number in view.numbers(None)}

    async def cursors(self, group: str | None = None) -> list[Cursor]:
        """Return the cursors and the lag of all consumer groups, or of one."""
        if group is not None:
            word(group, "consumer group")
        view = await self.refresh()
        bounds = await Spans(self.caller, view).bounds(view.numbers(None))
        found = []
        for number, each in bounds.items():
            info = view.partition(number)
            request = read_messages.GetCursors(info.namespace, info.created)
            answer = await self.caller.get(request, read_messages.Cursors)
            found += [
                Cursor(
                    number, one.group, one.next, each.end - one.next, one.hold, one.generation
                )
                for one in answer.cursors
                if group in (None, one.group)
            ]
        return found

    async def store_cursors(
        self, group: str, places: Mapping[int, int], *, hold: bool | None = None
    ) -> None:
        """Move a consumer group to these offsets, one for each partition named.

        `hold` keeps rows from there on from being trimmed; None leaves it as it is. A running
        consumer is refused at its next commit, because its generation is older.
        """
        check_name("consumer group", word(group, "consumer group"))
        if not isinstance(places, Mapping):
            raise BadRequest(
                f"places: {type(places).__name__} does not map partitions to offsets",
                hint="Pass a dict of partitions and offsets: {0: 120, 1: 80}",
            )
        wanted = {number: whole(place, "an offset") for number, place in places.items()}
        for number, place in wanted.items():
            if place < 0:
                raise BadRequest(
                    f"partition {number}: offset {place} is negative",
                    hint="Use the offset of the next row to read: 0 or more",
                )
        known = {each.partition: each for each in await self.cursors(group)}
        for number, place in wanted.items():
            info, cursor = self.view.partition(number), known.get(number)
            request = read_messages.StoreCursorRequest(
                namespace=info.namespace,
                created=info.created,
                group=group,
                next=place,
                generation=1 if cursor is None else cursor.generation + 1,
                hold=cursor is not None and cursor.hold if hold is None else hold,
            )
            await self.caller.get(request, CursorStored)

    async def delete_cursors(self, group: str) -> None:
        """Delete a consumer group: its cursors and its holds."""
        for cursor in await self.cursors(group):
            info = self.view.partition(cursor.partition)
            request = read_messages.DeleteCursorRequest(
                info.namespace, info.created, group, cursor.generation
            )
            await self.caller.get(request, CursorDeleted)

    async def evolve(self, schema: SchemaLike) -> None:
        """Give the topic a newer schema: nullable columns added at its end, wider numbers."""
        view = await self.refresh()
        wanted = schema_of(schema)
        check_evolution(view.schema, wanted)
        version = view.version + 1
        request = AddSchemaRequest(view.name, self.created, version, encode_schema(wanted))
        self.take(await self.caller.get(request, TopicInfo))

    async def add_partitions(self, count: int) -> None:
        """Add partitions. Keys move: new rows of a key may go to another partition."""
        view = await self.refresh()
        first = len(view.info.partitions)
        added = whole(count, "count")
        request = AddPartitionsRequest(view.name, self.created, first, added)
        self.take(await self.caller.get(request, TopicInfo))

    async def alter(
        self,
        *,
        retention: str | float | timedelta | None = AS_IT_IS,
        retention_size: str | int | None = AS_IT_IS,
    ) -> None:
        """Change how long and how much is kept; None means no limit."""
        info = (await self.refresh()).info
        age_ms, kept = info.retention_age_ms, info.retention_size
        if retention != AS_IT_IS:
            age_ms = age_of(retention)
        if retention_size != AS_IT_IS:
            kept = size_of(retention_size)
        request = AlterTopicRequest(self.name, self.created, (age_ms, kept), ())
        self.take(await self.caller.get(request, TopicInfo))

    async def trim(
        self,
        before: Where,
        partition: int | Sequence[int] | None = None,
        *,
        past_hold: bool = False,
    ) -> list[Trimmed]:
        """Drop the rows before an offset or a time, except what a consumer group holds."""
        view = await self.refresh()
        spans = Spans(self.caller, view)
        places = await spans.places(before, await spans.bounds(view.numbers(partition)))
        found = []
        for number, first in places.items():
            info = view.partition(number)
            request = write_messages.TrimRequest(info.namespace, info.created, first, past_hold)
            answer = await self.caller.get(request, TrimResult)
            found.append(Trimmed(number, answer.first, answer.holds))
        return found

    async def purge(self, partition: int | Sequence[int] | None = None) -> list[Trimmed]:
        """Drop all rows. Offsets continue where they were."""
        view = await self.refresh()
        found = []
        for number in view.numbers(partition):
            info = view.partition(number)
            request = write_messages.PurgeRequest(info.namespace, info.created)
            answer = await self.caller.get(request, TrimResult)
            found.append(Trimmed(number, answer.first, answer.holds))
        return found

    async def delete(
        self,
        *,
        wait_erased: bool = False,
        erase_timeout: str | float | timedelta = ERASE_TIMEOUT,
        told: Told | None = None,
    ) -> None:
        """Delete this topic, but not a later one of the same name.

        With `wait_erased`, wait until no file of the log holds bytes of its rows or of any
        other deleted topic; `told` is called with what is left, on the log's own loop. On
        timeout raises NotErased: the topic is deleted, but not erased; see `Log.erase_deleted`.
        """
        seconds = erase_seconds(erase_timeout)
        await self.caller.get(DeleteTopicRequest(self.name, self.created), Changed)
        if wait_erased:
            await wait_for_erasure(self.caller, seconds, told)

    async def refresh(self) -> View:
        """Look the topic up again: its schema, partitions and settings."""
        info = await self.caller.get(DescribeTopic(self.name), TopicInfo)
        self.take(info)
        return self.view

    async def close(self) -> None:
        """Cancel pending work and release the leases."""
        leases, self._leases = self._leases, []
        await asyncio.gather(*(each.release() for each in leases))
        await self._writer.close()

    def take(self, info: TopicInfo) -> None:
        """Update the handle from a node's answer."""
        if info.created != self.created:
            raise Recreated(self.name, self.created, info.created)
        if is_past(self.view.info.revision, info.revision):
            return  # an older answer that arrived late
        if info != self.view.info:
            self.view = View.of(info)

    async def _probe(self) -> None:
        """Raise if the topic is deleted, so that callers do not wait until their deadline."""
        request = DescribeTopic(self.name)
        try:
            reply, _ = await self.caller.channel.call(request, timeout=self.caller.timeout)
        except Rejected:
            raise
        except HeadraceError:
            return
        if isinstance(reply, TopicInfo) and reply.created != self.created:
            raise Recreated(self.name, self.created, reply.created)


def chosen_of(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the columns that a user named; None means all."""
    if columns is None:
        return None
    if isinstance(columns, str | bytes) or not isinstance(columns, Iterable):
        raise BadRequest(f"columns: {columns!r} is not a list", hint='Pass ["id", "name"]')
    return tuple(word(each, "columns") for each in columns)


def age_of(retention: str | float | timedelta | None) -> int | None:
    """Return how long rows are kept, in milliseconds; None means forever."""
    if retention is None:
        return None
    found = duration(retention, "retention")
    if not found.ms:
        raise BadRequest("retention: must be longer than 0, or None to keep rows forever")
    return found.ms


def size_of(retention_size: str | int | None) -> int | None:
    """Return how many bytes are kept; None means all."""
    return None if retention_size is None else size(retention_size, "retention_size")
