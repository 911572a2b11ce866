"""Validates the metadata of an untrusted Arrow IPC message before passing it to Arrow.

    message     := continuation:u32=0xFFFFFFFF  metadata_size:u32  metadata  buffers
    metadata    := flatbuffer Message, padded to 8 bytes
    Message     := version:i16=V5  header_type:u8=RecordBatch  header  body_size:i64
    RecordBatch := row_count:i64  [node]  [buffer]  compression?
    node        := length:i64  null_count:i64
    buffer      := at:i64  size:i64          of the buffers, each at a multiple of 8
    compression := codec:u8  method:u8=BUFFER

A compressed buffer starts with its decompressed size as i64, or -1 if it is stored as it is.
Arrow allocates memory by these numbers, so each is checked against the actual bytes first.
Only little-endian messages without dictionaries are accepted.
"""

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from headrace.errors import BadBatch

# Decompressed size of a body: rows are served uncompressed, a batch or a row group at a time,
# and must fit into an answer. It also bounds the memory that one append takes.
INFLATED_SIZE_MAX: Final = 64 * 1024 * 1024

_PREFIX = struct.Struct("<II")
_CONTINUATION: Final = 0xFFFFFFFF
_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_I16 = struct.Struct("<h")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")
_PAIR = struct.Struct("<qq")  # a node or a buffer

_V5: Final = 4
_RECORD_BATCH: Final = 3
_CODECS: Final = (0, 1)  # LZ4 frame, ZSTD
_BUFFER_METHOD: Final = 0
_STORED_RAW: Final = -1
_ALIGNMENT: Final = 8
# A slot of any node takes at least one bit. Keeps Arrow's own sums far from an overflow.
_LENGTH_MAX: Final = INFLATED_SIZE_MAX * 8

_KEPT_COUNT: Final = 256  # messages whose parsed metadata is cached
_KEPT_SIZE_MAX: Final = 4 * 1024  # of one: a hundred columns; the cache takes a MiB

_Pairs = tuple[tuple[int, int], ...]

HINT: Final = "Encode the batch again with the schema it is sent under"


class ArrowMessage(NamedTuple):
    """A validated message: its numbers agree with its bytes and with one another."""

    row_count: int
    nodes: _Pairs  # length, null count
    buffers: _Pairs  # position in the message, size; ordered, disjoint
    is_compressed: bool
    inflated_size: int  # of all buffers together, at most INFLATED_SIZE_MAX


class _FlatTable(NamedTuple):
    """One flatbuffer table: the position of each field by number; 0 if absent.

    Offsets are unsigned except the vtable's, and `struct` refuses to read past the end: every
    step stays inside `data`.
    """

    data: bytes | memoryview
    places: tuple[int, ...]

    @classmethod
    def at(cls, data: bytes | memoryview, at: int, field_count: int) -> "_FlatTable":
        """Read the positions of the first fields; later ones are ignored."""
        vtable = at - _I32.unpack_from(data, at)[0]
        if vtable < 0:  # struct would count it from the end
            raise _outside()
        fields = min(field_count, _U16.unpack_from(data, vtable)[0] // _U16.size - 2)
        moved: tuple[int, ...] = ()
        if fields > 0:
            moved = struct.unpack_from(f"<{fields}H", data, vtable + 2 * _U16.size)
        missing = (0,) * (field_count - len(moved))
        return cls(data, (*(at + one if one else 0 for one in moved), *missing))

    def scalar(self, field: int, kind: struct.Struct) -> int:
        place = self.places[field]
        return int(kind.unpack_from(self.data, place)[0]) if place else 0

    def table(self, field: int, field_count: int) -> "_FlatTable | None":
        place = self.places[field]
        if not place:
            return None
        return _FlatTable.at(
            self.data, place + _U32.unpack_from(self.data, place)[0], field_count
        )

    def pairs(self, field: int, name: str, count: int) -> _Pairs:
        """Read a vector of exactly `count` pairs."""
        place = self.places[field]
        vector = place + _U32.unpack_from(self.data, place)[0] if place else 0
        found = _U32.unpack_from(self.data, vector)[0] if place else 0
        if found != count:
            raise BadBatch(
                f"{name}: the schema needs {count}, the message has {found}", hint=HINT
            )
        start, end = vector + _U32.size, vector + _U32.size + count * _PAIR.size
        if end > len(self.data):
            raise BadBatch(f"{name} lie outside the metadata", hint=HINT)
        return tuple(_PAIR.iter_unpack(self.data[start:end])) if count else ()


def parse(body: memoryview, *, node_count: int, buffer_count: int) -> ArrowMessage:
    """Read and validate the numbers of the single message that fills `body`."""
    metadata, buffers_at = _metadata(body)
    expected = len(body) - buffers_at
    try:
        if len(metadata) <= _KEPT_SIZE_MAX:
            found = _parsed_before(bytes(metadata), expected, node_count, buffer_count)
        else:
            found = _parsed(metadata, expected, node_count, buffer_count)
    except struct.error as error:
        raise _outside() from error
    row_count, nodes, buffers, is_compressed = found
    placed = tuple([(buffers_at + at, size) for at, size in buffers])
    return ArrowMessage(
        row_count,
        nodes,
        placed,
        is_compressed,
        _inflated_size(body, placed, is_compressed),
    )


def _parsed(
    metadata: bytes | memoryview, expected: int, node_count: int, buffer_count: int
) -> tuple[int, _Pairs, _Pairs, bool]:
    message = _FlatTable.at(metadata, _U32.unpack_from(metadata)[0], 4)
    if (version := message.scalar(0, _I16)) != _V5:
        raise BadBatch(
            f"Arrow metadata: expected version V5 ({_V5}), found {version}", hint=HINT
        )
    if (kind := message.scalar(1, _U8)) != _RECORD_BATCH:
        raise BadBatch(
            f"expected a record batch ({_RECORD_BATCH}), found kind {kind}", hint=HINT
        )
    size = message.scalar(3, _I64)
    if size != expected:
        raise BadBatch(f"buffers take {expected} bytes, the message declares {size}", hint=HINT)
    batch = message.table(2, 4)
    if batch is None:
        raise BadBatch("the message has no header", hint=HINT)
    nodes = batch.pairs(1, "nodes", node_count)
    buffers = batch.pairs(2, "buffers", buffer_count)
    _check_nodes(nodes)
    _check_buffers(buffers, size)
    return batch.scalar(0, _I64), nodes, buffers, _is_compressed(batch)


# Batches of one producer often differ only in their values.
_parsed_before = lru_cache(_KEPT_COUNT)(_parsed)


def _metadata(body: memoryview) -> tuple[memoryview, int]:
    if len(body) < _PREFIX.size:
        raise BadBatch(f"a message of {len(body)} bytes is truncated", hint=HINT)
    continuation, size = _PREFIX.unpack_from(body)
    if continuation != _CONTINUATION:
        raise BadBatch("the bytes are not an Arrow message", hint=HINT)
    end = _PREFIX.size + size
    if size == 0 or size % _ALIGNMENT or end > len(body):
        raise BadBatch(
            f"invalid metadata size: {size} bytes in a message of {len(body)}", hint=HINT
        )
    return body[_PREFIX.size : end], end


def _check_nodes(nodes: _Pairs) -> None:
    for length, null_count in nodes:
        if not 0 <= null_count <= length <= _LENGTH_MAX:
            raise BadBatch(f"invalid node: {length} slots with {null_count} nulls", hint=HINT)


def _check_buffers(buffers: _Pairs, size: int) -> None:
    """Check bounds and overlaps: no bytes are counted twice."""
    end = 0
    for at, length in buffers:
        if at < 0 or length < 0 or at + length > size:
            raise BadBatch(f"buffer out of bounds: {length} bytes at {at} of {size}", hint=HINT)
        if not length:
            continue
        if at < end or at % _ALIGNMENT:
            raise BadBatch(f"a buffer at {at} overlaps another or is not aligned", hint=HINT)
        end = at + length


def _is_compressed(batch: _FlatTable) -> bool:
    compression = batch.table(3, 2)
    if compression is None:
        return False
    codec, method = compression.scalar(0, _U8), compression.scalar(1, _U8)
    if codec not in _CODECS or method != _BUFFER_METHOD:
        raise BadBatch(f"unknown compression: codec {codec}, method {method}", hint=HINT)
    return True


def _inflated_size(body: memoryview, buffers: _Pairs, is_compressed: bool) -> int:
    """Sum the declared decompressed sizes of the buffers. Nothing is decompressed."""
    total = 0
    for at, size in buffers:
        total += _declared_size(body, at, size) if is_compressed and size else size
    if total > INFLATED_SIZE_MAX:
        raise BadBatch(
            f"the batch decompresses to {total} bytes, the limit is {INFLATED_SIZE_MAX}",
            hint="Split its rows into several batches",
        )
    return total


def _declared_size(body: memoryview, at: int, size: int) -> int:
    if size < _I64.size:
        raise BadBatch(f"a compressed buffer of {size} bytes lacks its size prefix", hint=HINT)
    declared = int(_I64.unpack_from(body, at)[0])
    if declared == _STORED_RAW:
        return size - _I64.size
    if declared < 0:
        raise BadBatch(f"a compressed buffer decompresses to {declared} bytes", hint=HINT)
    return declared


def _outside() -> BadBatch:
    return BadBatch("the metadata has an offset out of bounds", hint=HINT)
