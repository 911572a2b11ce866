"""A transaction: rows of one topic that become readable together, once, or not at all.

To repeat a transaction after a crash, use the same app id and version. If it was published
before, nothing is added, and the result says where its rows are.
"""

import asyncio
import itertools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xxhash import xxh3_128_digest

from headrace.client.values.answers import Published, Range
from headrace.client.write.appending import parcels
from headrace.client.write.convert import Data
from headrace.errors import BadRequest, HeadraceError, Refused
from headrace.model.results import DiscardResult, PublishResult, Receipt, StageResult
from headrace.model.split import Parcel
from headrace.wire.write_messages import (
    STAGE_ID_SIZE,
    SUPERSEDED,
    VERSION_MAX,
    DiscardRequest,
    PublishRequest,
    StageRequest,
    writer_of,
)

if TYPE_CHECKING:
    from headrace.client.topic import AsyncTopic


@dataclass(slots=True)
class _OpenStage:
    """The rows of one partition, which keep their order."""

    stage_id: bytes
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the one who stages
    receipt: Receipt | None = None  # of everything in it

    @property
    def number(self) -> int:
        return 0 if self.receipt is None else self.receipt.op_count


class AsyncTransaction:
    """Made by `AsyncLog.transaction`. Publishes at the end of its block, unless that failed."""

    def __init__(self, topic: "AsyncTopic", app_id: str, version: int) -> None:
        if not app_id:
            raise BadRequest("a transaction has an app id", hint="Name the job that writes")
        if not 0 < version <= VERSION_MAX:
            raise BadRequest(f"{version} is no version", hint="Count them from 1")
        self.topic = topic
        self.result: Published | None = None
        self._app_id = app_id
        self._writer = writer_of(app_id)
        self._version = version
        self._turns = itertools.count()
        self._stages: dict[int, _OpenStage] = {}
        self._unfinished: set[Iterator[Parcel]] = set()  # appends of which a part is staged
        self._is_over = False
        self._was_before = False  # somebody published this version, or a later one, before

    def __repr__(self) -> str:
        name = f"{self._app_id!r} version {self._version}"
        return f"<transaction {name} on {self.topic.name!r}: {self.result or 'open'}>"

    async def __aenter__(self) -> "AsyncTransaction":
        return self

    async def __aexit__(self, _kind: object, error: object, _trace: object) -> None:
        if error is not None:
            await self.discard()
        elif not self._is_over:
            await self.publish()

    async def append(self, data: Data, partition: int | None = None) -> None:
        """Add rows to the transaction."""
        for parcel in self.parcels(data, partition):
            await self.put(parcel)

    def parcels(self, data: Data, partition: int | None) -> Iterator[Parcel]:
        """Give rows as batches. Any thread may do it."""
        self._check()
        topic = self.topic
        limit = topic.caller.channel.body_size_max
        view = topic.view
        batches = topic.converter(view).batches_of(data)
        return self._whole(parcels(view, batches, partition, self._turns, limit=limit))

    def _whole(self, given: Iterator[Parcel]) -> Iterator[Parcel]:
        """Give what is given. Who does not come for the end has appended a part of it."""
        for parcel in given:
            self._unfinished.add(given)
            yield parcel
        self._unfinished.discard(given)

    def _check(self) -> None:
        """Refuse rows that would be in no log. Of a version that is there already, none are."""
        if self._is_over and not self._was_before:
            end = "discarded" if self.result is None else "published"
            raise BadRequest(
                f"the transaction {self._app_id!r} version {self._version} is {end} already",
                hint="Begin another one, with the next version",
            )

    async def put(self, parcel: Parcel) -> None:
        """Stage one batch. If this version is published already, there is nothing to do."""
        stage = self._stages.setdefault(
            parcel.partition, _OpenStage(secrets.token_bytes(STAGE_ID_SIZE))
        )
        async with stage.lock:
            self._check()
            if not self._was_before:
                await self._put(stage, parcel)

    async def _put(self, stage: _OpenStage, parcel: Parcel) -> None:
        info = self.topic.view.partition(parcel.partition)
        request = StageRequest(
            namespace=info.namespace,
            created=info.created,
            writer=self._writer,
            version=self._version,
            schema_id=parcel.schema_id,
            row_count=parcel.row_count,
            stage_id=stage.stage_id,
            number=stage.number,
            checksum=xxh3_128_digest(parcel.body),
        )
        try:
            staged, _ = await self.topic.caller.ask(request, StageResult, (parcel.body,))
        except Refused as error:
            if error.code != SUPERSEDED:
                raise
            # It, or a later one, was published before: the answer to Publish tells which.
            await self._publish(is_complete=False)
        else:
            stage.receipt = staged.receipt

    async def publish(self) -> Published:
        """Give all rows their offsets in one step."""
        if self.result is None:
            self._check()
            if self._unfinished:
                raise BadRequest(
                    "an append to the transaction did not come to its end: a part of its rows "
                    "may be in it",
                    hint="Discard it, and begin again; the same version is still free",
                )
            await self._publish(is_complete=True)
        assert self.result is not None
        return self.result

    async def discard(self) -> None:
        """Discard the rows. They also expire by themselves, so a failure is harmless."""
        self._is_over = True
        stage_ids = tuple(each.stage_id for each in self._stages.values())
        if self.result is not None or not stage_ids:
            return
        first = self.topic.view.partition(0)
        request = DiscardRequest(first.namespace, self.topic.created, self._writer, stage_ids)
        try:
            await self.topic.caller.get(request, DiscardResult)
        except HeadraceError:
            return  # the reason why the block failed is what matters

    async def _publish(self, *, is_complete: bool) -> None:
        view = self.topic.view
        receipts = [each.receipt for each in self._stages.values()]
        request = PublishRequest(
            namespace=view.partition(0).namespace,
            created=self.topic.created,
            writer=self._writer,
            version=self._version,
            stages=tuple(each for each in receipts if each is not None),
        )
        answer = await self.topic.caller.get(request, PublishResult)
        numbers = {each.namespace: n for n, each in enumerate(view.info.partitions)}
        ranges = tuple(
            Range(numbers.get(each.namespace, -1), each.start, each.end)
            for each in answer.ranges
        )
        same = answer.same if answer.repeated and is_complete else None
        self._is_over, self._was_before = True, not is_complete
        self.result = Published(ranges, answer.repeated, same)
