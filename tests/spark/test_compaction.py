"""Small files put together between rounds: the same rows, once, whoever dies or is faster."""

import errno
import os

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.spark.conftest import rows
from tests.spark.test_pipeline import a_definition, ids, run, table_of

from headrace.errors import StorageFailed
from headrace.spark.pipeline import pipeline as pipelines
from headrace.spark.pipeline.pipeline import OFFSET, opened
from headrace.spark.prove.prove import Grade, prove
from headrace.spark.tables.compaction import TableSpoilt, chosen, compact
from headrace.spark.tables.data_files import LiveFile
from headrace.spark.tables.leftovers import orphans_of
from headrace.spark.tables.table_record import Record, look

MIB = 1024 * 1024


def files_of(tmp_path):
    return DeltaTable(str(tmp_path / "table")).file_uris()


@pytest.fixture
def several(spark, tmp_path, topic):
    """A pipeline whose table has a file for each of six rounds."""
    topic.append(rows(0, 60), partition=0)
    definition = a_definition(tmp_path, batch_rows=10)
    run(spark, definition)
    assert len(files_of(tmp_path)) == 6
    with opened(spark, definition) as pipeline:
        yield pipeline


def test_the_same_rows_are_in_one_file_and_the_pipeline_goes_on(
    several, spark, tmp_path, topic
):
    before = DeltaTable(str(tmp_path / "table")).version()
    assert several.compact(files_min=6) == 6
    assert several.compact(files_min=2) == 0
    table = DeltaTable(str(tmp_path / "table"))
    assert (len(table.file_uris()), table.version()) == (1, before + 1)
    assert sorted(table_of(tmp_path)[OFFSET].to_pylist()) == list(range(60))
    table.load_as_version(before)
    assert table.to_pyarrow_table().num_rows == 60
    topic.append(rows(60, 70), partition=0)
    assert [one.row_count for one in run(spark, several.definition)] == [10]
    assert ids(tmp_path) == list(range(70))
    *_, proof = prove(topic, look(str(tmp_path / "table"), several.source))
    assert (proof.grade, proof.holds) == (Grade.IDENTITY, True)


def test_a_run_does_it_by_itself_when_there_are_enough(spark, tmp_path, topic):
    topic.append(rows(0, 34), partition=0)
    with opened(spark, a_definition(tmp_path, batch_rows=1)) as pipeline:
        assert len(list(pipeline.run(once=True))) == 34
        assert pipeline.compacted == 33
    assert len(files_of(tmp_path)) == 2
    assert ids(tmp_path) == list(range(34))


def test_it_is_never_done_if_the_file_says_so(spark, tmp_path, topic, monkeypatch):
    monkeypatch.setattr(pipelines, "FILES_MIN", 2)
    topic.append(rows(0, 30), partition=0)
    run(spark, a_definition(tmp_path, batch_rows=10, file_size="0"))
    assert len(files_of(tmp_path)) == 3


def test_files_of_others_are_left_alone(several, tmp_path):
    schema = pa.schema(DeltaTable(str(tmp_path / "table")).schema().to_arrow())
    foreign = pa.Table.from_pylist([{"id": -1, "name": "foreign"}], schema=schema)
    write_deltalake(str(tmp_path / "table"), foreign, mode="append")
    theirs = set(files_of(tmp_path))
    assert several.compact(files_min=2) == 6
    assert len(theirs & set(files_of(tmp_path))) == 1
    assert ids(tmp_path) == [-1, *range(60)]


def test_rows_from_before_a_new_column_have_no_value_in_it(several, spark, tmp_path, topic):
    topic.evolve({"id": "int64", "name": "string", "note": "string"})
    topic.append([{"id": 60, "name": "n60", "note": "new"}], partition=0)
    run(spark, several.definition)
    assert several.compact(files_min=2) == 7
    found = {row["id"]: row["note"] for row in table_of(tmp_path).to_pylist()}
    assert found == {**dict.fromkeys(range(60)), 60: "new"}


def test_who_commits_first_wins_and_rows_are_there_once(
    several, spark, tmp_path, topic, monkeypatch
):
    topic.append(rows(60, 70), partition=0)
    real = Record.compact

    def late(self, files, removed):
        monkeypatch.undo()
        run(spark, several.definition)
        return real(self, files, removed)

    monkeypatch.setattr(Record, "compact", late)
    assert several.compact(files_min=6) == 0
    assert len(files_of(tmp_path)) == 7
    assert ids(tmp_path) == list(range(70))
    assert len(orphans_of(str(tmp_path / "table"))) == 1


def test_one_that_dies_before_its_commit_leaves_a_file_that_is_cleaned_up(
    several, tmp_path, monkeypatch
):
    def die(self, files, removed):
        raise KeyboardInterrupt

    monkeypatch.setattr(Record, "compact", die)
    with pytest.raises(KeyboardInterrupt):
        several.compact(files_min=6)
    assert ids(tmp_path) == list(range(60))
    assert len(orphans_of(str(tmp_path / "table"))) == 1


def test_a_file_that_is_not_what_was_written_stops_it(several, tmp_path):
    path = tmp_path / "table" / files_of(tmp_path)[0].rpartition("/")[2]
    data = path.read_bytes()
    path.write_bytes(data[:4] + bytes([data[4] ^ 1]) + data[5:])
    with pytest.raises(TableSpoilt, match=f"{path} cannot be read"):
        several.compact(files_min=6)
    assert len(files_of(tmp_path)) == 6
    assert orphans_of(str(tmp_path / "table")) == []


def test_who_looked_before_another_compacted_and_a_vacuum_came_has_lost(
    several, tmp_path, monkeypatch
):
    old = look(str(tmp_path / "table"), several.source)
    assert several.compact(files_min=6) == 6
    table = DeltaTable(str(tmp_path / "table"))
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert compact(old, MIB, 6) is None
    assert ids(tmp_path) == list(range(60))


def test_a_disk_that_is_full_is_named_and_nothing_is_left(several, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFailed, match="No space left"):
        several.compact(files_min=6)
    assert orphans_of(str(tmp_path / "table")) == []


class TestChoice:
    def chosen(self, sizes, files_min=3):
        found = [LiveFile(str(number), size, 1) for number, size in enumerate(sizes)]
        found.sort(key=lambda one: one.size)
        return sorted(int(one.path) for one in chosen(found, 10 * MIB, files_min))

    def test_enough_small_ones_that_fill_a_file(self):
        assert self.chosen([MIB, MIB]) == []
        assert self.chosen([MIB] * 4) == [0, 1, 2, 3]
        assert self.chosen([3 * MIB] * 4) == [0, 1, 2]
        assert self.chosen([4 * MIB] * 4) == []

    def test_large_ones_stay_as_they_are(self):
        assert self.chosen([MIB, 5 * MIB, MIB, 9 * MIB, MIB]) == [0, 2, 4]

    def test_a_row_is_written_again_once_for_each_doubling(self):
        sizes, written = [], 0
        for _ in range(4_096):
            sizes.append(1024)
            taken = self.chosen(sizes, files_min=4)
            made = sum(sizes[one] for one in taken)
            sizes = [size for number, size in enumerate(sizes) if number not in taken]
            sizes += [made] if made else []
            written += made
        assert written <= 12 * 4_096 * 1024
        assert len(sizes) < 40
