"""No reader leaves a row out because of what a file's statistics say, or do not say."""

import math
import operator
from datetime import UTC, datetime

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.spark.test_pipeline_types import SOURCE, written

from headrace.spark.tables.table_record import create

WHO = pa.struct([("age", pa.int64()), ("tags", pa.list_(pa.int64()))])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("paid", pa.bool_()),
        ("ratio", pa.float64()),
        ("rough", pa.float32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("who", WHO),
        ("bare", pa.struct([("tags", pa.list_(pa.int64()))])),
    ]
)
NOW = datetime(2026, 1, 1, microsecond=123456, tzinfo=UTC)
LATE = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
BETWEEN = datetime(2030, 1, 1, tzinfo=UTC)
USUAL = {
    "paid": True,
    "ratio": 1.5,
    "rough": 2.5,
    "at": NOW,
    "local": NOW.replace(tzinfo=None),
    "name": "ann",
    "raw": b"a",
    "who": {"age": 3, "tags": [1]},
    "bare": {"tags": [1]},
}
# Beside a usual row, each of these takes a bound from the file, or has one of its own.
STRANGE = {
    "usual": {},
    "paid false": {"paid": False},
    "no number": {"ratio": math.nan},
    "infinite": {"ratio": math.inf, "rough": -math.inf},
    "late": {"at": LATE},
    "late and local": {"local": LATE.replace(tzinfo=None)},
    "no struct": {"who": None, "bare": None},
    "null": dict.fromkeys(USUAL),
    "nothing else": dict.fromkeys(USUAL),
    "no fields": {"who": {"age": None, "tags": None}, "bare": {"tags": None}},
}
OPERATORS = {"=": operator.eq, "<": operator.lt, ">": operator.gt}
FILTERS = [
    *(("id", "=", number) for number in range(2 * len(STRANGE))),
    ("id", ">", 5),
    ("paid", "=", True),
    ("paid", "=", False),
    ("ratio", "=", 1.5),
    ("ratio", "<", 5.0),
    ("ratio", ">", 1.0),
    ("rough", "=", 2.5),
    ("rough", "<", 5.0),
    ("at", "<", BETWEEN),
    ("at", ">", BETWEEN),
    ("local", "<", BETWEEN.replace(tzinfo=None)),
    ("local", ">", BETWEEN.replace(tzinfo=None)),
    ("name", "=", "ann"),
    ("raw", "=", b"a"),
    *((name, "is null", None) for name in SCHEMA.names),
    *((name, "is not null", None) for name in SCHEMA.names),
]


def expression(name, operation, value):
    field = pc.field(name)
    if value is None:
        return field.is_null() if operation == "is null" else field.is_valid()
    return OPERATORS[operation](field, pa.scalar(value, SCHEMA.field(name).type))


def by_deltalake(path, name, operation, value):
    dataset = DeltaTable(path).to_pyarrow_dataset()
    return dataset.to_table(filter=expression(name, operation, value))["id"].to_pylist()


def by_duckdb(path, name, operation, value):
    orders = DeltaTable(path).to_pyarrow_dataset()
    with duckdb.connect() as db:
        db.register("orders", orders)
        sql = f'select id from orders where "{name}" {operation}'
        found = db.execute(sql) if value is None else db.execute(f"{sql} ?", [value])
        return [row[0] for row in found.fetchall()]


def by_polars(path, name, operation, value, *, use_pyarrow=False):
    frame, column = pl.scan_delta(path, use_pyarrow=use_pyarrow), pl.col(name)
    if value is None:
        wanted = column.is_null() if operation == "is null" else column.is_not_null()
    else:
        wanted = OPERATORS[operation](column, pl.lit(value, frame.collect_schema()[name]))
    return frame.filter(wanted).select("id").collect()["id"].to_list()


def by_polars_and_arrow(*given):
    return by_polars(*given, use_pyarrow=True)


def by_datafusion(path, name, operation, value):
    query = QueryBuilder().register("orders", DeltaTable(path))
    if value is None:
        literal = ""
    elif isinstance(value, datetime):
        literal = f"'{value.isoformat()}'"
    elif isinstance(value, bytes):
        literal = f"x'{value.hex()}'"
    else:
        literal = f"'{value}'" if isinstance(value, str) else str(value)
    sql = f"select id from orders where {name} {operation} {literal}"
    return pa.table(query.execute(sql).read_all())["id"].to_pylist()


READERS = [by_deltalake, by_duckdb, by_polars, by_polars_and_arrow, by_datafusion]


@pytest.fixture(scope="module", params=["json", "checkpoint"])
def table(request, tmp_path_factory):
    """A file for each strange row: it, with an even id, and a usual one, or nothing else."""
    root = tmp_path_factory.mktemp("table")
    record, files, all_rows = create(str(root), SOURCE, SCHEMA), [], []
    for number, (kind, strange) in enumerate(STRANGE.items()):
        other = strange if kind == "nothing else" else {}
        rows = [
            {**USUAL, **strange, "id": 2 * number},
            {**USUAL, **other, "id": 2 * number + 1},
        ]
        files += written(root, SCHEMA, rows)
        all_rows += rows
    assert record.commit(files, {0: 0}, {0: 8})
    if request.param == "checkpoint":
        DeltaTable(str(root)).create_checkpoint()
    return str(root), pa.Table.from_pylist(all_rows, SCHEMA)


@pytest.mark.parametrize("reader", READERS)
def test_a_filter_gives_every_row_that_fits(table, reader):
    path, rows = table
    hidden = {}
    for wanted in FILTERS:
        fitting = set(rows.filter(expression(*wanted))["id"].to_pylist())
        found = reader(path, *wanted)
        if missing := sorted(fitting - set(found)):
            hidden[wanted] = missing
    assert hidden == {}
