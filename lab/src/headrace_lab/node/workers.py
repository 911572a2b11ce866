"""The clients of a node, through the public API: they append, publish, consume, create topics.

Each has its own connection and notes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import pyarrow as pa

from headrace.client.log import AsyncLog
from headrace.client.read.consumer import AsyncConsumer
from headrace.client.topic import AsyncTopic
from headrace.client.values.answers import Published
from headrace.client.write.producer import AsyncProducer
from headrace.errors import HeadraceError
from headrace_lab.node.desk import PAUSE_SECONDS, Desk, Unexpected
from headrace_lab.node.ledger import LEDGER, Notes, place
from headrace_lab.node.workload import FIRST_LATE, SCHEMA, TopicPlan, late_topic
from headrace_lab.shard.kills.workload import digest_of

PACE_SECONDS_MAX: Final = 0.06  # between two batches of a producer
OPEN_MAX: Final = 12  # batches that a producer has in flight before it waits for all
POLL_SECONDS: Final = 0.1
COMMIT_EVERY: Final = 4  # batches of a consumer


@dataclass(slots=True)
class Appender:
    """A producer with a ledger, which has several batches in flight."""

    desk: Desk
    source: int
    patience: float
    sequence: int = 0
    told_rows: int = 0
    name: str = field(init=False)
    notes: Notes = field(init=False)
    chance: Random = field(init=False)
    producer: AsyncProducer = field(init=False)

    def __post_init__(self) -> None:
        self.name = str(self.source)
        self.notes = Notes(self.desk.ledgers, self.name)
        self.chance = Random(f"{self.desk.workload.seed} pace {self.source}")

    async def begin(self) -> None:
        desk = self.desk
        log = await desk.connect(self.patience)
        topic = await desk.topic(log, desk.workload.topic_of(self.source), self.notes)
        ledger = Path(desk.ledgers, f"{self.source}{LEDGER}")
        self.producer = await desk.persist(lambda: log.producer(topic, ledger=ledger))

    async def turn(self) -> None:
        for _ in range(self.chance.randint(1, OPEN_MAX)):
            try:
                await self.send()
            except HeadraceError as error:
                self.desk.expect(error)
                break
            await asyncio.sleep(self.chance.uniform(0, PACE_SECONDS_MAX))
        await self.rest()

    async def send(self) -> None:
        """Send the next batch, and do not wait for it."""
        self.sequence += 1
        (batch,) = self.desk.workload.pieces(self.source, self.sequence)
        rows = self.desk.workload.rows(batch)
        self.notes.say("tried", self.sequence, rows.num_rows)
        await self.producer.send(rows)
        await self.producer.push()

    async def rest(self) -> None:
        """Wait until each batch is appended or given up."""
        done = await self.desk.persist(self.producer.flush)
        self.told_rows += done.row_count
        self.notes.say("settled", self.told_rows)


@dataclass(slots=True)
class Transactor:
    """Stages and publishes; repeats a transaction under its own version until it knows."""

    desk: Desk
    source: int
    patience: float
    sequence: int = 0
    name: str = field(init=False)
    notes: Notes = field(init=False)
    log: AsyncLog = field(init=False)
    topic: AsyncTopic = field(init=False)

    def __post_init__(self) -> None:
        self.name = str(self.source)
        self.notes = Notes(self.desk.ledgers, self.name)

    async def begin(self) -> None:
        plan = self.desk.workload.topic_of(self.source)
        self.log = await self.desk.connect(self.patience)
        self.topic = await self.desk.topic(self.log, plan, self.notes)

    async def turn(self) -> None:
        self.sequence += 1
        fate = self.desk.workload.fate(self.source, self.sequence)
        pieces = self.desk.workload.pieces(self.source, self.sequence)
        count = sum(map(self.desk.workload.row_count, pieces))
        self.notes.say("tried", self.sequence, count)
        if fate in ("discard", "abandon"):
            await self.desk.persist(lambda: self._drop(is_told=fate == "discard"))
            self.notes.acknowledge("dropped", self.sequence)
        else:
            first = await self.desk.persist(self._publish)
            ranges = map(place, first.ranges)
            self.notes.acknowledge("published", self.sequence, *ranges)
            if fate == "repeat":
                self._compare(first, await self.desk.persist(self._publish))
        self.notes.say("settled", 0)
        await asyncio.sleep(PACE_SECONDS_MAX)

    async def rest(self) -> None:
        return

    async def _publish(self) -> Published:
        transaction = await self.log.transaction(
            self.topic, f"job {self.source}", self.sequence
        )
        for piece in self.desk.workload.pieces(self.source, self.sequence):
            rows = self.desk.workload.rows(piece)
            await transaction.append(rows, self.desk.workload.partition_of(piece))
        return await transaction.publish()

    async def _drop(self, is_told: bool) -> None:
        transaction = await self.log.transaction(
            self.topic, f"job {self.source}", self.sequence
        )
        for piece in self.desk.workload.pieces(self.source, self.sequence):
            rows = self.desk.workload.rows(piece)
            await transaction.append(rows, self.desk.workload.partition_of(piece))
        if is_told:
            await transaction.discard()

    def _compare(self, first: Published, again: Published) -> None:
        if not again.repeated or again.ranges != first.ranges:
            raise Unexpected(f"transaction {self.sequence} was told {first}, and then {again}")


@dataclass(slots=True)
class Follower:
    """A consumer group: what it reads is dense, and goes on where it was committed."""

    desk: Desk
    plan: TopicPlan
    patience: float
    name: str = field(init=False)
    notes: Notes = field(init=False)
    topic: AsyncTopic = field(init=False)
    consumer: AsyncConsumer = field(init=False)
    places: dict[int, int] = field(default_factory=dict)  # the next row, by partition
    batch_count: int = 0

    def __post_init__(self) -> None:
        self.name = f"group-{self.plan.name.rpartition('/')[2]}"
        self.notes = Notes(self.desk.ledgers, self.name)

    async def begin(self) -> None:
        log = await self.desk.connect(self.patience)
        self.topic = await self.desk.topic(log, self.plan, self.notes)
        await self._open()

    async def turn(self) -> None:
        rows = await self.desk.persist(lambda: self.consumer.poll(POLL_SECONDS))
        if rows is None:
            return
        self._take(rows)
        self.batch_count += 1
        if self.batch_count % COMMIT_EVERY == 0:
            await self.rest()
        if self.batch_count % (5 * COMMIT_EVERY) == 0:
            await self.consumer.close()
            await self._open()

    async def rest(self) -> None:
        """Commit all that was read."""
        for partition, following in self.places.items():
            self.notes.say("committing", self.topic.name, self.name, partition, following)
        done = await self.desk.persist(self.consumer.commit)
        for partition, following in done.items():
            words = ("committed", self.topic.name, self.name, partition, following)
            self.notes.acknowledge(*words)

    async def _open(self) -> None:
        """Begin as a new process of the group would."""
        self.consumer = self.topic.consumer(self.name)
        found = await self.desk.persist(self.consumer.positions)
        expected = self.places or dict.fromkeys(found, 0)
        if found != expected:
            raise Unexpected(f"goes on at {found} after a commit at {expected}")
        self.places = found

    def _take(self, rows: pa.RecordBatch) -> None:
        partition = rows["_partition"][0].as_py()
        start, last = rows["_offset"][0].as_py(), rows["_offset"][-1].as_py()
        if start != self.places[partition] or last != start + rows.num_rows - 1:
            expected = self.places[partition]
            raise Unexpected(f"was given rows {start} to {last}, not from {expected} on")
        self.places[partition] = last + 1
        digest = digest_of(rows.select(SCHEMA.names))
        self.notes.say("seen", self.topic.name, partition, start, last + 1, digest)


@dataclass(slots=True)
class Founder:
    """Makes a topic when it is told to, says so, and appends the first rows to it."""

    desk: Desk
    patience: float
    tell: Callable[[str], None]
    name: str = "topics"
    wanted: int = 0  # topics, so far
    made: int = 0
    notes: Notes = field(init=False)
    log: AsyncLog = field(init=False)

    def __post_init__(self) -> None:
        self.notes = Notes(self.desk.ledgers, self.name)

    async def begin(self) -> None:
        self.log = await self.desk.connect(self.patience)

    async def turn(self) -> None:
        if self.made == self.wanted:
            await asyncio.sleep(PAUSE_SECONDS)
            return
        topic = await self.desk.topic(self.log, late_topic(self.made), self.notes)
        self.tell(f"created {topic.name}")
        first = Appender(self.desk, FIRST_LATE + self.made, self.patience)
        await first.begin()
        await first.send()
        await first.rest()
        await first.producer.close()
        self.made += 1

    async def rest(self) -> None:
        return
