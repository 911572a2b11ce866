"""A condition: it means what SQL means; what it cannot mean is shown with its place."""

import operator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.where.grammar import parse_where
from headrace.client.where.words import BadWhere
from headrace.errors import BadRequest

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int8()),
        ("amount", pa.float64()),
        ("customer", pa.string()),
        ("paid", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("address", pa.struct([("city", pa.string())])),
        ("two words", pa.int64()),
        ("blob", pa.binary()),
    ]
)
ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "id": number,
            "small": number,
            "amount": None if number == 5 else number * 1.5,
            "customer": (None, "ann", "bob", "it's")[number % 4],
            "paid": (True, False, None)[number % 3],
            "at": NOON + timedelta(minutes=number),
            "day": date(2026, 11, 10 + number),
            "price": Decimal(number) / 4,
            "address": {"city": "rome" if number % 2 else "oslo"},
            "two words": number,
            "blob": b"x",
        }
        for number in range(12)
    ],
    schema=SCHEMA,
)


def ids(where: str) -> list[int]:
    return [
        number
        for batch in parse_where(where, SCHEMA).kept(ROWS)
        for number in batch["id"].to_pylist()
    ]


def ids_in_sql(where: str) -> list[int]:
    with duckdb.connect() as database:
        database.register("rows", pa.Table.from_batches([ROWS.drop_columns(["blob"])]))
        return [row[0] for row in database.sql(f"select id from rows where {where}").fetchall()]


SAME_AS_SQL = [
    "amount > 10 and customer = 'ann'",
    "amount > 10 AND customer = 'ann' or id = 0",
    "not customer = 'ann'",
    "not (customer = 'ann' or id < 5)",
    "not not id < 3",
    "id in (1, 2, 3)",
    "customer in ('ann', 'bob')",
    "customer not in ('ann')",
    "not customer in ('ann')",
    "customer is null",
    "customer is not null and id <> 2",
    "not customer is null",
    "paid",
    "not paid",
    "paid or id = 1",
    "paid = true",
    "paid != false and id >= 3",
    "customer = 'it''s'",
    "price > 1.255",
    "price in (0.25, 1, 2.5)",
    "small < 300 and id > 4",
    "small > 2.5",
    "id >= 1e1",
    "5 <= id",
    "id < amount",
    "id != -1 and id < 4",
    "address.city = 'rome'",
    "amount = 0.0 or (amount > 3 and (id < 9))",
]


@pytest.mark.parametrize("where", SAME_AS_SQL)
def test_it_means_what_sql_means(where):
    found = ids(where)
    assert found == ids_in_sql(where)
    assert found != []
    assert found != ids("id >= 0")


LARGE = [None, -(2**63), -1, 0, 1, 2, 20_000_000, 2**53, 2**53 + 1, 2**63 - 1]
NUMBERS = [
    *("1.5", "-0.5", "2.0", "2e0", "20000000.5", "9007199254740992.0", "9007199254740993"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808.5", "1e30", "-1e30"),
    *("1e-30", "1e999999999999999", "-1e-999999999999999", "7" * 5_000),
]
HOLDS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def numbers(where: str, values: list, kind: pa.DataType) -> list:
    batch = pa.record_batch({"a": pa.array(values, kind)})
    kept = parse_where(where, batch.schema).kept(batch)
    return [each for batch in kept for each in batch["a"].to_pylist()]


@pytest.mark.parametrize("sign", HOLDS)
@pytest.mark.parametrize("number", NUMBERS, ids=range(len(NUMBERS)))
def test_whole_numbers_are_compared_exactly_with_any_number(sign, number):
    known = [each for each in LARGE if each is not None]
    expected = [each for each in known if HOLDS[sign](each, Decimal(number))]
    others = [each for each in known if each not in expected]
    assert numbers(f"a {sign} {number}", LARGE, pa.int64()) == expected
    assert numbers(f"not a {sign} {number}", LARGE, pa.int64()) == others


@pytest.mark.parametrize(
    ("where", "kind", "expected"),
    [
        ("a in (9007199254740992, 1.5)", pa.int64(), [2**53]),
        ("a in (2.0, 1e30)", pa.int64(), [2]),
        ("a in (1.5)", pa.int64(), []),
        ("a not in (9007199254740993, 1.5)", pa.int64(), [2, 2**53]),
        ("a in (2, 9007199254740992)", pa.int8(), [2]),
        ("a in (2, 1e60, 0.0000000001)", pa.decimal128(20, 2), [2]),
        ("a in (2.0, 1.5)", pa.float64(), [2]),
    ],
)
def test_a_value_that_the_column_cannot_have_is_in_no_row(where, kind, expected):
    values = [None, 2] if pa.types.is_int8(kind) else [None, 2, 2**53]
    assert numbers(where, values, kind) == expected


def test_columns_of_large_whole_numbers_and_of_floats_are_compared():
    batch = pa.record_batch({"id": [2**60, 1], "amount": [1.5, 1.5]})
    (kept,) = parse_where("id > amount", batch.schema).kept(batch)
    (other,) = parse_where("amount < id", batch.schema).kept(batch)
    assert kept["id"].to_pylist() == other["id"].to_pylist() == [2**60]


def test_a_float32_column_equals_the_number_that_was_put_into_it():
    assert len(numbers("a = 0.1", [0.1, 0.2], pa.float32())) == 1
    assert len(numbers("a in (0.1)", [0.1, 0.2], pa.float32())) == 1


def test_rows_that_cannot_be_compared_are_told_and_no_trace():
    schema = pa.schema([("a", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    where = parse_where("a > 1", schema)
    with pytest.raises(BadWhere, match="where: cannot be evaluated"):
        where.kept(pa.record_batch({"a": ["x"], "at": [None]}))


def test_signs_and_quotes_have_two_spellings():
    assert ids('customer == "ann"') == ids("customer = 'ann'") == [1, 5, 9]
    assert ids("id <> 3") == ids("id != 3")
    assert ids("`two words` = 3") == [3]


def test_times_are_compared_with_and_without_quotes():
    assert ids("at >= 2026-11-15T12:10Z") == [10, 11]
    assert ids("at >= '2026-11-15T14:10:00+02:00'") == [10, 11]
    assert ids("day < 2026-11-12") == ids("day < '2026-11-12'") == [0, 1]
    assert ids("at < '-10m'") == [
        number
        for number in range(12)
        if ROWS["at"][number].as_py() < datetime.now(UTC) - timedelta(minutes=10)
    ]


CONDITION = st.recursive(
    st.sampled_from(
        ["id > 4", "customer = 'ann'", "paid", "amount is null", "customer in ('bob')"]
    ),
    lambda inner: st.one_of(
        inner.map(lambda one: f"not ({one})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda three: "(" + " ".join(three) + ")"
        ),
    ),
    max_leaves=6,
)


@given(CONDITION)
@settings(max_examples=60, deadline=None)
def test_whatever_is_put_together_means_what_sql_means(where):
    assert ids(where) == ids_in_sql(where)


BAD = [
    ("amount >", 8, "expected a column or a value, found the end"),
    ("amount > 'x'", 9, "expected float64, found 'x'"),
    ("customer = 7", 11, "expected string, found '7'. Put text in quotes"),
    ("id == null", 6, "nothing equals null. Use is null"),
    ("(id > 1", 7, "expected ')', found the end"),
    ("id > 1)", 6, "expected and, or, or the end, found ')'"),
    ("idd = 1", 0, "there is no column 'idd'. Did you mean 'id'?"),
    ("customer = ann", 11, "there is no column 'ann'. Put text in quotes"),
    ("blob = 'x'", 7, "expected binary"),
    ("address = 1", 10, "expected struct<city: string>"),
    ("address.town = 'x'", 0, "has no field 'town'"),
    ("id > 1 && id < 3", 7, "'&' is not allowed here. Use and"),
    ("id ! 3", 3, "'!' is not allowed here. Use not or !="),
    ("id = 'abc", 5, "a ' is opened but not closed"),
    ("id id", 3, "expected a comparison, found 'id'"),
    ("3 = 3", 0, "neither side is a column"),
    ("amount", 6, "'amount' is float64: compare it with a value"),
    ("", 0, "found the end"),
    ("at > '2026-11-15T10:00'", 5, "has no time zone. Write 2026-11-15T10:00Z"),
    ("at > 'soon'", 5, "'soon' is not a valid time"),
    ("day = '2026-11-40'", 6, "expected date, found '2026-11-40'"),
    ("id > 1e9999999999999999999999", 5, "expected int64, found '1e9999999999999999999999'"),
    ("id in (1, 'x')", 10, "expected int64, found 'x'"),
    ("id in ()", 7, "expected a column or a value, found ')'"),
    ("id in (1, amount)", 10, "expected a value, found a column"),
    ("id is 3", 6, "expected 'null', found '3'"),
    ("paid = 'true'", 7, "expected bool"),
    ("customer < at", 0, "where: cannot be evaluated"),
    ("__import__('os')", 0, "there is no column '__import__'"),
    ("(" * 100 + "id = 1", 64, "nested more than 64 levels deep"),
    ("id = \x1b[31m", 5, "is not allowed here"),
    ("id = 1 or " * 2_000, 10_000, "longer than 10,000 characters"),
]


@pytest.mark.parametrize(("where", "position", "said"), BAD, ids=range(len(BAD)))
def test_what_it_cannot_mean_is_shown_with_its_place(where, position, said):
    with pytest.raises(BadWhere) as caught:
        parse_where(where, SCHEMA)
    assert said in str(caught.value)
    assert caught.value.position == position
    _, line, mark = str(caught.value).split("\n")
    assert mark.strip() == "^"
    assert line.isprintable()


def test_the_mark_stands_below_the_place():
    with pytest.raises(BadWhere) as caught:
        parse_where("customer = '漢字' and idd > 3", SCHEMA)
    _, line, mark = str(caught.value).split("\n")
    assert line == "  customer = '漢字' and idd > 3"
    assert mark == " " * (2 + len("customer = '") + 4 + len("' and ")) + "^"


def test_a_long_one_does_not_overflow_anything():
    assert ids(" or ".join(["id=1"] * 1_200)) == [1]


@given(
    st.text(max_size=30)
    | st.text("idcustomerpa()<>=!'\"`, 0123456789.-andornotisnull", max_size=40)
)
@settings(max_examples=300, deadline=None)
def test_whatever_is_typed_is_a_condition_or_a_told_error(text):
    with suppress(BadRequest):
        parse_where(text, SCHEMA)


def test_it_says_which_columns_it_looks_at():
    assert parse_where("id > 1 and address.city = 'x' or id = 2", SCHEMA).columns == (
        "id",
        "address",
    )
