"""What a pipeline writes fits its table: statistics, types, paths, and files that are there."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.spark.conftest import SCHEMA, rows
from tests.spark.test_pipeline import a_definition, ids, run, table_of
from tests.spark.test_pipeline_status import a_file, told
from tests.spark.test_prove import prove
from tests.spark.writings import a_writing

from headrace.spark import read_table
from headrace.spark.pipeline.pipeline import opened
from headrace.spark.tables.data_files import data_paths
from headrace.spark.tables.table_columns import new_columns
from headrace.spark.tables.table_errors import FileGone, TableStrange
from headrace.spark.tables.table_record import DataFile, LogSource, at, create, look
from headrace.spark.topic_source import SchemaChanged, TopicRecreated
from headrace.spark.worker.files import writer

SOURCE = LogSource("orders", "shop/orders", 1, "5f")
PLAIN = pa.schema([("id", pa.int64())])
SHORT = (
    "select length(name) as name, cast(id as int) as id, _hr_partition, _hr_offset from source"
)
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
    write = writer(a_writing(root, schema))
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


@pytest.mark.parametrize("name", ["a b", "ü", "k=1", "t[1]", "h#x"])
def test_a_table_may_have_any_path(tmp_path, name):
    path = tmp_path / name
    record = create(str(path), SOURCE, PLAIN)
    assert record.commit(written(path, PLAIN, [{"id": 1}]), {0: 0}, {0: 1})
    assert look(str(path), SOURCE).ends == {0: 1}


def a_column(kind, *, nullable=True):
    return pa.schema([pa.field("it", kind, nullable)])


UTC, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
MUST = pa.field("element", pa.int32(), False)


@pytest.mark.parametrize(
    ("had", "comes"),
    [
        (pa.int32(), pa.int64()),
        (pa.int64(), pa.int32()),
        (pa.float32(), pa.float64()),
        (pa.int64(), pa.string()),
        (pa.string(), pa.binary()),
        (UTC, LOCAL),
        (pa.decimal128(5, 2), pa.decimal128(20, 2)),
        (pa.list_(pa.int32()), pa.list_(pa.int64())),
        (pa.list_(MUST), pa.list_(pa.int32())),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())])),
        (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int32()), ("b", pa.int32())])),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32())])),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64())),
    ],
)
def test_rows_of_another_type_are_refused_with_the_column(tmp_path, had, comes):
    table = create(str(tmp_path), SOURCE, a_column(had)).table
    with pytest.raises(SchemaChanged) as caught:
        new_columns(table, a_column(comes))
    kinds = [pa.schema(table.schema().to_arrow()).field("it").type, comes]
    if not pa.types.is_nested(had):
        assert f"column it is {kinds[0]} in the table, but {kinds[1]} in" in str(caught.value)
    assert "new table" in str(caught.value)


@pytest.mark.parametrize(
    ("had", "comes"),
    [
        (pa.string(), pa.large_string()),
        (UTC, UTC),
        (LOCAL, LOCAL),
        (pa.list_(pa.int32()), pa.list_(MUST)),
        (pa.list_(pa.field("x", pa.string())), pa.list_(pa.field("y", pa.string()))),
        (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int64())),
        (NESTED.field("who").type, NESTED.field("who").type),
    ],
)
def test_rows_of_a_type_that_delta_takes_as_the_same_fit(tmp_path, had, comes):
    table = create(str(tmp_path), SOURCE, a_column(had)).table
    assert new_columns(table, a_column(comes)).names == []


def test_a_column_that_may_be_null_does_not_fit_one_that_is_never(tmp_path):
    always, maybe = a_column(pa.int64(), nullable=False), a_column(pa.int64())
    with pytest.raises(SchemaChanged, match="is int64 not null in the table, but int64 in"):
        new_columns(create(str(tmp_path / "always"), SOURCE, always).table, maybe)
    assert new_columns(create(str(tmp_path / "maybe"), SOURCE, maybe).table, always).names == []


def test_a_new_column_may_be_null_in_the_rows_that_are_there(tmp_path):
    record = create(str(tmp_path), SOURCE, PLAIN)
    assert record.commit(written(tmp_path, PLAIN, [{"id": 1}]), {0: 0}, {0: 1})
    new = new_columns(record.table, a_column(pa.bool_(), nullable=False))
    assert record.widen(new)
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist() == [{"id": 1, "it": None}]
    assert DeltaTable(str(tmp_path)).schema().fields[1].nullable


def test_who_adds_a_column_second_has_lost_the_race(tmp_path):
    one, other = (create(str(tmp_path), SOURCE, PLAIN) for _ in range(2))
    new = a_column(pa.string())
    assert (other.widen(new), one.widen(new)) == (True, False)
    assert DeltaTable(str(tmp_path)).version() == 1


def test_a_table_with_deletion_vectors_is_refused_by_name(tmp_path):
    create(str(tmp_path), SOURCE, PLAIN)
    features = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    protocol |= {"readerFeatures": features, "writerFeatures": features}
    entry = tmp_path / "_delta_log" / f"{1:020}.json"
    entry.write_text(json.dumps({"protocol": protocol}) + "\n", encoding="utf-8")
    with pytest.raises(TableStrange, match="has deletionVectors: its files alone do not say"):
        look(str(tmp_path), SOURCE)


def test_a_file_that_is_gone_or_cut_is_not_committed(tmp_path):
    record = create(str(tmp_path), SOURCE, PLAIN)
    gone, cut = (written(tmp_path, PLAIN, [{"id": number}])[0] for number in (1, 2))
    (tmp_path / gone.path).unlink()
    with pytest.raises(FileGone, match=f"{gone.path} was written .* no longer exists"):
        record.commit([gone], {0: 0}, {0: 1})
    (tmp_path / cut.path).write_bytes(b"PAR1")
    with pytest.raises(FileGone, match=f"{cut.path} was written with {cut.size:,} .* has 4"):
        record.commit([cut], {0: 0}, {0: 1})
    assert look(str(tmp_path), SOURCE).ends == {}
    assert DeltaTable(str(tmp_path)).version() == 0


def test_files_that_are_cleaned_up_can_never_enter_the_table(tmp_path, topic):
    """A driver wrote them and is about to commit: it loses the round, and that is all."""
    table = tmp_path / "table"
    source = LogSource.reading("orders", topic)
    record = create(str(table), source, PLAIN)
    (file,) = written(table, PLAIN, [{"id": 1}])
    would = told("clean", a_file(tmp_path), "--dry-run")
    assert would["removed"] == [file.path]
    assert (table / file.path).exists()
    assert told("clean", a_file(tmp_path))["removed"] == [file.path]
    assert not (table / file.path).exists()
    assert not record.commit([file], {0: 0}, {0: 1})
    record = look(str(table), source)
    assert (record.number, record.count, record.ends) == (1, 0, {})
    (file,) = written(table, PLAIN, [{"id": 1}])
    assert record.commit([file], {0: 0}, {0: 1})
    assert told("clean", a_file(tmp_path))["removed"] == []


def test_a_topic_that_was_widened_does_not_spoil_its_table(spark, tmp_path, log):
    topic = log.create_topic("shop/orders", {"id": "int32", "name": "string"})
    topic.append(rows(0, 3))
    run(spark, a_definition(tmp_path))
    topic.evolve(SCHEMA)
    topic.append([{"id": 2**40, "name": "far"}])
    with pytest.raises(SchemaChanged, match="column id is int32 in the table, but int64 in"):
        run(spark, a_definition(tmp_path))
    assert ids(tmp_path) == [0, 1, 2]
    with pytest.raises(SchemaChanged, match="column name is string in the table, but int32 in"):
        run(spark, a_definition(tmp_path, sql=SHORT))
    run(spark, a_definition(tmp_path, table="wide"))
    wide = DeltaTable(str(tmp_path / "wide")).to_pyarrow_table()
    assert sorted(wide["id"].to_pylist()) == [0, 1, 2, 2**40]


def test_a_schema_that_changes_during_a_round_is_taken_in_the_next(spark, tmp_path, topic):
    topic.append(rows(0, 3), partition=0)

    def grow(step):
        if step == "before files" and "note" not in topic.schema.names:
            topic.evolve({**SCHEMA, "note": "string"})
            topic.append([{"id": 3, "name": "n3", "note": "new"}], partition=0)

    with opened(spark, a_definition(tmp_path)) as pipeline:
        pipeline.on_step = grow
        assert pipeline.round() is None
        assert list((tmp_path / "table").glob("*.parquet")) == []
        list(pipeline.run(once=True))
        assert pipeline.lost == 1
    found = {row["id"]: row["note"] for row in table_of(tmp_path).to_pylist()}
    assert found == {0: None, 1: None, 2: None, 3: "new"}


def test_rows_of_a_topic_that_is_made_again_during_a_round_do_not_come(
    spark, tmp_path, log, topic
):
    topic.append(rows(0, 3), partition=0)
    run(spark, a_definition(tmp_path))
    topic.append(rows(3, 6), partition=0)

    def make_again(step):
        if step == "before files":
            topic.delete()
            again = log.create_topic("shop/orders", SCHEMA, partitions=2)
            again.append(rows(100, 109), partition=0)

    with opened(spark, a_definition(tmp_path)) as pipeline:
        pipeline.on_step = make_again
        with pytest.raises(TopicRecreated, match=r"^shop/orders was deleted and recreated"):
            pipeline.round()
    assert ids(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize("name", ["plain", "a b", "ü#x"])
def test_data_files_are_found_whatever_the_tables_path_has_in_it(tmp_path, name):
    path = str(tmp_path / name)
    rows = pa.table({"number": [1, 2], "place": ["x y", "z"]})
    write_deltalake(path, rows, partition_by=["place"])
    found = data_paths(at(path), DeltaTable(path))
    assert len(found) == 2
    assert all(Path(one).is_file() for one in found)


REQUIRED = pa.struct([pa.field("street", pa.string(), nullable=False)])
ODD = pa.schema(
    [
        ("id", pa.int64()),
        ("home", REQUIRED),
        ("others", pa.list_(REQUIRED)),
        ("by.name", pa.map_(pa.string(), REQUIRED)),
        ("a.b", pa.string()),
        ("we`ird, name", pa.struct([("x.y", pa.int64())])),
    ]
)
ODD_ROWS = [
    {
        "id": 0,
        "home": {"street": "a"},
        "others": [{"street": "b"}, None],
        "by.name": [("k", {"street": "c"}), ("l", None)],
        "a.b": "d",
        "we`ird, name": {"x.y": 1},
    },
    dict.fromkeys(ODD.names),
]


def test_null_structs_and_names_with_dots_come_into_the_table(spark, tmp_path, log):
    """A null struct has nothing in its required fields, and Spark takes dots for syntax."""
    topic = log.create_topic("shop/orders", ODD)
    definition = a_definition(tmp_path)
    for _ in range(2):
        topic.append(pa.Table.from_pylist(ODD_ROWS, ODD), partition=0)
        run(spark, definition)
    expected = sorted(map(str, ODD_ROWS * 2))

    def found():
        return sorted(map(str, table_of(tmp_path).select(ODD.names).to_pylist()))

    assert found() == expected
    with opened(spark, definition) as pipeline:
        assert pipeline.compact(files_min=2) == 2
    assert found() == expected
    read = read_table(spark, str(tmp_path / "table"))
    assert (
        sorted(row.id or 0 for row in read.where("`a.b` is null or id = 0").collect())
        == [0] * 4
    )
    code, proof = prove(tmp_path)
    assert (code, proof["grade"], proof["in_table"]) == (0, "identity", 4)
