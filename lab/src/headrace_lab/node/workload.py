"""What producers write to a node, as a function of a seed: rows describe themselves.

A source is a producer, a transactor or the first writer of a topic created on the way. It
counts its batches from 1, and every row names source, batch, piece and place, so that any
reader can rebuild the whole batch and compare. A batch of a topic with a key is split by
partition; a transaction has pieces, each with its own partition.
"""

import zlib
from array import array
from random import Random
from typing import Final, Literal, NamedTuple

import msgspec
import pyarrow as pa

SCHEMA: Final = pa.schema(
    [
        pa.field("source", pa.int32()),
        pa.field("sequence", pa.int64()),
        pa.field("piece", pa.int32()),
        pa.field("row", pa.int32()),
        pa.field("key", pa.string()),
        pa.field("filler", pa.binary()),
    ]
)
KEY: Final = "key"
KEYS: Final = tuple(f"k{number}" for number in range(23))
FIRST_TRANSACTOR: Final = 1_000  # sources from here on publish
FIRST_LATE: Final = 2_000  # and these write the first rows of topics that were made on the way
PIECE_COUNT_MAX: Final = 4
FILLER_SIZE_MAX: Final = 32  # a full batch still fits into one body of the node's limit

Fate = Literal["publish", "repeat", "discard", "abandon"]


class TopicPlan(NamedTuple):
    """A topic that is written to."""

    name: str
    partition_count: int
    key: str | None = None


PLAIN: Final = TopicPlan("kills/plain", 3)
KEYED: Final = TopicPlan("kills/keyed", 4, KEY)
SINGLE: Final = TopicPlan("kills/single", 1)
SHARED: Final = TopicPlan("kills/shared", 2)  # by appends and transactions
TOPICS: Final = (PLAIN, KEYED, SHARED, SINGLE)


class Name(NamedTuple):
    """Rows that come together: a batch, or one piece of a transaction."""

    source: int
    sequence: int
    piece: int = 0

    def __str__(self) -> str:
        return f"batch {self.sequence} of source {self.source}, piece {self.piece}"


class NodeWorkload(msgspec.Struct, frozen=True):
    """Equal values make equal rows."""

    seed: int
    producer_count: int = 8
    transactor_count: int = 2
    row_count_max: int = 3_000

    @property
    def producers(self) -> list[int]:
        return list(range(self.producer_count))

    @property
    def transactors(self) -> list[int]:
        return [FIRST_TRANSACTOR + number for number in range(self.transactor_count)]

    def topic_of(self, source: int) -> TopicPlan:
        if source >= FIRST_LATE:
            return late_topic(source - FIRST_LATE)
        return SHARED if source >= FIRST_TRANSACTOR else TOPICS[source % len(TOPICS)]

    def pieces(self, source: int, sequence: int) -> list[Name]:
        """Return what a batch consists of."""
        if not FIRST_TRANSACTOR <= source < FIRST_LATE:
            return [Name(source, sequence)]
        count = self._chance("pieces", source, sequence).randint(1, PIECE_COUNT_MAX)
        return [Name(source, sequence, piece) for piece in range(count)]

    def partition_of(self, name: Name) -> int:
        """Return the partition that a piece of a transaction names."""
        return self._chance("partition", *name).randrange(SHARED.partition_count)

    def fate(self, source: int, sequence: int) -> Fate:
        """Say what becomes of a transaction."""
        fates: tuple[Fate, ...] = ("publish", "publish", "publish", "repeat", "discard")
        return self._chance("fate", source, sequence).choice((*fates, "abandon"))

    def row_count(self, name: Name) -> int:
        """Return how many rows: one as often as a thousand, so that all sizes are met."""
        chance = self._chance("rows", *name)
        return max(1, int(self.row_count_max ** chance.random()))

    def rows(self, name: Name) -> pa.RecordBatch:
        """Make the rows of a batch, or of a piece."""
        count = self.row_count(name)
        chance = self._chance("filler", *name)
        size = chance.randint(0, FILLER_SIZE_MAX)
        places = array("i", range(0, (count + 1) * size, size) if size else [0] * (count + 1))
        data = chance.randbytes(count * size)
        buffers = [None, pa.py_buffer(places), pa.py_buffer(data)]
        columns = [
            pa.repeat(pa.scalar(name.source, pa.int32()), count),
            pa.repeat(pa.scalar(name.sequence, pa.int64()), count),
            pa.repeat(pa.scalar(name.piece, pa.int32()), count),
            pa.array(range(count), pa.int32()),
            pa.array(_keys(name, count), pa.string()),
            pa.Array.from_buffers(pa.binary(), count, buffers),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def rows_in(self, name: Name, partition: int) -> pa.RecordBatch:
        """Make those rows of a batch that belong into one partition."""
        rows = self.rows(name)
        topic = self.topic_of(name.source)
        if topic.key is None:
            return rows
        mine = [
            _home(key, topic.partition_count) == partition for key in _keys(name, len(rows))
        ]
        return rows.filter(pa.array(mine, pa.bool_()))

    def _chance(self, what: str, *numbers: int) -> Random:
        return Random(f"{self.seed} {what} {numbers}")


def late_topic(number: int) -> TopicPlan:
    """Return a topic that is made while the node is being killed."""
    return TopicPlan(f"kills/late-{number}", 1)


def _keys(name: Name, count: int) -> list[str]:
    return [KEYS[(name.sequence * 5 + row * 7) % len(KEYS)] for row in range(count)]


def _home(key: str, partition_count: int) -> int:
    """Choose the partition of a key as the documents say, and not by the code under test."""
    return zlib.crc32(key.encode()) % partition_count
