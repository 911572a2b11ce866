"""A table that was restored to an older version is told, until that is undone. No Spark."""

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.spark.writings import a_writing

import headrace
from headrace.errors import CorruptFile, ReadFailed
from headrace.spark.pipeline.table_reset import carry_out, planned
from headrace.spark.tables.compaction import compact
from headrace.spark.tables.restore_check import Watch, refuse_restored, restore_of
from headrace.spark.tables.table_errors import TableRestored
from headrace.spark.tables.table_record import (
    DataFile,
    LogSource,
    Removed,
    TablePlace,
    create,
    look,
)
from headrace.spark.worker.files import write_file

SCHEMA = pa.schema([("id", pa.int64())])
SOURCE = LogSource("p", "shop/orders", 1, "log")
ANEW = "load its rows again: headrace pipeline reset FILE --truncate"


@pytest.fixture
def table(tmp_path):
    """A table with four rows, one in each of its versions 1 to 4."""
    path = str(tmp_path / "table")
    create(path, SOURCE, SCHEMA)
    for _ in range(4):
        bring(path)
    return path


def a_file(path, number):
    return DataFile(*write_file(a_writing(path, SCHEMA), [pa.table({"id": [number]})]))


def bring(path):
    """Do what a round does, with one row."""
    record = look(path, SOURCE)
    refuse_restored(record)
    end = record.ends.get(0, 0)
    assert record.commit([a_file(path, end)], {0: end}, {0: end + 1})


def bring_as_before(path):
    """Do what a round of an earlier Headrace does: it records no version."""
    record = look(path, SOURCE)
    end = record.ends.get(0, 0)
    numbers = record._numbers({0: 0}, {0: end + 1})
    assert record._commit([a_file(path, end)], [], numbers, is_change=False)


def append_foreign(path, *numbers):
    write_deltalake(path, pa.table({"id": list(numbers)}, schema=SCHEMA), mode="append")


def vacuum(path):
    DeltaTable(path).vacuum(0, dry_run=False, enforce_retention_duration=False)


def ids(path):
    return sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist())


def refused(path):
    with pytest.raises(TableRestored) as caught:
        refuse_restored(look(path, SOURCE))
    return caught.value


def entry_of(path, version):
    return Path(path, "_delta_log", f"{version:020}.json")


def restore_as_spark(path, version, /, **parameters):
    """Add the entry that Spark's RESTORE TABLE writes."""
    now, then = (DeltaTable(path, version=each) for each in (None, version))
    adds, was = ({Path(uri).name for uri in each.file_uris()} for each in (then, now))
    told = {"operation": "RESTORE", "operationParameters": parameters}
    told |= {"timestamp": 1, "engineInfo": "Apache-Spark/4.0.0 Delta-Lake/4.0.0"}
    actions = [{"commitInfo": told}]
    for name in sorted(adds - was):
        size = Path(path, name).stat().st_size
        add = {"path": name, "partitionValues": {}, "size": size, "modificationTime": 1}
        actions.append({"add": {**add, "dataChange": True}})
    actions += [{"remove": {"path": name, "dataChange": True}} for name in sorted(was - adds)]
    add_entry(path, actions)


def add_entry(path, actions):
    """Commit as another program does."""
    text = "".join(json.dumps(action) + "\n" for action in actions)
    entry_of(path, DeltaTable(path).version() + 1).write_text(text)


def clean_up(path, end):
    """Do what a clean-up of the table's log does: entries before the newest state go."""
    DeltaTable(path).create_checkpoint()
    for version in range(end):
        entry_of(path, version).unlink()


def measure_again(path):
    """Name each file again with other statistics, as Spark does when it computes them anew."""
    files = pa.table(DeltaTable(path).get_add_actions(flatten=True)).to_pylist()
    adds = [
        {"path": each["path"], "partitionValues": {}, "size": each["size_bytes"]}
        | {"modificationTime": 1, "dataChange": False, "stats": '{"numRecords":1}'}
        for each in files
    ]
    add_entry(path, [{"add": add} for add in adds])


class TestTold:
    """What takes rows away that the table records is told, with the way back."""

    def test_a_restored_table_is_refused_with_both_ways_out_until_that_is_undone(self, table):
        DeltaTable(table).restore(2)
        assert str(refused(table)) == (
            f"version 5 of the table at {table} restored an older version, so the rows are not "
            "those that the table records. Two ways out: restore version 4 and "
            f"continue, or {ANEW}"
        )
        DeltaTable(table).restore(4)
        bring(table)
        assert ids(table) == [0, 1, 2, 3, 4]

    def test_what_others_do_afterwards_does_not_hide_it(self, table):
        DeltaTable(table).restore(2)
        append_foreign(table, 100, 101)
        DeltaTable(table).optimize.compact()
        DeltaTable(table).create_checkpoint()
        assert "version 5 of the table at " in str(refused(table))
        assert "restore version 4 and" in refused(table).hint

    def test_a_restore_to_another_older_version_does_not_undo_it(self, table):
        for version in (2, 3, 1):
            DeltaTable(table).restore(version)
        assert "version 5 of the table at " in str(refused(table))
        DeltaTable(table).restore(4)
        DeltaTable(table).restore(2)
        assert "version 9 of the table at " in str(refused(table))

    def test_one_by_its_time_is_told_as_one_by_its_version(self, table):
        times = {}
        for version in range(5):  # a time names the last entry that was written before it
            times[version] = int(time.time()) - 100 + version
            os.utime(f"{table}/_delta_log/{version:020}.json", (times[version],) * 2)
        DeltaTable(table).restore(datetime.fromtimestamp(times[2], UTC))
        assert "version 5 of the table at " in str(refused(table))
        DeltaTable(table).restore(datetime.fromtimestamp(times[4], UTC))
        bring(table)

    def test_one_by_spark_is_told_as_one_by_deltalake(self, table):
        restore_as_spark(table, 2, version="2", timestamp=None)
        assert ids(table) == [0, 1]
        assert "version 5 of the table at " in str(refused(table))
        restore_as_spark(table, 4, version=None, timestamp="2024-01-01 00:00:00.0")
        bring(table)
        assert ids(table) == [0, 1, 2, 3, 4]

    def test_rows_that_left_by_a_reset_do_not_come_back_unnoticed(self, table):
        record = look(table, SOURCE)
        files = pa.table(record.table.get_add_actions(flatten=True)).to_pylist()
        removed = [Removed(each["path"], each["size_bytes"]) for each in files]
        assert record.restart([], removed, TablePlace({0: 0}, {0: 0}, {}))
        DeltaTable(table).restore(4)
        assert "restore version 5 and continue" in refused(table).hint
        DeltaTable(table).restore(5)
        bring(table)
        assert ids(table) == [0]

    def test_the_version_is_right_though_others_commit_after_the_look(self, table):
        DeltaTable(table).restore(2)
        record = look(table, SOURCE)
        append_foreign(table, 100)
        assert restore_of(record).version == 5


class TestNoLoss:
    """A restore to a state with all rows, and what is none, stop nobody."""

    @pytest.mark.parametrize("version", [4, 5, 6, 7])
    def test_any_version_since_the_newest_row_may_be_restored(self, table, version):
        append_foreign(table, 100)  # version 5
        assert compact(look(table, SOURCE), 1 << 20, files_min=2) == 4
        DeltaTable(table).optimize.compact()
        assert DeltaTable(table).version() == 7
        refuse_restored(look(table, SOURCE))
        restore_as_spark(table, version, version=str(version), timestamp=None)
        bring(table)
        assert ids(table) == [0, 1, 2, 3, 4, *([100] if version > 4 else [])]

    def test_one_that_was_undone_stays_so_whatever_becomes_of_the_files(self, table):
        DeltaTable(table).restore(2)
        DeltaTable(table).restore(4)
        DeltaTable(table).optimize.compact()
        vacuum(table)
        bring(table)
        assert ids(table) == [0, 1, 2, 3, 4]

    def test_a_version_before_a_commit_without_rows_has_them_all(self, table):
        assert look(table, SOURCE).commit([], {0: 4}, {0: 9})
        DeltaTable(table).restore(4)
        refuse_restored(look(table, SOURCE))
        DeltaTable(table).restore(3)
        assert "version 7 of the table at " in str(refused(table))

    def test_files_that_are_named_again_with_other_statistics_are_the_same(self, table):
        append_foreign(table, 100)
        measure_again(table)
        restore_as_spark(table, 4, version="4", timestamp=None)
        bring(table)
        assert ids(table) == [0, 1, 2, 3, 4]

    def test_a_table_of_an_earlier_headrace_goes_on_and_is_guarded_from_then_on(self, tmp_path):
        path = str(tmp_path / "table")
        create(path, SOURCE, SCHEMA)
        for _ in range(3):
            bring_as_before(path)
        DeltaTable(path).restore(2)
        assert look(path, SOURCE).version is None
        bring(path)
        assert look(path, SOURCE).version == DeltaTable(path).version() == 5
        DeltaTable(path).restore(4)
        assert "version 6 of the table at " in str(refused(path))


class TestVersion:
    """The version that is recorded is the one that the commit got."""

    def test_who_lost_a_race_records_the_version_of_his_next_try(self, table):
        slow = look(table, SOURCE)
        append_foreign(table, 100)
        assert not slow.commit([a_file(table, 4)], {0: 4}, {0: 5})
        assert look(table, SOURCE).version == 4
        bring(table)
        assert look(table, SOURCE).version == DeltaTable(table).version() == 6

    def test_a_restore_between_look_and_commit_wins(self, table):
        slow = look(table, SOURCE)
        DeltaTable(table).restore(2)
        assert not slow.commit([a_file(table, 4)], {0: 4}, {0: 5})
        assert "restore version 4 " in refused(table).hint

    def test_it_outlives_compaction_new_columns_checkpoints_and_clean_up(self, table):
        assert compact(look(table, SOURCE), 1 << 20, files_min=2) == 4
        assert look(table, SOURCE).widen(pa.schema([("more", pa.int64())]))
        found = DeltaTable(table)
        found.optimize.compact()
        found.create_checkpoint()
        found.cleanup_metadata()
        assert look(table, SOURCE).version == 4
        DeltaTable(table).restore(3)
        assert "version 7 of the table at " in str(refused(table))

    def test_no_entry_before_it_is_read_and_each_one_behind_it_is(self, table):
        DeltaTable(table).restore(2)
        DeltaTable(table).restore(4)
        bring(table)  # version 7
        append_foreign(table, 100)
        append_foreign(table, 101)
        DeltaTable(table).create_checkpoint()
        for version in range(8):
            entry_of(table, version).write_text("rot\n")
        refuse_restored(look(table, SOURCE))
        entry_of(table, 8).write_text("rot\n")
        with pytest.raises(CorruptFile, match="an entry of the table's log is torn"):
            refuse_restored(look(table, SOURCE))


class TestCleaned:
    """What is gone cannot be restored, and is not offered."""

    def test_a_version_whose_files_are_vacuumed_is_not_offered(self, table):
        DeltaTable(table).restore(2)
        vacuum(table)
        said = f"Version 4 is no longer complete, so {ANEW}"
        assert refused(table).hint == said

    def test_a_version_that_the_log_has_no_more_is_not_offered(self, table):
        DeltaTable(table).restore(2)
        clean_up(table, 5)
        assert "Version 4 is no longer complete" in refused(table).hint

    def test_an_undone_restore_is_seen_as_such_though_the_log_begins_with_it(self, table):
        DeltaTable(table).restore(2)
        DeltaTable(table).restore(4)
        clean_up(table, 5)
        bring(table)
        assert ids(table) == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("before", ["a foreign append", "another restore"])
    def test_a_restore_of_a_version_that_the_log_has_no_more_stops_nobody(self, table, before):
        if before == "a foreign append":
            append_foreign(table, 100)
        else:
            DeltaTable(table).restore(2)
        DeltaTable(table).restore(4)
        clean_up(table, 6)
        bring(table)
        assert ids(table) == [0, 1, 2, 3, 4]

    def test_one_of_an_older_version_is_told_though_the_log_begins_with_it(self, table):
        append_foreign(table, 100)
        DeltaTable(table).restore(3)
        clean_up(table, 6)
        assert "version 6 of the table at " in str(refused(table))

    @pytest.mark.parametrize("left", ["its entry alone", "its checksum alone"])
    def test_a_version_that_cannot_be_loaded_is_not_offered(self, table, left):
        append_foreign(table, 100)
        DeltaTable(table).restore(2)
        clean_up(table, 5 if left == "its entry alone" else 6)
        entry_of(table, 5).with_suffix(".crc").write_text("{}")
        assert "Version 5 is no longer complete" in refused(table).hint

    def test_a_version_behind_a_checkpoint_is_offered_though_older_entries_are_gone(
        self, table
    ):
        clean_up(table, 4)
        bring(table)
        DeltaTable(table).restore(4)
        assert "restore version 5 and continue" in refused(table).hint
        DeltaTable(table).restore(5)
        bring(table)
        assert ids(table) == [0, 1, 2, 3, 4, 5]

    def test_a_restore_that_the_log_has_no_more_stops_nobody(self, table):
        DeltaTable(table).restore(2)
        append_foreign(table, 100)
        clean_up(table, 6)
        bring(table)
        assert look(table, SOURCE).version == 7


class TestEntries:
    """Entries are of any program, and are read as deltalake reads them."""

    @pytest.mark.parametrize(
        "line", ["", "  ", '{"commitInfo": "by hand"}', '{"commitInfo": [1]}', '{"add": null}']
    )
    def test_what_deltalake_reads_stops_nobody(self, table, line):
        append_foreign(table, 100)
        entry = entry_of(table, 5)
        entry.write_text(f"{entry.read_text()}\n{line}\n")
        bring(table)
        assert ids(table) == [0, 1, 2, 3, 4, 100]

    @pytest.mark.parametrize("line", ["[]", "null", '{"add": {}}', '{"remove": {"path": 5}}'])
    def test_what_is_no_action_is_told_as_damage(self, table, line):
        append_foreign(table, 100)
        DeltaTable(table).create_checkpoint()
        entry_of(table, 5).write_text(f"{line}\n")
        with pytest.raises(
            CorruptFile, match="the table's log cannot be read: version 5 has a "
        ):
            refuse_restored(look(table, SOURCE))

    def test_one_that_cannot_be_read_now_is_not_judged(self, table):
        append_foreign(table, 100)
        DeltaTable(table).create_checkpoint()
        entry_of(table, 5).unlink()
        entry_of(table, 5).mkdir()
        with pytest.raises(ReadFailed, match=r"0005\.json: cannot be read now: Is a directory"):
            refuse_restored(look(table, SOURCE))


class TestWatch:
    """Who looks again and again reads each entry once."""

    def test_a_later_look_reads_what_is_new_and_finds_the_same(self, table):
        watch = Watch()
        append_foreign(table, 100)
        DeltaTable(table).restore(4)
        assert watch.restore_of(look(table, SOURCE)) is None
        DeltaTable(table).create_checkpoint()
        entry_of(table, 5).write_text("rot\n")
        append_foreign(table, 101)
        DeltaTable(table).restore(6)
        assert watch.restore_of(look(table, SOURCE)) is None

    def test_a_restore_is_told_at_each_look_until_it_is_undone(self, table):
        watch = Watch()
        assert watch.restore_of(look(table, SOURCE)) is None
        DeltaTable(table).restore(2)
        for _ in range(2):
            assert watch.restore_of(look(table, SOURCE)) == restore_of(look(table, SOURCE))
            append_foreign(table, 100)
        assert watch.restore_of(look(table, SOURCE)).version == 5
        DeltaTable(table).restore(4)
        assert watch.restore_of(look(table, SOURCE)) is None

    def test_it_begins_anew_with_new_rows_and_with_another_table(self, table, tmp_path):
        watch = Watch()
        append_foreign(table, 100)
        assert watch.restore_of(look(table, SOURCE)) is None
        bring(table)
        DeltaTable(table).restore(5)  # whole before the new row, and not now
        assert watch.restore_of(look(table, SOURCE)).version == 7
        other = str(tmp_path / "other")
        create(other, SOURCE, SCHEMA)
        for _ in range(6):
            bring(other)
        append_foreign(other, 100)
        assert watch.restore_of(look(other, SOURCE)) is None

    def test_it_begins_anew_with_a_table_that_was_put_back_from_a_copy(self, table):
        watch = Watch()
        DeltaTable(table).restore(2)
        assert watch.restore_of(look(table, SOURCE)).version == 5
        entry_of(table, 5).unlink()
        assert watch.restore_of(look(table, SOURCE)) is None


class TestReset:
    """A truncation always helps."""

    def test_it_helps_where_the_table_has_no_row_and_records_none(self, table):
        record, bounds = look(table, SOURCE), {0: headrace.Bounds(0, 0, 4, 0, 0, ())}
        assert carry_out(record, planned(record, bounds, {0: 0}, truncate=True))
        append_foreign(table, 100)
        assert look(table, SOURCE).commit([], {0: 0}, {0: 0})
        DeltaTable(table).restore(0)
        refused(table)
        record = look(table, SOURCE)
        plan = planned(record, bounds, {0: 0}, truncate=True)
        assert (plan.changes, plan.removed, plan.again, plan.gone) == (True, (), 0, 0)
        assert carry_out(record, plan)
        bring(table)
        assert ids(table) == [0]
