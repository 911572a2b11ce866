"""What an Arrow message says of itself, read by hand before Arrow is trusted with it.

    message     := continuation:u32=0xFFFFFFFF  metadata_size:u32  metadata  buffers
    metadata    := flatbuffer Message, padded to 8 bytes
    Message     := version:i16=V5  header_type:u8=RecordBatch  header  body_size:i64
    RecordBatch := row_count:i64  [node]  [buffer]  compression?
    node        := length:i64  null_count:i64
    buffer      := at:i64  size:i64          of the buffers, each at a multiple of 8
    compression := codec:u8  method:u8=BUFFER

A compressed buffer opens with the i64 size it inflates to, or -1 if it is stored as it is.
Arrow allocates by these numbers: nothing is handed over before each was compared with what is
there. Only little-endian messages without dictionaries are kept.
"""

import struct
from dataclasses import dataclass
from typing import Final

from headrace.errors import BadBatch

# What a body may have: rows leave again without their compression, a batch or a row group at a
# time, and must fit into an answer. One append takes no more memory than this, either.
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
# A slot of any node takes a bit or more. Keeps Arrow's own sums far from an overflow.
_LENGTH_MAX: Final = INFLATED_SIZE_MAX * 8

HINT: Final = "Encode the batch again, with the schema it is sent under"


@dataclass(frozen=True, slots=True)
class Message:
    """A message whose numbers were compared with its bytes and with one another."""

    row_count: int
    nodes: tuple[tuple[int, int], ...]  # length, null count
    buffers: tuple[tuple[int, int], ...]  # position in the message, size; ordered, disjoint
    is_compressed: bool
    inflated_size: int  # of all buffers together, at most INFLATED_SIZE_MAX


@dataclass(frozen=True, slots=True)
class _Table:
    """One flatbuffer table: fields found through its vtable, every step inside `data`."""

    data: memoryview
    at: int
    vtable: int
    vtable_size: int

    def scalar(self, field: int, kind: struct.Struct, default: int) -> int:
        place = self._place(field)
        return default if place is None else _number(kind, self.data, place)

    def table(self, field: int) -> "_Table | None":
        place = self._place(field)
        return None if place is None else _table(self.data, _follow(self.data, place))

    def pairs(self, field: int, name: str, count: int) -> tuple[tuple[int, int], ...]:
        """Read a vector of `count` pairs; nothing is read of one that has more or fewer."""
        place = self._place(field)
        vector = None if place is None else _follow(self.data, place)
        found = 0 if vector is None else _number(_U32, self.data, vector)
        if found != count:
            raise BadBatch(
                f"{name}: the schema needs {count}, the message has {found}", hint=HINT
            )
        if vector is None:
            return ()
        start, end = vector + _U32.size, vector + _U32.size + count * _PAIR.size
        if end > len(self.data):
            raise BadBatch(f"{name} lie outside the metadata", hint=HINT)
        return tuple(_PAIR.iter_unpack(self.data[start:end]))

    def _place(self, field: int) -> int | None:
        slot = _U16.size * (2 + field)  # after the sizes of vtable and table
        if slot + _U16.size > self.vtable_size:
            return None
        moved = _number(_U16, self.data, self.vtable + slot)
        return self.at + moved if moved else None


def parse(body: memoryview, *, node_count: int, buffer_count: int) -> Message:
    """Read the numbers of the one message that fills `body`, and refuse any that cannot be."""
    metadata, buffers_at = _metadata(body)
    message = _table(metadata, _follow(metadata, 0))
    if (version := message.scalar(0, _I16, 0)) != _V5:
        raise BadBatch(
            f"Arrow metadata: expected version V5 ({_V5}), found {version}", hint=HINT
        )
    if (kind := message.scalar(1, _U8, 0)) != _RECORD_BATCH:
        raise BadBatch(
            f"expected a record batch ({_RECORD_BATCH}), found kind {kind}", hint=HINT
        )
    size, expected = message.scalar(3, _I64, 0), len(body) - buffers_at
    if size != expected:
        raise BadBatch(f"buffers take {expected} bytes, the message says {size}", hint=HINT)
    batch = message.table(2)
    if batch is None:
        raise BadBatch("the message has no header", hint=HINT)
    nodes = batch.pairs(1, "nodes", node_count)
    buffers = batch.pairs(2, "buffers", buffer_count)
    _check_nodes(nodes)
    _check_buffers(buffers, size)
    placed = tuple((buffers_at + at, size) for at, size in buffers)
    is_compressed = _is_compressed(batch)
    return Message(
        batch.scalar(0, _I64, 0),
        nodes,
        placed,
        is_compressed,
        _inflated_size(body, placed, is_compressed),
    )


def _metadata(body: memoryview) -> tuple[memoryview, int]:
    if len(body) < _PREFIX.size:
        raise BadBatch(f"a message of {len(body)} bytes is cut short", hint=HINT)
    continuation, size = _PREFIX.unpack_from(body)
    if continuation != _CONTINUATION:
        raise BadBatch("the bytes are not an Arrow message", hint=HINT)
    end = _PREFIX.size + size
    if size == 0 or size % _ALIGNMENT or end > len(body):
        raise BadBatch(f"metadata of {size} bytes in a message of {len(body)}", hint=HINT)
    return body[_PREFIX.size : end], end


def _check_nodes(nodes: tuple[tuple[int, int], ...]) -> None:
    for length, null_count in nodes:
        if not 0 <= null_count <= length <= _LENGTH_MAX:
            raise BadBatch(f"a node of {length} slots with {null_count} nulls", hint=HINT)


def _check_buffers(buffers: tuple[tuple[int, int], ...], size: int) -> None:
    """Each inside, none over another: the same bytes cannot be counted twice."""
    end = 0
    for at, length in buffers:
        if at < 0 or length < 0 or at + length > size:
            raise BadBatch(f"a buffer of {length} bytes at {at} of {size}", hint=HINT)
        if not length:
            continue
        if at < end or at % _ALIGNMENT:
            raise BadBatch(f"a buffer at {at} overlaps another or is not aligned", hint=HINT)
        end = at + length


def _is_compressed(batch: _Table) -> bool:
    compression = batch.table(3)
    if compression is None:
        return False
    codec, method = compression.scalar(0, _U8, 0), compression.scalar(1, _U8, 0)
    if codec not in _CODECS or method != _BUFFER_METHOD:
        raise BadBatch(f"compression {codec} by method {method} is unknown", hint=HINT)
    return True


def _inflated_size(
    body: memoryview, buffers: tuple[tuple[int, int], ...], is_compressed: bool
) -> int:
    """Sum what the buffers say they inflate to. Nothing is inflated."""
    total = 0
    for at, size in buffers:
        total += _declared_size(body, at, size) if is_compressed and size else size
    if total > INFLATED_SIZE_MAX:
        raise BadBatch(
            f"the batch inflates to {total} bytes, at most {INFLATED_SIZE_MAX} are taken",
            hint="Send its rows in more than one batch",
        )
    return total


def _declared_size(body: memoryview, at: int, size: int) -> int:
    if size < _I64.size:
        raise BadBatch(f"a compressed buffer of {size} bytes has no size in front", hint=HINT)
    declared = _number(_I64, body, at)
    if declared == _STORED_RAW:
        return size - _I64.size
    if declared < 0:
        raise BadBatch(f"a compressed buffer says it inflates to {declared} bytes", hint=HINT)
    return declared


def _table(data: memoryview, at: int) -> _Table:
    vtable = at - _number(_I32, data, at)
    size = _number(_U16, data, vtable)
    return _Table(data, at, vtable, size)


def _follow(data: memoryview, at: int) -> int:
    return at + _number(_U32, data, at)


def _number(kind: struct.Struct, data: memoryview, at: int) -> int:
    if not 0 <= at <= len(data) - kind.size:
        raise BadBatch("the metadata points outside itself", hint=HINT)
    return int(kind.unpack_from(data, at)[0])
