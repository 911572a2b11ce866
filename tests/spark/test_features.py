"""What a table demands of its writers is kept, or refused by name before a file is written."""

import json
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.spark.conftest import rows
from tests.spark.test_pipeline import a_definition, run
from tests.spark.test_table_batches import copy, stopped
from tests.spark.writings import a_writing

import headrace
from headrace.errors import BadRequest
from headrace.spark import read_table, table_writer
from headrace.spark.pipeline.pipeline import OFFSET, PARTITION
from headrace.spark.pipeline.table_reset import carry_out, planned
from headrace.spark.tables.compaction import compact
from headrace.spark.tables.data_files import data_paths
from headrace.spark.tables.table_errors import TableStrange
from headrace.spark.tables.table_record import DataFile, LogSource, at, create, look
from headrace.spark.worker.files import write_file

SCHEMA = pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.struct([("a", pa.string())])))])
SOURCE = LogSource("p", "shop/orders", 1, "log")
FILES = 4


def a_file(table, number=0):
    made = pa.table({"id": [number], "tags": [[]]}, SCHEMA)
    return DataFile(*write_file(a_writing(table, SCHEMA), [made]))


def commit_of_others(table, protocol=(), settings=(), columns=(), partitions=()):
    """Have another writer change what the table demands, as an entry of its log."""
    log = table / "_delta_log"
    entries = sorted(log.glob("*.json"))
    actions = [json.loads(line) for line in entries[0].read_text().splitlines()]
    metadata = next(one for one in actions if "metaData" in one)
    changed = metadata["metaData"]
    changed["configuration"] |= dict(settings)
    changed["partitionColumns"] = list(partitions)
    schema = json.loads(changed["schemaString"])
    for path, extra in dict(columns).items():
        field(schema["fields"], path)["metadata"] |= extra
    changed["schemaString"] = json.dumps(schema)
    given = [{"protocol": dict(protocol)}, metadata] if protocol else [metadata]
    entry = log / f"{len(entries):020}.json"
    entry.write_text("".join(f"{json.dumps(one)}\n" for one in given))


def field(fields, path):
    name, _, inner = path.partition(".")
    found = next(one for one in fields if one["name"] == name)
    return field(found["type"]["elementType"]["fields"], inner) if inner else found


def numbers(reader, writer):
    return {"minReaderVersion": reader, "minWriterVersion": writer}


def features(*names, reader=()):
    return {**numbers(3, 7), "readerFeatures": list(reader), "writerFeatures": list(names)}


def mapped(*columns):
    """Return what columns that are mapped by name say of themselves."""
    said = "delta.columnMapping"
    return {
        "settings": {f"{said}.mode": "name", f"{said}.maxColumnId": str(len(columns))},
        "columns": {
            one: {f"{said}.id": number, f"{said}.physicalName": f"col-{number}"}
            for number, one in enumerate(columns, 1)
        },
    }


MAPPED = mapped("id", "tags", "tags.a")
MAPPING = "columnMapping: its files alone do not say which rows it has"
REFUSED = {
    "a constraint": (
        {"protocol": numbers(1, 3), "settings": {"delta.constraints.few": "id < 3"}},
        "the constraint few (id < 3)",
    ),
    "a constraint, as a feature": (
        {
            "protocol": features("checkConstraints"),
            "settings": {"delta.constraints.few": "id < 3"},
        },
        "the constraint few (id < 3)",
    ),
    "an invariant": (
        {"protocol": numbers(1, 2), "columns": {"id": {"delta.invariants": "{}"}}},
        "delta.invariants of column id",
    ),
    "an invariant deep inside": (
        {"columns": {"tags.a": {"delta.invariants": "{}"}}},
        "delta.invariants of column tags.a",
    ),
    "a generated column": (
        {"protocol": numbers(1, 4), "columns": {"id": {"delta.generationExpression": "1"}}},
        "delta.generationExpression of column id",
    ),
    "an identity column": (
        {"protocol": numbers(1, 6), "columns": {"id": {"delta.identity.start": 1}}},
        "delta.identity.start of column id, identityColumns",
    ),
    "a default": (
        {
            "protocol": features("allowColumnDefaults"),
            "columns": {"id": {"CURRENT_DEFAULT": "1"}},
        },
        "CURRENT_DEFAULT of column id, allowColumnDefaults",
    ),
    "a length that Spark checks": (
        {"columns": {"tags.a": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(5)"}}},
        "varchar(5) of column tags.a",
    ),
    "mapped columns": ({"protocol": numbers(2, 5), **MAPPED}, MAPPING),
    "mapped columns, as a feature": (
        {"protocol": features("columnMapping", reader=["columnMapping"]), **MAPPED},
        MAPPING,
    ),
    "deletion vectors": (
        {"protocol": features("deletionVectors", reader=["deletionVectors"])},
        "deletionVectors: its files alone do not say which rows it has",
    ),
    "row tracking": (
        {"protocol": features("rowTracking", "domainMetadata")},
        "domainMetadata, rowTracking",
    ),
    "a writer's feature that nobody knows": ({"protocol": features("newest")}, "newest"),
    "a reader's feature that nobody knows": (
        {"protocol": features("newest", reader=["newest"])},
        "newest",
    ),
    "commits that a catalog makes": (
        {"protocol": features("catalogManaged", reader=["catalogManaged"])},
        "catalogManaged",
    ),
    "a protocol that nobody knows": ({"protocol": numbers(4, 8)}, "protocol (4, 8)"),
    "partitions": ({"partitions": ["id"]}, "the partition column id"),
}
KEPT = {
    "nothing": {},
    "no constraint": {"protocol": numbers(1, 3)},
    "no mapping": {
        "protocol": numbers(2, 5),
        "settings": {"delta.columnMapping.mode": "none"},
    },
    "features": {
        "protocol": features(
            "appendOnly",
            "changeDataFeed",
            "checkConstraints",
            "generatedColumns",
            "invariants",
            "timestampNtz",
            "v2Checkpoint",
            reader=["timestampNtz", "v2Checkpoint"],
        ),
        "settings": {"delta.appendOnly": "true", "delta.enableChangeDataFeed": "true"},
    },
}


def schema_of(table):
    entry = table / "_delta_log" / f"{0:020}.json"
    actions = map(json.loads, entry.read_text().splitlines())
    return next(one["metaData"]["schemaString"] for one in actions if "metaData" in one)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table"
    record = create(str(path), SOURCE, SCHEMA)
    files = [a_file(path, number) for number in range(FILES)]
    assert record.commit(files, {0: 0}, {0: FILES})
    return path


def files_of(table):
    return len(list(table.glob("*.parquet")))


def bounds():
    return {0: headrace.Bounds(0, 0, FILES, 1, 0, ((1, 0),))}


def acts_on(table):
    """Give each act of a pipeline on a table, from its own look on."""
    path = str(table)
    yield lambda: look(path, SOURCE).commit([], {0: 0}, {0: FILES})
    yield lambda: look(path, SOURCE).widen(pa.schema([("more", pa.int64())]))
    yield lambda: compact(look(path, SOURCE), 2**20, FILES)
    yield lambda: planned(look(path, SOURCE), bounds(), {0: 0}, truncate=True)
    yield lambda: planned(look(path, SOURCE), bounds(), {0: FILES}, truncate=False)


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_kept_is_refused_by_name_before_a_file_is_written(table, change, said):
    commit_of_others(table, **change)
    for act in acts_on(table):
        with pytest.raises(TableStrange) as caught:
            act()
        assert f"the table at {table} has {said}" in str(caught.value)
        assert "write the rows to a new table" in caught.value.hint
    assert files_of(table) == FILES


@pytest.mark.parametrize("change", [one for one, _ in REFUSED.values()], ids=REFUSED)
def test_what_comes_between_look_and_commit_is_no_commit(table, change):
    record = look(str(table), SOURCE)
    commit_of_others(table, **change)
    with suppress(TableStrange):
        assert not record.commit([a_file(table, FILES)], {0: 0}, {0: FILES + 1})
    assert len(list((table / "_delta_log").glob("*.json"))) == 3


@pytest.mark.parametrize("change", KEPT.values(), ids=KEPT)
def test_what_asks_nothing_of_appends_is_kept(table, change):
    commit_of_others(table, **change)
    record = look(str(table), SOURCE)
    assert record.commit([a_file(table, FILES)], {0: 0}, {0: FILES + 1})
    DeltaTable(str(table)).create_checkpoint()
    assert compact(look(str(table), SOURCE), 2**20, FILES) == FILES + 1
    (file,) = data_paths(at(str(table)), DeltaTable(str(table)))
    found = pq.read_table(file)["id"].to_pylist()
    assert sorted(found) == list(range(FILES + 1))


def test_a_feature_that_does_not_load_is_named_when_only_a_checkpoint_has_it(table):
    DeltaTable(str(table)).create_checkpoint()
    log = table / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    actions = pq.read_table(checkpoint)
    place = actions.column_names.index("protocol")
    strange = features("newest", reader=["newest"])
    told = [None if one is None else strange for one in actions["protocol"].to_pylist()]
    column = pa.array(told, actions.schema.field("protocol").type)
    pq.write_table(actions.set_column(place, actions.schema.field(place), column), checkpoint)
    hint = json.loads((log / "_last_checkpoint").read_text())
    hint["sizeInBytes"] = checkpoint.stat().st_size
    (log / "_last_checkpoint").write_text(json.dumps(hint))
    for entry in log.glob("*.json"):
        entry.unlink()  # as a writer does whose log is cleaned
    with pytest.raises(TableStrange, match="has newest, which Headrace does not support"):
        look(str(table), SOURCE)


def test_rows_leave_no_table_that_is_appended_to_alone(table):
    commit_of_others(table, settings={"delta.appendOnly": "true"})
    record = look(str(table), SOURCE)
    with pytest.raises(
        TableStrange, match=r"has delta.appendOnly, but rows would be removed from it"
    ):
        planned(record, bounds(), {0: 0}, truncate=True)
    assert not planned(record, bounds(), {0: FILES}, truncate=False).changes


def test_a_table_that_tells_of_its_changes_is_truncated_by_whole_files_alone(tmp_path):
    schema = pa.schema([(name, pa.int32()) for name in ("id", PARTITION, OFFSET)])
    own = {"id": 0, PARTITION: 0, OFFSET: 0}
    for others in ([], [dict.fromkeys(own, None)]):
        path = tmp_path / f"table{len(others)}"
        record = create(str(path), SOURCE, schema)
        made = pa.Table.from_pylist([own, *others], schema)
        assert record.commit(
            [DataFile(*write_file(a_writing(path, schema), [made]))], {0: 0}, {0: 1}
        )
        commit_of_others(path, settings={"delta.enableChangeDataFeed": "true"})
        record = look(str(path), SOURCE)
        if others:
            with pytest.raises(TableStrange, match=r"has delta.enableChangeDataFeed, but rows"):
                planned(record, bounds(), {0: 0}, truncate=True)
        else:
            assert carry_out(record, planned(record, bounds(), {0: 0}, truncate=True))
            assert DeltaTable(str(path)).file_uris() == []


def test_pipelines_and_queries_write_no_file_for_rows_that_would_not_be_kept(
    spark, tmp_path, topic
):
    topic.append(rows(0, 5), partition=0)
    definition, table = a_definition(tmp_path), tmp_path / "table"
    append, other = table_writer(tmp_path / "other", name="copy"), tmp_path / "other"
    run(spark, definition)
    copy(spark, tmp_path, append)
    count = files_of(table), files_of(other)
    topic.append(rows(5, 9), partition=0)
    constraint, said = REFUSED["a constraint"]
    for change, words in ((constraint, said), (None, MAPPING)):
        for path in (table, other):
            names = [one["name"] for one in json.loads(schema_of(path))["fields"]]
            demands = change or {"protocol": numbers(2, 5), **mapped(*names)}
            commit_of_others(path, **demands)
        with pytest.raises(TableStrange) as caught:
            run(spark, definition)
        assert f"the table at {table} has {words}" in str(caught.value)
        said = stopped(spark, tmp_path, each=append)
        assert said.startswith(f"the table at {other} has {words}")
    assert count == (files_of(table), files_of(other))
    with pytest.raises(BadRequest, match="columnMapping, which Spark's own Parquet"):
        read_table(spark, str(table))
