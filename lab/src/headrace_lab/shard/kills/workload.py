"""What is written to a shard, as a function of a seed: rows state what they must be.

A source is a writer id that counts versions. Appenders belong to one partition each, and one
version is one batch. Publishers stage the batches of a version, its entries, into several
partitions, and publish or discard it as a whole. Each row names its source, version, entry and
place, so that any reader can rebuild the whole batch and compare.
"""

import struct
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Final, NamedTuple

import pyarrow as pa
from xxhash import xxh3_64_intdigest, xxh3_128_digest

from headrace.model.ids import Revision
from headrace.model.namespace import Namespace
from headrace.model.proposal import EntryProposal
from headrace.model.results import Receipt
from headrace.model.row_digest import RowDigest
from headrace.partition.machine.transactions import fold
from headrace.partition.reader import Key
from headrace_lab.shard.shard import appending, staging

SCHEMA: Final = pa.schema(
    [
        pa.field("source", pa.int32()),
        pa.field("version", pa.int64()),
        pa.field("entry", pa.int32()),
        pa.field("row", pa.int32()),
        pa.field("value", pa.float64()),
        pa.field("payload", pa.binary()),
    ]
)
CREATED: Final = Revision(1)
TOPIC: Final = Key(Namespace(0), CREATED)
FIRST_PUBLISHER: Final = 1_000  # sources from here on publish
STAGE_COUNT_MAX: Final = 3
STAGE_ENTRY_COUNT_MAX: Final = 3
_POOL_SIZE: Final = 64 * 1024
_CHANCE = struct.Struct("<QQQQ16s")
_SOURCE = struct.Struct(">12sI")
_STAGE = struct.Struct(">IQI")


class Batch(NamedTuple):
    """The name of one batch: entry 0 of a version for appenders."""

    source: int
    version: int
    entry: int = 0

    @property
    def is_staged(self) -> bool:
        return self.source >= FIRST_PUBLISHER

    def __str__(self) -> str:
        return f"version {self.version} of source {self.source}, entry {self.entry}"


@dataclass(frozen=True, slots=True)
class ShardWorkload:
    """Equal values make equal rows."""

    seed: int
    partition_count: int = 4
    appender_count: int = 2  # of each partition
    publisher_count: int = 2
    row_count_max: int = 40
    payload_size_max: int = 1024

    @property
    def partitions(self) -> list[Key]:
        return [Key(Namespace(number), CREATED) for number in range(self.partition_count)]

    @property
    def appenders(self) -> list[int]:
        return list(range(self.partition_count * self.appender_count))

    @property
    def publishers(self) -> list[int]:
        return [FIRST_PUBLISHER + number for number in range(self.publisher_count)]

    def is_discarded(self, source: int, version: int) -> bool:
        """Say whether a publisher drops this version instead of publishing it."""
        return self._chance("discard", source, version) % 5 == 0

    def stages(self, source: int, version: int) -> list[list[Batch]]:
        """Return the batches of each stage of a version, in the order of its Publish."""
        made: list[list[Batch]] = []
        entry = 0
        for stage in range(1 + self._chance("stages", source, version) % STAGE_COUNT_MAX):
            chance = self._chance("entries", source, version, stage)
            count = 1 + chance % STAGE_ENTRY_COUNT_MAX
            made.append([Batch(source, version, entry + each) for each in range(count)])
            entry += count
        return made

    def entries(self, source: int, version: int) -> list[Batch]:
        """Return all batches of a version."""
        if source < FIRST_PUBLISHER:
            return [Batch(source, version)]
        return [batch for stage in self.stages(source, version) for batch in stage]

    def partition_of(self, batch: Batch) -> int:
        if not batch.is_staged:
            return batch.source // self.appender_count
        return self._chance("partition", *batch) % self.partition_count

    def row_count(self, batch: Batch) -> int:
        return 1 + self._chance("rows", *batch) % self.row_count_max

    def rows(self, batch: Batch) -> pa.RecordBatch:
        """Make the rows of a batch."""
        count = self.row_count(batch)
        pool = _pool(self.seed)
        payloads: list[bytes | None] = []
        for row in range(count):
            chance = self._chance("payload", *batch[:2], batch.entry << 20 | row)
            size = (chance >> 32) % (self.payload_size_max + 1)
            start = chance % (_POOL_SIZE - size)
            payloads.append(None if chance % 11 == 0 else pool[start : start + size])
        columns = [
            pa.repeat(pa.scalar(batch.source, pa.int32()), count),
            pa.repeat(pa.scalar(batch.version, pa.int64()), count),
            pa.repeat(pa.scalar(batch.entry, pa.int32()), count),
            pa.array(range(count), pa.int32()),
            pa.array([None if row % 7 == 3 else row / 3 for row in range(count)], pa.float64()),
            pa.array(payloads, pa.binary()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def append(self, batch: Batch) -> EntryProposal:
        """Propose an appender's batch."""
        key = self.partitions[self.partition_of(batch)]
        return appending(key, self.rows(batch), writer_id(batch.source), batch.version)

    def stage(self, batch: Batch, stage: int, number: int) -> EntryProposal:
        """Propose a publisher's batch as entry `number` of one of its stages."""
        key = self.partitions[self.partition_of(batch)]
        place = (stage_id(batch.source, batch.version, stage), number)
        return staging(key, self.rows(batch), writer_id(batch.source), batch.version, place)

    def receipts(self, source: int, version: int) -> list[Receipt]:
        """Return what the stages of a version hold, once they hold everything."""
        return [
            self._receipt(stage, batches)
            for stage, batches in enumerate(self.stages(source, version))
        ]

    def _receipt(self, stage: int, batches: list[Batch]) -> Receipt:
        digest = bytes(16)
        for number, batch in enumerate(batches):
            digest = fold(digest, xxh3_128_digest(self.stage(batch, stage, number).body))
        row_count = sum(map(self.row_count, batches))
        name = stage_id(batches[0].source, batches[0].version, stage)
        return Receipt(name, len(batches), row_count, digest)

    def _chance(self, what: str, *numbers: int) -> int:
        three = (*numbers, 0, 0, 0)[:3]
        return xxh3_64_intdigest(_CHANCE.pack(self.seed, *three, what.encode()))


def writer_id(source: int) -> bytes:
    return _SOURCE.pack(b"shard-writer", source)


def stage_id(source: int, version: int, stage: int) -> bytes:
    return _STAGE.pack(source, version, stage)


def digest_of(rows: pa.RecordBatch) -> str:
    """Return the digest that the ledger names rows by."""
    digest = RowDigest(rows.schema)
    digest.update(rows)
    return digest.digest().hex()


@cache
def _pool(seed: int) -> bytes:
    return Random(seed).randbytes(_POOL_SIZE)
