"""A log of the partitions machine, written by hand: entries without a disk, and their results.

Bodies of rows are any bytes here: the machine never looks at them. Every refusal that a log
meets is checked to have changed nothing.
"""

from dataclasses import dataclass, field
from random import Random

from headrace.journal.entry import SEAL, Entry, root, seal
from headrace.journal.machine_seam import MachineState
from headrace.model.ids import GroupId, Identity, Offset, Op, ReplicaId, Revision, View
from headrace.model.namespace import Namespace
from headrace.model.proposal import EntryProposal
from headrace.model.results import Receipt
from headrace.partition.machine import operations
from headrace.partition.machine.operations import (
    APPEND,
    STAGE,
    ClosePartition,
    Command,
    DeleteCursor,
    Discard,
    OpenPartition,
    Publish,
    Purge,
    Schema,
    SetSchema,
    StoreCursor,
    Trim,
    encode_stage,
)
from headrace.partition.machine.partitions_machine import Capture, PartitionsMachine
from headrace.partition.machine.results import Refusal, RefusalCode, Result
from headrace.partition.machine.segment_cut import SegmentSizes
from headrace.partition.machine.state import Partition, Piece, TopicState

BITS = 24  # of a partition's id in its namespace
IDENTITY = Identity(b"headrace-cluster", GroupId(1), ReplicaId(0), 1, (16, 24, BITS))
SIZES = SegmentSizes(size_min=1_000, size_target=2_000, waited_max=3)
NOW = 1_700_000_000_000_000
HOUR = 3600 * 1_000_000
DAY = 24 * HOUR

ANN = b"writer ann......"
BOB = b"writer bob......"
ONE = b"stage one......."
TWO = b"stage two......."
THREE = b"stage three....."


def a_namespace(partition: int = 0, topic: int = 0) -> Namespace:
    return Namespace(topic << BITS | partition)


P0, P1, P2 = (a_namespace(number) for number in range(3))
OTHER = a_namespace(topic=1)


def schemas(count: int) -> tuple[Schema, ...]:
    return tuple(Schema(number, b"schema %d" % number) for number in range(1, count + 1))


def a_machine(sizes: SegmentSizes = SIZES) -> PartitionsMachine:
    return PartitionsMachine(BITS, sizes)


@dataclass(slots=True)
class Log:
    """The entries of one shard and the machine that applied them. Time passes by `now`."""

    machine: PartitionsMachine = field(default_factory=a_machine)
    entries: list[Entry] = field(default_factory=list)
    now: int = NOW

    def send(self, operation: int, body: bytes = b"", **header: object) -> Result:
        """Seal the next entry, apply it, and return what became of it."""
        parent = self.entries[-1].checksum if self.entries else root(IDENTITY)
        self.now += 1
        entry = seal(
            IDENTITY,
            EntryProposal(operation, body, **header),
            op=Op(len(self.entries) + 1),
            parent=parent,
            view=View(0),
            timestamp=self.now,
        )
        return self.apply(entry)

    def apply(self, entry: Entry) -> Result:
        before = self.machine.digest()
        result = self.machine.apply(entry)
        self.entries.append(entry)
        if isinstance(result, Refusal):
            assert result.message
            assert self.machine.digest() == before, f"{result} changed something"
        return result

    def command(self, command: Command, at: int = P0, created: int = 1, **header) -> Result:
        body = operations.encode(command)
        return self.send(command.operation, body, namespace=at, created=created, **header)

    def open(self, at=P0, created=1, *, revision=1, topic_created=1, versions=1) -> Result:
        """Open a partition: `versions` schemas, or those given as they are."""
        known = schemas(versions) if isinstance(versions, int) else versions
        command = OpenPartition(Revision(revision), Revision(topic_created), known)
        return self.command(command, at, created)

    def close(self, at=P0, created=1, *, revision=1) -> Result:
        return self.command(ClosePartition(Revision(revision)), at, created)

    def set_schema(self, version: int, at=P0, created=1) -> Result:
        return self.command(SetSchema(version, b"schema %d" % version), at, created)

    def append(
        self, version=1, rows=1, *, body=b"rows", writer=ANN, at=P0, created=1, schema=1
    ) -> Result:
        return self.send(
            APPEND,
            body,
            writer=writer,
            version=version,
            namespace=at,
            created=created,
            schema_id=schema,
            row_count=rows,
        )

    def stage(
        self,
        stage_id=ONE,
        number=0,
        *,
        rows=1,
        body=b"rows",
        writer=ANN,
        version=1,
        at=P0,
        created=1,
        schema=1,
    ) -> Result:
        return self.send(
            STAGE,
            encode_stage(stage_id, number) + body,
            writer=writer,
            version=version,
            namespace=at,
            created=created,
            schema_id=schema,
            row_count=rows,
        )

    def publish(self, *receipts: Receipt, writer=ANN, version=1, at=P0, created=1) -> Result:
        return self.command(Publish(receipts), at, created, writer=writer, version=version)

    def discard(self, *stage_ids: bytes, writer=ANN, at=P0, created=1) -> Result:
        return self.command(Discard(stage_ids), at, created, writer=writer)

    def store(self, group: str, following: int, generation=1, *, hold=False, at=P0) -> Result:
        return self.command(StoreCursor(group, Offset(following), generation, hold), at)

    def delete(self, group: str, generation=1, *, at=P0) -> Result:
        return self.command(DeleteCursor(group, generation), at)

    def trim(self, first: int, *, past_hold=False, at=P0) -> Result:
        return self.command(Trim(Offset(first), past_hold), at)

    def purge(self, at=P0) -> Result:
        return self.command(Purge(), at)

    def seal(self, *, expire=False) -> Result:
        return self.send(SEAL, operations.encode(operations.Seal(expire)))

    def restart(self) -> None:
        """Go on with a machine that only read the snapshot of this one."""
        fresh = a_machine(self.machine.sizes)
        fresh.restore(MachineState(self.machine.snapshot().replicated))
        assert fresh.digest() == self.machine.digest()
        self.machine = fresh

    def partition(self, at: int = P0) -> Partition:
        return self.machine.state.partitions[Namespace(at)]

    def topic(self, at: int = P0) -> TopicState:
        return self.machine.state.topics[at >> BITS]

    def pieces(self, at: int = P0) -> list[Piece]:
        """The pieces of all runs: rows that are in no segment."""
        return [piece for run in self.partition(at).runs for piece in run.pieces]

    @property
    def capture(self) -> Capture:
        """What the newest Seal left."""
        return self.machine.captures[self.machine.state.sealed_op]


def a_log(partitions: int = 1, versions: int = 1, sizes: SegmentSizes = SIZES) -> Log:
    """A topic with open partitions, created at revision 1."""
    log = Log(a_machine(sizes))
    for number in range(partitions):
        done(log.open(a_namespace(number), versions=versions))
    return log


def done(result: Result) -> Result:
    """Return a result that is no refusal."""
    assert not isinstance(result, Refusal), result.message
    return result


def refused(result: Result, code: RefusalCode, **fields: object) -> bool:
    """Say whether it is a refusal for this reason that names at least these fields."""
    return (
        isinstance(result, Refusal)
        and result.code == code
        and fields.items() <= result.fields.items()
    )


def replayed(entries: list[Entry], sizes: SegmentSizes = SIZES) -> PartitionsMachine:
    """A machine that applied these entries, and encoded nothing on the way."""
    machine = a_machine(sizes)
    for entry in entries:
        machine.apply(entry)
    return machine


@dataclass(slots=True)
class Chance:
    """Makes a log longer by operations that mostly make sense, and some that do not."""

    random: Random
    log: Log = field(default_factory=Log)
    revision: int = 1
    lives: dict[Namespace, int] = field(default_factory=dict)  # created, by namespace

    def step(self) -> Result:
        """Send one operation."""
        log, random = self.log, self.random
        at = a_namespace(random.randrange(3), random.randrange(2))
        log.now += random.choice((0, 0, 0, HOUR, DAY))
        if at not in log.machine.state.partitions or random.random() < 0.03:
            return self._live(at)
        acts = (self._append, self._stage, self._end, self._cut, self._rare)
        (act,) = random.choices(acts, (8, 6, 3, 3, 2))
        return act(at, self.lives.get(at, 1))

    def _live(self, at: Namespace) -> Result:
        self.revision += self.random.choice((0, 1, 1, -1))
        if at in self.log.machine.state.partitions and self.random.random() < 0.7:
            return self.log.close(at, self.lives.get(at, 1), revision=self.revision)
        topic = self.log.machine.state.topics.get(at >> BITS)
        topic_created = topic.created if topic else self.revision
        versions = self.random.randint(1, 3)
        created = self.lives[at] = max(self.revision, 1)
        return self.log.open(
            at,
            created,
            revision=self.revision,
            topic_created=topic_created,
            versions=versions,
        )

    def _append(self, at: Namespace, created: int) -> Result:
        writer = self.random.choice((ANN, BOB))
        known = self.log.partition(at).writers.get(writer)
        version = known.window[-1].version + 1 if known else 1
        version = max(0, version + self.random.choice((0, 0, 0, 0, -1, -70, 1)))
        schema = self.random.randint(1, self.log.topic(at).newest)
        return self.log.append(
            version,
            self.random.randint(0, 9),
            body=bytes(self.random.choice((5, 5, 300))),
            writer=writer,
            at=at,
            created=created,
            schema=schema,
        )

    def _stage(self, at: Namespace, created: int) -> Result:
        stage_id = self.random.choice((ONE, TWO, THREE))
        known = self.log.topic(at).stages.get(stage_id)
        writer = known.writer if known else self.random.choice((ANN, BOB))
        published = self.log.topic(at).publishers.get(writer)
        following = published.version + 1 if published else 1
        return self.log.stage(
            stage_id,
            len(known.entries) if known else 0,
            rows=self.random.randint(1, 9),
            body=bytes(self.random.randint(1, 400)),
            writer=self.random.choice((writer, writer, writer, BOB)),
            version=known.version if known else following + self.random.randint(-1, 1),
            at=at,
            created=created,
        )

    def _end(self, at: Namespace, _: int) -> Result:
        """Publish or discard what is staged."""
        topic = self.log.topic(at)
        stages = [one for one in topic.stages.values() if self.random.random() < 0.8]
        owner = stages[0] if stages else None
        writer = owner.writer if owner else self.random.choice((ANN, BOB))
        if self.random.random() < 0.2:
            ids = (one.stage_id for one in stages)
            return self.log.discard(*ids, writer=writer, at=at, created=topic.created)
        version = owner.version if owner else self.random.randint(1, 4)
        fitting = (
            one.receipt for one in stages if (one.writer, one.version) == (writer, version)
        )
        return self.log.publish(
            *fitting, writer=writer, version=version, at=at, created=topic.created
        )

    def _cut(self, at: Namespace, created: int) -> Result:
        random, end = self.random, self.log.partition(at).end
        group = random.choice(("spark", "audit"))
        place = Offset(random.randint(0, end + 1))
        commands: list[Command] = [
            StoreCursor(group, place, random.randint(1, 3), random.random() < 0.3),
            StoreCursor(group, place, random.randint(1, 3), hold=False),
            DeleteCursor(group, random.randint(1, 3)),
            Trim(place, random.random() < 0.3),
            Purge(),
        ]
        (command,) = random.choices(commands, (3, 3, 1, 3, 1))
        return self.log.command(command, at, created)

    def _rare(self, at: Namespace, created: int) -> Result:
        topic = self.log.topic(at)
        match self.random.randrange(4):
            case 0:
                version = topic.newest + self.random.choice((1, 1, 0, 2))
                return self.log.set_schema(version, at, topic.created)
            case 1:
                body = self.random.randbytes(self.random.randrange(9))
                operation = self.random.randrange(30, 44)
                return self.log.send(operation, body, namespace=at, created=created)
            case _:
                return self.log.seal(expire=self.random.random() < 0.4)
