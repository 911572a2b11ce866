"""What comes from a client is a batch of its schema in every value, or a named refusal."""

import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.errors import BadBatch
from headrace.model.arrow_message import INFLATED_SIZE_MAX
from headrace.model.batch import ROW_COUNT_MAX, admit, decode, encode

UTC = pa.timestamp("us", tz="UTC")
PRICE = pa.decimal128(5, 2)
PART = pa.struct([("name", pa.string()), ("sizes", pa.map_(pa.string(), pa.int64()))])
DEEP = pa.map_(pa.string(), pa.map_(pa.string(), pa.list_(pa.int64())))


def a_flat_batch() -> pa.RecordBatch:
    return pa.record_batch(
        {
            "int64": pa.array([1, None, 3, 4], pa.int64()),
            "int8": pa.array([1, 2, 3, 4], pa.int8()),
            "float64": pa.array([1.5, None, float("nan"), -0.0]),
            "bool": pa.array([True, None, False, True]),
            "string": pa.array(["a", None, "ccc", "é"]),
            "binary": pa.array([b"\xff", b"", None, b"zz"]),
            "decimal": pa.array([Decimal("1.50"), None, Decimal("-9.99"), None], PRICE),
            "timestamp": pa.array([1, 2, None, 4], UTC),
            "date": pa.array([1, 2, 3, 4], pa.date32()),
        }
    )


def a_nested_batch() -> pa.RecordBatch:
    parts = [
        [{"name": "x", "sizes": [("k", 1)]}],
        None,
        [None, {"name": None, "sizes": None}],
        [],
    ]
    deep = [[("a", [("b", [1])])], [], None, [("c", None)]]
    flags = pa.array([{"p": [1, 2], "q": {"r": True}}, None, {"p": None, "q": None}, None])
    return pa.record_batch(
        {"parts": pa.array(parts, pa.list_(PART)), "deep": pa.array(deep, DEEP), "flags": flags}
    )


def a_long_batch() -> pa.RecordBatch:
    return pa.record_batch(
        {
            "i": pa.array([i % 7 for i in range(300)]),
            "s": pa.array([f"value {i % 5}" for i in range(300)]),
            "n": pa.array([None if i % 3 else i for i in range(300)]),
        }
    )


def compressed(batch: pa.RecordBatch, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    reader = pa.BufferReader(sink.getvalue())
    pa.ipc.read_message(reader)
    start = reader.tell()
    pa.ipc.read_message(reader)
    return sink.getvalue().to_pybytes()[start : reader.tell()]


BATCHES = {"flat": a_flat_batch(), "nested": a_nested_batch(), "long": a_long_batch()}
BODIES = [
    pytest.param(batch, body, id=f"{name}-{codec}")
    for name, batch in BATCHES.items()
    for codec, body in (
        ("plain", encode(batch).to_pybytes()),
        ("lz4", compressed(batch, "lz4")),
        ("zstd", compressed(batch, "zstd")),
    )
]


def same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Equal with every NaN equal to itself."""
    return one.schema.equals(other.schema) and str(one.to_pylist()) == str(other.to_pylist())


def refusal(schema: pa.Schema, row_count: int, body: bytes) -> BadBatch:
    with pytest.raises(BadBatch) as caught:
        admit(body, schema, row_count)
    assert caught.value.hint
    return caught.value


def only(array: pa.Array, field: pa.Field | None = None) -> tuple[pa.Schema, int, bytes]:
    """Return schema, row count and body of a batch of one column, unchecked."""
    schema = pa.schema([field or pa.field("c", array.type)])
    batch = pa.RecordBatch.from_arrays([array], schema=schema)
    return schema, len(array), batch.serialize().to_pybytes()


class TestRoundTrip:
    @pytest.mark.parametrize(("batch", "body"), BODIES)
    def test_rows_come_back(self, batch, body):
        assert same(admit(body, batch.schema, batch.num_rows), batch)
        assert same(decode(body, batch.schema, batch.num_rows), batch)

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, pa.py_buffer])
    def test_any_bytes_will_do(self, kind):
        batch = a_flat_batch()
        assert same(admit(kind(bytes(encode(batch))), batch.schema, 4), batch)

    def test_decode_copies_nothing(self):
        body = encode(a_long_batch())
        found = decode(body, a_long_batch().schema, 300)
        assert found.num_columns == 3
        for column in found.columns:
            for buffer in filter(None, column.buffers()):
                assert body.address <= buffer.address < body.address + body.size

    def test_the_batch_outlives_the_name_of_its_bytes(self):
        body = bytearray(encode(a_long_batch()))
        found = decode(memoryview(body)[:], a_long_batch().schema, 300)
        del body
        assert same(found, a_long_batch())


class TestEncode:
    @pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
    @pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 3), (1, 2), (2, 2), (3, 1)])
    def test_a_slice_gives_the_bytes_of_a_fresh_batch(self, batch, start, count):
        part = batch.slice(start, count)
        fresh = pa.RecordBatch.from_pylist(part.to_pylist(), schema=batch.schema)
        assert encode(part).equals(encode(fresh))

    def test_a_slice_of_bools_gives_the_bytes_of_a_fresh_batch(self):
        part = pa.record_batch({"b": [True, True, True]}).slice(0, 1)
        assert encode(part).equals(encode(pa.record_batch({"b": [True]})))

    def test_a_slice_carries_no_rows_of_others(self):
        texts = pa.record_batch({"s": ["secret", "told", "secret"], "i": [7, 8, 9]})
        body = encode(texts.slice(1, 1)).to_pybytes()
        assert b"told" in body
        assert b"secret" not in body

    def test_a_part_of_a_large_batch_is_small(self):
        rows = pa.record_batch({"i": pa.array(range(100_000))})
        assert encode(rows.slice(50_000, 10)).size < 500

    @pytest.mark.parametrize(
        "array",
        [
            pa.array(["a"]).dictionary_encode(),
            pa.array(["a"], pa.large_string()),
            pa.array([{"d": None}], pa.struct([("d", pa.null())])),
        ],
        ids=["dictionary", "large", "null"],
    )
    def test_a_type_that_is_not_kept_is_refused_by_name(self, array):
        with pytest.raises(BadBatch, match="are not supported") as caught:
            encode(pa.record_batch({"c": array}))
        assert caught.value.column in ("c", "c.d")


class TestRows:
    def test_no_rows_are_nothing_to_append(self):
        schema, count, body = only(pa.array([], pa.int64()))
        assert "nothing to append" in str(refusal(schema, count, body))

    def test_an_empty_batch_can_be_decoded(self):
        schema, count, body = only(pa.array([], pa.string()))
        assert decode(body, schema, count).num_rows == 0

    @pytest.mark.parametrize("count", [1, 2, 4, ROW_COUNT_MAX])
    def test_another_row_count_is_refused(self, count):
        schema, _, body = only(pa.array([1, 2, 3]))
        assert "the batch has 3" in str(refusal(schema, count, body))
        with pytest.raises(BadBatch, match="the batch has 3"):
            decode(body, schema, count)

    def test_too_many_rows_are_refused(self):
        schema, _, body = only(pa.array([True]))
        assert "several batches" in refusal(schema, ROW_COUNT_MAX + 1, body).hint

    def test_a_column_shorter_than_the_batch_is_refused(self):
        schema, count, body = only(pa.array([1, 2, 3]))
        pair = (3).to_bytes(8, "little") + bytes(8)
        assert body.count(pair) == 1
        short = body.replace(pair, (2).to_bytes(8, "little") + bytes(8))
        assert "length" in str(refusal(schema, count, short))

    def test_another_schema_is_refused(self):
        _, count, body = only(pa.array([1, 2, 3]))
        refusal(pa.schema([("s", pa.string())]), count, body)
        refusal(pa.schema([("i", pa.int64()), ("j", pa.int64())]), count, body)

    def test_values_of_a_wider_type_are_refused(self):
        _, count, body = only(pa.array([1, 2, 3], pa.int32()))
        error = refusal(pa.schema([("c", pa.decimal128(20, 0))]), count, body)
        assert error.column == "c"


class TestValues:
    def test_a_string_that_is_not_utf8_is_refused(self):
        text = pa.array([b"fine", b"\xff\xfe"])
        strings = pa.StringArray.from_buffers(2, *text.buffers()[1:])
        assert refusal(*only(strings)).column == "c"

    def test_a_string_deep_inside_is_judged_too(self):
        text = pa.array([b"\xc3"])
        strings = pa.StringArray.from_buffers(1, *text.buffers()[1:])
        record = pa.StructArray.from_arrays([strings], ["s"])
        lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), record)
        assert refusal(*only(lists)).column == "c"

    def test_a_decimal_of_too_many_digits_is_refused(self):
        wide = pa.array([Decimal(10**9)], pa.decimal128(20, 0))
        narrow = pa.Array.from_buffers(pa.decimal128(3, 0), 1, wide.buffers())
        assert refusal(*only(narrow)).column == "c"

    def test_offsets_that_fall_are_refused(self):
        offsets = pa.array([0, 3, 1], pa.int32()).buffers()[1]
        strings = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"abc"))
        schema, count, body = only(pa.array(["abc", ""]))
        good = pa.array([0, 3, 3], pa.int32()).buffers()[1].to_pybytes()
        assert body.count(good) == 1
        body = body.replace(good, offsets.to_pybytes())
        assert len(strings) == count
        assert refusal(schema, count, body).column == "c"

    @pytest.mark.parametrize("codec", ["lz4", "zstd"])
    def test_a_buffer_that_inflates_to_another_size_is_refused(self, codec):
        batch = a_long_batch()
        body = compressed(batch, codec)
        size = (300 * 8).to_bytes(8, "little")
        for other in (8, 300 * 8 - 1, 300 * 8 + 1, INFLATED_SIZE_MAX // 4):
            lie = body.replace(size, other.to_bytes(8, "little"))
            assert lie != body
            refusal(batch.schema, 300, lie)


def a_required(kind: pa.DataType, name: str = "v") -> pa.Field:
    return pa.field(name, kind, nullable=False)


class TestNulls:
    """A null where the schema allows none is refused; one that no row can see is not."""

    def refused_at(self, array: pa.Array, field: pa.Field | None = None) -> str:
        error = refusal(*only(array, field))
        assert "but it is not nullable" in str(error)
        return error.column

    def test_in_a_column(self):
        assert self.refused_at(pa.array([1, None]), a_required(pa.int64(), "c")) == "c"

    def test_in_a_struct(self):
        kind = pa.struct([a_required(pa.int64())])
        record = pa.StructArray.from_arrays([pa.array([1, None])], fields=list(kind))
        assert self.refused_at(record) == "c.v"

    def test_in_a_list(self):
        items = pa.ListArray.from_arrays(
            pa.array([0, 2], pa.int32()),
            pa.array([1, None]),
            type=pa.list_(a_required(pa.int64())),
        )
        assert self.refused_at(items) == "c[]"

    def test_in_the_values_of_a_map(self):
        kind = pa.map_(pa.string(), a_required(pa.int64(), "value"))
        pairs = pa.MapArray.from_arrays([0, 2], ["a", "b"], pa.array([1, None]), type=kind)
        assert self.refused_at(pairs) == "c{value}"

    def test_in_a_struct_in_a_list_in_a_struct(self):
        inner = pa.struct([a_required(pa.string(), "name")])
        record = pa.StructArray.from_arrays([pa.array(["x", None])], fields=list(inner))
        items = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), record)
        assert self.refused_at(pa.StructArray.from_arrays([items], ["items"])) == (
            "c.items[].name"
        )

    def test_under_a_null_struct_it_is_not_seen(self):
        kind = pa.struct([a_required(pa.int64())])
        record = pa.StructArray.from_arrays(
            [pa.array([1, None])], fields=list(kind), mask=pa.array([False, True])
        )
        schema, count, body = only(record)
        assert admit(body, schema, count).column(0).to_pylist() == [{"v": 1}, None]

    def test_beside_a_null_struct_it_is_seen(self):
        kind = pa.struct([a_required(pa.int64())])
        record = pa.StructArray.from_arrays(
            [pa.array([1, 2, None])], fields=list(kind), mask=pa.array([False, True, False])
        )
        assert self.refused_at(record) == "c.v"

    def test_under_a_null_list_it_is_not_seen(self):
        items = pa.ListArray.from_arrays(
            pa.array([0, 1, 2], pa.int32()),
            pa.array([1, None]),
            type=pa.list_(a_required(pa.int64())),
            mask=pa.array([False, True]),
        )
        schema, count, body = only(items)
        assert admit(body, schema, count).column(0).to_pylist() == [[1], None]


# In a process of its own: what Arrow does not survive must not end the tests, and one that
# allocates by a declared number meets the limit.
HARNESS = """
import random, resource, sys
import pyarrow as pa
from headrace.errors import BadBatch
from headrace.model.batch import admit, encode
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(sys.argv[1])))
body, row_count = bytes.fromhex(sys.argv[2]), int(sys.argv[3])
chance = random.Random(3)
WORDS = [0, 1, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**63, 2**64 - 1]
taken = refused = 0

def judge(other):
    global taken, refused
    try:
        batch = admit(bytes(other), schema, row_count)
    except BadBatch:
        refused += 1
        return
    batch.validate(full=True)
    assert batch.num_rows == row_count
    encode(batch.slice(1))
    taken += 1

for place in range(len(body)):
    for mask in (1 << chance.randrange(8), 0xFF, chance.randrange(1, 256)):
        other = bytearray(body)
        other[place] ^= mask
        judge(other)
for place in range(0, len(body) - 8, 4):
    other = bytearray(body)
    other[place : place + 8] = chance.choice(WORDS).to_bytes(8, "little")
    judge(other)
print(taken, refused)
"""


class TestRubble:
    @pytest.mark.parametrize(("batch", "body"), BODIES)
    def test_a_changed_body_is_a_valid_batch_or_a_refusal(self, batch, body):
        schema = batch.schema.serialize().to_pybytes().hex()
        ended = subprocess.run(
            [sys.executable, "-c", HARNESS, schema, body.hex(), str(batch.num_rows)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        taken, refused = map(int, ended.stdout.split())
        assert taken > 0
        assert refused > 0

    def test_every_body_cut_short_is_refused(self):
        batch = a_nested_batch()
        body = encode(batch).to_pybytes()
        for size in range(len(body)):
            refusal(batch.schema, batch.num_rows, body[:size])

    @pytest.mark.parametrize(("batch", "body"), BODIES)
    def test_trailing_bytes_are_refused(self, batch, body):
        refusal(batch.schema, batch.num_rows, body + bytes(8))
