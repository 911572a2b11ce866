"""Schemas are kept in one form, batches fit them exactly or not at all, and changes are few."""

import datetime
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadBatch, BadSchema, Rejected
from headrace.metadata import rules
from headrace.model.column_types import (
    COLUMN_COUNT_MAX,
    COLUMN_NAME_SIZE_MAX,
    NESTING_MAX,
    list_of,
    map_of,
)
from headrace.model.schema import (
    SCHEMA_SIZE_MAX,
    SYSTEM_FIELDS,
    canonical,
    check_evolution,
    check_sealable,
    conform,
    decode_schema,
    encode_schema,
    upgrade,
)

UTC = pa.timestamp("us", "UTC")
LEAVES = [
    pa.bool_(),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.float32(), pa.float64()),
    *(pa.string(), pa.binary(), pa.date32(), UTC),
    *(pa.decimal128(1, 0), pa.decimal128(9, 9), pa.decimal128(18, 3), pa.decimal128(38, 38)),
]


def a_struct(*kinds, nullable=True):
    return pa.struct(
        [pa.field(f"f{place}", kind, nullable) for place, kind in enumerate(kinds)]
    )


NESTED = [
    list_of(pa.int32(), nullable=True),
    list_of(pa.int32(), nullable=False),
    a_struct(pa.string(), pa.decimal128(5, 2)),
    a_struct(pa.string(), nullable=False),
    map_of(pa.string(), pa.int64(), nullable=True),
    map_of(pa.float64(), UTC, nullable=False),
    map_of(a_struct(pa.int8()), list_of(pa.date32(), nullable=True), nullable=True),
    list_of(a_struct(map_of(pa.string(), pa.binary(), nullable=True)), nullable=False),
    list_of(list_of(list_of(pa.bool_(), nullable=False), nullable=True), nullable=False),
]


def a_schema(**kinds):
    return pa.schema([pa.field(name, kind) for name, kind in kinds.items()])


def required(**kinds):
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])


def a_batch(schema=None, **columns):
    if schema is None:
        return pa.RecordBatch.from_pydict(columns)
    return pa.RecordBatch.from_pydict(columns, schema=schema)


def wrapped(kind):
    """The same flaw in each place where a type can stand, with its path."""
    keyed = [] if kind == pa.null() else [("c{key}", pa.map_(kind, pa.int8()))]  # none can be
    return [
        ("c", kind),
        *keyed,
        ("c[]", pa.list_(kind)),
        ("c[]", pa.large_list(kind)),
        ("c[]", pa.list_(kind, 2)),
        ("c.x", pa.struct([("x", kind)])),
        ("c{value}", pa.map_(pa.int8(), kind)),
        ("c[].x{value}[]", pa.list_(pa.struct([("x", pa.map_(pa.int8(), pa.list_(kind)))]))),
    ]


# --- canonical


@pytest.mark.parametrize("kind", LEAVES + NESTED, ids=str)
@pytest.mark.parametrize("nullable", [True, False])
def test_a_kept_type_stays_and_goes_through_parquet(kind, nullable):
    schema = pa.schema([pa.field("c", kind, nullable)])
    assert canonical(schema).equals(schema, check_metadata=True)
    check_sealable(schema)
    assert decode_schema(encode_schema(schema)).equals(schema, check_metadata=True)


def test_the_system_columns_are_kept_types_and_go_through_parquet():
    assert [(each.name, str(each.type), each.nullable) for each in SYSTEM_FIELDS] == [
        ("_partition", "int32", False),
        ("_offset", "int64", False),
        ("_timestamp", "timestamp[us, tz=UTC]", False),
    ]
    check_sealable(pa.schema([*SYSTEM_FIELDS, pa.field("c", pa.string())]))


BECOMES = [
    (pa.large_string(), pa.string()),
    (pa.string_view(), pa.string()),
    (pa.large_binary(), pa.binary()),
    (pa.binary_view(), pa.binary()),
    (pa.binary(16), pa.binary()),
    (pa.dictionary(pa.int8(), pa.string()), pa.string()),
    (pa.dictionary(pa.uint32(), pa.large_string()), pa.string()),
    (pa.dictionary(pa.int8(), pa.uint8()), pa.int16()),
    (pa.uint8(), pa.int16()),
    (pa.uint16(), pa.int32()),
    (pa.uint32(), pa.int64()),
    (pa.uint64(), pa.decimal128(20, 0)),
    (pa.float16(), pa.float32()),
    (pa.decimal32(9, 2), pa.decimal128(9, 2)),
    (pa.decimal64(18, 0), pa.decimal128(18, 0)),
    (pa.decimal256(38, 38), pa.decimal128(38, 38)),
    (pa.timestamp("s", "UTC"), UTC),
    (pa.timestamp("ms", "Etc/UTC"), UTC),
    (pa.timestamp("us", "+00:00"), UTC),
    (pa.timestamp("ns", "Z"), UTC),
    (pa.date64(), pa.date32()),
]


@pytest.mark.parametrize(("found", "kept"), BECOMES, ids=str)
def test_another_type_becomes_a_kept_one_wherever_it_stands(found, kept):
    for (_, loose), (_, tight) in zip(wrapped(found), wrapped(kept), strict=True):
        schema = canonical(a_schema(c=loose))
        assert schema.equals(canonical(a_schema(c=tight)), check_metadata=True)
    assert canonical(a_schema(c=found)).field("c").type == kept


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.field("item", pa.int8(), nullable=False)),
        pa.large_list(pa.field("x", pa.int8(), nullable=False)),
        pa.list_(pa.field("x", pa.int8(), nullable=False), 3),
        pa.list_view(pa.field("x", pa.int8(), nullable=False)),
        pa.large_list_view(pa.field("x", pa.int8(), nullable=False)),
    ],
    ids=str,
)
def test_every_list_becomes_one_whose_element_keeps_its_nullability(kind):
    expected = a_schema(c=list_of(pa.int8(), nullable=False))
    assert canonical(a_schema(c=kind)).equals(expected, check_metadata=True)


def test_a_map_loses_its_names_and_its_order_but_not_its_nullability():
    value = pa.field("v", pa.int8(), nullable=False)
    kind = pa.map_(pa.field("k", pa.string(), nullable=False), value, keys_sorted=True)
    expected = a_schema(c=map_of(pa.string(), pa.int8(), nullable=False))
    assert canonical(a_schema(c=kind)).equals(expected, check_metadata=True)


def test_metadata_is_dropped_everywhere():
    inner = pa.field("x", pa.int8(), metadata={"a": "b"})
    kind = pa.list_(pa.field("item", pa.struct([inner]), metadata={"a": "b"}))
    schema = pa.schema([pa.field("c", kind, metadata={"a": "b"})], metadata={"pandas": "{}"})
    expected = a_schema(c=list_of(pa.struct([("x", pa.int8())]), nullable=True))
    assert canonical(schema).equals(expected, check_metadata=True)


REFUSED = [
    (pa.null(), "Give the column a type"),
    (pa.time32("s"), "Use int64"),
    (pa.time64("ns"), "Use int64"),
    (pa.duration("us"), "Use int64"),
    (pa.month_day_nano_interval(), "Use int64 columns"),
    (pa.timestamp("us"), "Use timestamp[us, tz=UTC]"),
    (pa.timestamp("us", "Europe/Berlin"), "Use timestamp[us, tz=UTC]"),
    (pa.timestamp("us", "+01:00"), "Use timestamp[us, tz=UTC]"),
    (pa.decimal128(5, -2), "Use decimal128"),
    (pa.decimal128(5, 6), "Use decimal128"),
    (pa.decimal256(39, 2), "Use decimal128"),
    (pa.dense_union([pa.field("x", pa.int8())]), "Use a struct with a nullable field"),
    (pa.sparse_union([pa.field("x", pa.int8())]), "Use a struct with a nullable field"),
    (pa.run_end_encoded(pa.int32(), pa.string()), "Use the type of its values"),
    (pa.struct([]), "Give the struct a field"),
    (pa.uuid(), "Use its storage type"),
    (pa.json_(), "Use its storage type"),
    (pa.bool8(), "Use its storage type"),
    (pa.dictionary(pa.int8(), pa.time32("s")), "Use int64"),
]


@pytest.mark.parametrize(("kind", "hint"), REFUSED, ids=str)
def test_another_type_is_refused_with_its_path_wherever_it_stands(kind, hint):
    for path, outer in wrapped(kind):
        with pytest.raises(BadSchema) as caught:
            canonical(pa.schema([pa.field("before", pa.int8()), pa.field("c", outer)]))
        assert caught.value.column == path
        assert caught.value.hint.startswith(hint)
        assert isinstance(caught.value, Rejected)


def test_the_error_says_column_type_and_next_step():
    with pytest.raises(BadSchema) as caught:
        canonical(a_schema(items=pa.list_(pa.struct([("at", pa.timestamp("ms"))]))))
    assert str(caught.value) == (
        "column 'items[].at': type timestamp[ms] is not supported. "
        "Use timestamp[us, tz=UTC]: convert other zones, and assign one if there is none"
    )


@pytest.mark.parametrize(
    ("name", "flaw"),
    [
        ("", "the name is empty"),
        ("a\0b", "control character"),
        ("a\nb", "control character"),
        ("a\x7f", "control character"),
        ("a\x85", "control character"),
        ("x" * (COLUMN_NAME_SIZE_MAX + 1), "longer than 255 bytes"),
        ("é" * (COLUMN_NAME_SIZE_MAX // 2 + 1), "longer than 255 bytes"),
    ],
)
def test_a_bad_name_is_refused_also_inside(name, flaw):
    bad = pa.field(name, pa.int8())
    for schema in (pa.schema([bad]), a_schema(c=pa.list_(pa.struct([bad])))):
        with pytest.raises(BadSchema, match=flaw) as caught:
            canonical(schema)
        assert caught.value.column


@pytest.mark.parametrize(
    "name", ["x" * COLUMN_NAME_SIZE_MAX, "é" * 127, "a b", "a.b", "🙂", "1"]
)
def test_an_odd_name_is_kept_and_goes_through_parquet(name):
    schema = pa.schema([pa.field(name, a_struct(pa.int8()))])
    assert canonical(schema).equals(schema)
    check_sealable(schema)


def test_a_name_that_is_ours_is_refused_at_the_top_alone():
    for name in ("_offset", "_id", "_"):
        with pytest.raises(BadSchema, match="reserved") as caught:
            canonical(pa.schema([pa.field(name, pa.int8())]))
        assert caught.value.column == name
    canonical(a_schema(c=pa.struct([("_id", pa.int8())])))


@pytest.mark.parametrize(
    ("first", "second"),
    [("a", "a"), ("Price", "pRICE"), ("ß", "SS"), ("i", "\u0130"), ("\u0131", "I")],
)
def test_names_that_spark_takes_for_the_same_are_refused_also_inside(first, second):
    pair = [pa.field(first, pa.int8()), pa.field(second, pa.int8())]
    with pytest.raises(BadSchema) as caught:
        canonical(pa.schema(pair))
    assert caught.value.column == second
    with pytest.raises(BadSchema) as caught:
        canonical(a_schema(c=pa.list_(pa.struct(pair))))
    assert caught.value.column == f"c[].{second}"


def test_a_name_that_is_not_utf_8_is_refused():
    data = a_schema(abcd=pa.int8()).serialize().to_pybytes().replace(b"abcd", b"ab\xff\xfe")
    with pytest.raises(BadSchema, match="not valid UTF-8"):
        canonical(pa.ipc.read_schema(pa.BufferReader(data)))
    with pytest.raises(BadSchema, match="not valid UTF-8"):
        decode_schema(data)


def test_a_schema_without_columns_is_refused():
    with pytest.raises(BadSchema, match="no columns"):
        canonical(pa.schema([]))


def test_columns_are_counted_with_nested_ones():
    flat = {f"c{each}": pa.int8() for each in range(COLUMN_COUNT_MAX)}
    canonical(a_schema(**flat))
    with pytest.raises(BadSchema, match="more than 2000 columns"):
        canonical(a_schema(**flat, one_more=pa.int8()))
    with pytest.raises(BadSchema, match="more than 2000 columns"):
        canonical(a_schema(c=a_struct(*flat.values())))


def test_the_most_columns_fit_into_the_bytes_of_a_schema():
    flat = {f"a_name_of_twenty_{each:04}": pa.int64() for each in range(COLUMN_COUNT_MAX)}
    assert len(encode_schema(a_schema(**flat))) < SCHEMA_SIZE_MAX


def test_types_that_share_their_parts_are_counted_in_good_time():
    kind = pa.int8()
    for _ in range(NESTING_MAX - 2):
        kind = a_struct(*[kind] * 50)
    with pytest.raises(BadSchema, match="more than 2000 columns"):
        canonical(a_schema(c=kind))


def nested(outer, depth):
    kind = pa.int8()
    for _ in range(depth - 1):
        kind = outer(kind)
    return kind


def a_map(kind):
    return map_of(pa.int8(), kind, nullable=True)


@pytest.mark.parametrize("outer", [pa.list_, a_struct, a_map])
def test_types_nest_so_deep_and_no_deeper(outer):
    schema = canonical(a_schema(c=nested(outer, NESTING_MAX)))
    check_sealable(schema)
    assert decode_schema(encode_schema(schema)).equals(schema)
    for depth in (NESTING_MAX + 1, 60):
        with pytest.raises(BadSchema, match="deep"):
            canonical(a_schema(c=nested(outer, depth)))


# --- sealable


@pytest.mark.parametrize(
    ("kind", "flaw"),
    [
        (pa.time32("s"), "reads back from Parquet as"),
        (pa.timestamp("s", "UTC"), "reads back from Parquet as"),
        (pa.timestamp("us", "Europe/Berlin"), "reads back from Parquet as"),
        (pa.struct([]), "Parquet cannot store it"),
        (pa.month_day_nano_interval(), "cannot create a sample value"),
    ],
    ids=str,
)
def test_what_parquet_does_not_give_back_is_not_sealable(kind, flaw):
    with pytest.raises(BadSchema, match=flaw) as caught:
        check_sealable(a_schema(before=pa.int8(), c=kind, after=pa.string()))
    assert caught.value.column == "c"


# --- conform

A_DAY = 24 * 60 * 60 * 1000


def raw(kind, *numbers, valid=None):
    """An array of these very numbers, whatever pyarrow thinks of them as values."""
    bits = None if valid is None else pa.py_buffer(bytes([valid]))
    data = pa.array(numbers, pa.int64()).buffers()[1]
    return pa.Array.from_buffers(kind, len(numbers), [bits, data])


FITS = [
    (pa.array(["é", None], pa.large_string()), pa.string(), ["é", None]),
    (pa.array(["é" * 20, None], pa.string_view()), pa.string(), ["é" * 20, None]),
    (pa.array([b"\xff", None], pa.large_binary()), pa.binary(), [b"\xff", None]),
    (pa.array([b"\xff" * 20, None], pa.binary_view()), pa.binary(), [b"\xff" * 20, None]),
    (pa.array([b"\xff" * 2, None], pa.binary(2)), pa.binary(), [b"\xff" * 2, None]),
    (pa.array(["b", None, "b"]).dictionary_encode(), pa.string(), ["b", None, "b"]),
    (pa.array([255, 0], pa.uint8()), pa.int16(), [255, 0]),
    (pa.array([2**16 - 1], pa.uint16()), pa.int32(), [2**16 - 1]),
    (pa.array([2**32 - 1], pa.uint32()), pa.int64(), [2**32 - 1]),
    (pa.array([2**64 - 1, None], pa.uint64()), pa.decimal128(20, 0), [2**64 - 1, None]),
    (pa.array([1.5, 65504], pa.float16()), pa.float32(), [1.5, 65504]),
    (pa.array([Decimal("-1.25")], pa.decimal32(5, 2)), pa.decimal128(5, 2), [Decimal("-1.25")]),
    (pa.array([Decimal(10) ** 37], pa.decimal256(38, 0)), pa.decimal128(38, 0), [10**37]),
    (raw(pa.date64(), -A_DAY), pa.date32(), [datetime.date(1969, 12, 31)]),
    (
        raw(pa.timestamp("s", "Z"), -1),
        UTC,
        [datetime.datetime(1969, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)],
    ),
    (pa.array([1, None], pa.int32()), pa.int64(), [1, None]),
    (pa.array([-128, 127]), pa.int8(), [-128, 127]),
    (pa.array([2**63 - 1], pa.uint64()), pa.int64(), [2**63 - 1]),
    (pa.array([1.0, -0.0, None]), pa.int64(), [1, 0, None]),
    (pa.array([3.0], pa.float16()), pa.int8(), [3]),
    (pa.array([2**53]), pa.float64(), [2.0**53]),
    (pa.array([0.5, float("inf")]), pa.float32(), [0.5, float("inf")]),
    (pa.array([7]), pa.decimal128(4, 2), [Decimal("7.00")]),
    (pa.array([Decimal("1.50")]), pa.decimal128(9, 1), [Decimal("1.5")]),
    (pa.nulls(2), pa.string(), [None, None]),
    (pa.array([[], None]), list_of(pa.int64(), nullable=True), [[], None]),
    (
        raw(pa.timestamp("ns", "Europe/Berlin"), 1000),
        UTC,
        [datetime.datetime(1970, 1, 1, 0, 0, 0, 1, datetime.UTC)],
    ),
    (
        raw(pa.timestamp("ns", "UTC"), 1000),
        UTC,
        [datetime.datetime(1970, 1, 1, 0, 0, 0, 1, datetime.UTC)],
    ),
]


@pytest.mark.parametrize(("array", "kind", "values"), FITS, ids=str)
def test_values_that_fit_are_converted(array, kind, values):
    batch = conform(a_batch(c=array), a_schema(c=kind))
    batch.validate(full=True)
    assert batch.schema.equals(a_schema(c=kind), check_metadata=True)
    assert batch.column(0).to_pylist() == values


DOES_NOT_FIT = [
    (pa.array([2**31]), pa.int32()),
    (pa.array([2**63], pa.uint64()), pa.int64()),
    (pa.array([1.5]), pa.int64()),
    (pa.array([float("nan")]), pa.int64()),
    (pa.array([2.0**63]), pa.int64()),
    (pa.array([2**53 + 1]), pa.float64()),
    (pa.array([1e300]), pa.float32()),
    (pa.array([100]), pa.decimal128(4, 2)),
    (pa.array([Decimal("1.25")]), pa.decimal128(9, 1)),
    (raw(pa.timestamp("ns", "Europe/Berlin"), 1), UTC),
    (raw(pa.date64(), 0, 1), pa.date32()),
    (raw(pa.date64(), -A_DAY - 1), pa.date32()),
    (raw(pa.date64(), A_DAY * 2**32), pa.date32()),
    (raw(pa.timestamp("ns", "UTC"), 1000, 1001), UTC),
    (raw(pa.timestamp("ns", "UTC"), -1), UTC),
    (raw(pa.timestamp("s", "UTC"), 2**62), UTC),
    (raw(pa.timestamp("ms", "UTC"), -(2**62)), UTC),
    (
        pa.Array.from_buffers(pa.decimal256(38, 0), 1, [None, pa.py_buffer(b"\x7f" * 32)]),
        pa.decimal128(38, 0),
    ),
]


@pytest.mark.parametrize(("array", "kind"), DOES_NOT_FIT, ids=str)
def test_a_value_that_would_change_is_refused_with_its_path(array, kind):
    with pytest.raises(BadBatch, match="does not fit") as caught:
        conform(a_batch(c=array), a_schema(c=kind))
    assert caught.value.column == "c"
    inner = pa.ListArray.from_arrays([0, len(array)], array)
    schema = a_schema(c=list_of(a_struct(list_of(kind, nullable=True)), nullable=True))
    outer = pa.ListArray.from_arrays([0, 1], pa.StructArray.from_arrays([inner], names=["f0"]))
    with pytest.raises(BadBatch, match="does not fit") as caught:
        conform(a_batch(c=outer), schema)
    assert caught.value.column == "c[].f0[]"


def test_values_that_no_one_sees_are_not_judged():
    odd = raw(pa.timestamp("ns", "UTC"), 1000, 1, valid=0b01)  # 1 ns lies under a null
    assert conform(a_batch(c=odd), a_schema(c=UTC)).column(0).null_count == 1

    bare = raw(pa.timestamp("ns", "UTC"), 1, 1000, 1, 2000)
    struct = pa.StructArray.from_arrays(
        [bare], ["f0"], mask=pa.array([True, False, True, False])
    )
    found = conform(a_batch(c=struct), a_schema(c=a_struct(UTC))).column(0)
    assert found.is_valid().to_pylist() == [False, True, False, True]

    lists = pa.ListArray.from_arrays(
        [0, 1, 2, 3, 4], bare, mask=pa.array([True, False, True, False])
    )
    schema = a_schema(c=list_of(UTC, nullable=True))
    assert conform(a_batch(c=lists), schema).column(0).value_lengths().to_pylist() == [
        None,
        1,
        None,
        1,
    ]
    assert conform(a_batch(c=lists).slice(1, 1), schema).column(
        0
    ).value_lengths().to_pylist() == [1]


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array(["1"]), pa.int64()),
        (pa.array([True]), pa.int64()),
        (pa.array([True]), pa.float64()),
        (pa.array([1], pa.int64()), pa.bool_()),
        (pa.array([1.0]), pa.decimal128(9, 1)),
        (pa.array([Decimal("1.0")]), pa.int64()),
        (pa.array([1], pa.date32()), UTC),
        (pa.array([1], UTC), pa.date32()),
        (pa.array([b"1"]), pa.string()),
        (pa.array([1], UTC), pa.int64()),
        (pa.array([1], pa.timestamp("us")), UTC),
        (pa.array([[1]]), pa.int64()),
        (pa.array([1]), list_of(pa.int64(), nullable=True)),
        (
            pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())),
            list_of(pa.int8(), nullable=True),
        ),
        (pa.array([{"x": 1}]), map_of(pa.string(), pa.int64(), nullable=True)),
        (pa.array(["b"]).dictionary_encode(), pa.int64()),
        (pa.array([b"x" * 16], pa.uuid()), pa.binary()),
    ],
    ids=str,
)
def test_another_type_is_refused_even_without_rows(array, kind):
    for batch in (a_batch(c=array), a_batch(c=array).slice(0, 0)):
        with pytest.raises(BadBatch, match="the schema expects") as caught:
            conform(batch, a_schema(c=kind))
        assert caught.value.column == "c"
        assert caught.value.hint


def is_taken_in(kind):
    """What a batch may have although no schema may: nothing but nulls, times of any zone."""
    return pa.types.is_null(kind) or (pa.types.is_timestamp(kind) and kind.tz)


@pytest.mark.parametrize(
    ("kind", "hint"), [each for each in REFUSED if not is_taken_in(each[0])], ids=str
)
def test_a_batch_with_a_type_that_is_never_kept_is_refused_wherever_it_stands(kind, hint):
    kept = dict(wrapped(pa.string()))
    places = wrapped(kind)[:1] if pa.types.is_run_end_encoded(kind) else wrapped(kind)
    for path, outer in places:
        batch = pa.RecordBatch.from_arrays([pa.nulls(0, outer)], ["c"])
        with pytest.raises(BadBatch) as caught:
            conform(batch, canonical(a_schema(c=kept[path])))
        assert caught.value.column == path
        assert caught.value.hint.startswith(hint)


def test_a_type_is_refused_before_arrow_would_abort_on_its_values():
    union = pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array([1, 2])])
    struct = pa.StructArray.from_arrays([union], ["f0"], mask=pa.array([True, False]))
    with pytest.raises(BadBatch) as caught:
        conform(a_batch(c=struct), a_schema(c=a_struct(pa.int64())))
    assert caught.value.column == "c.f0"


def test_columns_and_fields_come_in_any_order():
    schema = a_schema(a=pa.int64(), b=pa.struct([("x", pa.int64()), ("y", pa.string())]))
    given_ = a_batch(b=pa.array([{"y": "é", "x": 1}, None]), a=pa.array([1, 2]))
    assert conform(given_, schema).to_pylist() == [
        {"a": 1, "b": {"x": 1, "y": "é"}},
        {"a": 2, "b": None},
    ]


@pytest.mark.parametrize(
    ("names", "column", "flaw", "hint"),
    [
        (["id", "Price"], "price", "missing", "'Price'"),
        (["id"], "price", "missing and not nullable", "Add it to every row"),
        (["id", "price", "prize"], "prize", "no such column", "'price'"),
        (["id", "price", "_offset"], "_offset", "no such column", "Omit it"),
        (["id", "price", "price"], "price", "twice", "Remove one"),
    ],
)
def test_missing_unknown_and_double_columns_are_named_also_inside(names, column, flaw, hint):
    fields = [pa.field("id", pa.int64()), pa.field("price", pa.int64(), nullable=False)]
    values = [pa.array([1]) for _ in names]
    with pytest.raises(BadBatch, match=flaw) as caught:
        conform(pa.RecordBatch.from_arrays(values, names), pa.schema(fields))
    assert caught.value.column == column
    assert hint in caught.value.hint
    inner = pa.StructArray.from_arrays(values, names)
    with pytest.raises(BadBatch) as caught:
        conform(a_batch(s=inner), a_schema(s=pa.struct(fields)))
    assert caught.value.column == f"s.{column}"


REQUIRED_INT = pa.field("x", pa.int64(), nullable=False)
NULLS = [
    ("c", pa.int64(), False, [1, None]),
    ("c", list_of(pa.int64(), nullable=True), False, [[1], None]),
    ("c[]", list_of(pa.int64(), nullable=False), True, [[1], [None]]),
    ("c.x", pa.struct([REQUIRED_INT]), True, [{"x": 1}, {"x": None}]),
    ("c{value}", map_of(pa.string(), pa.int64(), nullable=False), True, [[("a", None)]]),
    (
        "c[].x",
        list_of(pa.struct([REQUIRED_INT]), nullable=True),
        True,
        [[None, {"x": 1}], [{"x": None}]],
    ),
]


@pytest.mark.parametrize(("path", "kind", "nullable", "values"), NULLS)
def test_a_null_where_none_may_be_is_refused_with_its_path(path, kind, nullable, values):
    schema = pa.schema([pa.field("c", kind, nullable)])
    said = a_batch(c=pa.array(values, kind))  # a type that promises what the values break
    with pytest.raises(BadBatch, match="null") as caught:
        conform(said, schema)
    assert caught.value.column == path
    if path != "c{value}":
        with pytest.raises(BadBatch, match="null") as caught:
            conform(a_batch(c=pa.array(values)), schema)  # and one that promises nothing
        assert caught.value.column == path
    conform(said.slice(0, 0), schema)


def test_a_null_key_is_refused():
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
    hidden = pa.MapArray.from_arrays([0, 2], keys, pa.array([1, 2]))
    with pytest.raises(BadBatch, match="null") as caught:
        conform(a_batch(c=hidden), a_schema(c=map_of(pa.string(), pa.int64(), nullable=True)))
    assert caught.value.column == "c{key}"


def test_a_null_that_a_dictionary_hides_is_found():
    hidden = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", None]))
    assert hidden.null_count == 0
    with pytest.raises(BadBatch, match="1 of 2 values are null"):
        conform(a_batch(c=hidden), required(c=pa.string()))


def test_a_child_need_not_be_there_where_its_parent_is_not():
    kind = pa.struct([REQUIRED_INT, pa.field("in", pa.struct([REQUIRED_INT]))])
    values = [None, {"x": 1, "in": None}, {"x": 1, "in": {"x": 2}}, None]
    for found in (pa.array(values, kind), pa.array(values)):
        assert conform(a_batch(c=found), a_schema(c=kind)).column(0).to_pylist() == values


def test_a_batch_that_fits_is_returned_as_it_is():
    schema = required(a=pa.int64(), b=list_of(pa.int64(), nullable=False))
    batch = a_batch(schema, a=[1, 2], b=[[1], []])
    assert conform(batch, schema) is batch


def test_a_batch_of_the_same_types_is_not_copied():
    schema = required(a=pa.int64(), b=list_of(pa.int64(), nullable=True))
    batch = a_batch(a=pa.array([1, 2]), b=pa.array([[1], []])).replace_schema_metadata(
        {"k": "v"}
    )
    found = conform(batch, schema)
    assert found.schema.equals(schema, check_metadata=True)
    for column, other in zip(batch.columns, found.columns, strict=True):
        assert [each and each.address for each in column.buffers()] == [
            each and each.address for each in other.buffers()
        ]


def test_more_elements_than_a_list_can_count_are_refused():
    count = 2**31
    bits = pa.py_buffer(bytes(count // 8))  # zeros that no one touches take no memory
    huge = pa.LargeListArray.from_arrays(
        pa.array([0, count], pa.int64()), pa.Array.from_buffers(pa.bool_(), count, [None, bits])
    )
    with pytest.raises(BadBatch, match="does not fit") as caught:
        conform(a_batch(c=huge), a_schema(c=list_of(pa.bool_(), nullable=True)))
    assert caught.value.column == "c"


# --- random schemas and batches

INSTANTS = st.datetimes(
    datetime.datetime(1900, 1, 1),  # noqa: DTZ001
    datetime.datetime(2200, 1, 1),  # noqa: DTZ001
    timezones=st.just(datetime.UTC),
)
# A kept type, types that become it, and values that all of them hold.
EQUALS = [
    ([pa.bool_()], st.booleans()),
    ([pa.int8()], st.integers(-128, 127)),
    ([pa.int16(), pa.uint8()], st.integers(0, 255)),
    ([pa.int32(), pa.uint16()], st.integers(0, 2**16 - 1)),
    ([pa.int64(), pa.uint32()], st.integers(0, 2**32 - 1)),
    ([pa.decimal128(20, 0), pa.uint64(), pa.decimal256(20, 0)], st.integers(0, 2**64 - 1)),
    ([pa.float32(), pa.float16()], st.floats(width=16, allow_nan=False)),
    ([pa.float64()], st.floats(allow_nan=False)),
    (
        [
            pa.string(),
            pa.large_string(),
            pa.string_view(),
            pa.dictionary(pa.int32(), pa.string()),
        ],
        st.text(max_size=20),
    ),
    ([pa.binary(), pa.large_binary(), pa.binary_view()], st.binary(max_size=20)),
    ([pa.binary(), pa.binary(3)], st.binary(min_size=3, max_size=3)),
    ([pa.date32(), pa.date64()], st.dates()),
    ([UTC, pa.timestamp("us", "Z"), pa.timestamp("ns", "UTC")], INSTANTS),
    (
        [pa.decimal128(9, 2), pa.decimal32(9, 2), pa.decimal64(9, 2), pa.decimal256(9, 2)],
        st.decimals(-9999, 9999, places=2),
    ),
]


@st.composite
def twins(draw, depth=2):
    """A kept type, one that becomes it, and a strategy for values of both, nulls included."""
    shape = draw(st.sampled_from(["leaf", "list", "struct", "map"] if depth else ["leaf"]))
    if shape == "leaf":
        kinds, values = draw(st.sampled_from(EQUALS))
        return kinds[0], draw(st.sampled_from(kinds)), values
    kept, loose, values = draw(twins(depth=depth - 1))
    optional = draw(st.booleans())
    elements = st.none() | values if optional else values
    if shape == "list":
        outer = draw(st.sampled_from([pa.list_, pa.large_list, pa.list_view]))
        name = draw(st.sampled_from(["item", "element"]))
        declared = pa.field(name, loose, nullable=draw(st.booleans()) or optional)
        lists = st.lists(elements, max_size=3)
        return list_of(kept, nullable=optional), outer(declared), lists
    if shape == "map":
        pairs = st.lists(st.tuples(st.text(max_size=2), elements), max_size=3)
        loose_map = pa.map_(pa.large_string(), loose, keys_sorted=draw(st.booleans()))
        return map_of(pa.string(), kept, nullable=optional), loose_map, pairs
    fields = [pa.field("a", pa.int8()), pa.field("b", kept, optional)]
    others = draw(st.permutations([pa.field("a", pa.int8()), pa.field("b", loose)]))
    number = st.none() | st.integers(-128, 127)
    return (
        pa.struct(fields),
        pa.struct(others),
        st.fixed_dictionaries({"a": number, "b": elements}),
    )


@st.composite
def twin_batches(draw):
    """A schema, rows of it, and the same in types that become the schema's, cut alike."""
    row_count = draw(st.integers(0, 6))
    fields, rows, arrays = [], [], []
    for place in range(draw(st.integers(1, 3))):
        kept, loose, values = draw(twins())
        optional = draw(st.booleans())
        column = st.lists(
            st.none() | values if optional else values, min_size=row_count, max_size=row_count
        )
        rows.append(draw(column))
        fields.append(pa.field(f"c{place}", kept, optional))
        arrays.append(pa.array(rows[-1], loose))
    schema = pa.schema(fields)
    start = draw(st.integers(0, row_count))
    length = draw(st.integers(0, row_count - start))
    order = draw(st.permutations(range(len(fields))))
    batch = pa.RecordBatch.from_arrays(
        [arrays[place] for place in order], [schema.names[place] for place in order]
    )
    expected = a_batch(schema, **dict(zip(schema.names, rows, strict=True)))
    return schema, expected.slice(start, length), batch.slice(start, length)


@given(twin_batches())
def test_any_batch_of_types_that_become_the_schemas_keeps_its_values(case):
    schema, expected, batch = case
    found = conform(batch, schema)
    found.validate(full=True)
    assert found.schema.equals(schema, check_metadata=True)
    assert found.to_pylist() == expected.to_pylist()
    assert found.equals(expected)
    again = conform(found, schema)
    assert again is found


@given(twin_batches())
def test_canonical_is_final_and_what_a_batch_becomes_is_its_canonical(case):
    schema, _, batch = case
    assert canonical(schema).equals(schema, check_metadata=True)
    kept = canonical(batch.schema)
    assert canonical(kept).equals(kept, check_metadata=True)
    assert conform(batch, kept).schema.equals(kept)
    check_sealable(kept)
    assert decode_schema(encode_schema(kept)).equals(kept, check_metadata=True)


# --- evolution

OLD = pa.schema([pa.field("a", pa.int16()), pa.field("b", pa.string(), nullable=False)])
A, B = OLD

MAY_FOLLOW = [
    [A, B, pa.field("c", pa.string())],
    [A, B, pa.field("c", a_struct(pa.int8(), nullable=False)), pa.field("d", pa.int8())],
    [A.with_type(pa.int32()), B],
    [A.with_type(pa.int64()), B],
    [A, B.with_nullable(True)],
    [A.with_type(pa.int64()), B.with_nullable(True), pa.field("c", UTC)],
]
MAY_NOT_FOLLOW = [
    ("", [A, B]),
    ("b", [A]),
    ("b", [A, pa.field("text", pa.string(), nullable=False)]),
    ("b", [A, pa.field("B", pa.string(), nullable=False)]),
    ("b", [B, A]),
    ("c", [A, pa.field("c", pa.int8()), B]),
    ("c", [A, B, pa.field("c", pa.int8(), nullable=False)]),
    ("a", [A.with_type(pa.int8()), B]),
    ("a", [A.with_type(pa.float64()), B]),
    ("a", [A.with_type(pa.decimal128(20, 0)), B]),
    ("a", [A.with_type(pa.string()), B]),
    ("a", [A.with_nullable(False), B]),
    ("b", [A, B.with_type(pa.binary())]),
]


@pytest.mark.parametrize("fields", MAY_FOLLOW, ids=str)
def test_a_schema_may_gain_columns_and_width(fields):
    check_evolution(OLD, pa.schema(fields))


@pytest.mark.parametrize(("column", "fields"), MAY_NOT_FOLLOW, ids=str)
def test_any_other_change_is_refused_with_the_column(column, fields):
    with pytest.raises(BadSchema) as caught:
        check_evolution(OLD, pa.schema(fields))
    assert caught.value.column == column
    assert "topic" in caught.value.hint


INTS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
FLOATS = [pa.float32(), pa.float64()]
DECIMALS = [pa.decimal128(5, 2), pa.decimal128(6, 2), pa.decimal128(38, 2)]
WIDER = {
    (before, after)
    for kinds in (INTS, FLOATS, DECIMALS)
    for place, before in enumerate(kinds)
    for after in kinds[place + 1 :]
}


@pytest.mark.parametrize("before", LEAVES + NESTED + DECIMALS, ids=str)
def test_a_type_becomes_a_wider_number_or_stays(before):
    for after in LEAVES + NESTED + DECIMALS:
        added = pa.field("new", pa.int8())
        old, new = a_schema(c=before), pa.schema([pa.field("c", after), added])
        if before == after or (before, after) in WIDER:
            check_evolution(old, new)
        else:
            with pytest.raises(BadSchema, match="cannot become"):
                check_evolution(old, new)


def test_nothing_changes_inside():
    inner = list_of(pa.int8(), nullable=True)
    for after in (list_of(pa.int16(), nullable=True), list_of(pa.int8(), nullable=False)):
        with pytest.raises(BadSchema, match="cannot become"):
            check_evolution(a_schema(c=inner), a_schema(c=after))
    with pytest.raises(BadSchema, match="cannot become"):
        check_evolution(a_schema(c=a_struct(pa.int8())), a_schema(c=a_struct(pa.int8(), UTC)))


# --- upgrade


def test_an_older_batch_gains_nulls_and_width_and_the_rest_is_not_copied():
    batch = a_batch(OLD, a=[1, None], b=["x", "y"])
    later = pa.schema([A.with_type(pa.int64()), B.with_nullable(True), *a_schema(c=NESTED[6])])
    check_evolution(OLD, later)
    found = upgrade(batch, later)
    found.validate(full=True)
    assert found.schema.equals(later, check_metadata=True)
    assert found.to_pydict() == {"a": [1, None], "b": ["x", "y"], "c": [None, None]}
    assert found.column("b").buffers()[2].address == batch.column("b").buffers()[2].address
    assert upgrade(batch, OLD) is batch


@pytest.mark.parametrize(
    ("column", "fields"),
    [
        ("b", [A]),
        ("c", [A, B, pa.field("c", pa.int8(), nullable=False)]),
        ("a", [A.with_type(pa.int8()), B]),
        ("a", [A.with_type(pa.string()), B]),
        ("a", [A.with_nullable(False), B]),
    ],
    ids=str,
)
def test_a_batch_of_no_older_version_is_refused(column, fields):
    with pytest.raises(BadBatch) as caught:
        upgrade(a_batch(OLD, a=[1, None], b=["x", "y"]), pa.schema(fields))
    assert caught.value.column == column


@st.composite
def histories(draw):
    """A batch and the versions after its own."""
    _, batch, _ = draw(twin_batches())
    schema = pa.schema([*batch.schema, draw(st.sampled_from(sorted(FIRST, key=str)))])
    value = draw(st.integers(-99, 99))
    number = pa.array([value] * batch.num_rows, schema.field(-1).type)
    versions = [schema]
    for step in range(draw(st.integers(1, 4))):
        fields = list(versions[-1])
        for place, field in enumerate(fields):
            after = [kind for before, kind in WIDER if before == field.type]
            if after and draw(st.booleans()):
                fields[place] = field.with_type(draw(st.sampled_from(sorted(after, key=str))))
            if draw(st.booleans()):
                fields[place] = fields[place].with_nullable(True)
        kept, _, _ = draw(twins(depth=1))
        versions.append(pa.schema([*fields, pa.field(f"added{step}", kept)]))
    return pa.RecordBatch.from_arrays([*batch.columns, number], schema=schema), versions


FIRST = [pa.field("n", kind) for kind in (pa.int8(), pa.float32(), pa.decimal128(5, 2))]


@given(histories())
def test_an_upgrade_over_all_versions_is_the_one_to_the_last(case):
    batch, versions = case
    for old, new in pairwise(versions):
        check_evolution(old, new)
    at_once, by_steps = upgrade(batch, versions[-1]), batch
    for version in versions[1:]:
        by_steps = upgrade(by_steps, version)
    at_once.validate(full=True)
    assert at_once.equals(by_steps)
    assert at_once.schema.equals(versions[-1], check_metadata=True)
    assert conform(at_once, versions[-1]) is at_once
    for row, older in zip(at_once.to_pylist(), batch.to_pylist(), strict=True):
        assert row == older | {name: None for name in row if name not in older}


# --- bytes


def test_the_limit_is_the_one_of_the_metadata_machine():
    assert SCHEMA_SIZE_MAX == rules.SCHEMA_SIZE_MAX
    assert rules.schema(encode_schema(OLD)) is None


def test_a_schema_of_too_many_bytes_is_refused_both_ways():
    wide = a_schema(**{f"{place:0250}": pa.int8() for place in range(1_500)})
    assert canonical(wide).equals(wide)
    with pytest.raises(BadSchema, match="the limit is 262144"):
        encode_schema(wide)
    with pytest.raises(BadSchema, match="the limit is 262144"):
        decode_schema(wide.serialize().to_pybytes())


@pytest.mark.parametrize(
    "schema",
    [
        a_schema(c=pa.uint8()),
        a_schema(c=pa.list_(pa.int8())),  # its element is called "item"
        a_schema(c=pa.int8()).with_metadata({"a": "b"}),
        pa.schema([pa.field("c", pa.int8(), metadata={"a": "b"})]),
        a_schema(c=pa.map_(pa.string(), pa.int8(), keys_sorted=True)),
        a_schema(c=pa.time32("s")),
        a_schema(_offset=pa.int64()),
        pa.schema([]),
    ],
    ids=str,
)
def test_only_a_canonical_schema_is_encoded_or_decoded(schema):
    with pytest.raises(BadSchema):
        encode_schema(schema)
    with pytest.raises(BadSchema):
        decode_schema(schema.serialize().to_pybytes())


def test_equal_schemas_have_equal_bytes():
    loose = pa.schema([*OLD, pa.field("c", pa.large_list(pa.uint8()))], {"made": "by hand"})
    tight = pa.schema([*OLD, pa.field("c", list_of(pa.int16(), nullable=True))])
    assert encode_schema(canonical(loose)) == encode_schema(tight)


WHOLE = encode_schema(
    pa.schema([pa.field(f"c{place}", kind) for place, kind in enumerate(LEAVES + NESTED)])
)


def decoded_or_refused(data):
    try:
        schema = decode_schema(data)
    except BadSchema:
        return
    assert canonical(schema).equals(schema, check_metadata=True)
    assert decode_schema(encode_schema(schema)).equals(schema, check_metadata=True)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_schema_or_refused(data):
    decoded_or_refused(data)
    decoded_or_refused(WHOLE[:8] + data)


def test_a_cut_or_longer_schema_is_refused():
    for size in range(len(WHOLE)):
        with pytest.raises(BadSchema):
            decode_schema(WHOLE[:size])
    for rest in (b"\0", b"\0" * 8, WHOLE):
        with pytest.raises(BadSchema, match="bytes follow"):
            decode_schema(WHOLE + rest)


@given(
    st.lists(
        st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 7)), min_size=1, max_size=4
    )
)
def test_flipped_bits_make_a_schema_or_are_refused(flips):
    data = bytearray(WHOLE)
    for place, bit in flips:
        data[place] ^= 1 << bit
    decoded_or_refused(bytes(data))


def test_every_single_flip_makes_a_schema_or_is_refused():
    for place in range(len(WHOLE)):
        data = bytearray(WHOLE)
        data[place] ^= 1 << place % 8
        decoded_or_refused(bytes(data))
