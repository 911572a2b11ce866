"""A digest of rows by value: equal on every replica, whatever their files and batches.

    digest := xxh3-128 of  "headrace rows 1"  row_count:u64  column_count:u32  column*
    column := name_size:u32  name  type_size:u32  type  node:16s
    node   := xxh3-128 of  length:u64  nulls:16s  lengths:16s  values:16s  node*
    nulls, lengths, values := xxh3-128 of a stream

A column is a tree of nodes as in Arrow: a list has one child, a map one of two fields, a struct
one for each field. The streams are little-endian and independent of batches:

    nulls    u64  the index of each null, counted from the first row
    lengths  i32  of each slot of a string, binary, list or map; 0 for a null
    values        the bytes of each slot: a bool as one byte, a float with one NaN and no -0.0,
                  a null as zeros if its type is fixed-width, else nothing

A list under a null has no children; a field under a null struct is null. Types are written as
`type_text` returns them: names of list items, nullability and metadata do not count.
"""

import json
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from xxhash import xxh3_128, xxh3_128_digest

from headrace.errors import BadBatch, BadSchema
from headrace.model.column_values import map_as_list

DIGEST_SIZE: Final = 16

_MAGIC: Final = b"headrace rows 1"
_COUNTS = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_SIZE = struct.Struct("<I")
_OFFSET = struct.Struct("<i")
# The kernels' output for a piece stays in the CPU cache until it is hashed.
_PIECE_ROWS: Final = 64 * 1024

_FIXED: Final = {
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.date32(): "date32",
    pa.timestamp("us", tz="UTC"): "timestamp[us, UTC]",
}
_FLOAT: Final = {pa.float32(): "float32", pa.float64(): "float64"}
_BYTES: Final = {pa.string(): "string", pa.binary(): "binary"}
_PLAIN: Final = _FIXED | _FLOAT | _BYTES | {pa.bool_(): "bool"}


class RowDigest:
    """The digest of rows that arrive batch by batch."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._types = [type_text(field.type, field.name) for field in schema]
        self._columns = [_node(field.type) for field in schema]
        self._row_count = 0

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the rows of `batch`, whose columns match the schema in name and type."""
        if not batch.schema.equals(self._schema):
            self._refuse_others(batch.schema)
        for node, column in zip(self._columns, batch.columns, strict=True):
            for start in range(0, batch.num_rows, _PIECE_ROWS):
                node.update(column.slice(start, _PIECE_ROWS))
        self._row_count += batch.num_rows

    def leaves_without_nan(self) -> list[int]:
        """Return which floating-point leaves have no NaN so far, counted as in Parquet."""
        leaves = [leaf for node in self._columns for leaf in node.leaves()]
        return [
            number
            for number, leaf in enumerate(leaves)
            if leaf.kind in _FLOAT and not leaf.has_nan
        ]

    def columns(self) -> tuple[bytes, ...]:
        """Return the digest of each column's values so far."""
        return tuple(node.digest() for node in self._columns)

    def digest(self) -> bytes:
        """Return the digest of all rows so far, with the names and types of their columns."""
        parts = [_MAGIC, _COUNTS.pack(self._row_count, len(self._types))]
        for name, text, node in zip(
            self._schema.names, self._types, self._columns, strict=True
        ):
            for label in (name.encode(), text.encode()):
                parts += [_SIZE.pack(len(label)), label]
            parts.append(node.digest())
        return xxh3_128_digest(b"".join(parts))

    def _refuse_others(self, schema: pa.Schema) -> None:
        if schema.names != self._schema.names:
            raise BadBatch(f"columns: expected {self._schema.names}, found {schema.names}")
        for field, expected in zip(schema, self._types, strict=True):
            if (found := type_text(field.type, field.name)) != expected:
                raise BadBatch(f"expected {expected}, found {found}", column=field.name)


def type_text(kind: pa.DataType, path: str = "") -> str:
    """Return a type as digests spell it, the same in every release of Arrow."""
    if (plain := _PLAIN.get(kind)) is not None:
        return plain
    if types.is_decimal128(kind):
        return f"decimal128({kind.precision}, {kind.scale})"
    if types.is_list(kind):
        return f"list<{type_text(kind.value_type, f'{path}[]')}>"
    if types.is_map(kind):
        key = type_text(kind.key_type, f"{path}[].key")
        return f"map<{key}, {type_text(kind.item_type, f'{path}[].value')}>"
    if types.is_struct(kind):
        inner = [
            f"{json.dumps(field.name)}: {type_text(field.type, f'{path}.{field.name}')}"
            for field in kind
        ]
        return f"struct<{', '.join(inner)}>"
    raise BadSchema(path, f"rows with values of type {kind} have no digest")


class _Node:
    """One node of a column's tree so far: its streams and its children."""

    __slots__ = ("_take", "children", "has_nan", "kind", "length", "lengths", "nulls", "values")

    def __init__(
        self, kind: pa.DataType, take: "Callable[[_Node, Any], None]", *children: "_Node"
    ) -> None:
        self.kind = kind
        self.children = children
        self.length = 0
        self.has_nan = False  # of a floating-point leaf
        self.nulls = xxh3_128()
        self.lengths = xxh3_128()
        self.values = xxh3_128()
        self._take = take

    def update(self, array: pa.Array) -> None:
        if array.null_count:
            places = pc.indices_nonzero(pc.is_null(array))
            base = pa.scalar(self.length, pa.uint64())
            self.nulls.update(_fixed_bytes(pc.add(places, base), 8))
        self.length += len(array)
        if len(array):
            self._take(self, array)

    def leaves(self) -> "list[_Node]":
        """Return the nodes without children, in Parquet's order of leaves."""
        return [leaf for child in self.children for leaf in child.leaves()] or [self]

    def digest(self) -> bytes:
        parts = [_LENGTH.pack(self.length)]
        parts += [stream.digest() for stream in (self.nulls, self.lengths, self.values)]
        parts += [child.digest() for child in self.children]
        return xxh3_128_digest(b"".join(parts))


def _node(kind: pa.DataType) -> _Node:
    """Build the tree of a type that has a `type_text`."""
    if types.is_struct(kind):
        return _Node(kind, _take_struct, *(_node(field.type) for field in kind))
    if types.is_list(kind):
        return _Node(kind, _take_list, _node(kind.value_type))
    if types.is_map(kind):
        return _Node(kind, _take_map, _node(kind.field(0).type))
    return _Node(kind, _LEAVES.get(kind, _take_fixed))


def _take_fixed(node: _Node, array: pa.Array) -> None:
    filled = _without_nulls(array, Decimal(0) if types.is_decimal128(node.kind) else 0)
    node.values.update(_fixed_bytes(filled, node.kind.byte_width))


def _take_float(node: _Node, array: pa.Array) -> None:
    # Adding zero turns -0.0 into 0.0 and changes no other number.
    filled = pc.add(_without_nulls(array, 0.0), pa.scalar(0.0, node.kind))
    is_nan = pc.is_nan(filled)
    if pc.any(is_nan).as_py():
        node.has_nan = True
        filled = pc.if_else(is_nan, pa.scalar(float("nan"), node.kind), filled)
    node.values.update(_fixed_bytes(filled, node.kind.byte_width))


def _take_bool(node: _Node, array: pa.Array) -> None:
    node.values.update(_fixed_bytes(_without_nulls(array, False).cast(pa.uint8()), 1))


def _take_bytes(node: _Node, array: pa.Array) -> None:
    lengths = _without_nulls(pc.binary_length(array), 0)
    node.lengths.update(_fixed_bytes(lengths, _OFFSET.size))
    data = _bytes_of(array)
    if array.null_count and len(data) != pc.sum(lengths).as_py():
        data = _bytes_of(pc.fill_null(array, pa.scalar(b"", node.kind)))
    node.values.update(data)


def _take_list(node: _Node, array: pa.Array) -> None:
    lengths = _without_nulls(pc.list_value_length(array), 0)
    node.lengths.update(_fixed_bytes(lengths, _OFFSET.size))
    node.children[0].update(array.flatten())


def _take_map(node: _Node, array: pa.Array) -> None:
    _take_list(node, map_as_list(array))


def _take_struct(node: _Node, array: pa.Array) -> None:
    for child, part in zip(node.children, array.flatten(), strict=True):
        child.update(part)


_LEAVES: Final = (
    dict.fromkeys(_FLOAT, _take_float)
    | dict.fromkeys(_BYTES, _take_bytes)
    | {pa.bool_(): _take_bool}
)


def _without_nulls(array: pa.Array, zero: object) -> pa.Array:
    return pc.fill_null(array, pa.scalar(zero, array.type)) if array.null_count else array


def _fixed_bytes(array: pa.Array, width: int) -> memoryview:
    start = array.offset * width
    return memoryview(array.buffers()[1])[start : start + len(array) * width]


def _bytes_of(array: pa.Array) -> memoryview:
    """Return the bytes of all strings, concatenated."""
    _, offsets, data = array.buffers()
    first = _OFFSET.unpack_from(offsets, array.offset * _OFFSET.size)[0]
    last = _OFFSET.unpack_from(offsets, (array.offset + len(array)) * _OFFSET.size)[0]
    return memoryview(data)[first:last] if data is not None else memoryview(b"")
