"""Rows from whatever users have, exactly or not at all."""

from collections import defaultdict
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.write.convert import PIECE_SIZE, batches_of, infer_schema
from headrace.errors import BadBatch, BodyTooLarge
from headrace.model.batch import decode
from headrace.model.column_types import TIMESTAMP, list_of
from headrace.model.partition_keys import partitions_of
from headrace.model.split import about_size, bodies_of, by_key, gathered

SCHEMA = pa.schema([pa.field("id", pa.int32(), nullable=False), ("name", pa.string())])


def rows_of(data, schema=SCHEMA):
    return [row for batch in batches_of(data, schema) for row in batch.to_pylist()]


def test_rows_become_batches_of_exactly_the_schema():
    (batch,) = batches_of([{"name": "a", "id": 1}, {"id": 2}], SCHEMA)
    assert batch.schema.equals(SCHEMA, check_metadata=True)
    assert batch.to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.5),
        (pa.int8(), 300),
        (pa.int64(), 2**63),
        (pa.int64(), "1"),
        (pa.int64(), True),
        (pa.string(), 1),
        (pa.bool_(), 1),
        (pa.float64(), "x"),
        (pa.float64(), 2**60 + 1),
        (pa.decimal128(4, 2), Decimal("1.234")),
        (pa.decimal128(4, 2), 1.25),
        (pa.date32(), datetime(2026, 1, 1, 12, tzinfo=UTC)),
        (TIMESTAMP, date(2026, 1, 1)),
        (TIMESTAMP, datetime(2026, 1, 1)),  # noqa: DTZ001
        (TIMESTAMP, "2026-01-01"),
        (list_of(pa.int64(), nullable=True), [1.5]),
        (list_of(TIMESTAMP, nullable=True), [datetime(2026, 1, 1)]),  # noqa: DTZ001
        (pa.struct([("a", pa.int64())]), {"a": 1, "b": 2}),
        (pa.struct([("a", pa.int64())]), {"a": 1.5}),
        (pa.struct([("a", pa.int64())]), 5),
    ],
)
def test_a_value_that_would_change_is_refused_with_its_column(kind, value):
    with pytest.raises(BadBatch) as caught:
        rows_of([{"v": value}], pa.schema([("v", kind)]))
    assert caught.value.column.startswith("v")


def test_a_null_where_none_may_be_is_refused():
    with pytest.raises(BadBatch, match="null") as caught:
        rows_of([{"name": "a"}])
    assert caught.value.column == "id"


def test_pandas_gives_whole_numbers_that_it_keeps_as_floats():
    import pandas as pd

    schema = pa.schema([("n", pa.int64()), ("at", TIMESTAMP), ("x", pa.float64())])
    frame = pd.DataFrame(
        {"n": [1, None], "at": pd.to_datetime(["2026-01-01", None], utc=True), "x": [0.5, None]}
    )
    assert rows_of(frame, schema) == [
        {"n": 1, "at": datetime(2026, 1, 1, tzinfo=UTC), "x": 0.5},
        {"n": None, "at": None, "x": None},
    ]


def test_pandas_times_without_a_zone_are_refused():
    import pandas as pd

    frame = pd.DataFrame({"at": pd.to_datetime(["2026-01-01"])})
    with pytest.raises(BadBatch, match="at"):
        rows_of(frame, pa.schema([("at", TIMESTAMP)]))


def test_pandas_fractions_are_no_whole_numbers():
    import pandas as pd

    with pytest.raises(BadBatch, match="id"):
        rows_of(pd.DataFrame({"id": [1.5], "name": ["a"]}))


def test_a_column_of_nothing_but_nulls_needs_no_type():
    table = pa.table({"id": pa.array([1], pa.int32()), "name": pa.nulls(1)})
    assert rows_of(table) == [{"id": 1, "name": None}]
    with pytest.raises(BadBatch, match="id"):
        rows_of(pa.table({"id": pa.nulls(1), "name": ["a"]}))


def test_columns_may_be_arrays():
    assert rows_of({"id": pa.array([1, 2], pa.int32()), "name": ["a", None]}) == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": None},
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"id": 1, "name": "a"}, "one row"),
        ({"id": [1, 2], "name": "DE"}, "column 'name': 'DE' is a single value, not a column"),
        ({"id": b"ab", "name": ["a", "b"]}, "column 'id': b'ab' is a single value"),
        ({"id": bytearray(b"ab"), "name": ["a", "b"]}, "column 'id': .* is a single value"),
        ({"id": memoryview(b"ab"), "name": ["a", "b"]}, "column 'id': .* is a single value"),
        ({"id": 7, "name": ["a"]}, "column 'id': 7 is a single value"),
        ({"id": [1], "name": {"a": 1}}, "column 'name': .* is a single value"),
        ({"id": [1], "name": ["a", "b"]}, "values"),
        ({"name": ["a"]}, "missing"),
        ("text", "no rows"),
        (7, "no rows"),
        ([1, 2], "int is not a row"),
        (None, "no rows"),
    ],
)
def test_what_holds_no_rows_is_told(data, words):
    with pytest.raises(BadBatch, match=words):
        rows_of(data)


def test_a_list_is_judged_before_any_of_it_is_given():
    table = pa.concat_tables([pa.table({"id": [1], "name": ["a"]})] * 2)
    with pytest.raises(BadBatch):
        batches_of(table.append_column("more", [[1], [2]]), SCHEMA)


def test_a_stream_that_breaks_off_is_told():
    def broken():
        yield pa.record_batch({"id": pa.array([1], pa.int32()), "name": ["a"]})
        raise ValueError("no more")

    stream = pa.RecordBatchReader.from_batches(SCHEMA, broken())
    found = batches_of(stream, SCHEMA)
    assert next(found).num_rows == 1
    with pytest.raises((BadBatch, ValueError)):
        next(found)


def test_small_batches_go_together_and_large_ones_are_cut():
    small = pa.record_batch({"id": pa.array([1], pa.int32()), "name": ["a"]})
    together = list(gathered([small] * 10, 1_000_000))
    assert [batch.num_rows for batch in together] == [10]
    numbers = pa.array(range(10_000), pa.int32())
    large = pa.record_batch({"id": numbers, "name": ["x" * 90] * 10_000})
    bodies = list(bodies_of(large, limit=10**6, size=100_000))
    assert sum(count for count, _ in bodies) == 10_000
    assert 9 <= len(bodies) <= 12
    found = [decode(body, large.schema, count) for count, body in bodies]
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches([large]))


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=30))
def test_rows_of_any_size_are_cut_until_they_fit(sizes):
    batch = pa.record_batch({"name": ["x" * size for size in sizes]})
    bodies = list(bodies_of(batch, limit=4_096, size=1_024))
    assert all(body.nbytes <= 4_096 for _, body in bodies)
    assert all(count for count, _ in bodies)
    found = [decode(body, batch.schema, count) for count, body in bodies]
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches([batch]))


def test_a_single_row_over_the_limit_is_told():
    with pytest.raises(BodyTooLarge, match=r"a row of .* are never split") as caught:
        list(bodies_of(pa.record_batch({"name": ["x" * 5_000]}), limit=4_096))
    assert "smaller batches" not in str(caught.value)


A_KEY = st.one_of(st.none(), st.sampled_from("abcdefgh"))


@given(st.lists(A_KEY, min_size=1), st.integers(1, 5))
def test_rows_are_spread_by_their_key_and_keep_their_order(keys, count):
    batch = pa.record_batch({"key": pa.array(keys, pa.string()), "n": range(len(keys))})
    expected = partitions_of(batch["key"], count).to_pylist()
    seen = []
    for partition, rows in by_key(batch, "key", count):
        numbers = rows["n"].to_pylist()
        assert numbers == [n for n, place in enumerate(expected) if place == partition]
        seen += numbers
    assert sorted(seen) == list(range(len(keys)))


def test_columns_that_share_a_buffer_are_weighed_one_by_one():
    column = pa.array(range(10_000), pa.int64())
    few = pa.record_batch([column] * 2, names=["a", "b"])
    many = pa.record_batch([column] * 100, names=[f"c{number}" for number in range(100)])
    assert about_size(few) >= 80_000
    assert about_size(many) == many.nbytes == 100 * 80_000
    assert about_size(many.slice(0, 10)) == 100 * 80


def test_no_schema_is_told_from_columns_beside_a_single_value():
    with pytest.raises(BadBatch, match="'DE' is a single value, not a column"):
        infer_schema({"id": [1, 2], "country": "DE"})


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=3),
    st.binary(max_size=3),
)


@given(st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=1, max_size=5))
def test_rows_alike_are_taken_as_rows_that_lack_a_column_are(rows):
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])
    wider = schema.append(pa.field("more", pa.int64()))  # no row has it: the way of odd rows
    data = [dict(zip(schema.names, row, strict=True)) for row in rows]
    found, expected = outcome(data, wider), outcome(data, schema)
    if isinstance(expected, list):
        expected = [dict(row, more=None) for row in expected]
    assert found == expected


def outcome(data, schema):
    try:
        return rows_of(data, schema)
    except BadBatch as error:
        return str(error), error.column


def test_a_row_with_other_names_among_many_is_named_and_stays_as_it_is():
    rows = [{"id": n, "name": "a"} for n in range(100)]
    for odd in ({"id": 70, "nam": "a"}, {"id": 70, "name": "a", "nam": "a"}):
        rows[70] = odd
        with pytest.raises(BadBatch, match="no such column") as caught:
            rows_of(rows)
        assert caught.value.column == "nam"
    rows[70] = defaultdict(str, id=70)
    assert rows_of(rows)[70] == {"id": 70, "name": None}
    assert rows[70] == {"id": 70}  # nothing was added by looking


def test_long_text_is_cut_into_small_batches_in_order():
    rows = [{"id": n, "name": "x" * (n % 3 * 5_000)} for n in range(1_000)]
    batches = list(batches_of(rows, SCHEMA))
    assert max(batch.nbytes for batch in batches) < 2 * PIECE_SIZE
    assert [row for batch in batches for row in batch.to_pylist()] == rows
    (batch,) = batches_of([{"id": 1, "name": "x" * 2 * PIECE_SIZE}], SCHEMA)
    assert batch.num_rows == 1
