"""Bugs planted beside a commit, and the rows that are wrong by them. No Spark.

The oracle is the ledger: a table's log is replayed and its files are read by pyarrow, and each
row must be there once. Without the bug each scene ends well.
"""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.spark.power_cut import PowerCut
from tests.spark.writings import a_writing

from headrace.spark.stores.location import location_of
from headrace.spark.stores.path_store import PathStore
from headrace.spark.tables import commit_races, leftovers
from headrace.spark.tables.commit_races import committed
from headrace.spark.tables.leftovers import orphans_of, remove
from headrace.spark.tables.table_errors import FileGone
from headrace.spark.tables.table_record import DataFile, LogSource, Record, create, look
from headrace.spark.worker.files import Writing, write_file
from headrace_lab.harness.mutants import Mutant
from headrace_lab.spark.check import entries, filesystem_of
from headrace_lab.spark.s3_proxy import Fault
from headrace_lab.spark.s3_server import settings_of

SCHEMA = pa.schema([("id", pa.int64())])
SOURCE = LogSource("orders", "shop/orders", 1, "log")


def planted(*patches):
    return Mutant("", "commit", patches).planted()


def found(where):
    """Return the ids that a table has, by its log and files alone, or what is wrong."""
    files = {}
    system, root = filesystem_of(where)
    try:
        for actions in entries(where):
            for action in actions:
                if "add" in action:
                    files[action["add"]["path"]] = None
                if "remove" in action:
                    files.pop(action["remove"]["path"], None)
        parts = [pq.read_table(f"{root}/{name}", filesystem=system) for name in files]
    except (OSError, pa.ArrowException) as error:
        return type(error).__name__
    return sorted(each for part in parts for each in part["id"].to_pylist())


def a_file(record, *numbers):
    writing = Writing.of(record.location, SOURCE.pipeline, record.number, SCHEMA)
    return DataFile(*write_file(writing, [pa.table({"id": list(numbers)}, SCHEMA)]))


def bring(where, end):
    """Do a round: all rows to before `end` that the table does not record."""
    record = look(where, SOURCE)
    start = record.ends.get(0, 0)
    if start < end:
        file = a_file(record, *range(start, end))
        assert committed(
            record, lambda one: one.commit([file], {0: start}, {0: end}), lambda _: True
        )


@pytest.fixture
def table(tmp_path):
    where = str(tmp_path / "table")
    create(where, SOURCE, SCHEMA)
    bring(where, 1)
    return where


class TestAnswerLost:
    """An entry is there, its writer is told that it is not, and another one compacts."""

    def ended(self, table, monkeypatch):
        real, calls = DeltaTable.create_write_transaction, []

        def lost(self, *given, **named):
            real(self, *given, **named)
            calls.append(self)
            if len(calls) == 1:
                DeltaTable(table).optimize.compact()
                raise OSError("no answer")

        monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
        bring(table, 2)
        return found(table)

    def test_the_commit_is_known_again(self, table, monkeypatch):
        assert self.ended(table, monkeypatch) == [0, 1]

    def test_the_same_files_without_a_look_for_the_commit_are_seen(self, table, monkeypatch):
        def is_unmoved(record):
            record.table.update_incremental()
            return True

        with planted(
            (Record, "_landed", lambda *_: False), (commit_races, "_is_unmoved", is_unmoved)
        ):
            assert self.ended(table, monkeypatch) == [0, 1, 1]


class TestKilledAfterAnEntry:
    """A driver dies after its first entry, whatever is in it; the next one goes on."""

    def ended(self, table, monkeypatch):
        attempt = Record._attempt

        def dies(self, commit):
            attempt(self, commit)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Record, "_attempt", dies)
            with pytest.raises(KeyboardInterrupt):
                bring(table, 2)
        bring(table, 3)
        return found(table)

    def test_rows_and_place_are_there_together(self, table, monkeypatch):
        assert self.ended(table, monkeypatch) == [0, 1, 2]

    def test_a_place_in_a_commit_after_the_rows_is_seen(self, table, monkeypatch):
        def apart(self, files, starts, ends, beside=None):
            numbers = self._numbers({**self.firsts}, ends)
            return self._commit(files, [], {}) and self._commit([], [], numbers)

        with planted((Record, "commit", apart)):
            assert self.ended(table, monkeypatch) == [0, 1, 1, 2]

    def test_a_place_before_the_rows_is_seen(self, table, monkeypatch):
        def apart(self, files, starts, ends, beside=None):
            numbers = self._numbers({**self.firsts}, ends)
            return self._commit([], [], numbers) and self._commit(files, [], {})

        with planted((Record, "commit", apart)):
            assert self.ended(table, monkeypatch) == [0, 2]

    def test_the_last_row_in_place_of_the_next_one_is_seen(self, table, monkeypatch):
        real = Record._numbers

        def last(self, firsts, ends):
            return real(self, firsts, {each: end - 1 for each, end in ends.items()})

        with planted((Record, "_numbers", last)):
            assert self.ended(table, monkeypatch) == [0, 1, 1, 2]


class TestFiles:
    """A file that is elsewhere or torn by the time of its commit."""

    def elsewhere(self, table, record, tmp_path):
        (tmp_path / "other").mkdir()
        return DataFile(
            *write_file(a_writing(tmp_path / "other", SCHEMA), [pa.table({"id": [1]}, SCHEMA)])
        )

    def torn(self, table, record, tmp_path):
        file = a_file(record, 1)
        path = tmp_path / "table" / file.path
        path.write_bytes(path.read_bytes()[:-9])
        return file

    @pytest.mark.parametrize("made", [elsewhere, torn])
    def test_it_is_refused(self, table, tmp_path, made):
        record = look(table, SOURCE)
        file = made(self, table, record, tmp_path)
        with pytest.raises(FileGone):
            record.commit([file], {0: 1}, {0: 2})
        bring(table, 2)
        assert found(table) == [0, 1]

    @pytest.mark.parametrize(
        ("made", "wrong"), [(elsewhere, "FileNotFoundError"), (torn, "ArrowInvalid")]
    )
    def test_one_that_is_not_looked_at_is_seen(self, table, tmp_path, made, wrong):
        record = look(table, SOURCE)
        file = made(self, table, record, tmp_path)
        with planted((Record, "_are_there", lambda *_: True)):
            assert record.commit([file], {0: 1}, {0: 2})
        assert found(table) == wrong


def _by_clock(record):
    """Take any file that no version names for garbage."""
    return orphans_of(record.location, record.source.pipeline)


class TestCleanWhileADriverCommits:
    def ended(self, table):
        """Clean between a driver's files and its commit, and let the next driver go on."""
        record = look(table, SOURCE)
        file = a_file(record, 1)
        other = look(table, SOURCE)
        remove(other, leftovers_of(other))
        if not record.commit([file], {0: 1}, {0: 2}):
            bring(table, 2)
        return found(table)

    def test_the_driver_loses_its_round_and_no_row(self, table):
        assert self.ended(table) == [0, 1]

    @pytest.mark.parametrize(
        "bug",
        [
            (leftovers, "removable", _by_clock),
            (leftovers, "_number", lambda file: -1),
        ],
        ids=["by clock", "without the number"],
    )
    def test_one_that_takes_files_that_may_still_come_is_seen(self, table, bug):
        with planted(bug), pytest.raises(FileGone):
            self.ended(table)
        with planted(bug, (Record, "_are_there", lambda *_: True)):
            assert self.ended(table) == "FileNotFoundError"


def leftovers_of(record):
    return leftovers.removable(record)


class TestPowerCut:
    """What was not synced is gone."""

    def bring_and_cut(self, table, tmp_path, monkeypatch):
        power = PowerCut(monkeypatch)
        self.sync_all(tmp_path / "table", power)
        bring(table, 2)
        power.strike(tmp_path / "table", "*.parquet")
        power.strike(tmp_path / "table" / "_delta_log", "*.json")
        return found(table)

    def sync_all(self, directory, power):
        """What was there before is synced."""
        for each in (*directory.rglob("*"), directory):
            with_descriptor(each, power.note)

    def test_rows_that_a_commit_told_are_there(self, table, tmp_path, monkeypatch):
        assert self.bring_and_cut(table, tmp_path, monkeypatch) == [0, 1]

    def test_files_without_a_sync_are_seen(self, table, tmp_path, monkeypatch):
        with planted((PathStore, "_sync", lambda *_: None)):
            assert self.bring_and_cut(table, tmp_path, monkeypatch) == [0]

    def test_a_file_synced_without_its_directory_is_seen(self, table, tmp_path, monkeypatch):
        with planted((PathStore, "_sync_directory", lambda *_: None)):
            assert self.bring_and_cut(table, tmp_path, monkeypatch) == [0]

    def ended(self, table, tmp_path, monkeypatch):
        """A driver dies before the sync of its entry; the next one tells the log its place."""
        self.sync_all(tmp_path / "table", power := PowerCut(monkeypatch))
        with monkeypatch.context() as patch:
            patch.setattr(Record, "_sync", lambda *_: None)
            bring(table, 2)
        record = look(table, SOURCE)
        record.settle()
        told = record.ends[0]
        power.strike(tmp_path / "table" / "_delta_log", "*.json")
        in_log = range(told, 3)  # the log drops what it was told
        return sorted([*found(table), *in_log])

    def test_what_the_log_drops_is_in_the_table(self, table, tmp_path, monkeypatch):
        assert self.ended(table, tmp_path, monkeypatch) == [0, 1, 2]

    def test_a_place_that_is_told_before_it_is_durable_is_seen(
        self, table, tmp_path, monkeypatch
    ):
        with planted((Record, "settle", lambda _: None)):
            assert self.ended(table, tmp_path, monkeypatch) == [0, 2]


def with_descriptor(path, act):
    import os

    descriptor = os.open(path, os.O_RDONLY)
    try:
        act(descriptor)
    finally:
        os.close(descriptor)


class TestBucket:
    """A foreign append is faster; what tells the writer so is the condition of its put."""

    def ended(self, s3, bucket, proxy, fault):
        plain = location_of(f"s3://{bucket}/tables/orders", settings_of(s3.endpoint))
        broken = replace(plain, endpoint=proxy.endpoint)
        create(plain, SOURCE, SCHEMA)
        record = look(broken, SOURCE)
        other = look(plain, SOURCE)
        foreign = a_file(other, -1)
        text = {"add": {"path": foreign.path, "size": foreign.size, "partitionValues": {}}}
        text["add"] |= {"modificationTime": 0, "dataChange": True}
        proxy.add(fault, target=r"_delta_log/\d{20}\.json", other=json.dumps(text))
        file = a_file(record, 0)
        committed(record, lambda one: one.commit([file], {0: 0}, {0: 1}), lambda _: True)
        return found(plain)

    def test_it_stays(self, s3, bucket, proxy):
        assert self.ended(s3, bucket, proxy, Fault.OVERTAKE) == [-1, 0]

    def test_a_put_without_its_condition_is_seen(self, s3, bucket, proxy):
        assert self.ended(s3, bucket, proxy, Fault.IGNORE_CONDITION) == [0]
