"""Which columns a table can get, beside those that it has. No Spark."""

import pyarrow as pa
import pytest

from headrace.spark.tables.table_columns import new_columns
from headrace.spark.tables.table_record import LogSource, create
from headrace.spark.topic_source import SchemaChanged


@pytest.fixture
def record(tmp_path):
    columns = pa.schema([("id", pa.int64()), ("Name", pa.string())])
    return create(
        str(tmp_path / "table"), LogSource("orders", "shop/orders", 1, "log"), columns
    )


def test_a_column_that_differs_in_case_alone_is_named_before_anything_is_written(record):
    rows = pa.schema([("id", pa.int64()), ("name", pa.string())])
    with pytest.raises(SchemaChanged) as caught:
        new_columns(record.table, rows)
    said = "column name is called Name in the table, whose column names are not case-sens"
    assert str(caught.value).startswith(said)
    assert caught.value.hint.startswith("Have the transform call it Name")
    assert record.table.version() == 0


def test_columns_that_are_new_may_be_null(record):
    rows = pa.schema([("id", pa.int64()), ("Name", pa.string())])
    added = pa.field("size", pa.int64(), nullable=False)
    assert new_columns(record.table, rows.append(added)) == pa.schema([("size", pa.int64())])
