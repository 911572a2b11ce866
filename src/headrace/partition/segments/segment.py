"""The definition of a segment: a name, an identity and a schema for rows of one partition.

    name     := namespace:16 hex "-" created:decimal "-" first:20 digits "-" end:20 digits
                ".parquet"
    columns  := partition:int32  offset:int64  timestamp:timestamp[us, UTC]  the user's
    metadata := headrace.format  headrace.cluster  headrace.group  headrace.namespace
                headrace.created  headrace.first  headrace.end  headrace.first_op
                headrace.seal_op  headrace.tip  headrace.schema_id  headrace.row_digest
                headrace.no_nan

A segment is an immutable Parquet file with the rows [first, end), all of one schema version.
Numbers in the metadata are decimal, bytes are hex. The system's columns are called `_partition`
and so on in format 1; in format 2 they are called `_hr_partition` and so on, columns have IDs,
and there is a `no_nan`. Readers see one set of names, and row digests cover those.
`segment_writer.py` and `segment_reader.py` write and read it; docs/formats/segment.md documents
it.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import pyarrow as pa

from headrace.errors import CorruptSegment, refuse_newer
from headrace.model.ids import CLUSTER_ID_SIZE, Offset, Op
from headrace.model.row_digest import DIGEST_SIZE
from headrace.model.schema import (
    SEGMENT_FORMAT,
    SEGMENT_FORMAT_FIRST,
    SEGMENT_FORMAT_KEY,
    SYSTEM_FIELDS,
    rows_schema,
    stored_name,
)

OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
SYSTEM_ROW_SIZE: Final = sum(field.type.bit_width // 8 for field in SYSTEM_FIELDS)

ROW_DIGEST_KEY: Final = "headrace.row_digest"
SCHEMA_KEY: Final = "ARROW:schema"  # where Arrow looks for the schema that it wrote

_NUMBER_MAX: Final = 2**64 - 1  # of a namespace or a revision
_OFFSET_MAX: Final = 2**63 - 1  # of the column
_FORMAT_NUMBER: Final = re.compile(r"[1-9][0-9]{0,8}")
_NAME = re.compile(r"([0-9a-f]{16})-(0|[1-9][0-9]{0,19})-([0-9]{20})-([0-9]{20})\.parquet")


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """The identity of a segment. Equal on all replicas; a file that differs is foreign."""

    cluster: bytes
    group: int
    namespace: int
    created: int  # the partition's birth revision
    first: Offset
    end: Offset
    first_op: Op  # of the oldest entry with a row in it
    seal_op: Op  # of the Seal that cut it
    tip: bytes  # the checksum of the entry at `seal_op`
    schema_id: int

    def __post_init__(self) -> None:
        assert len(self.cluster) == CLUSTER_ID_SIZE
        assert len(self.tip) == DIGEST_SIZE
        assert 0 <= self.first < self.end <= _OFFSET_MAX

    @property
    def name(self) -> str:
        return segment_name(self.namespace, self.created, self.first, self.end)

    @property
    def row_count(self) -> int:
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class Digests:
    """The digests of a segment: of its rows, equal on all replicas, and of this file."""

    rows: bytes
    file: bytes  # xxh3-128 of the whole file
    size: int


def segment_name(namespace: int, created: int, first: int, end: int) -> str:
    """Return the name of the file with these rows of this partition."""
    return f"{namespace:016x}-{created}-{first:020}-{end:020}.parquet"


def parse_name(name: str) -> tuple[int, int, Offset, Offset] | None:
    """Return namespace, created, first and end; None if it is not a segment name."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    namespace, created = int(found[1], 16), int(found[2])
    first, end = int(found[3]), int(found[4])
    if created > _NUMBER_MAX or not first < end <= _OFFSET_MAX:
        return None
    return namespace, created, Offset(first), Offset(end)


def segment_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a segment: the system's, then those of `schema`.

    Metadata of the schema as a whole is omitted: it would mix with the segment's own.
    """
    return pa.schema([*SYSTEM_FIELDS, *schema])


def format_of(said: Mapping[bytes, bytes], path: str) -> int:
    """Return the format that a footer names. UnsupportedFormat: of a newer release."""
    text = said.get(SEGMENT_FORMAT_KEY.encode(), b"").decode("utf-8", "replace")
    if _FORMAT_NUMBER.fullmatch(text):
        refuse_newer(path, SEGMENT_FORMAT, text)
        return int(text)
    raise CorruptSegment(
        f"another {SEGMENT_FORMAT_KEY}",
        path=path,
        expected=f"{SEGMENT_FORMAT_FIRST} to {SEGMENT_FORMAT}",
        found=text or "nothing",
    )


def rows_schema_of(said: Mapping[bytes, bytes], form: int) -> pa.Schema:
    """Return the columns of the rows in a segment, by its footer.

    ValueError, KeyError or an error of Arrow: it has no schema.
    """
    return _rows_schema(said[SCHEMA_KEY.encode()], form)


@lru_cache(maxsize=64)  # many segments have few schemas
def _rows_schema(encoded: bytes, form: int) -> pa.Schema:
    return rows_schema(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded))), form)


@lru_cache(maxsize=64)
def encode_stored(schema: pa.Schema, form: int) -> str:
    """Return the schema for a footer of format 2: names as stored, without the IDs.

    Parquet's own schema has those, and Arrow adds them when it reads.
    """
    names = [stored_name(name, form) for name in schema.names]
    named = [field.with_name(name) for field, name in zip(schema, names, strict=True)]
    return base64.b64encode(pa.schema(named).serialize()).decode()


def identity(info: SegmentInfo, form: int) -> dict[str, str]:
    """Return the metadata of the file, without what depends on its rows."""
    return {
        SEGMENT_FORMAT_KEY: str(form),
        "headrace.cluster": info.cluster.hex(),
        "headrace.group": str(info.group),
        "headrace.namespace": str(info.namespace),
        "headrace.created": str(info.created),
        "headrace.first": str(info.first),
        "headrace.end": str(info.end),
        "headrace.first_op": str(info.first_op),
        "headrace.seal_op": str(info.seal_op),
        "headrace.tip": info.tip.hex(),
        "headrace.schema_id": str(info.schema_id),
    }


def columns_text(schema: Iterable[pa.Field]) -> str:
    """Format the columns for a message."""
    return ", ".join(
        f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema
    )


def retyped(
    batch: pa.RecordBatch, schema: pa.Schema, form: int = SEGMENT_FORMAT_FIRST
) -> pa.RecordBatch:
    """Return the columns of `schema`, in its order and with its names of inner fields.

    `batch` has the names of format `form`. Parquet has its own names for inner fields, which do
    not change the type.
    """
    columns = []
    for field in schema:
        column = batch.column(stored_name(field.name, form))
        same = column.type.equals(field.type, check_metadata=True)
        columns.append(column if same else _relabelled(column, field))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _relabelled(column: pa.Array, field: pa.Field) -> pa.Array:
    """Give the same memory a type that differs only in names.

    A cast would refuse required values that are null because their parent is.
    """
    if not column.type.equals(field.type):
        return column.cast(field.type)
    return pa.array(_Relabelled(column, field))


@dataclass(frozen=True, slots=True)
class _Relabelled:
    """An array under another field, as Arrow's C data interface hands it over."""

    column: pa.Array
    field: pa.Field

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        _, data = self.column.__arrow_c_array__()
        return self.field.__arrow_c_schema__(), data


def is_dense(offsets: pa.Array, first: int) -> bool:
    """Whether `offsets` count up from `first` without a gap, a repeat or a null."""
    return bool(offsets.equals(pa.arange(first, first + len(offsets))))
