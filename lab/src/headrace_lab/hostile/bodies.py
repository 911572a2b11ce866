"""Bodies that are almost a batch: Arrow messages changed where Arrow itself would be trusted.

Each is sent with a correct CRC and a correct checksum. The positions of the numbers in a
message are located by hand here, independently of the code under test.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from random import Random
from typing import Any, Final

import pyarrow as pa

from headrace.model.schema import canonical
from headrace_lab.hostile.server import MIB

FLAT_TOPIC: Final = "table/flat"
NESTED_TOPIC: Final = "table/nested"
ROW_COUNT: Final = 24
# So many are judged beside the server's loop, not on it.
LARGE_ROW_COUNT: Final = 6_000
LARGE_SHARE: Final = 0.05

FLAT: Final = canonical(
    pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("name", pa.string()),
            ("data", pa.binary()),
            ("flag", pa.bool_()),
            ("price", pa.decimal128(20, 4)),
            ("at", pa.timestamp("us", "UTC")),
        ]
    )
)


def _deep(depth: int) -> pa.DataType:
    return pa.int32() if not depth else pa.struct([("in", pa.list_(_deep(depth - 1)))])


NESTED: Final = canonical(
    pa.schema(
        [
            ("items", pa.list_(pa.struct([("sku", pa.string()), ("count", pa.int32())]))),
            ("tags", pa.map_(pa.string(), pa.list_(pa.int64()))),
            ("deep", _deep(6)),
        ]
    )
)

_LONGS: Final = (
    *(-1, 0, 1, 7, 23, 25, 64, 2**31 - 1, 2**31, 2**32, 2**40, 2**61, 2**62, 2**63 - 1),
    *(-(2**63), -8, -2),
)
_OFFSETS: Final = (-1, -(2**31), 2**31 - 1, 2**30, 5, 100_000, 0)
_I64: Final = struct.Struct("<q")
_I32: Final = struct.Struct("<i")
_CODECS: Final = ("lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Body:
    """A body and the number of rows that its sender claims."""

    kind: str
    data: bytes
    row_count: int
    must_fail: bool
    schema: pa.Schema
    wrong_checksum: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """Valid rows that are changed: of one of the two schemas, few or many."""

    schema: pa.Schema
    row_count: int

    def rows(self) -> pa.RecordBatch:
        return _rows(self)

    def encoded(self, codec: str | None = None) -> bytes:
        """Return the rows as one message."""
        return _encoded(self, codec)

    def body(self, kind: str, data: bytes, *, must_fail: bool) -> Body:
        return Body(kind, data, self.row_count, must_fail, self.schema)


@dataclass(frozen=True, slots=True)
class Numbers:
    """Where the numbers of a message are, as positions in it."""

    version: int
    header_type: int
    body_size: int
    row_count: int
    nodes: tuple[int, ...]  # of a length; the null count is behind it
    buffers: tuple[int, ...]  # of a place; the size is behind it
    buffers_at: int


@cache
def _rows(source: Source) -> pa.RecordBatch:
    """Make valid rows with nulls, empty values and some text that is not ASCII."""
    make = _flat_row if source.schema is FLAT else _nested_row
    rows = [make(number % ROW_COUNT) for number in range(source.row_count)]
    return pa.RecordBatch.from_pylist(rows, source.schema)


@cache
def _encoded(source: Source, codec: str | None) -> bytes:
    return message_of(source.rows(), codec)


def _flat_row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": None if number % 5 == 0 else "\N{SNOWMAN}" * (number % 4),
        "data": None if number % 7 == 0 else bytes(range(number)),
        "flag": (True, False, None)[number % 3],
        "price": None if number % 4 == 0 else Decimal(number) / 16,
        "at": number * 1_000_000,
    }


def _nested_row(number: int) -> dict[str, Any]:
    inner: Any = number
    for _ in range(6):
        inner = {"in": [inner, inner][: 1 + number % 2]} if number % 6 else {"in": []}
    item = {"sku": f"s{number}", "count": number if number % 2 else None}
    return {
        "items": None if number % 5 == 0 else [item, None][: number % 3],
        "tags": None if number % 4 == 0 else [(f"k{number}", [number, None]), ("z", None)],
        "deep": inner,
    }


def message_of(rows: pa.RecordBatch, codec: str | None = None, place: int = 1) -> bytes:
    """Encode a batch as a stream does; its first message is the schema."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_batch(rows)
    messages = list(pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue())))
    return bytes(memoryview(messages[place].serialize()))


def numbers_of(data: bytes) -> Numbers:
    """Find the numbers of a record batch message that Arrow has written."""
    root = 8 + _u32(data, 8)
    header = _place(data, root, 2)
    batch = header + _u32(data, header)
    nodes, buffers = _place(data, batch, 1), _place(data, batch, 2)
    return Numbers(
        _place(data, root, 0),
        _place(data, root, 1),
        _place(data, root, 3),
        _place(data, batch, 0),
        _pairs(data, nodes),
        _pairs(data, buffers),
        8 + _u32(data, 4),
    )


def _place(data: bytes, table: int, field: int) -> int:
    vtable = table - _I32.unpack_from(data, table)[0]
    (moved,) = struct.unpack_from("<H", data, vtable + 4 + 2 * field)
    assert moved
    return table + int(moved)


def _pairs(data: bytes, place: int) -> tuple[int, ...]:
    vector = place + _u32(data, place)
    return tuple(vector + 4 + 16 * number for number in range(_u32(data, vector)))


def _u32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _long(data: bytes, at: int) -> int:
    return int(_I64.unpack_from(data, at)[0])


def _with_long(data: bytes, at: int, number: int) -> bytes:
    return data[:at] + _I64.pack(number) + data[at + 8 :]


# Changes. Each makes a body from a valid message of one of the two schemas.


def _valid(source: Source, chance: Random) -> Body:
    return source.body(
        "valid", source.encoded(chance.choice((None, *_CODECS))), must_fail=False
    )


def _wrong_checksum(source: Source, chance: Random) -> Body:
    data = source.encoded()
    return Body(
        "wrong checksum", data, source.row_count, True, source.schema, wrong_checksum=True
    )


def _row_count_lies(source: Source, chance: Random) -> Body:
    claimed = chance.choice(
        (0, 1, source.row_count - 1, source.row_count + 1, 2**31, 2**32 - 1, 2**32, -1)
    )
    return Body("claimed rows", source.encoded(), claimed, True, source.schema)


def _length_lies(source: Source, chance: Random) -> Body:
    data = source.encoded()
    number = chance.choice(_LONGS)
    changed = _with_long(data, numbers_of(data).row_count, number)
    return Body("rows of the message", changed, number, True, source.schema)


def _node_lies(source: Source, chance: Random) -> Body:
    data = source.encoded(chance.choice((None, None, *_CODECS)))
    place = chance.choice(numbers_of(data).nodes)
    number = chance.choice((*_LONGS, _long(data, place) + chance.choice((-1, 1, 8))))
    return source.body("length of a node", _with_long(data, place, number), must_fail=False)


def _nulls_lie(source: Source, chance: Random) -> Body:
    data = source.encoded()
    place = chance.choice(numbers_of(data).nodes) + 8
    number = chance.choice((*_LONGS, _long(data, place) + chance.choice((-1, 1))))
    return source.body("null count", _with_long(data, place, number), must_fail=False)


def _buffer_lies(source: Source, chance: Random) -> Body:
    data = source.encoded(chance.choice((None, None, *_CODECS)))
    place = chance.choice(numbers_of(data).buffers) + chance.choice((0, 8))
    near = _long(data, place) + chance.choice((-64, -8, -1, 1, 8, 64, 4_096))
    changed = _with_long(data, place, chance.choice((*_LONGS, near)))
    return source.body("place of a buffer", changed, must_fail=False)


def _buffers_swapped(source: Source, chance: Random) -> Body:
    data = source.encoded()
    first, second = chance.sample(numbers_of(data).buffers, 2)
    one, other = data[first : first + 16], data[second : second + 16]
    # Half the time one lies over the other, else they change places.
    changed = data[:first] + other + data[first + 16 :]
    if chance.random() < 0.5:
        changed = changed[:second] + one + changed[second + 16 :]
    return source.body("buffers over one another", changed, must_fail=False)


def _size_lies(source: Source, chance: Random) -> Body:
    data = source.encoded()
    changed = _with_long(data, numbers_of(data).body_size, chance.choice(_LONGS))
    return source.body("size of the buffers", changed, must_fail=True)


def _offsets_lie(source: Source, chance: Random) -> Body:
    """Change an int32 somewhere in the buffers: most of them are offsets or values."""
    data = source.encoded()
    numbers = numbers_of(data)
    sized = [place for place in numbers.buffers if _long(data, place + 8) >= 4]
    place = chance.choice(sized)
    count = _long(data, place + 8) // 4
    at = numbers.buffers_at + _long(data, place) + 4 * chance.randrange(count)
    number = chance.choice((*_OFFSETS, _I32.unpack_from(data, at)[0] + chance.choice((-1, 1))))
    changed = data[:at] + _I32.pack(max(number, -(2**31))) + data[at + 4 :]
    return source.body("offsets", changed, must_fail=False)


def _not_utf8(source: Source, chance: Random) -> Body:
    flat = Source(FLAT, source.row_count)
    data = flat.encoded()
    bad = chance.choice((b"\xff\xff\xff", b"\xe2\x98\x28", b"\xed\xa0\x80", b"\xf8\x88\x80"))
    changed = data.replace("\N{SNOWMAN}".encode(), bad[:3], 1)
    return flat.body("text that is not UTF-8", changed, must_fail=True)


def _metadata_word(source: Source, chance: Random) -> Body:
    data = bytearray(source.encoded())
    numbers = numbers_of(bytes(data))
    place, options = chance.choice(
        ((numbers.version, (0, 1, 2, 3, 5, 255)), (numbers.header_type, (0, 1, 2, 4, 5, 255)))
    )
    data[place] = chance.choice(options)
    return source.body("version or kind of the message", bytes(data), must_fail=True)


def _flipped(source: Source, chance: Random) -> Body:
    data = bytearray(source.encoded(chance.choice((None, None, *_CODECS))))
    end = chance.choice((len(data), numbers_of(bytes(data)).buffers_at))
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(end)] ^= 1 << chance.randrange(8)
    return source.body("bits flipped", bytes(data), must_fail=False)


def _word_of_noise(source: Source, chance: Random) -> Body:
    data = bytearray(source.encoded(chance.choice((None, *_CODECS))))
    size = chance.choice((2, 4, 8))
    at = chance.randrange((len(data) - size) // size) * size
    data[at : at + size] = chance.choice(
        (chance.randbytes(size), bytes(size), b"\xff" * size, b"\xff" * (size - 1) + b"\x7f")
    )
    return source.body("word of noise", bytes(data), must_fail=False)


def _cut(source: Source, chance: Random) -> Body:
    data = source.encoded(chance.choice((None, *_CODECS)))
    return source.body("cut short", data[: chance.randrange(len(data))], must_fail=True)


def _extended(source: Source, chance: Random) -> Body:
    data = source.encoded() + chance.randbytes(8 * chance.randint(1, 9))
    return source.body("bytes behind it", data, must_fail=True)


def _noise(source: Source, chance: Random) -> Body:
    data = chance.randbytes(chance.choice((1, 8, 100, 5_000, 300_000)))
    opening = chance.choice((b"", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff\x40\0\0\0"))
    return source.body("noise", opening + data, must_fail=True)


def _other_message(source: Source, chance: Random) -> Body:
    """A schema, a dictionary, a whole stream: Arrow, but no record batch."""
    words = pa.array(["a", "b", "a"] * 8).dictionary_encode()
    table = pa.RecordBatch.from_arrays([words], ["name"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, source.schema) as writer:
        writer.write_batch(source.rows())
    options = (
        message_of(source.rows(), place=0),
        message_of(table, place=1),
        message_of(table, place=2),
        bytes(memoryview(source.schema.serialize())) + source.encoded(),
        bytes(memoryview(sink.getvalue())),
        source.encoded() * 2,
    )
    return source.body("another message of Arrow", chance.choice(options), must_fail=True)


def _other_schema(source: Source, chance: Random) -> Body:
    """Valid rows of other columns. Some have as many nodes and buffers as those wanted."""
    kinds = list(source.schema.types)
    chance.shuffle(kinds)
    if chance.random() < 0.3:
        kinds.append(pa.int8())
    columns = [pa.nulls(source.row_count, kind) for kind in kinds]
    rows = pa.record_batch(columns, [f"c{number}" for number in range(len(kinds))])
    return source.body("rows of another schema", message_of(rows), must_fail=False)


def _null_where_none_may_be(source: Source, chance: Random) -> Body:
    flat = Source(FLAT, source.row_count)
    loose = pa.schema([field.with_nullable(True) for field in FLAT])
    columns = [pa.nulls(source.row_count, FLAT.types[0]), *flat.rows().columns[1:]]
    data = message_of(pa.record_batch(columns, schema=loose))
    return flat.body("null where none may be", data, must_fail=True)


def _inflated_size_lies(source: Source, chance: Random) -> Body:
    data = source.encoded(chance.choice(_CODECS))
    numbers = numbers_of(data)
    place = chance.choice([one for one in numbers.buffers if _long(data, one + 8) > 8])
    at = numbers.buffers_at + _long(data, place)
    near = _long(data, at) + chance.choice((-1, 1, 8))
    changed = _with_long(data, at, chance.choice((*_LONGS, near, 200 * MIB)))
    return source.body("inflated size", changed, must_fail=False)


def _codec_lies(source: Source, chance: Random) -> Body:
    """One codec's frame under the other's name."""
    codec, another = chance.sample(_CODECS, 2)
    data, other = source.encoded(codec), source.encoded(another)
    at = numbers_of(data).buffers_at
    if at != numbers_of(other).buffers_at:
        return _flipped(source, chance)
    return source.body("codec", data[:8] + other[8:at] + data[at:], must_fail=True)


Change = Callable[[Source, Random], Body]
CHANGES: Final[Sequence[Change]] = (
    *(_valid, _wrong_checksum, _row_count_lies, _length_lies, _node_lies, _nulls_lie),
    *(_buffer_lies, _buffers_swapped, _size_lies, _offsets_lie, _offsets_lie, _not_utf8),
    *(_metadata_word, _flipped, _flipped, _word_of_noise, _word_of_noise, _cut, _extended),
    *(_noise, _other_message, _other_schema, _null_where_none_may_be, _inflated_size_lies),
    *(_inflated_size_lies, _codec_lies),
)


def hostile_body(chance: Random) -> Body:
    """Make one hostile body."""
    row_count = LARGE_ROW_COUNT if chance.random() < LARGE_SHARE else ROW_COUNT
    source = Source(chance.choice((FLAT, NESTED)), row_count)
    return chance.choice(CHANGES)(source, chance)


@dataclass(frozen=True, slots=True)
class BombPlan:
    """A small body that inflates to much."""

    codec: str
    size: int  # inflated
    is_one_row: bool  # one long value, or many rows of few bytes
    is_declared: bool  # the size in front is the true one


BOMBS: Final = tuple(
    BombPlan(codec, size * MIB, is_one_row, is_declared)
    for size in (16, 60, 100, 200)
    for codec in _CODECS
    for is_one_row in (True, False)
    for is_declared in (True, False)
)
LARGEST_BOMB: Final = BombPlan("zstd", 60 * MIB, is_one_row=True, is_declared=True)
BOMB_LIMIT: Final = 64 * MIB  # what a batch may inflate to


def bomb(plan: BombPlan) -> Body:
    """Make a bomb. Rows that do not even say their size are refused whatever it is."""
    count = 1 if plan.is_one_row else 100_000
    size = plan.size // count
    values = pa.Array.from_buffers(
        pa.binary(),
        count,
        [None, _counting(count, size), pa.py_buffer(bytes(count * size))],
    )
    columns = [values if name == "data" else _filler(name, count) for name in FLAT.names]
    data = message_of(pa.record_batch(columns, schema=FLAT), plan.codec)
    if not plan.is_declared:
        numbers = numbers_of(data)
        largest = max(numbers.buffers, key=lambda one: _inflated(data, numbers, one))
        data = _with_long(data, numbers.buffers_at + _long(data, largest), 64)
    must_fail = not plan.is_declared or plan.size > BOMB_LIMIT
    kind = f"bomb of {plan.size // MIB} MiB{'' if plan.is_declared else ', not declared'}"
    return Body(kind, data, count, must_fail, FLAT)


def _inflated(data: bytes, numbers: Numbers, place: int) -> int:
    size = _long(data, place + 8)
    return _long(data, numbers.buffers_at + _long(data, place)) if size >= 8 else 0


def _counting(count: int, size: int) -> pa.Buffer:
    return pa.array(range(0, (count + 1) * size, size), pa.int32()).buffers()[1]


def _filler(name: str, count: int) -> pa.Array:
    kind = FLAT.field(name).type
    return pa.array(range(count), kind) if name == "id" else pa.nulls(count, kind)
