"""Which batches of a query a table has, and when that does not fit. No Spark is needed."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.spark.writings import a_writing

from headrace.spark.tables.compaction import compact
from headrace.spark.tables.leftovers import orphans_of
from headrace.spark.tables.query_record import Query, TableDisagrees, begin, look
from headrace.spark.tables.table_errors import RecordLost
from headrace.spark.tables.table_record import DataFile
from headrace.spark.worker.files import write_file

COLUMNS = pa.schema([("id", pa.int64())])
QUERY = Query.called("windows", "5f0c")


@pytest.fixture
def table(tmp_path):
    """A table with four batches. Each is one row, and its entry is its number."""
    path = str(tmp_path / "table")
    begin(path, QUERY, 0, COLUMNS)
    for batch in range(4):
        add(path, batch)
    return path


def a_file(path, number):
    rows = pa.table({"id": [number]}, schema=COLUMNS)
    return DataFile(*write_file(a_writing(path, COLUMNS), [rows]))


def add(path, batch):
    batches = look(path, QUERY, batch)
    assert batches.is_new(batch, entry=batch)
    assert batches.commit([a_file(path, batch)], batch, entry=batch)


def ids(path):
    return sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist())


@pytest.mark.parametrize(
    ("batch", "entry", "said"),
    [
        (2, 2, "up to 3, but its checkpointLocation is at 2: it was copied"),
        (3, 9, "up to 3, but its checkpointLocation has different rows in 3: it was copied"),
        (5, 5, "up to 3, but its checkpointLocation is at 5: batches are missing"),
    ],
)
def test_a_batch_that_is_neither_next_nor_the_newest_does_not_fit(table, batch, entry, said):
    batches = look(table, QUERY, batch)
    assert not batches.is_new(3, entry=3)
    assert batches.is_new(4, entry=4)
    with pytest.raises(TableDisagrees) as caught:
        batches.is_new(batch, entry)
    assert said in str(caught.value)
    assert " Two ways out: restore the " in str(caught.value)


def test_of_two_who_add_one_batch_one_loses(table):
    one, other = look(table, QUERY, 4), look(table, QUERY, 4)
    assert one.commit([a_file(table, 4)], 4, entry=4)
    assert not other.commit([a_file(table, 4)], 4, entry=4)
    assert not look(table, QUERY, 4).is_new(4, entry=4)
    assert ids(table) == [0, 1, 2, 3, 4]


def test_appends_of_others_in_between_do_not_cost_the_batch(table):
    batches = look(table, QUERY, 4)
    write_deltalake(table, pa.table({"id": [-1]}), mode="append")
    assert batches.commit([a_file(table, 4)], 4, entry=4)
    assert not look(table, QUERY, 4).is_new(4, entry=4)
    assert ids(table) == [-1, 0, 1, 2, 3, 4]


def test_a_table_that_lost_its_record_does_not_begin_anew(table, tmp_path):
    copy = str(tmp_path / "copy")
    DeltaTable.create(
        copy,
        COLUMNS,
        configuration=DeltaTable(table).metadata().configuration,
        raise_if_key_not_exists=False,
    )
    with pytest.raises(RecordLost, match="does not record which batches of query 5f0c it has"):
        begin(copy, QUERY, 0, COLUMNS)


def test_the_record_outlives_checkpoints_compaction_and_clean_up(table):
    found = DeltaTable(table)
    found.optimize.compact()
    found.create_checkpoint()
    found.cleanup_metadata()
    assert look(table, QUERY, 4).next == 4
    add(table, 4)
    assert ids(table) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("compacted", [False, True])
def test_a_restored_table_does_not_fit_until_that_is_undone(table, compacted):
    newest = DeltaTable(table).version()
    if compacted:
        assert compact(look(table, QUERY, 4).record, 1 << 20, files_min=2) == 4
    last = DeltaTable(table).version()
    DeltaTable(table).restore(2)
    with pytest.raises(TableDisagrees, match=f"restore version {last} and continue"):
        look(table, QUERY, 4)
    for version in {newest, last}:
        DeltaTable(table).restore(version)
        assert look(table, QUERY, 4).is_new(4, entry=4)
    add(table, 4)
    assert ids(table) == [0, 1, 2, 3, 4]


def test_vacuum_removes_what_a_driver_has_left(table):
    a_file(table, 9)
    assert len(orphans_of(table)) == 1
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert orphans_of(table) == []
    assert ids(table) == [0, 1, 2, 3]
