"""A proof claims no more than it has seen: columns, rows behind the table, files. No Spark."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.cli.commands import headrace_here
from tests.spark.conftest import rows
from tests.spark.test_prove import prove
from tests.spark.writings import a_writing

from headrace.spark.prove.prove import OFFSET, PARTITION
from headrace.spark.tables.data_files import data_paths
from headrace.spark.tables.table_record import DataFile, LogSource, at, create, look
from headrace.spark.worker.files import writer

NAN = float("nan")


LINEAGE = ((PARTITION, pa.int32()), (OFFSET, pa.int64()))


def bring(tmp_path, topic, fields=None, lineage=LINEAGE):
    """Bring what the log has behind the table's record, as a pipeline does."""
    schema = pa.schema([*lineage, *(fields or topic.schema)])
    source = LogSource.reading("orders", topic)
    record = create(str(tmp_path / "table"), source, schema)
    bounds = {each.partition: each for each in topic.bounds()}
    starts = {number: record.start_of(number, each.first) for number, each in bounds.items()}
    ends = {number: each.end for number, each in bounds.items()}
    found = topic.read(start=starts, end=ends).to_table().drop_columns(["_timestamp"])
    names = {"_partition": PARTITION, "_offset": OFFSET}
    found = found.rename_columns([names.get(name, name) for name in found.column_names])
    made = pa.Table.from_pylist(found.to_pylist(), schema)
    assert record.commit(files_with(tmp_path, made), starts, ends)


def files_with(tmp_path, made):
    """Write rows as a task of a pipeline does."""
    write = writer(a_writing(tmp_path / "table", made.schema))
    return [
        DataFile(row["path"], row["size"], row["row_count"], row["stats"])
        for answer in write(iter(made.to_batches()))
        for row in answer.to_pylist()
    ]


def bring_what_the_log_lacks(tmp_path, topic, count):
    """Have the table go on behind the log's end, as if the log was put back from a copy."""
    record = look(str(tmp_path / "table"), LogSource.reading("orders", topic))
    schema, start = pa.schema(record.table.schema().to_arrow()), record.ends[0]
    given = {name: [None] * count for name in schema.names}
    if PARTITION in given:
        given |= {PARTITION: [0] * count, OFFSET: range(start, start + count)}
    made = pa.table({name: pa.array(given[name], schema.field(name).type) for name in given})
    ends = {**record.ends, 0: start + count}
    assert record.commit(files_with(tmp_path, made), record.ends, ends)


def said(tmp_path, *more):
    place = ["--table", tmp_path / "table", "--data", tmp_path / "data"]
    return headrace_here("prove", "shop/orders", *place, *more)


def test_rows_behind_the_table_are_counted_and_not_called_equal(tmp_path, topic):
    topic.append(rows(0, 100), partition=0)
    bring(tmp_path, topic)
    assert (prove(tmp_path)[0], prove(tmp_path)[1]["behind"]) == (0, 0)
    topic.append(rows(100, 400), partition=1)
    code, found = prove(tmp_path)
    assert (code, found["holds"], found["behind"], found["in_log"]) == (0, True, 300, 100)
    text = said(tmp_path).out
    assert "100 in the log up to there = 100 in the table at version 1" in text
    assert "after that, not loaded yet: 300 rows of the log" in text
    bring(tmp_path, topic)
    assert "400 in the log = 400 in the table at version 2" in said(tmp_path).out


def test_acknowledged_rows_that_the_table_has_not_are_no_proof(tmp_path, log, topic):
    ledger = tmp_path / "ledger"
    with log.producer(topic, ledger=ledger) as producer:
        producer.send(rows(0, 100))
    bring(tmp_path, topic)
    assert prove(tmp_path, "--ledger", str(ledger))[0] == 0
    with log.producer(topic, ledger=tmp_path / "newer") as producer:
        producer.send(rows(100, 400))
    given = ("--ledger", str(ledger), "--ledger", str(tmp_path / "newer"))
    code, found = prove(tmp_path, *given)
    assert (code, found["holds"], found["lost"]) == (7, False, 0)
    assert (found["acknowledged"], found["waiting"], found["in_table"]) == (400, 300, 100)
    done = said(tmp_path, *given)
    assert done.code == 7
    assert "400 acknowledged, 100 in the log up to there, 100 in the table" in done.out
    assert "acknowledged, not in the table yet: 300 rows" in done.out
    bring(tmp_path, topic)
    code, found = prove(tmp_path, *given)
    assert (code, found["holds"], found["waiting"]) == (0, True, 0)


def test_a_column_of_another_type_is_named_and_nothing_is_claimed(tmp_path, log):
    topic = log.create_topic("shop/orders", {"id": "int32", "name": "string"})
    topic.append(rows(0, 5))
    bring(tmp_path, topic)
    assert (prove(tmp_path)[0], prove(tmp_path)[1]["grade"]) == (0, "identity")
    topic.evolve({"id": "int64", "name": "string"})
    code, found = prove(tmp_path)
    assert (code, found["holds"], found["grade"]) == (7, False, "lineage")
    assert (found["columns"], found["columns_not_compared"]) == (["name"], ["id"])
    assert "not compared, their types differ in log and table: id" in said(tmp_path).out


def test_a_proof_that_compares_no_column_claims_nothing(tmp_path, topic):
    topic.append(rows(0, 5), partition=0)
    bring(tmp_path, topic, [("other", pa.int64())])
    code, found = prove(tmp_path)
    assert (code, found["holds"], found["columns"]) == (7, False, [])


def test_a_column_of_the_topic_that_the_table_lacks_is_named(tmp_path, topic):
    topic.append(rows(0, 5), partition=0)
    bring(tmp_path, topic, [("id", pa.int64())])
    code, found = prove(tmp_path)
    assert (code, found["grade"], found["columns_absent"]) == (0, "lineage", ["name"])
    assert "columns of the topic that the table lacks: name" in said(tmp_path).err


NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("some", pa.list_(pa.field("element", pa.float64(), nullable=False))),
        ("owner", pa.struct([pa.field("age", pa.float64(), nullable=False)])),
        ("sizes", pa.map_(pa.string(), pa.float64())),
    ]
)
LOOSE = [
    ("id", pa.int64()),
    ("some", pa.list_(pa.float64())),
    ("owner", pa.struct([("age", pa.float64())])),
    ("sizes", pa.map_(pa.string(), pa.float64())),
]
DEEP = {"id": 1, "some": [NAN, 2.0], "owner": {"age": NAN}, "sizes": [("a", NAN)]}


def test_nested_values_are_compared_whatever_may_be_null_inside(tmp_path, log):
    topic = log.create_topic("shop/orders", NESTED)
    topic.append(pa.Table.from_pylist([DEEP, {"id": 2}], NESTED))
    bring(tmp_path, topic, LOOSE)
    code, found = prove(tmp_path)
    assert (code, found["grade"], found["changed"]) == (0, "identity", 0)
    table = DeltaTable(str(tmp_path / "table")).to_pyarrow_table()
    given = table.to_pylist()
    given[0]["some"], given[0]["owner"] = [NAN, 3.0], {"age": 7.0}
    changed = pa.Table.from_pylist(given, table.schema)
    write_deltalake(str(tmp_path / "table"), changed, mode="overwrite")
    code, found = prove(tmp_path)
    assert (code, found["changed"]) == (6, 2)
    assert {each["note"] for each in found["findings"]} == {"column some", "column owner"}


@pytest.mark.parametrize("shape", [(), ("--json",)])
def test_a_missing_data_file_is_named(tmp_path, topic, shape):
    topic.append(rows(0, 5), partition=0)
    bring(tmp_path, topic)
    (path,) = map(
        Path, data_paths(at(str(tmp_path / "table")), DeltaTable(str(tmp_path / "table")))
    )
    path.unlink()
    done = said(tmp_path, *shape)
    assert done.code == 6
    assert path.name in done.err
    assert "is missing" in done.err
    assert "Traceback" not in done.err


def test_a_ledger_that_names_lost_rows_does_not_call_them_waiting(tmp_path, log, topic):
    ledger = tmp_path / "ledger"
    with log.producer(topic, ledger=ledger) as producer:
        producer.send(rows(0, 10))
    bring(tmp_path, topic)
    line = json.loads(ledger.read_text().splitlines()[0]) | {"start": 9, "end": 9_000}
    ledger.write_text(ledger.read_text() + json.dumps(line) + "\n")
    code, found = prove(tmp_path, "--ledger", str(ledger))
    assert (code, found["waiting"]) == (6, 0)
    assert found["lost"] > 8_000


LOST = {"start": 10, "end": 17}


def a_ledger_with_lost_rows(tmp_path, log, topic):
    """What a producer wrote down of 10 rows, and of 7 that the log does not have."""
    ledger = tmp_path / "ledger"
    with log.producer(topic, ledger=ledger, partition=0) as producer:
        producer.send(rows(0, 10))
    line = json.loads(ledger.read_text().splitlines()[0]) | LOST
    ledger.write_text(ledger.read_text() + json.dumps(line) + "\n")
    return ledger


def test_lost_rows_are_told_though_a_table_without_places_proves_nothing(tmp_path, log, topic):
    ledger = a_ledger_with_lost_rows(tmp_path, log, topic)
    bring(tmp_path, topic, lineage=())
    topic.append(rows(100, 104), partition=1)
    code, found = prove(tmp_path, "--ledger", str(ledger))
    assert (code, found["grade"], found["lost"]) == (6, "not provable", 7)
    assert (found["holds"], found["behind"]) == (False, 4)
    done = said(tmp_path, "--ledger", str(ledger))
    assert done.code == 6
    assert "lost: 7 rows in a ledger are not in the log" in done.out
    assert "after that, not loaded yet: 4 rows of the log" in done.out
    assert "not provable: the table's rows have no lineage" in done.err


def test_a_table_without_places_says_what_was_left_out(tmp_path, log, topic):
    with log.producer(topic, ledger=tmp_path / "ledger", partition=0) as producer:
        producer.send(rows(0, 10))
    bring(tmp_path, topic, lineage=())
    with log.producer(topic, ledger=tmp_path / "newer", partition=1) as producer:
        producer.send(rows(10, 15))
    given = ("--ledger", str(tmp_path / "ledger"), "--ledger", str(tmp_path / "newer"))
    done = said(tmp_path, *given)
    assert done.code == 7
    assert "acknowledged, not in the table yet: 5 rows" in done.out
    assert "after that, not loaded yet: 5 rows of the log" in done.out


def test_trimmed_rows_are_left_unseen_so_nothing_holds(tmp_path, topic):
    topic.append(rows(0, 30), partition=0)
    bring(tmp_path, topic)
    topic.trim(10, partition=0)
    code, found = prove(tmp_path)
    assert (code, found["holds"], found["not_compared"]) == (7, False, 10)
    assert (found["compared"], found["in_log"], found["in_table"]) == (20, 20, 30)
    assert "10 rows were trimmed from the log: not compared" in said(tmp_path).err


AHEAD = "foreign: partition 0, rows 20 to 24, recorded, but the log ends at 20"


@pytest.mark.parametrize("more", [(), ("--own-only",)])
def test_a_table_ahead_of_the_log_is_wrong_and_the_rows_are_named(tmp_path, topic, more):
    topic.append(rows(0, 20), partition=0)
    bring(tmp_path, topic)
    bring_what_the_log_lacks(tmp_path, topic, 5)
    code, found = prove(tmp_path, *more)
    assert (code, found["holds"], found["ahead"], found["foreign"]) == (6, False, 5, 5)
    assert (found["compared"], found["in_log"], found["in_table"]) == (20, 20, 25)
    place = {"partition": 0, "start": 20, "end": 25}
    expected = {"kind": "foreign", **place, "note": "recorded, but the log ends at 20"}
    assert found["findings"] == [expected]


def test_a_table_ahead_of_the_log_is_told_in_words(tmp_path, topic):
    topic.append(rows(0, 20), partition=0)
    bring(tmp_path, topic)
    bring_what_the_log_lacks(tmp_path, topic, 5)
    done = said(tmp_path)
    assert done.code == 6
    assert "0 missing, 0 duplicated, 0 changed, 5 foreign" in done.out
    assert "foreign: partition 0, rows 20 to 24, recorded, but the log ends at 20" in done.out
    assert "ahead of the log: 5 rows that the table records" in done.out


def test_a_table_without_places_is_wrong_too_if_it_is_ahead(tmp_path, topic):
    topic.append(rows(0, 20), partition=0)
    bring(tmp_path, topic, lineage=())
    bring_what_the_log_lacks(tmp_path, topic, 5)
    done = said(tmp_path)
    assert done.code == 6
    assert "foreign: partition 0, rows 20 to 24, recorded, but the log ends at 20" in done.out
    assert "not provable" in done.err


def test_a_partition_that_the_log_does_not_have_is_ahead_of_it(tmp_path, topic):
    topic.append(rows(0, 20), partition=0)
    bring(tmp_path, topic)
    record = look(str(tmp_path / "table"), LogSource.reading("orders", topic))
    assert record.commit([], {**record.ends, 2: 0}, {**record.ends, 2: 7})
    code, found = prove(tmp_path)
    assert (code, found["ahead"], found["foreign"], found["not_compared"]) == (6, 7, 0, 0)
    (finding,) = found["findings"]
    assert (finding["partition"], finding["start"], finding["end"]) == (2, 0, 7)
    assert finding["note"] == "recorded, but the log has no such partition"


def test_a_table_whose_record_is_lost_is_not_said_to_be_provable(tmp_path, topic):
    settings = {"headrace.orders": "copied"}
    schema = pa.schema([*LINEAGE, *topic.schema])
    DeltaTable.create(
        str(tmp_path / "table"), schema, configuration=settings, raise_if_key_not_exists=False
    )
    done = said(tmp_path)
    assert done.code == 2
    assert "does not record the position of pipeline 'orders'" in done.err
    assert "headrace prove" not in done.err
    assert "write the rows to a new table" in " ".join(done.err.split())
