"""A shard of one replica, driven by hand: a minimal node for tests, harnesses and benches."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa

from headrace.journal.entry import SEAL, Entry
from headrace.model import batch as batches
from headrace.model.ids import Identity, Offset, Op, Revision
from headrace.model.namespace import Namespace
from headrace.model.proposal import NO_WRITER, EntryProposal
from headrace.model.results import Receipt
from headrace.model.schema import SEGMENT_FORMAT, encode_schema
from headrace.partition.machine import operations
from headrace.partition.machine.operations import (
    APPEND,
    STAGE,
    ClosePartition,
    Command,
    Discard,
    OpenPartition,
    Publish,
    Purge,
    Schema,
    Seal,
    SetSchema,
    StoreCursor,
    Trim,
    encode_stage,
)
from headrace.partition.machine.results import Result
from headrace.partition.reader import Key
from headrace.partition.shard_store import Store, StoreOptions, open_store
from headrace.storage.seam import Buffer, Directory
from headrace_lab.counter.solo import SOLO, append, following

TICK_US = 1_000  # replicated time between two entries
NO_KEY = Key(Namespace(0), Revision(0))


@dataclass(slots=True)
class SoloShard:
    """One replica of one shard. What `submit` has returned is acknowledged."""

    store: Store
    timestamp: int
    results: list[Result] = field(default_factory=list)  # of the last submit

    @classmethod
    def open(
        cls, directory: Directory, options: StoreOptions, identity: Identity = SOLO
    ) -> "SoloShard":
        store = open_store(directory, identity, options)
        # Replicated time goes on from where the log ends.
        journal = store.group.journal
        newest = journal.headers(journal.durable, journal.durable)
        return cls(store, timestamp=newest[0].timestamp if newest else 0)

    @property
    def head(self) -> Op:
        return self.store.group.journal.durable

    def submit(self, proposals: Sequence[EntryProposal]) -> list[Result]:
        """Append one commit group, apply it, and return what became of each."""
        self.results = []
        append(self.store.group, self.entries(proposals), self.results)
        return self.results

    def checkpoint(self, *, expire: bool = False, form: int = SEGMENT_FORMAT) -> Op | None:
        """Append a Seal, for segments of format `form`, and bring its checkpoint to the end."""
        self.submit([EntryProposal(SEAL, operations.encode(Seal(expire, form)))])
        return self.store.group.checkpoints.run()

    def entries(self, proposals: Sequence[EntryProposal]) -> list[Entry]:
        """Make the entries that would follow the head."""
        made = following(self.store.group.journal, proposals, self.timestamp, TICK_US)
        self.timestamp += len(made) * TICK_US
        return made

    def one(self, proposal: EntryProposal) -> Result:
        """Submit one proposal alone."""
        return self.submit([proposal])[0]


def command(
    key: Key, body: Command, writer: bytes = NO_WRITER, version: int = 0
) -> EntryProposal:
    """Propose a command whose body is msgpack."""
    return EntryProposal(
        body.operation,
        operations.encode(body),
        writer=writer,
        version=version,
        namespace=key.namespace,
        created=key.created,
    )


def carrying(
    operation: int,
    body: Buffer,
    key: Key,
    writer: bytes,
    version: int,
    schema_id: int,
    row_count: int,
) -> EntryProposal:
    """Propose an entry with rows for a partition."""
    return EntryProposal(
        operation,
        body,
        b"",
        writer,
        version,
        key.namespace,
        key.created,
        schema_id,
        row_count,
    )


def opening(
    key: Key, schemas: Sequence[pa.Schema], topic: Revision, at: Revision
) -> EntryProposal:
    """Propose to open a partition of the topic created at `topic`, planned at revision `at`."""
    encoded = tuple(
        Schema(number, encode_schema(schema)) for number, schema in enumerate(schemas, start=1)
    )
    return command(key, OpenPartition(at, topic, encoded))


def closing(key: Key, at: Revision) -> EntryProposal:
    return command(key, ClosePartition(at))


def evolving(topic: Key, version: int, schema: pa.Schema) -> EntryProposal:
    return command(topic, SetSchema(version, encode_schema(schema)))


# Worked out once for each schema, as clients do.
_layout = lru_cache(maxsize=16)(batches.layout)


def appending(
    key: Key, rows: pa.RecordBatch, writer: bytes, version: int, schema_id: int = 1
) -> EntryProposal:
    """Propose to append rows."""
    body = memoryview(batches.encode(rows, _layout(rows.schema)))
    return carrying(APPEND, body, key, writer, version, schema_id, rows.num_rows)


def staging(
    key: Key,
    rows: pa.RecordBatch,
    writer: bytes,
    version: int,
    stage: tuple[bytes, int],
    schema_id: int = 1,
) -> EntryProposal:
    """Propose to stage rows as entry `stage[1]` of the stage `stage[0]`."""
    body = encode_stage(*stage) + bytes(batches.encode(rows))
    return carrying(STAGE, body, key, writer, version, schema_id, rows.num_rows)


def publishing(
    topic: Key, writer: bytes, version: int, receipts: Sequence[Receipt]
) -> EntryProposal:
    return command(topic, Publish(tuple(receipts)), writer, version)


def discarding(topic: Key, writer: bytes, stage_ids: Sequence[bytes]) -> EntryProposal:
    return command(topic, Discard(tuple(stage_ids)), writer)


def storing(
    key: Key, group: str, following: Offset, generation: int = 1, *, hold: bool = False
) -> EntryProposal:
    return command(key, StoreCursor(group, following, generation, hold))


def trimming(key: Key, first: Offset, *, past_hold: bool = False) -> EntryProposal:
    return command(key, Trim(first, past_hold))


def purging(key: Key) -> EntryProposal:
    return command(key, Purge())
