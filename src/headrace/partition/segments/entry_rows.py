"""Turns an entry of the log into rows as readers and segments see them.

An entry keeps the bytes and the schema ID it was appended with. Its rows appear in the version
in force at their offset, or a later one, with `_partition`, `_offset` and `_timestamp` before
the user's columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BadBatch, BadSchema, CorruptEntry, CorruptFile
from headrace.journal.entry import Entry
from headrace.model import batch
from headrace.model.ids import Offset
from headrace.model.schema import SYSTEM_FIELDS, decode_schema, upgrade
from headrace.partition.machine.operations import STAGE, STAGE_HEADER_SIZE
from headrace.partition.segments.segment import segment_schema

_PARTITION, _, _TIMESTAMP = SYSTEM_FIELDS


@dataclass(frozen=True, slots=True)
class Schemas:
    """The versions of one topic's schema, decoded once."""

    versions: Mapping[int, Any]  # of pa.Schema, by version
    layouts: Mapping[int, batch.Layout]  # of their batches, by version

    @classmethod
    def decode(cls, encoded: Mapping[int, bytes], path: str) -> "Schemas":
        """Decode schemas of the log, which were checked before they got there."""
        try:
            found = {version: _decoded(data) for version, data in encoded.items()}
        except (BadSchema, BadBatch) as error:
            raise CorruptFile(f"invalid schema in the log: {error}", path=path) from error
        return cls(
            {version: schema for version, (schema, _) in found.items()},
            {version: layout for version, (_, layout) in found.items()},
        )

    def user(self, version: int) -> pa.Schema:
        """Return the user's columns in `version`."""
        return self.versions[version]


@lru_cache(maxsize=64)  # a child writes many segments of few schemas
def _decoded(data: bytes) -> tuple[pa.Schema, batch.Layout]:
    schema = decode_schema(data)
    return schema, batch.layout(schema)


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """Where the rows of an entry are in their partition."""

    partition_id: int
    first: Offset
    timestamp: int


def rows_of(entry: Entry, schemas: Schemas, version: int, path: str) -> pa.RecordBatch:
    """Return the user's columns of an entry, as rows of `version`."""
    header = entry.header
    body = memoryview(entry.body)
    if header.operation == STAGE:
        body = body[STAGE_HEADER_SIZE:]
    try:
        known = schemas.layouts[header.schema_id]
        found = batch.decode(body, schemas.user(header.schema_id), header.row_count, known)
        return upgrade(found, schemas.user(version))
    except BadBatch as error:
        # Its checksum is correct, so these are the bytes that were accepted.
        raise CorruptEntry(
            f"op {header.op} does not hold a batch of schema {header.schema_id}: {error}",
            path=path,
        ) from error


def placed(rows: pa.RecordBatch, place: EntryPlace) -> pa.RecordBatch:
    """Put the system's columns before the user's."""
    timestamps = pa.repeat(pa.scalar(place.timestamp, _TIMESTAMP.type), rows.num_rows)
    return _placed(rows, place, timestamps)


def placed_together(
    batches: Sequence[pa.RecordBatch], first: EntryPlace, timestamps: Sequence[int]
) -> pa.RecordBatch:
    """Put the rows of adjacent entries from `first` on into one batch.

    Each has its own timestamp, and the system's columns are built once for all of them.
    """
    if len(batches) == 1:
        return placed(batches[0], first)
    ends = pa.array(accumulate(one.num_rows for one in batches), pa.int32())
    each = pa.RunEndEncodedArray.from_arrays(ends, pa.array(timestamps, _TIMESTAMP.type))
    return _placed(pa.concat_batches(batches), first, pc.run_end_decode(each))


def _placed(rows: pa.RecordBatch, first: EntryPlace, timestamps: pa.Array) -> pa.RecordBatch:
    count = rows.num_rows
    columns = [
        pa.repeat(pa.scalar(first.partition_id, _PARTITION.type), count),
        pa.arange(first.first, first.first + count),
        timestamps,
        *rows.columns,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=segment_schema(rows.schema))
