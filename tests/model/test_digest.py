"""Equal rows have one digest, wherever and however they lie; other rows have another."""

import math
import struct
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from headrace.errors import BadBatch, BadSchema
from headrace.model.row_digest import RowDigest, type_text

UTC = pa.timestamp("us", tz="UTC")
OTHER_NAN = struct.unpack("<d", bytes.fromhex("0100000000c0f8ff"))[
    0
]  # negative, with a payload

unhurried = settings(deadline=None)  # the first use of a kernel takes its time

# Few values of each type: two tables drawn apart are often equal, or nearly so.
LEAVES = {
    pa.bool_(): [False, True],
    pa.int8(): [0, 1, -128],
    pa.int16(): [0, 1, 2**15 - 1],
    pa.int32(): [0, 1, -(2**31)],
    pa.int64(): [0, 1, 2**63 - 1],
    pa.float32(): [0.0, -0.0, 1.5, math.nan, math.inf],
    pa.float64(): [0.0, -0.0, 0.1, math.nan, OTHER_NAN, -math.inf],
    pa.string(): ["", "a", "ab", "b", "bc", "é"],
    pa.binary(): [b"", b"\0", b"\0\0", b"a"],
    pa.date32(): [0, 1, -719162],
    UTC: [0, 1, 2**63 - 1],
    pa.decimal128(10, 2): [Decimal("0.00"), Decimal("-1.25"), Decimal("99999999.99")],
}
KEYS = {kind: LEAVES[kind] for kind in (pa.string(), pa.int32(), pa.date32())}


@dataclass(frozen=True)
class Rows:
    """Columns as plain values, before anything of Arrow."""

    schema: pa.Schema
    columns: list[list]

    @property
    def count(self) -> int:
        return len(self.columns[0])


def kinds(depth: int = 2):
    leaves = st.sampled_from(list(LEAVES))
    if not depth:
        return leaves
    inner = kinds(depth - 1)
    structs = st.lists(inner, min_size=1, max_size=3).map(
        lambda found: pa.struct([(f"f{i}", kind) for i, kind in enumerate(found)])
    )
    maps = st.builds(pa.map_, st.sampled_from(list(KEYS)), inner)
    return st.one_of(leaves, leaves, inner.map(pa.list_), structs, maps)


def values(kind, nullable=True):
    if kind in LEAVES:
        found = st.sampled_from(LEAVES[kind])
    elif pa.types.is_list(kind):
        found = st.lists(values(kind.value_type), max_size=3)
    elif pa.types.is_map(kind):
        pair = st.tuples(values(kind.key_type, nullable=False), values(kind.item_type))
        found = st.lists(pair, max_size=3)
    else:
        found = st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    return st.none() | found if nullable else found


@st.composite
def rows(draw, min_size=0):
    chosen = draw(st.lists(kinds(), min_size=1, max_size=3))
    schema = pa.schema([(f"c{i}", kind) for i, kind in enumerate(chosen)])
    count = draw(st.integers(min_size, 12))
    return Rows(schema, [draw(column(kind, count)) for kind in chosen])


def column(kind, count):
    return st.lists(values(kind), min_size=count, max_size=count)


def plain(value):
    """Return a value such that equal ones, and no others, are one value to a reader."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else ("float", value + 0.0)
    if isinstance(value, dict):
        return tuple((name, plain(each)) for name, each in sorted(value.items()))
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return (type(value).__name__, value)


def a_batch(found: Rows) -> pa.RecordBatch:
    pairs = zip(found.columns, found.schema.types, strict=True)
    arrays = [a_garbled_array(kind, column, lambda _: None) for column, kind in pairs]
    return pa.RecordBatch.from_arrays(arrays, schema=found.schema)


def a_garbled_array(kind, column, garbage):
    """Build an array by hand, with what `garbage` gives under each null."""
    filled = [garbage(kind) if each is None else each for each in column]
    valid = pa.array([each is not None for each in column], pa.bool_()).buffers()[1]
    if pa.types.is_struct(kind):
        rows = [each or {} for each in filled]
        children = [
            a_garbled_array(field.type, [row.get(field.name) for row in rows], garbage)
            for field in kind
        ]
        return pa.Array.from_buffers(kind, len(column), [valid], children=children)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _a_garbled_list(kind, filled, valid, garbage)
    storage = {UTC: pa.int64(), pa.date32(): pa.int32()}.get(kind, kind)
    buffers = pa.array([LEAVES[kind][0] if v is None else v for v in filled], storage).buffers()
    return pa.Array.from_buffers(kind, len(column), [valid, *buffers[1:]])


def _a_garbled_list(kind, filled, valid, garbage):
    lists = [each or [] for each in filled]
    ends = [0]
    for each in lists:
        ends.append(ends[-1] + len(each))
    items = [item for each in lists for item in each]
    inner = kind.field(0).type
    if pa.types.is_map(kind):
        parts = [[pair[place] for pair in items] for place in (0, 1)]
        children = [
            a_garbled_array(field.type, part, garbage)
            for field, part in zip(inner, parts, strict=True)
        ]
        child = pa.Array.from_buffers(inner, len(items), [None], children=children)
    else:
        child = a_garbled_array(inner, items, garbage)
    offsets = pa.array(ends, pa.int32()).buffers()[1]
    return pa.Array.from_buffers(kind, len(filled), [valid, offsets], children=[child])


def digest_of(*batches: pa.RecordBatch, schema=None) -> bytes:
    found = RowDigest(schema or batches[0].schema)
    for batch in batches:
        found.update(batch)
    return found.digest()


def digest(found: Rows) -> bytes:
    return digest_of(a_batch(found), schema=found.schema)


def a_column(kind, *column) -> bytes:
    return digest(Rows(pa.schema([("c", kind)]), [list(column)]))


def told_by_the_page(found: Rows) -> bytes:
    """Work the digest out value by value, from the grammar alone."""
    told = b"headrace rows 1" + struct.pack("<QI", found.count, len(found.columns))
    for field, column in zip(found.schema, found.columns, strict=True):
        for text in (field.name.encode(), type_text(field.type).encode()):
            told += struct.pack("<I", len(text)) + text
        told += a_node(field.type, column)
    return xxh3_128_digest(told)


def a_node(kind, column) -> bytes:
    nulls = b"".join(struct.pack("<Q", i) for i, each in enumerate(column) if each is None)
    lengths, data, children = b"", b"", []
    if pa.types.is_struct(kind):
        for field in kind:
            part = [None if each is None else each[field.name] for each in column]
            children.append(a_node(field.type, part))
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        lengths = b"".join(struct.pack("<i", len(each or [])) for each in column)
        items = [item for each in column for item in each or []]
        if pa.types.is_map(kind):
            items = [{"key": key, "value": value} for key, value in items]
        children.append(a_node(kind.field(0).type, items))
    elif kind in (pa.string(), pa.binary()):
        slots = [each.encode() if isinstance(each, str) else each or b"" for each in column]
        lengths = b"".join(struct.pack("<i", len(slot)) for slot in slots)
        data = b"".join(slots)
    else:
        data = b"".join(a_slot(kind, each) for each in column)
    streams = [xxh3_128_digest(stream) for stream in (nulls, lengths, data)]
    return xxh3_128_digest(struct.pack("<Q", len(column)) + b"".join(streams + children))


def a_slot(kind, value) -> bytes:
    if pa.types.is_decimal(kind):
        return int((value or Decimal(0)).scaleb(kind.scale)).to_bytes(16, "little", signed=True)
    if pa.types.is_floating(kind):
        number = math.nan if value is not None and math.isnan(value) else (value or 0.0)
        return struct.pack("<f" if kind == pa.float32() else "<d", number)
    width = 1 if kind == pa.bool_() else kind.byte_width
    return int(value or 0).to_bytes(width, "little", signed=True)


class TestPage:
    @unhurried
    @given(rows())
    def test_the_digest_is_what_the_grammar_says(self, found):
        assert digest(found) == told_by_the_page(found)


class TestWhereRowsLie:
    @unhurried
    @given(st.data(), rows())
    def test_garbage_under_nulls_and_around_slices_does_not_count(self, data, found):
        def garbage(kind):
            return data.draw(values(kind, nullable=False))

        before = data.draw(st.integers(0, 9))
        arrays = []
        for each, field in zip(found.columns, found.schema, strict=True):
            around = [garbage(field.type) for _ in range(before)], [garbage(field.type)]
            whole = a_garbled_array(field.type, around[0] + each + around[1], garbage)
            whole.validate(full=True)
            arrays.append(whole.slice(before, found.count))
        batch = pa.RecordBatch.from_arrays(arrays, schema=found.schema)
        assert digest_of(batch) == digest(found)

    @unhurried
    @given(st.data(), rows())
    def test_the_cuts_between_batches_do_not_count(self, data, found):
        batch = a_batch(found)
        cuts = data.draw(st.lists(st.integers(0, found.count), max_size=4).map(sorted))
        edges = [0, *cuts, found.count]
        parts = [batch.slice(start, end - start) for start, end in pairwise(edges)]
        assert digest_of(*parts) == digest_of(batch)

    @unhurried
    @given(st.data(), rows(min_size=1))
    def test_parts_made_apart_have_the_digest_of_the_whole(self, data, found):
        cut = data.draw(st.integers(0, found.count))
        parts = [
            a_batch(Rows(found.schema, [column[part] for column in found.columns]))
            for part in (slice(cut), slice(cut, None))
        ]
        assert digest_of(*parts) == digest(found)

    @unhurried
    @given(rows(), st.booleans())
    def test_a_parquet_file_keeps_it(self, found, store_schema):
        sink = pa.BufferOutputStream()
        table = pa.Table.from_batches([a_batch(found)])
        pq.write_table(
            table, sink, compression="zstd", row_group_size=3, store_schema=store_schema
        )
        file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
        read = list(file.iter_batches(batch_size=2))
        assert digest_of(*read, schema=found.schema) == digest(found)

    @pytest.mark.parametrize("count", [65535, 65536, 65537, 131073])
    def test_pieces_inside_a_batch_do_not_count(self, count):
        numbers = pa.array([None if i % 1000 == 999 else i for i in range(count)])
        texts = pa.array([None if i % 777 == 0 else str(i) for i in range(count)])
        lists = pa.ListArray.from_arrays(pa.array(range(count), pa.int32()), texts)
        batch = pa.record_batch({"i": numbers.slice(1), "l": lists})
        parts = [batch.slice(start, 40_000) for start in range(0, count, 40_000)]
        assert digest_of(*parts) == digest_of(batch)


class TestOtherRows:
    @settings(unhurried, max_examples=200)
    @given(st.data(), kinds())
    def test_digests_are_equal_as_rows_are(self, data, kind):
        counts = data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
        one, other = (data.draw(column(kind, count)) for count in counts)
        same = plain(one) == plain(other)
        assert (a_column(kind, *one) == a_column(kind, *other)) is same

    @unhurried
    @given(st.data(), rows(min_size=1))
    def test_one_changed_value_gives_another(self, data, found):
        place = data.draw(st.integers(0, len(found.columns) - 1))
        row = data.draw(st.integers(0, found.count - 1))
        value = data.draw(values(found.schema.types[place]))
        assume(plain(value) != plain(found.columns[place][row]))
        columns = [list(column) for column in found.columns]
        columns[place][row] = value
        other = Rows(found.schema, columns)
        assert digest(other) != digest(found)
        one, two = (RowDigest(found.schema) for _ in range(2))
        one.update(a_batch(found))
        two.update(a_batch(other))
        pairs = zip(one.columns(), two.columns(), strict=True)
        assert [a != b for a, b in pairs] == [i == place for i in range(len(columns))]

    @unhurried
    @given(st.data(), rows(min_size=2))
    def test_two_rows_swapped_give_another(self, data, found):
        order = list(range(found.count))
        one, other = data.draw(
            st.lists(st.sampled_from(order), min_size=2, max_size=2, unique=True)
        )
        order[one], order[other] = order[other], order[one]
        swapped = Rows(found.schema, [[column[i] for i in order] for column in found.columns])
        assume(plain(swapped.columns) != plain(found.columns))
        assert digest(swapped) != digest(found)

    @unhurried
    @given(st.data(), rows(min_size=1))
    def test_a_row_dropped_or_told_twice_gives_another(self, data, found):
        row = data.draw(st.integers(0, found.count - 1))
        for times in (0, 2):
            columns = [[*c[:row], *([c[row]] * times), *c[row + 1 :]] for c in found.columns]
            assert digest(Rows(found.schema, columns)) != digest(found)

    @unhurried
    @given(st.data(), kinds())
    def test_a_null_that_moved_gives_another(self, data, kind):
        value = data.draw(values(kind, nullable=False))
        places = [a_column(kind, *([value] * i), None, *([value] * (4 - i))) for i in range(5)]
        assert len({*places, a_column(kind, *([value] * 5))}) == 6

    @pytest.mark.parametrize("kind", LEAVES, ids=str)
    def test_a_null_is_not_the_zero_it_is_hashed_as(self, kind):
        assert a_column(kind, None) != a_column(kind, LEAVES[kind][0])

    def test_where_one_string_ends_counts(self):
        assert a_column(pa.string(), "ab", "c") != a_column(pa.string(), "a", "bc")

    def test_where_one_list_ends_counts(self):
        kind = pa.list_(pa.int64())
        assert a_column(kind, [1, 2], [3]) != a_column(kind, [1], [2, 3])
        assert a_column(kind, []) != a_column(kind, None) != a_column(kind, [None])

    def test_a_null_struct_is_not_one_of_nulls(self):
        kind = pa.struct([("a", pa.int64())])
        assert a_column(kind, None) != a_column(kind, {"a": None})

    def test_the_order_of_a_map_counts(self):
        kind = pa.map_(pa.string(), pa.int64())
        pairs = [("a", 1), ("b", 2)]
        assert a_column(kind, pairs) != a_column(kind, pairs[::-1])

    def test_names_types_and_count_of_columns_count(self):
        one = pa.array([0], pa.int64())
        tables = [
            {"a": one},
            {"b": one},
            {"a": one.cast(pa.int32())},
            {"a": one.view(UTC)},
            {"a": one, "b": one},
            {"ab": one, "": one},
            {},
        ]
        assert len({digest_of(pa.record_batch(table)) for table in tables}) == len(tables)


class TestFloats:
    @pytest.mark.parametrize(("kind", "form"), [(pa.float32(), "<I"), (pa.float64(), "<Q")])
    def test_every_nan_is_one_and_minus_zero_is_zero(self, kind, form):
        top = 8 * struct.calcsize(form) - 1
        quiet = {"<I": 0x7FC00000, "<Q": 0x7FF8000000000000}[form]
        signalling = {"<I": 0x7F800001, "<Q": 0x7FF0000000000001}[form]

        def of(bits):
            data = pa.py_buffer(struct.pack(form, bits))
            return digest_of(
                pa.record_batch({"f": pa.Array.from_buffers(kind, 1, [None, data])})
            )

        nans = [quiet, quiet | 1, quiet | 1 << top, signalling, signalling | 1 << top]
        assert len({of(bits) for bits in nans}) == 1
        assert of(0) == of(1 << top)
        assert len({of(bits) for bits in (0, 1, 2, 1 | 1 << top, quiet)}) == 5


class TestSchemas:
    @pytest.mark.parametrize(
        ("kind", "column"),
        [
            (pa.large_string(), "c"),
            (pa.timestamp("ns", tz="UTC"), "c"),
            (pa.timestamp("us"), "c"),
            (pa.list_(pa.struct([("d", pa.null())])), "c[].d"),
            (pa.map_(pa.string(), pa.uint8()), "c[].value"),
        ],
        ids=str,
    )
    def test_a_type_without_canonical_values_is_refused_by_name(self, kind, column):
        with pytest.raises(BadSchema, match="no digest") as caught:
            RowDigest(pa.schema([("c", kind)]))
        assert caught.value.column == column

    def test_a_batch_of_another_schema_is_refused(self):
        found = RowDigest(pa.schema([("c", pa.int64())]))
        with pytest.raises(BadBatch, match="expected int64, found string") as caught:
            found.update(pa.record_batch({"c": ["1"]}))
        assert caught.value.column == "c"
        with pytest.raises(BadBatch, match="columns: expected"):
            found.update(pa.record_batch({"d": [1]}))

    def test_what_is_no_part_of_the_rows_does_not_count(self):
        item = pa.field("item", pa.int64())
        element = pa.field("element", pa.int64(), nullable=False)
        one = pa.schema([pa.field("c", pa.list_(item))])
        other = pa.schema([pa.field("c", pa.list_(element), nullable=False)], {"k": "v"})
        batches = [
            pa.RecordBatch.from_pylist([{"c": [1]}], schema=each) for each in (one, other)
        ]
        assert digest_of(batches[0]) == digest_of(batches[1])
        assert digest_of(*batches, schema=one) == digest_of(*batches[::-1], schema=other)

    def test_a_field_cannot_be_named_like_a_type(self):
        tricky = pa.struct([('a": int64, "b', pa.int64())])
        honest = pa.struct([("a", pa.int64()), ("b", pa.int64())])
        assert type_text(tricky) != type_text(honest)


class TestGolden:
    """A change here is a change of format: segments that were sealed would no longer match."""

    ROWS = Rows(
        pa.schema(
            [
                ("bool", pa.bool_()),
                ("int8", pa.int8()),
                ("int64", pa.int64()),
                ("float32", pa.float32()),
                ("float64", pa.float64()),
                ("string", pa.string()),
                ("binary", pa.binary()),
                ("date", pa.date32()),
                ("timestamp", UTC),
                ("decimal", pa.decimal128(10, 2)),
                ("list", pa.list_(pa.string())),
                ("struct", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.int16()))])),
                ("map", pa.map_(pa.string(), pa.float64())),
            ]
        ),
        [
            [True, None, False],
            [1, -128, None],
            [None, 2**63 - 1, 0],
            [1.5, None, math.nan],
            [-0.0, math.inf, None],
            ["", None, "é"],
            [b"\0", b"", None],
            [None, 0, -719162],
            [0, None, 2**63 - 1],
            [Decimal("-1.25"), None, Decimal("0.00")],
            [["a", None], None, []],
            [{"a": 1, "b": [1, 2]}, None, {"a": None, "b": None}],
            [[("k", 0.5), ("a", None)], [], None],
        ],
    )
    COLUMNS = (
        "bool cb49d6918750c30cb91c6f4e0ccb7c6c",
        "int8 fd1c9f8bfa5ee6fbdba4327ef988f000",
        "int64 1e2cd42aff22a5bc6392140b9a3732cd",
        "float32 d623b643274d88422c71cd890113fe2b",
        "float64 b3018b2ab5d918ba1142c834923e7c88",
        "string f16560985a555dad0c021784552d751b",
        "binary bdaf78ee927eb964d5314c65ec727fe9",
        "date 7058b772ed51e8b470ef47c65c7902c4",
        "timestamp 75fbcaf5931545c3d7902298dee95043",
        "decimal 4f050175bb75a3293b099e2d00c33f4b",
        "list 4fe1acf5933fb7b81c9b2c18026cb7c2",
        "struct e6ed1444fcbe8f37607bd88db15a65b3",
        "map 0ce6bd8a5b010690e39d9c2fdaff3757",
    )
    EMPTY = "949fbfa85af4e423a64871a044353131"
    DIGEST = "3469b0e96eb918adc8107a897dd65ed4"

    def test_the_digest_of_each_column(self):
        found = RowDigest(self.ROWS.schema)
        found.update(a_batch(self.ROWS))
        pairs = zip(self.ROWS.schema.names, found.columns(), strict=True)
        assert [f"{name} {each.hex()}" for name, each in pairs] == list(self.COLUMNS)

    def test_the_digest_of_all_and_of_no_rows(self):
        assert digest(self.ROWS).hex() == self.DIGEST
        assert digest_of(schema=self.ROWS.schema).hex() == self.EMPTY

    def test_the_types_as_text(self):
        assert [type_text(kind) for kind in self.ROWS.schema.types] == [
            *("bool", "int8", "int64", "float32", "float64", "string", "binary", "date32"),
            "timestamp[us, UTC]",
            "decimal128(10, 2)",
            "list<string>",
            'struct<"a": int32, "b": list<int16>>',
            "map<string, float64>",
        ]
