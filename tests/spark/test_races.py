"""A commit that others were faster with: again with the same files, or never. No Spark."""

from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.spark.test_features import commit_of_others
from tests.spark.writings import a_writing

from headrace.spark.tables import commit_races
from headrace.spark.tables.commit_races import TRIES_MAX, committed
from headrace.spark.tables.compaction import compact
from headrace.spark.tables.leftovers import orphans_of
from headrace.spark.tables.restore_check import refuse_restored
from headrace.spark.tables.table_errors import TableRestored
from headrace.spark.tables.table_record import (
    DataFile,
    LogSource,
    Record,
    TablePlace,
    create,
    look,
)
from headrace.spark.worker.files import write_file

SCHEMA = pa.schema([("id", pa.int64())])
SOURCE = LogSource("p", "shop/orders", 1, "log")


def a_file(table, number):
    return DataFile(*write_file(a_writing(table, SCHEMA), [pa.table({"id": [number]})]))


def check(record):
    refuse_restored(record)
    return True


def append_foreign(table):
    write_deltalake(str(table), pa.table({"id": [-1]}), mode="append")


def ids(table):
    return sorted(DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist())


@pytest.fixture
def table(tmp_path):
    record = create(str(tmp_path), SOURCE, SCHEMA)
    assert record.commit([a_file(tmp_path, 0)], {0: 0}, {0: 1})
    return tmp_path


def race(table, meddle, times=1):
    """Commit row 1 after others did something, so many times. Return how it ended."""
    tries = []

    def commit(record):
        tries.append(record)
        if len(tries) <= times:
            meddle()
        return record.commit([file], {0: 0}, {0: 2})

    file = a_file(table, 1)
    return committed(look(str(table), SOURCE), commit, check), len(tries)


@pytest.mark.parametrize("times", [1, TRIES_MAX - 1])
def test_appends_of_others_are_let_in_and_the_same_files_come_behind(table, times):
    assert race(table, lambda: append_foreign(table), times) == (True, times + 1)
    record = look(str(table), SOURCE)
    assert (record.number, record.ends) == (2, {0: 2})
    assert record.version == record.table.version() == times + 2
    assert ids(table) == [-1] * times + [0, 1]
    assert orphans_of(str(table)) == []


def test_it_is_given_up_after_so_many(table):
    assert race(table, lambda: append_foreign(table), TRIES_MAX) == (False, TRIES_MAX)
    assert ids(table) == [-1] * TRIES_MAX + [0]
    assert len(orphans_of(str(table))) == 1


def test_the_pause_is_before_the_look_so_that_others_gain_nothing_by_it(table, monkeypatch):
    """Others commit all the time: a pause between look and commit would lose each race."""

    def sleep(seconds):
        if seconds:
            append_foreign(table)

    # Not the module itself: other threads of this process sleep, too.
    monkeypatch.setattr(commit_races, "time", SimpleNamespace(sleep=sleep))
    is_won, tries = race(table, lambda: append_foreign(table), times=8)
    assert (is_won, tries) == (True, 9)


def another_driver(table):
    assert look(str(table), SOURCE).commit([a_file(table, 1)], {0: 0}, {0: 2})


def reset_behind_it(table):
    assert look(str(table), SOURCE).restart([], [], TablePlace({0: 0}, {0: 1}, {}))


@pytest.mark.parametrize(
    "meddle",
    [
        another_driver,
        reset_behind_it,
        lambda table: look(str(table), SOURCE).widen(pa.schema([("more", pa.int64())])),
        lambda table: DeltaTable(str(table)).alter.set_table_properties(
            {"delta.logRetentionDuration": "interval 9 days"}
        ),
        lambda table: commit_of_others(
            table, protocol={"minReaderVersion": 1, "minWriterVersion": 4}
        ),
    ],
    ids=["another driver", "a reset", "a column", "a property", "a protocol"],
)
def test_what_moved_the_record_or_the_table_ends_it_at_once(table, meddle):
    assert race(table, lambda: meddle(table)) == (False, 1)
    assert ids(table) == ([0, 1] if meddle is another_driver else [0])
    assert len(orphans_of(str(table))) == 1


def test_a_driver_that_only_looks_whether_others_commit_brings_rows_twice(table, monkeypatch):
    """The planted bug: what the record says of our own rows is not looked at."""

    def is_unmoved(record):
        record.table.update_incremental()
        return True

    monkeypatch.setattr(commit_races, "_is_unmoved", is_unmoved)
    assert race(table, lambda: another_driver(table))[1] == 2
    assert ids(table) == [0, 1, 1]


def test_a_restore_in_between_stops_it(table):
    def restore():
        handle = DeltaTable(str(table))
        handle.restore(0)

    with pytest.raises(
        TableRestored, match=r"version [0-9]+ of the table at .* restored an older version"
    ):
        race(table, restore)
    assert ids(table) == []


class TestCompaction:
    @pytest.fixture
    def small(self, table):
        for number in range(1, 4):
            record = look(str(table), SOURCE)
            assert record.commit([a_file(table, number)], {0: 0}, {0: number + 1})
        return table

    def meddled(self, table, monkeypatch, meddle):
        real, tries = Record.compact, []

        def late(self, files, removed):
            tries.append(self)
            if len(tries) == 1:
                meddle()
            return real(self, files, removed)

        monkeypatch.setattr(Record, "compact", late)
        return compact(look(str(table), SOURCE), 2**20, 4), len(tries)

    def test_it_is_made_again_beside_appends_of_others(self, small, monkeypatch):
        assert self.meddled(small, monkeypatch, lambda: append_foreign(small)) == (4, 2)
        assert ids(small) == [-1, 0, 1, 2, 3]
        assert orphans_of(str(small)) == []

    def test_a_file_that_others_took_away_does_not_come_back_by_it(self, small, monkeypatch):
        def delete():
            DeltaTable(str(small)).delete("id = 2")

        assert self.meddled(small, monkeypatch, delete) == (None, 1)
        assert ids(small) == [0, 1, 3]
        assert len(orphans_of(str(small))) == 1
