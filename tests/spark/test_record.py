"""What a table says, and what is told when it does not take a commit. No Spark."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures
from tests.spark.writings import a_writing

from headrace.spark.tables import leftovers, table_features, table_log
from headrace.spark.tables.compaction import TableSpoilt, compact
from headrace.spark.tables.leftovers import orphans_of, removable
from headrace.spark.tables.table_columns import new_columns
from headrace.spark.tables.table_errors import CommitRefused, RecordLost, TableForeign
from headrace.spark.tables.table_record import DataFile, LogSource, TablePlace, create, look
from headrace.spark.topic_source import SchemaChanged
from headrace.spark.worker.files import write_file

SCHEMA = pa.schema([("id", pa.int64())])
SOURCE = LogSource("p", "shop/orders", 1, "log")


def a_file(table, number=0):
    return DataFile(*write_file(a_writing(table, SCHEMA), [pa.table({"id": [number]})]))


def test_files_of_other_writers_are_never_orphans(tmp_path):
    table = tmp_path / "table"
    create(str(table), SOURCE, SCHEMA)
    ours = a_file(table)
    others = [
        "part-00000-3f2c1d84-9a0b-4c5d-8e6f-0123456789ab-c000.snappy.parquet",
        "part-00001-3f2c1d84-9a0b-4c5d-8e6f-0123456789ab-c000.zstd.parquet",
        "part-mine.parquet",
        f"part-{'0' * 31}.parquet",
        f"part-{'0' * 32}.parquet.crc",
    ]
    for name in others:
        (table / name).write_bytes(b"of somebody else")
    assert [path.name for path in orphans_of(str(table))] == [ours.path]


class TestCreate:
    """A new table is made where nothing is, and nowhere else."""

    def test_a_directory_with_files_and_no_delta_log_is_refused(self, tmp_path):
        inner = tmp_path / "year=2024"
        inner.mkdir()
        (inner / "part-0.parquet").write_bytes(b"of somebody else")
        with pytest.raises(TableForeign) as caught:
            create(str(tmp_path), SOURCE, SCHEMA)
        said = f"{tmp_path} is not a Delta table, but contains year=2024/part-0.parquet"
        assert str(caught.value).startswith(said)
        assert "Give a directory that is empty or does not exist" in caught.value.hint
        assert [path.name for path in tmp_path.iterdir()] == ["year=2024"]

    def test_what_a_driver_left_that_died_while_it_made_the_table_is_no_hindrance(
        self, tmp_path
    ):
        (tmp_path / "_delta_log").mkdir()
        (tmp_path / "_delta_log" / "_commit_1.json.tmp").write_bytes(b"")
        (tmp_path / ".hidden").write_bytes(b"")
        (tmp_path / "lost+found").mkdir()
        assert create(str(tmp_path), SOURCE, SCHEMA).count == 0

    def test_a_table_that_is_there_is_taken_whatever_lies_beside_it(self, tmp_path):
        create(str(tmp_path), SOURCE, SCHEMA)
        (tmp_path / "notes.txt").write_bytes(b"of somebody else")
        assert create(str(tmp_path), SOURCE, SCHEMA).count == 0

    def test_drivers_that_make_it_at_once_all_have_it(self, tmp_path):
        together, made = threading.Barrier(4, timeout=30), []

        def make(number):
            together.wait()
            made.append(create(str(tmp_path / str(number)), SOURCE, SCHEMA).number)

        with ThreadPoolExecutor(4) as pool:
            for number in range(20):
                list(pool.map(make, [number] * 4))
        assert made == [0] * 80


class TestLook:
    """A table that is not this pipeline's says whose it is."""

    def test_a_table_that_was_filled_from_another_topic_names_it(self, tmp_path):
        create(str(tmp_path), SOURCE, SCHEMA)
        other = replace(SOURCE, topic="shop/bills", created=2)
        with pytest.raises(TableForeign) as caught:
            look(str(tmp_path), other)
        said = (
            f"the table at {tmp_path} was filled by pipeline 'p' from shop/orders created 1 in "
            "log, but now reads shop/bills"
        )
        assert str(caught.value).startswith(said)
        assert "another name and a new table" in caught.value.hint

    def test_a_table_that_was_filled_from_another_log_names_it_though_all_numbers_fit(
        self, tmp_path
    ):
        create(str(tmp_path), SOURCE, SCHEMA)
        with pytest.raises(TableForeign, match="another life of shop/orders, or another log"):
            look(str(tmp_path), replace(SOURCE, cluster="other"))

    def test_a_column_that_rows_no_more_have_is_null_unless_it_never_may(self, tmp_path):
        wide = [pa.field("id", pa.int64()), pa.field("note", pa.string())]
        create(str(tmp_path / "loose"), SOURCE, pa.schema(wide))
        assert new_columns(DeltaTable(str(tmp_path / "loose")), SCHEMA).names == []
        strict = pa.schema([wide[0], wide[1].with_nullable(False)])
        create(str(tmp_path / "strict"), SOURCE, strict)
        said = "column note is string not null in the table, but the next rows do not"
        with pytest.raises(SchemaChanged, match=said):
            new_columns(DeltaTable(str(tmp_path / "strict")), SCHEMA)


class TestCompact:
    """Who has lost a race is told from a table that has lost a file."""

    @pytest.fixture
    def files(self, tmp_path):
        made = create(str(tmp_path), SOURCE, SCHEMA)
        files = [a_file(tmp_path, number) for number in range(4)]
        assert made.commit(files, {0: 0}, {0: 4})
        return files

    def test_a_file_that_the_table_names_and_that_is_gone_is_told(self, tmp_path, files):
        (tmp_path / files[2].path).unlink()
        with pytest.raises(TableSpoilt) as caught:
            compact(look(str(tmp_path), SOURCE), 2**20, 4)
        assert str(caught.value).startswith(f"{tmp_path / files[2].path} is missing")
        assert orphans_of(str(tmp_path)) == []

    def test_one_that_another_has_replaced_is_a_lost_race(self, tmp_path, files):
        old = look(str(tmp_path), SOURCE)
        assert compact(look(str(tmp_path), SOURCE), 2**20, 4) == 4
        (tmp_path / files[2].path).unlink()
        assert compact(old, 2**20, 4) is None


class TestCommit:
    """A commit that is lost to another is repeated; one that is refused is not."""

    @pytest.mark.parametrize("feature", ["RowTracking", "IdentityColumns"])
    def test_a_feature_that_deltalake_does_not_write_is_named_and_is_no_lost_race(
        self, tmp_path, monkeypatch, feature
    ):
        """Headrace refuses them before; this is what if it did not."""
        monkeypatch.setattr(table_features, "_features", lambda protocol: iter(()))
        record = create(str(tmp_path), SOURCE, SCHEMA)
        DeltaTable(str(tmp_path)).alter.add_feature(
            getattr(TableFeatures, feature), allow_protocol_versions_increase=True
        )
        assert not record.commit([], {0: 0}, {0: 1})  # the feature came in between
        record = look(str(tmp_path), SOURCE)
        more = pa.schema([("more", pa.int64())])
        place = TablePlace({0: 0}, {0: 1}, {})
        for act in (
            lambda: record.commit([a_file(tmp_path)], {0: 0}, {0: 1}),
            lambda: record.widen(more),
            lambda: record.restart([], [], place),
        ):
            with pytest.raises(CommitRefused) as caught:
                act()
            said = f"the table at {tmp_path} rejects the commit: "
            assert str(caught.value).startswith(said)
            assert f"Unsupported table features required: [{feature}]" in str(caught.value)
            assert "write the rows to a new table" in caught.value.hint
        assert look(str(tmp_path), SOURCE).number == 0

    def test_who_was_slower_has_lost_and_is_told_no_more(self, tmp_path):
        one, other = (create(str(tmp_path), SOURCE, SCHEMA) for _ in range(2))
        assert one.commit([a_file(tmp_path)], {0: 0}, {0: 1})
        assert not other.commit([a_file(tmp_path)], {0: 0}, {0: 1})
        assert look(str(tmp_path), SOURCE).ends == {0: 1}


class TestLeftovers:
    """Files that nothing names go only if they can never come."""

    @pytest.fixture
    def table(self, tmp_path):
        create(str(tmp_path / "t"), SOURCE, SCHEMA)
        return tmp_path / "t"

    def test_a_file_that_is_committed_while_leftovers_are_listed_stays(
        self, table, monkeypatch
    ):
        """As by a driver that is between its files and their commit."""
        driver = look(str(table), SOURCE)
        ours = DataFile(*write_file(driver.writing(SCHEMA), [pa.table({"id": [1]})]))
        real = leftovers.orphans_of

        def listed(*given):
            found = real(*given)
            driver.commit([ours], {0: 0}, {0: 1})
            return found

        with monkeypatch.context() as beside:
            beside.setattr(leftovers, "orphans_of", listed)
            record = look(str(table), SOURCE)
            assert [each.name for each in removable(record)] == []
        assert DeltaTable(str(table)).to_pyarrow_table().num_rows == 1

    def test_a_log_that_is_cleaned_up_while_it_is_read_is_read_again(self, table, monkeypatch):
        record = look(str(table), SOURCE)
        for number in range(3):
            file = DataFile(*write_file(record.writing(SCHEMA), [pa.table({"id": [number]})]))
            assert record.commit([file], {0: number}, {0: number + 1})
            record = look(str(table), SOURCE)
        real, cleaned = table_log._named_in, []

        def named(store, name):
            if not cleaned and name.endswith("2.json"):
                cleaned.append(name)
                DeltaTable(str(table)).create_checkpoint()
                for version in range(3):
                    (table / "_delta_log" / f"{version:020}.json").unlink()
            yield from real(store, name)

        monkeypatch.setattr(table_log, "_named_in", named)
        assert len(table_log.named_files(record.store)) == 3
        assert cleaned
        assert removable(record) == []

    def test_a_checkpoint_of_version_2_names_files_as_json(self, table):
        (table / "_delta_log").joinpath(f"{1:020}.checkpoint.5f.json").write_text(
            '{"add":{"path":"part-p-0-' + "0" * 32 + '.parquet"}}\n'
        )
        store = look(str(table), SOURCE).store
        assert "part-p-0-" + "0" * 32 + ".parquet" in table_log.named_files(store)

    def test_an_absolute_path_in_the_log_names_the_file_too(self, table):
        name = f"part-p-0-{'0' * 32}.parquet"
        (table / name).write_bytes(b"x")
        assert [each.name for each in orphans_of(str(table))] == [name]
        action = {"remove": {"path": f"{table}/{name}", "dataChange": True}}
        (table / "_delta_log" / f"{1:020}.json").write_text(json.dumps(action) + "\n")
        assert orphans_of(str(table)) == []

    def test_names_of_earlier_releases_go_after_a_commit(self, table):
        name = f"part-{'0' * 32}.parquet"
        (table / name).write_bytes(b"x")
        older = look(str(table), SOURCE)
        assert [each.name for each in removable(older)] == [name]
        assert not older.commit([], {0: 0}, {0: 1})  # its round is lost

    def test_names_of_earlier_releases_stay_in_a_table_of_two_pipelines(self, table):
        (table / f"part-{'0' * 32}.parquet").write_bytes(b"x")
        settings = {"headrace.other": "its life"}
        DeltaTable(str(table)).alter.set_table_properties(settings, raise_if_not_exists=False)
        assert removable(look(str(table), SOURCE)) == []

    def test_numbers_of_a_newer_copy_of_the_table_stay(self, table):
        (table / f"part-p-60-{'0' * 32}.parquet").write_bytes(b"x")
        assert removable(look(str(table), SOURCE)) == []


def test_a_record_that_lacks_a_partition_is_not_committed_again(tmp_path):
    record = create(str(tmp_path), SOURCE, SCHEMA)
    assert record.commit([], {0: 0, 1: 0}, {0: 5, 1: 7})
    record = look(str(tmp_path), SOURCE)
    del record.ends[1], record.firsts[1]
    for act in (record.touch, lambda: record.widen(pa.schema([("more", pa.int64())]))):
        with pytest.raises(RecordLost, match="no record of partition 1, but counts 2"):
            act()


def test_a_commit_is_known_again_after_its_entry_was_cleaned_up(tmp_path, monkeypatch):
    record = create(str(tmp_path), SOURCE, SCHEMA)
    real = DeltaTable.create_write_transaction

    def lost(self, *given, **named):
        real(self, *given, **named)
        DeltaTable(str(tmp_path)).create_checkpoint()
        for version in range(2):
            (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
        raise OSError("the answer is lost")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
    assert record.commit([], {0: 0}, {0: 5})
    assert look(str(tmp_path), SOURCE).ends == {0: 5}
