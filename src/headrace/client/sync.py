"""The sync API: logs and topics, as plain programs use them.

Each method runs the one of the same name of the async core, which has the details.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from os import PathLike
from typing import Any, Final, TypeVar

import pyarrow as pa

from headrace.client.connect.loop_thread import LoopThread
from headrace.client.erasing import ERASE_TIMEOUT, Told
from headrace.client.log import AsyncLog
from headrace.client.read.spans import LATEST, Where
from headrace.client.show import (
    SHOWN_MAX,
    as_html,
    as_text,
    log_lines,
    topic_lines,
    topic_title,
)
from headrace.client.sync_lease import Lease
from headrace.client.sync_streams import Consumer, Producer, Rows, Taking, Transaction
from headrace.client.topic import AS_IT_IS, AsyncTopic
from headrace.client.values.answers import (
    AdoptedOrphans,
    Appended,
    Bounds,
    Cursor,
    OrphanedPartition,
    Retention,
    TopicSummary,
    Trimmed,
)
from headrace.client.write.convert import Data
from headrace.client.write.producer import BATCH_ROWS
from headrace.client.write.schemas import SchemaLike
from headrace.errors import HeadraceError
from headrace.model.split import Parcel

SHOW_TIMEOUT: Final = 2.0  # seconds that a table for a terminal may take

_Found = TypeVar("_Found")


class Topic:
    """A topic. If it is deleted and created again, this handle raises Recreated."""

    def __init__(self, core: AsyncTopic, runner: LoopThread) -> None:
        self._core = core
        self._runner = runner

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def schema(self) -> pa.Schema:
        """The newest schema known to this handle; see `refresh`."""
        return self._core.schema

    @property
    def schemas(self) -> dict[int, pa.Schema]:
        """Every schema version known to this handle, oldest first."""
        return self._core.schemas

    @property
    def partitions(self) -> int:
        return self._core.partitions

    @property
    def key(self) -> str | None:
        """The column whose value chooses a row's partition."""
        return self._core.key

    @property
    def retention(self) -> Retention:
        return self._core.retention

    @property
    def cluster(self) -> str:
        """The unique id of its log."""
        return self._core.cluster

    @property
    def created(self) -> int:
        """The revision at which this topic was created."""
        return self._core.created

    @property
    def created_at(self) -> datetime:
        return self._core.created_at

    def __repr__(self) -> str:
        bounds = self._shown_bounds()
        if bounds is None:
            return repr(self._core)
        return as_text(self._title, topic_lines(bounds), len(bounds) - SHOWN_MAX)

    def _repr_html_(self) -> str:
        bounds = self._shown_bounds() or []
        return as_html(self._title, topic_lines(bounds), len(bounds) - SHOWN_MAX)

    def append(self, data: Data, partition: int | None = None) -> Appended:
        """Append rows. Returns their offsets once they are on disk.

        Takes tables, frames, Arrow streams, lists of dicts and dicts of lists. A large append
        is split into batches, each appended exactly once. If one fails, the error's notes list
        what was appended. For all or nothing, use `Log.transaction`.
        """
        job, runner = self._core.appending(), self._runner
        held: Parcel | None = None  # until it is known whether it is the last
        is_only = True
        try:
            try:
                for parcel in self._core.parcels(data, partition):
                    before, held = held, None
                    if before is not None:
                        is_only = False
                        runner.run(job.put(before))
                    held = parcel
            except HeadraceError as error:
                runner.run(job.fail(error, held))
            if held is None or not is_only:
                return runner.run(job.finish(held))
            # Most appends: one step to the loop, and one back.
            return Appended((runner.wait_for(partial(job.begin, held)),))
        except BaseException:
            runner.post(job.abandon)
            raise

    def read(
        self,
        partition: int | Sequence[int] | None = None,
        *,
        start: Where = None,
        end: Where = None,
        last: int | None = None,
        columns: Sequence[str] | None = None,
        where: str | None = None,
    ) -> Rows:
        """Return the rows from `start` up to but not including `end`; by default all rows.

        `start` and `end` are offsets, times (`datetime`, `-15m`, ISO 8601), `earliest`,
        `latest`, or a dict with an offset for each partition. `last` reads that many rows from
        the end of each partition, which `where` then filters. `where` is a condition like that
        of `headrace read --where`: `"amount > 10 and customer = 'ann'"`.
        """
        reading = self._core.read(
            partition, start=start, end=end, last=last, columns=columns, where=where
        )
        return Rows(self._runner.run(reading), self._runner)

    def follow(
        self,
        partition: int | Sequence[int] | None = None,
        *,
        start: Where = LATEST,
        columns: Sequence[str] | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield rows from `start` on as they arrive, forever; by default only new ones.

        When the topic gets a newer schema, later batches use it. New partitions are read from
        their beginning, unless `partition` names others.
        """
        batches = Taking(self._core.follow(partition, start=start, columns=columns))
        try:
            while (batch := self._runner.run(batches.next())) is not None:
                yield batch
        finally:
            self._runner.begin(batches.close())

    def consumer(
        self,
        group: str,
        *,
        partition: int | Sequence[int] | None = None,
        start: Where = None,
        columns: Sequence[str] | None = None,
        hold: bool = False,
        auto_commit: bool = False,
    ) -> Consumer:
        """Read as a consumer group, from its cursors, or from `start` where it has none.

        `hold` keeps retention from dropping rows that the group has not read.
        """
        core = self._core.consumer(
            group,
            partition=partition,
            start=start,
            columns=columns,
            hold=hold,
            auto_commit=auto_commit,
        )
        return Consumer(core, self._runner)

    def bounds(self) -> list[Bounds]:
        """Return the first and end offset of each partition."""
        return self._runner.run(self._core.bounds())

    def lease_files(
        self, lasting: str | float = "60s", is_needed: Callable[[], bool] = lambda: True
    ) -> Lease:
        """Keep the topic's segments from being deleted, for readers that open them directly.

        The lease is renewed until it is released, the log is closed, or `is_needed` returns
        false; that is called on the log's own thread. `lasting` is the length of each renewal:
        files stay that long after a crash.
        """
        leasing = self._core.lease_files(lasting, is_needed)
        return Lease(self._runner.run(leasing), self._runner)

    def offsets_at(self, time: datetime | str) -> dict[int, int]:
        """Return the first offset of each partition appended at `time` or later."""
        return self._runner.run(self._core.offsets_at(time))

    def cursors(self, group: str | None = None) -> list[Cursor]:
        """Return the cursors and the lag of all consumer groups, or of one."""
        return self._runner.run(self._core.cursors(group))

    def store_cursors(
        self, group: str, places: Mapping[int, int], *, hold: bool | None = None
    ) -> None:
        """Move a consumer group to these offsets, one for each partition named."""
        self._runner.run(self._core.store_cursors(group, places, hold=hold))

    def delete_cursors(self, group: str) -> None:
        """Delete a consumer group: its cursors and its holds."""
        self._runner.run(self._core.delete_cursors(group))

    def evolve(self, schema: SchemaLike | pa.Schema) -> None:
        """Give the topic a newer schema: nullable columns added at its end, wider numbers."""
        self._runner.run(self._core.evolve(schema))

    def add_partitions(self, count: int) -> None:
        """Add partitions. Keys move: new rows of a key may go to another partition."""
        self._runner.run(self._core.add_partitions(count))

    def alter(
        self,
        *,
        retention: str | float | timedelta | None = AS_IT_IS,
        retention_size: str | int | None = AS_IT_IS,
    ) -> None:
        """Change how long and how much is kept; None means no limit."""
        altering = self._core.alter(retention=retention, retention_size=retention_size)
        self._runner.run(altering)

    def trim(
        self,
        before: Where,
        partition: int | Sequence[int] | None = None,
        *,
        past_hold: bool = False,
    ) -> list[Trimmed]:
        """Drop the rows before an offset or a time, except what a consumer group holds."""
        return self._runner.run(self._core.trim(before, partition, past_hold=past_hold))

    def purge(self, partition: int | Sequence[int] | None = None) -> list[Trimmed]:
        """Drop all rows. Offsets continue where they were."""
        return self._runner.run(self._core.purge(partition))

    def delete(
        self,
        *,
        wait_erased: bool = False,
        erase_timeout: str | float | timedelta = ERASE_TIMEOUT,
        told: Told | None = None,
    ) -> None:
        """Delete this topic, but not a later one of the same name.

        With `wait_erased`, wait until no file of the log holds bytes of its rows or of any
        other deleted topic; `told` is called with what is left, in another thread. On timeout
        raises NotErased: the topic is deleted, but not erased; see `Log.erase_deleted`.
        """
        self._runner.run(
            self._core.delete(wait_erased=wait_erased, erase_timeout=erase_timeout, told=told)
        )

    def refresh(self) -> None:
        """Look the topic up again: its schema, partitions and settings."""
        self._runner.run(self._core.refresh())

    @property
    def core(self) -> AsyncTopic:
        """The topic's async counterpart. It belongs to the log's own loop."""
        return self._core

    @property
    def _title(self) -> str:
        return topic_title(self.name, self.key, self.retention)

    def _shown_bounds(self) -> list[Bounds] | None:
        return _tried(self._runner, self._core.bounds())


class Log:
    """Streams of topics, from `headrace.open` or `headrace.connect`. Threads may share it."""

    def __init__(self, core: AsyncLog, runner: LoopThread, leave: Callable[[], None]) -> None:
        self._core = core
        self._runner = runner
        self._leave = leave  # called last, from the thread that closes
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def address(self) -> str:
        """Where the log is: a path, or an address."""
        return self._core.address

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        lines = _tried(self._runner, self._shown())
        return repr(self._core) if lines is None else as_text(self._title, *lines)

    def _repr_html_(self) -> str:
        lines = _tried(self._runner, self._shown())
        return as_html(self._title, *(lines or (log_lines([]), 0)))

    def create_topic(
        self,
        name: str,
        schema: SchemaLike | pa.Schema,
        *,
        partitions: int = 1,
        key: str | None = None,
        retention: str | float | timedelta | None = None,
        retention_size: str | int | None = None,
        if_not_exists: bool = False,
    ) -> Topic:
        """Create a topic, and its stream if needed.

        `schema` is a pa.Schema, a pydantic model or dataclass, a dict of type names, or data to
        derive it from. `key` is the column whose value chooses a row's partition.
        """
        creating = self._core.create_topic(
            name,
            schema,
            partitions=partitions,
            key=key,
            retention=retention,
            retention_size=retention_size,
            if_not_exists=if_not_exists,
        )
        return Topic(self._runner.run(creating), self._runner)

    def topic(self, name: str) -> Topic:
        """Return an existing topic. TopicUnknown suggests a similar name."""
        return Topic(self._runner.run(self._core.topic(name)), self._runner)

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._runner.run(self._core.topics())

    def streams(self) -> list[str]:
        """Return the names of all streams, sorted."""
        return self._runner.run(self._core.streams())

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its rows."""
        self._runner.run(self._core.delete_topic(name))

    def erase_deleted(
        self,
        *,
        erase_timeout: str | float | timedelta = ERASE_TIMEOUT,
        told: Told | None = None,
    ) -> None:
        """Wait until no file of the log holds bytes of rows of deleted topics.

        `told` is called with what is left, in another thread. NotErased on timeout.
        """
        self._runner.run(self._core.erase_deleted(erase_timeout=erase_timeout, told=told))

    def create_stream(self, name: str) -> None:
        self._runner.run(self._core.create_stream(name))

    def delete_stream(self, name: str, *, with_topics: bool = False) -> None:
        """Delete a stream. If it has topics, pass `with_topics`."""
        self._runner.run(self._core.delete_stream(name, with_topics=with_topics))

    def producer(
        self,
        topic: str | Topic,
        *,
        linger: str | float = "5ms",
        batch_rows: int = BATCH_ROWS,
        batch_size: str | int = "4MiB",
        partition: int | None = None,
        ledger: str | PathLike[str] | None = None,
    ) -> Producer:
        """Create a producer, which sends rows in batches of limited rows and bytes.

        A row waits at most `linger` for its batch to fill, and goes to `partition` if given.
        `ledger` is a file that gets a line for each acknowledged batch, before it is reported.
        """
        making = self._core.producer(
            _core_of(topic),
            linger=linger,
            batch_rows=batch_rows,
            batch_size=batch_size,
            partition=partition,
            ledger=ledger,
        )
        return Producer(self._runner.run(making), self._runner)

    def transaction(self, topic: str | Topic, app_id: str, version: int) -> Transaction:
        """Start a transaction: `with log.transaction(…) as transaction`.

        To repeat it after a crash, use the same app id and version: it is applied once.
        """
        beginning = self._core.transaction(_core_of(topic), app_id, version)
        return Transaction(self._runner.run(beginning), self._runner)

    def adopt_orphans(
        self, names: Mapping[str, str] | None = None, *, dry_run: bool = False
    ) -> AdoptedOrphans:
        """Turn partitions that the metadata has lost back into topics, under new names.

        `names` maps the hex namespace of a partition to the name of its topic. This ends the
        doubt. With `dry_run` nothing is changed; it returns what would happen to each.
        """
        return self._runner.run(self._core.adopt_orphans(names, dry_run=dry_run))

    def orphans(self, partition: str) -> tuple[OrphanedPartition, ...]:
        """Return what shards have of a lost partition, given in hex."""
        return self._runner.run(self._core.orphans(partition))

    def forget_orphan(self, partition: str, created: int) -> None:
        """Give up a partition that the metadata has lost. Its rows are removed."""
        self._runner.run(self._core.forget_orphan(partition, created))

    def status(self) -> dict[str, Any]:
        """Return the state of the node."""
        return self._runner.run(self._core.status())

    def recovery_report(self) -> dict[str, list[str]]:
        """Return what each group found when the node started, as text."""
        return self._runner.run(self._core.recovery_report())

    def summary(self, count_max: int | None = None) -> list[TopicSummary]:
        """Return a summary of each topic: its rows, bytes and settings."""
        return self._runner.run(self._core.summary(count_max))

    def close(self) -> None:
        """Close the log. Producers are flushed first."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._runner.run(self._core.close())
            finally:
                self._leave()

    @property
    def _title(self) -> str:
        return f"log at {self.address}"

    async def _shown(self) -> tuple[list[tuple[str, ...]], int]:
        names = await self._core.topics()
        return log_lines(await self._core.summary(SHOWN_MAX)), len(names) - SHOWN_MAX


def _tried(runner: LoopThread, asking: Coroutine[Any, Any, _Found]) -> _Found | None:
    """Ask for something to show. A log that is gone, or slow, is shown without it."""
    try:
        return runner.run(asyncio.wait_for(asking, SHOW_TIMEOUT))
    except (HeadraceError, TimeoutError):
        asking.close()
        return None


def _core_of(topic: str | Topic) -> str | AsyncTopic:
    return topic.core if isinstance(topic, Topic) else topic
