"""The state of the partitions machine: partitions, their rows as places in the log, and topics.

Rows start as pieces: entries of the log in the journal or in a carry file. A run is the pieces
of one partition and one schema version that are in no segment yet. Everything here is a
function of the log, except `Segment.place`, which is where this node keeps a segment.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.model.ids import Offset, Op, Revision
from headrace.model.namespace import Namespace
from headrace.model.results import PartitionRange, Receipt, StoredCursor
from headrace.partition.machine.operations import Schema


class Piece(NamedTuple):
    """The rows of one entry, at their offsets. A tuple: there is one for each entry."""

    first: Offset
    row_count: int
    op: Op
    timestamp: int  # of the append, or of the Publish
    size: int  # body bytes

    @property
    def end(self) -> Offset:
        return Offset(self.first + self.row_count)


@dataclass(slots=True)
class Run:
    """Contiguous pieces. Only the owner changes it; any thread may read it."""

    version: int  # of the schema in force
    pieces: list[Piece]
    size: int = 0
    waited: int = 0  # Seals that carried it

    @property
    def first(self) -> Offset:
        return self.pieces[0].first

    @property
    def end(self) -> Offset:
        return self.pieces[-1].end


@dataclass(frozen=True, slots=True)
class Placed:
    """A segment with a file on this node."""

    rows: bytes  # row digest, equal on all replicas
    file: bytes  # xxh3-128 of the whole file
    size: int


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A segment without a file here: not yet, or not possible. Its pieces hold the rows."""

    pieces: tuple[Piece, ...]
    flaw: str = ""  # why the last try failed; empty before the first


@dataclass(slots=True)
class Segment:
    """Rows that belong in one file. All fields but `place` are equal on every replica."""

    namespace: Namespace
    created: Revision
    first: Offset
    end: Offset
    version: int  # of the schema in force
    first_op: Op
    seal_op: Op
    tip: bytes  # checksum of the Seal
    first_timestamp: int
    last_timestamp: int
    size: int  # body bytes
    place: Placed | Unplaced


class Written(NamedTuple):
    """One accepted version of a writer, and its result."""

    version: int
    start: Offset
    row_count: int
    checksum: bytes  # of the body


@dataclass(slots=True)
class Writer:
    """The newest versions of one writer in one partition, ascending and dense."""

    window: list[Written]
    timestamp: int  # of its newest append


@dataclass(slots=True)
class Partition:
    """One ordered log of rows. Invariant: runs and segments cover `first` to `end`, densely."""

    namespace: Namespace
    created: Revision
    topic_created: Revision
    versions: tuple[tuple[int, Offset], ...]  # schema version, first offset it is in force at
    first: Offset = Offset(0)  # the first retained
    end: Offset = Offset(0)  # the next to assign
    runs: list[Run] = field(default_factory=list)  # by offset, replaced as a whole
    segments: tuple[Segment, ...] = ()  # by offset
    cursors: dict[str, StoredCursor] = field(default_factory=dict)
    writers: dict[bytes, Writer] = field(default_factory=dict)
    image: bytes | None = None  # the encoding at the last Seal, until something changes

    @property
    def version(self) -> int:
        """The schema version in force at the end."""
        return self.versions[-1][0]

    @property
    def size(self) -> int:
        """Body bytes of the retained rows."""
        sealed = sum(segment.size for segment in self.segments)
        return sealed + sum(run.size for run in self.runs)

    def version_at(self, offset: Offset) -> int:
        """Return the schema version in force at `offset`."""
        found = bisect_right(self.versions, offset, key=lambda each: each[1])
        return self.versions[found - 1][0]

    def add(self, row_count: int, op: Op, timestamp: int, size: int) -> Offset:
        """Assign offsets to the next rows, here and nowhere else; return the first."""
        start = self.end
        piece = Piece(start, row_count, op, timestamp, size)
        if self.runs and self.runs[-1].version == self.version:
            self.runs[-1].pieces.append(piece)
            self.runs[-1].size += size
        else:
            self.runs = [*self.runs, Run(self.version, [piece], size)]
        self.end = Offset(start + row_count)
        return start

    def advance_schema(self, version: int) -> None:
        """Put `version` in force from here on; a version without rows leaves no trace."""
        known = self.versions
        if known and known[-1][1] == self.end:
            known = known[:-1]
        self.versions = (*known, (version, self.end))

    def trim(self, first: Offset) -> None:
        """Forget the rows below `first`: drop whole pieces and segments, hide the rest."""
        self.first = first
        self.segments = tuple(one for one in self.segments if one.end > first)
        runs = []
        for run in self.runs:
            if run.first >= first:
                runs.append(run)
            elif run.end > first:
                pieces = [piece for piece in run.pieces if piece.end > first]
                size = sum(piece.size for piece in pieces)
                runs.append(Run(run.version, pieces, size, run.waited))
        self.runs = runs
        kept = bisect_right(self.versions, first, key=lambda each: each[1]) - 1
        self.versions = self.versions[kept:]


@dataclass(slots=True)
class StagedEntry:
    """One Stage op: rows without offsets."""

    op: Op
    namespace: Namespace
    row_count: int
    size: int
    checksum: bytes  # of the body


@dataclass(slots=True)
class Stage:
    """The rows of one task of a transaction."""

    stage_id: bytes
    writer: bytes
    version: int
    entries: list[StagedEntry]
    row_count: int = 0
    digest: bytes = bytes(16)

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.stage_id, len(self.entries), self.row_count, self.digest)


@dataclass(slots=True)
class Publisher:
    """The last version that a writer published, and its result."""

    version: int
    content: bytes  # xxh3-128 of the receipts
    ranges: tuple[PartitionRange, ...]


@dataclass(slots=True)
class TopicState:
    """The shared state of one topic's partitions."""

    number: int  # its namespaces without the partition's bits
    created: Revision
    schemas: tuple[Schema, ...]  # ascending; ids stay valid
    publishers: dict[bytes, Publisher] = field(default_factory=dict)
    stages: dict[bytes, Stage] = field(default_factory=dict)
    staged_at: dict[bytes, int] = field(default_factory=dict)  # writer: time of its last Stage
    once_at: dict[bytes, int] = field(
        default_factory=dict
    )  # writer of one: time of its Publish
    members: list[Namespace] = field(default_factory=list)  # open partitions, ascending
    image: bytes | None = None

    @property
    def newest(self) -> int:
        return self.schemas[-1].version


@dataclass(slots=True)
class PartitionsState:
    """Everything. Dictionaries are sorted only when they are encoded."""

    partition_bits: int
    revision: Revision  # the highest metadata revision seen
    sealed_op: Op  # the newest Seal
    partitions: dict[Namespace, Partition] = field(default_factory=dict)
    topics: dict[int, TopicState] = field(default_factory=dict)
    closed: dict[Namespace, Revision] = field(default_factory=dict)  # newest life that ended

    @classmethod
    def empty(cls, partition_bits: int) -> "PartitionsState":
        """Return the state before op 1."""
        return cls(partition_bits, Revision(0), Op(0))

    def topic_number(self, namespace: int) -> int:
        return namespace >> self.partition_bits

    def partition_id(self, namespace: int) -> int:
        return namespace & ((1 << self.partition_bits) - 1)

    def topic_of(self, partition: Partition) -> TopicState:
        return self.topics[self.topic_number(partition.namespace)]

    def partitions_of(self, topic: TopicState) -> list[Partition]:
        """Return the open partitions of a topic, in order."""
        return [self.partitions[namespace] for namespace in topic.members]

    def live_ops(self) -> Iterator[Op]:
        """Yield the op of every piece and staged entry that is in no segment."""
        for partition in self.partitions.values():
            for run in partition.runs:
                yield from (piece.op for piece in run.pieces)
        for topic in self.topics.values():
            for stage in topic.stages.values():
                yield from (entry.op for entry in stage.entries)
