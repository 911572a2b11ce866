"""What a pipeline writes fits its table: statistics, types, paths, and files that are there."""

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.spark.record import DataFile, Source, create, look
from headrace.spark.worker.files import writer

SOURCE = Source("orders", "shop/orders", 1)
PLAIN = pa.schema([("id", pa.int64())])
NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("paid", pa.bool_()),
        ("raw", pa.binary()),
        ("who", pa.struct([("name", pa.string()), ("ages", pa.list_(pa.int32()))])),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def written(root, schema, given):
    """Write rows as tasks do, and return the files."""
    write = writer(str(root), schema.serialize().to_pybytes())
    batches = pa.Table.from_pylist(given, schema).to_batches()
    return [
        DataFile(row["path"], row["size"], row["row_count"], row["stats"])
        for answer in write(iter(batches))
        for row in answer.to_pylist()
    ]


def test_a_table_with_nested_columns_and_a_boolean_opens_again(tmp_path):
    record = create(str(tmp_path), SOURCE, NESTED)
    who = {"name": "ann", "ages": [1]}
    full = {"id": 1, "paid": True, "raw": b"x", "who": who, "tags": ["a"], "counts": [("k", 1)]}
    files = written(tmp_path, NESTED, [full, {"id": 2}])
    assert record.commit(files, {0: 0}, {0: 2})
    found = DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist()
    assert found == [full, {**dict.fromkeys(NESTED.names), "id": 2}]


def test_statistics_count_missing_values_of_plain_columns_alone(tmp_path):
    (file,) = written(tmp_path, NESTED, [{"id": 1}, {"id": 7, "paid": True}])
    stats = json.loads(file.stats)
    assert stats["nullCount"] == {"id": 0, "paid": 1, "raw": 2}
    assert (stats["minValues"], stats["maxValues"]) == ({"id": 1}, {"id": 7})


@pytest.mark.parametrize("name", ["a b", "ü", "k=1", "t[1]", "h#x"])
def test_a_table_may_have_any_path(tmp_path, name):
    path = tmp_path / name
    record = create(str(path), SOURCE, PLAIN)
    assert record.commit(written(path, PLAIN, [{"id": 1}]), {0: 0}, {0: 1})
    assert look(str(path), SOURCE).ends == {0: 1}
