"""Log and table agree, or the difference is named."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.cli.commands import headrace_here
from tests.spark.conftest import rows
from tests.spark.test_pipeline import a_definition, run

from headrace.errors import CorruptFile
from headrace.spark.pipeline.definition import load
from headrace.spark.pipeline.pipeline import OFFSET, PARTITION, opened
from headrace.spark.prove.prove import Grade, MismatchKind
from headrace.spark.prove.recompute import RecomputeFailed, recompute
from headrace.spark.tables.table_record import look


@pytest.fixture
def filled(spark, tmp_path, log, topic):
    """A table that holds what the log holds, with a producer's ledger beside."""
    with log.producer(topic, ledger=tmp_path / "ledger") as producer:
        producer.send(rows(0, 300))
    run(spark, a_definition(tmp_path))
    return tmp_path / "table"


def prove(tmp_path, *more):
    place = ["--table", tmp_path / "table", "--data", tmp_path / "data"]
    done = headrace_here("prove", "shop/orders", "--json", *place, *more)
    assert done.out, done.err
    return done.code, done.json


def rewrite(table, change):
    """Replace all rows of a table by changed ones, as somebody else would."""
    found = DeltaTable(str(table))
    write_deltalake(str(table), change(found.to_pyarrow_table()), mode="overwrite")


def test_a_whole_table_is_proven_with_what_was_acknowledged(tmp_path, filled):
    code, found = prove(tmp_path, "--ledger", str(tmp_path / "ledger"))
    assert code == 0
    assert found["holds"]
    assert found["grade"] == "identity"
    assert found["columns"] == ["id", "name"]
    assert found["acknowledged"] == found["in_log"] == found["in_table"] == 300


def test_what_an_earlier_topic_of_that_name_acknowledged_is_left_out(tmp_path, filled, topic):
    ledger = tmp_path / "ledger"
    line = json.loads(ledger.read_text().splitlines()[0])
    older = {**line, "created": line["created"] - 1, "start": 9_000, "end": 9_500}
    ledger.write_text(ledger.read_text() + json.dumps(older) + "\n")
    code, found = prove(tmp_path, "--ledger", str(ledger))
    assert (code, found["acknowledged"], found["lost"]) == (0, 300, 0)


def test_a_deleted_row_is_named(tmp_path, filled, topic):
    DeltaTable(str(filled)).delete("id = 17")
    code, found = prove(tmp_path)
    assert code == 6
    assert found["missing"] == 1
    (row,) = [row for row in topic.read().to_table().to_pylist() if row["id"] == 17]
    number, offset = row["_partition"], row["_offset"]
    place = {"partition": number, "start": offset, "end": offset + 1}
    assert found["findings"] == [{"kind": "missing", **place, "note": ""}]


def test_a_duplicated_row_is_named(tmp_path, filled):
    one = DeltaTable(str(filled)).to_pyarrow_table().slice(5, 1)
    write_deltalake(str(filled), one, mode="append")
    code, found = prove(tmp_path)
    assert (code, found["duplicated"], found["missing"]) == (6, 1, 0)
    assert found["findings"][0]["start"] == one[OFFSET][0].as_py()
    assert found["findings"][0]["partition"] == one[PARTITION][0].as_py()


def test_a_changed_value_is_named_with_its_column(tmp_path, filled):
    DeltaTable(str(filled)).update(updates={"name": "'other'"}, predicate="id = 42")
    code, found = prove(tmp_path)
    assert (code, found["changed"]) == (6, 1)
    assert found["findings"][0]["note"] == "column name"


def test_a_dropped_file_is_named_as_the_rows_it_had(tmp_path, filled):
    rewrite(filled, lambda table: table.slice(100))
    code, found = prove(tmp_path)
    assert (code, found["missing"]) == (6, 100)


def test_a_foreign_row_is_named(tmp_path, filled):
    extra = {"id": [7], "name": ["x"], PARTITION: [0], OFFSET: [10_000]}
    schema = DeltaTable(str(filled)).to_pyarrow_table().schema
    write_deltalake(str(filled), pa.table(extra, schema=schema), mode="append")
    nowhere = {"id": [7], "name": ["x"], PARTITION: [None], OFFSET: [None]}
    write_deltalake(str(filled), pa.table(nowhere, schema=schema), mode="append")
    code, found = prove(tmp_path)
    assert (code, found["foreign"]) == (6, 2)


def test_rows_that_a_ledger_names_and_the_log_lacks_are_told(tmp_path, filled, topic):
    line = json.loads((tmp_path / "ledger").read_text().splitlines()[0])
    line |= {"start": 10_000, "end": 10_007}
    with open(tmp_path / "ledger", "a") as file:
        file.write(json.dumps(line) + "\n" + '{"cut off')
    code, found = prove(tmp_path, "--ledger", str(tmp_path / "ledger"))
    assert (code, found["lost"]) == (6, 7)
    assert found["acknowledged"] == 307


def test_a_table_without_places_proves_nothing(spark, tmp_path, topic):
    topic.append(rows(0, 5))
    run(spark, a_definition(tmp_path, lineage=False, sql="select id from source"))
    code, found = prove(tmp_path)
    assert (code, found["grade"], found["holds"]) == (7, "not provable", False)


def test_computed_columns_are_said_not_to_be_compared(spark, tmp_path, topic):
    topic.append(rows(0, 5))
    sql = f"select id, upper(name) as shout, {PARTITION}, {OFFSET} from source"
    run(spark, a_definition(tmp_path, sql=sql))
    code, found = prove(tmp_path)
    assert (code, found["grade"], found["columns"]) == (0, "lineage", ["id"])


def test_trimmed_rows_are_not_compared_and_not_claimed(tmp_path, filled, topic):
    ends = {each.partition: each.end for each in topic.bounds()}
    number = max(ends, key=ends.get)
    topic.trim(10, partition=number, past_hold=True)
    code, found = prove(tmp_path)
    assert (code, found["not_compared"], found["holds"]) == (7, 10, False)


def test_a_flipped_byte_in_a_data_file_is_noticed(tmp_path, filled):
    (path,) = filled.glob("part-*.parquet")
    data = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    at = column.data_page_offset + column.total_compressed_size // 2
    data[at] ^= 1
    path.write_bytes(data)
    done = headrace_here("prove", "shop/orders", "--table", filled, "--data", tmp_path / "data")
    assert done.code == 6
    assert path.name in done.out + done.err


FILTERED = "select id, name from source where id % 3 = 0"


@pytest.fixture
def filtered(spark, tmp_path, topic):
    """A table of a pipeline that leaves rows out, and keeps no lineage."""
    topic.append(rows(0, 300), partition=0)
    topic.append(rows(0, 30), partition=1)  # equal rows are counted, not only found
    given = {"name": "orders", "topic": "shop/orders", "path": "data", "table": "table"}
    given = {key: f'"{value}"' for key, value in {**given, "sql": FILTERED}.items()}
    file = tmp_path / "orders.toml"
    lines = [f"{key} = {value}" for key, value in {**given, "lineage": "false"}.items()]
    file.write_text("\n".join(lines))
    run(spark, load(file))
    return file


def recomputed(spark, file, sql=None):
    definition = load(file)
    if sql is not None:
        definition = replace(definition, sql=sql)
    with opened(spark, definition) as pipeline:
        record = look(definition.table, pipeline.source)
        return recompute(pipeline, record)


def test_a_transform_that_leaves_rows_out_is_proven_by_running_it_again(tmp_path, filtered):
    code, found = prove(tmp_path, "--recompute", str(filtered))
    assert code == 0
    assert (found["grade"], found["in_log"], found["in_table"]) == ("recompute", 330, 110)


def test_a_changed_row_is_seen_by_running_the_transform_again(spark, tmp_path, filtered):
    assert recomputed(spark, filtered).holds
    DeltaTable(str(tmp_path / "table")).update({"name": "'x'"}, predicate="id = 3")
    found = recomputed(spark, filtered)
    assert not found.holds
    assert found.counts == {
        **dict.fromkeys(MismatchKind, 0),
        MismatchKind.MISSING: 2,
        MismatchKind.FOREIGN: 2,
    }


def test_a_row_that_is_there_once_too_often_is_seen(spark, tmp_path, filtered):
    once_more = pa.table({"id": pa.array([3], pa.int64()), "name": ["n3"]})
    write_deltalake(str(tmp_path / "table"), once_more, mode="append")
    assert recomputed(spark, filtered).counts[MismatchKind.FOREIGN] == 1


def test_a_transform_that_makes_other_rows_each_time_proves_nothing(spark, filtered):
    sql = "select id, cast(rand() as string) as name from source where id % 3 = 0"
    assert recomputed(spark, filtered, sql).grade == Grade.NOT_PROVABLE


def test_trimmed_rows_leave_nothing_to_compare_with(spark, tmp_path, log, topic, filtered):
    topic.delete_cursors("pipeline.orders")
    topic.trim(10, partition=0)
    found = recomputed(spark, filtered)
    assert (found.grade, found.not_compared) == (Grade.NOT_PROVABLE, 10)


def test_the_file_of_another_pipeline_is_refused(tmp_path, filtered):
    other = tmp_path / "other.toml"
    other.write_text(filtered.read_text().replace('name = "orders"', 'name = "others"'))
    place = ["--table", tmp_path / "table", "--data", tmp_path / "data"]
    done = headrace_here("prove", "shop/orders", *place, "--recompute", other)
    assert done.code == 2
    assert "is for pipeline 'others'" in done.err


def test_the_table_is_read_by_its_own_schema_when_the_transform_is_run_again(spark, filtered):
    wider = "select id, name, 'x' as note from source where id % 3 = 0"
    found = recomputed(spark, filtered, wider)
    assert (found.columns, found.unlike) == (("id", "name"), ("note",))
    assert (found.is_wrong, found.holds) == (False, False)
    other = "select cast(id as int) as id, name from source where id % 3 = 0"
    found = recomputed(spark, filtered, other)
    assert (found.columns, found.unlike, found.holds) == (("name",), ("id",), False)


def test_rows_that_the_log_does_not_reach_are_foreign_when_the_transform_is_run_again(
    spark, tmp_path, topic, filtered
):
    definition = load(filtered)
    with opened(spark, definition) as pipeline:
        record = look(definition.table, pipeline.source)
        assert record.commit([], record.ends, {**record.ends, 0: 304})
    once_more = pa.table({"id": pa.array([303], pa.int64()), "name": ["n303"]})
    write_deltalake(str(tmp_path / "table"), once_more, mode="append")
    found = recomputed(spark, filtered)
    assert (found.ahead, found.in_log, found.compared) == (4, 330, 330)
    assert found.counts == {**dict.fromkeys(MismatchKind, 0), MismatchKind.FOREIGN: 1}
    (finding,) = found.findings
    assert (finding.partition, finding.start, finding.end) == (0, 300, 304)


DEEP = """
select id,
       named_struct('of', map('a', id, 'b', 2), 'name', name) as owner,
       array(map('x', array(map(id, name)))) as pieces,
       if(id = 1, null, named_struct('sizes', map('s', id))) as rare
from source
"""


@pytest.fixture
def deep(spark, tmp_path, topic):
    """A table with maps inside structs, arrays and maps."""
    topic.append(rows(0, 6), partition=0)
    file = tmp_path / "orders.toml"
    file.write_text(
        'name = "orders"\ntopic = "shop/orders"\npath = "data"\ntable = "table"\n'
        f'lineage = false\nsql = """{DEEP}"""\n'
    )
    run(spark, load(file))
    return file


def test_maps_are_compared_however_deep_they_are(spark, tmp_path, deep):
    found = recomputed(spark, deep)
    assert found.holds
    assert found.columns == ("id", "owner", "pieces", "rare")
    turned = DEEP.replace("map('a', id, 'b', 2)", "map('b', 2, 'a', id)")
    assert recomputed(spark, deep, turned).holds  # a map has no order
    other = DEEP.replace("map(id, name)", "map(id, if(id = 3, 'x', name))")
    found = recomputed(spark, deep, other)
    assert (found.counts[MismatchKind.MISSING], found.counts[MismatchKind.FOREIGN]) == (1, 1)
    other = DEEP.replace("if(id = 1, null", "if(id = 2, null")
    assert recomputed(spark, deep, other).counts[MismatchKind.MISSING] == 2


def test_what_spark_raises_while_the_transform_is_run_again_is_told_by_name(spark, filtered):
    sql = "select id, cast(raise_error('no ' || name) as string) as name from source"
    with pytest.raises(RecomputeFailed) as caught:
        recomputed(spark, filtered, sql)
    assert "no n" in str(caught.value)
    assert "Nothing was compared" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_a_changed_page_is_named_by_its_file_when_the_transform_is_run_again(
    spark, tmp_path, filtered
):
    path = max(
        (tmp_path / "table").glob("part-*.parquet"), key=lambda each: each.stat().st_size
    )
    plain = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pq.read_table(path), path, **plain)  # so that the page can be read still
    assert recomputed(spark, filtered).holds
    assert path.read_bytes().count(b"n297") == 1
    path.write_bytes(path.read_bytes().replace(b"n297", b"x297"))
    with pytest.raises(CorruptFile) as caught:
        recomputed(spark, filtered)
    assert caught.value.path == str(path)
    assert "a data file of the table cannot be read" in str(caught.value)
