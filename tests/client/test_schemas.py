"""Schemas from whatever users call one."""

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, ClassVar, Literal, TypedDict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.write.schemas import schema_of
from headrace.errors import BadBatch, BadSchema
from headrace.model.column_types import TIMESTAMP, list_of, map_of


def test_an_arrow_schema_is_made_as_it_is_kept():
    found = schema_of(pa.schema([("id", pa.uint32())], metadata={"a": "b"}))
    assert found.equals(pa.schema([("id", pa.int64())]), check_metadata=True)


def test_names_of_types_are_read():
    found = schema_of(
        {
            "a": "int64 not null",
            "b": "STRING",
            "c": "decimal(10, 2)",
            "d": "list<int32 not null>",
            "e": "map<string, list<double>>",
            "f": "struct<x: float64, y: timestamp not null>",
            "g": pa.int8(),
            "h": pa.field("other", pa.date32(), nullable=False),
            "i": int,
            "j": list[str],
        }
    )
    assert found == pa.schema(
        [
            pa.field("a", pa.int64(), nullable=False),
            ("b", pa.string()),
            ("c", pa.decimal128(10, 2)),
            ("d", list_of(pa.int32(), nullable=False)),
            ("e", map_of(pa.string(), list_of(pa.float64(), nullable=True), nullable=True)),
            (
                "f",
                pa.struct([("x", pa.float64()), pa.field("y", TIMESTAMP, nullable=False)]),
            ),
            ("g", pa.int8()),
            pa.field("h", pa.date32(), nullable=False),
            ("i", pa.int64()),
            pa.field("j", list_of(pa.string(), nullable=False), nullable=False),
        ]
    )


@pytest.mark.parametrize(
    "text",
    [
        *("", "int65", "list", "list<", "list<int>>", "decimal", "decimal(99999)"),
        *("decimal(50)", "map<int>", "struct<>", "struct<a>", "int64 null", "timestamp[ns]"),
        "list<" * 99,
    ],
)
def test_what_is_no_type_names_its_column(text):
    with pytest.raises(BadSchema) as caught:
        schema_of({"good": "int64", "bad": text})
    assert caught.value.column == "bad"


@given(st.text(max_size=30))
def test_any_text_is_a_type_or_a_bad_schema(text):
    with suppress(BadSchema):
        schema_of({"a": text})


@dataclass
class Place:
    lat: float
    lon: float | None


@dataclass
class Order:
    id: int
    at: datetime
    day: date
    name: str | None
    kind: Literal["a", "b"]
    tags: list[str | None]
    counts: dict[str, int]
    where: Place
    raw: bytes = b""


def test_a_dataclass_is_a_schema():
    assert schema_of(Order) == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("at", TIMESTAMP, nullable=False),
            pa.field("day", pa.date32(), nullable=False),
            ("name", pa.string()),
            pa.field("kind", pa.string(), nullable=False),
            pa.field("tags", list_of(pa.string(), nullable=True), nullable=False),
            pa.field("counts", map_of(pa.string(), pa.int64(), nullable=False), nullable=False),
            pa.field(
                "where",
                pa.struct(
                    [pa.field("lat", pa.float64(), nullable=False), ("lon", pa.float64())]
                ),
                nullable=False,
            ),
            pa.field("raw", pa.binary(), nullable=False),
        ]
    )


class Row(TypedDict):
    id: int


def test_a_typed_dict_is_a_schema():
    assert schema_of(Row) == pa.schema([pa.field("id", pa.int64(), nullable=False)])


class Digits:
    """As annotations of pydantic say how many digits a decimal has."""

    max_digits = 10
    decimal_places = 2


class FieldInfo:
    def __init__(self, annotation, *metadata):
        self.annotation = annotation
        self.metadata = list(metadata)


class Model:
    """What a pydantic model shows of itself."""

    model_fields: ClassVar = {
        "id": FieldInfo(int),
        "price": FieldInfo(Decimal, Digits()),
        "maybe": FieldInfo(str | None),
    }


def test_a_pydantic_model_is_a_schema():
    assert schema_of(Model) == pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("price", pa.decimal128(10, 2), nullable=False),
            ("maybe", pa.string()),
        ]
    )


def test_a_real_pydantic_model_is_a_schema():
    pydantic = pytest.importorskip("pydantic")

    class Real(pydantic.BaseModel):
        id: int
        price: Annotated[Decimal, pydantic.Field(max_digits=10, decimal_places=2)]

    assert schema_of(Real).field("price").type == pa.decimal128(10, 2)


@dataclass
class Unsized:
    price: Decimal


@dataclass
class Either:
    price: int | str


@dataclass
class Strange:
    price: complex


@dataclass
class Itself:
    price: "list[Itself]"


@pytest.mark.parametrize("model", [Unsized, Either, Strange, Itself])
def test_a_field_that_is_no_column_is_named(model):
    with pytest.raises(BadSchema) as caught:
        schema_of(model)
    assert caught.value.column.startswith("price")


def test_a_class_without_fields_is_no_schema():
    with pytest.raises(BadSchema, match="no fields"):
        schema_of(int)


def test_a_schema_is_told_from_data():
    import pandas as pd
    import polars as pl

    expected = pa.schema([("id", pa.int64()), ("name", pa.string())])
    columns = {"id": [1], "name": ["a"]}
    table = pa.table(columns)
    for data in (
        table,
        table.to_batches()[0],
        table.to_pylist(),
        columns,
        pd.DataFrame(columns),
        pl.DataFrame(columns),
    ):
        assert schema_of(data) == expected, type(data)


def test_a_column_of_nothing_has_no_type():
    with pytest.raises(BadSchema, match="null") as caught:
        schema_of([{"id": 1, "name": None}])
    assert caught.value.column == "name"


def test_times_without_a_zone_are_refused():
    with pytest.raises(BadSchema, match="UTC"):
        schema_of([{"at": datetime(2026, 1, 1)}])  # noqa: DTZ001
    assert schema_of([{"at": datetime(2026, 1, 1, tzinfo=UTC)}]).field("at").type == TIMESTAMP


@pytest.mark.parametrize("data", ["text", b"bytes", 7, [1, 2], [{"a": 1}, {"a": "x"}]])
def test_what_has_no_schema_is_told(data):
    with pytest.raises((BadSchema, BadBatch)):
        schema_of(data)
