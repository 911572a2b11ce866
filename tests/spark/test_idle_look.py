"""A driver that waits for rows looks at its table each time, and opens it if it changed."""

import shutil
from contextlib import contextmanager

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.spark.conftest import rows
from tests.spark.sealing import seal_all
from tests.spark.test_pipeline import a_definition
from tests.spark.test_pipeline_restored import append_foreign

from headrace.errors import CorruptFile
from headrace.spark.pipeline.pipeline import opened
from headrace.spark.tables.table_errors import TableForeign, TableRestored
from headrace.spark.tables.table_record import DataFile, create
from headrace.spark.worker.files import write_file


class SparkWasStarted(Exception):
    """No round of these tests has rows to write."""


def no_spark():
    raise SparkWasStarted


@contextmanager
def an_idle(tmp_path, topic, **changes):
    """A pipeline without Spark, whose table has all rows of the log."""
    topic.append(rows(0, 50), partition=0)
    with opened(no_spark, a_definition(tmp_path, **changes)) as pipeline:
        bring(pipeline, 0, 50)
        assert pipeline.round() is None
        assert pipeline.idle is not None
        yield pipeline


def bring(pipeline, start, end):
    """Commit rows of partition 0, as a driver with Spark does."""
    record = create(pipeline.definition.location, pipeline.source, pipeline.schema())
    found = pipeline.topic_source.topic.read(0, start=start, end=end).to_table()
    names = {"_hr_partition": "_partition", "_hr_offset": "_offset"}
    columns = pipeline.schema()
    found = found.select([names.get(name, name) for name in columns.names])
    rows_ = found.rename_columns(columns.names).cast(columns)
    file = DataFile(*write_file(record.writing(columns), [rows_]))
    assert record.commit([file], {0: start, 1: 0}, {0: end, 1: 0})


def entry(tmp_path, version):
    return tmp_path / "table" / "_delta_log" / f"{version:020}.json"


def test_an_unchanged_table_is_not_read_again(tmp_path, topic):
    with an_idle(tmp_path, topic) as pipeline:
        entry(tmp_path, 0).write_text("rot\n")
        for _ in range(3):
            assert pipeline.round() is None
        entry(tmp_path, 2).write_text("more rot\n")  # now there is a new entry
        with pytest.raises(CorruptFile):
            pipeline.round()


def test_commits_of_another_driver_are_seen(tmp_path, topic):
    with an_idle(tmp_path, topic) as pipeline:
        topic.append(rows(50, 60), partition=0)
        bring(pipeline, 50, 60)
        assert pipeline.round() is None
        assert pipeline.idle.record.ends == {0: 60, 1: 0}


def test_a_restore_is_seen(tmp_path, topic):
    with an_idle(tmp_path, topic) as pipeline:
        append_foreign(tmp_path / "table", 1_000)
        assert pipeline.round() is None
        DeltaTable(str(tmp_path / "table")).restore(0)
        for _ in range(2):
            with pytest.raises(TableRestored):
                pipeline.round()


def test_another_table_of_the_same_version_is_seen(tmp_path, topic):
    with an_idle(tmp_path, topic) as pipeline:
        shutil.rmtree(tmp_path / "table")
        for number in (1, 2):
            write_deltalake(tmp_path / "table", pa.table({"id": [number]}), mode="append")
        assert DeltaTable(str(tmp_path / "table")).version() == 1
        with pytest.raises(TableForeign):
            pipeline.round()


def test_a_removed_table_is_made_again(tmp_path, topic):
    with an_idle(tmp_path, topic) as pipeline:
        shutil.rmtree(tmp_path / "table")
        with pytest.raises(SparkWasStarted):  # to write the rows again
            pipeline.round()


def test_new_rows_are_seen_and_the_table_is_read_before_they_are_written(tmp_path, topic):
    with an_idle(tmp_path, topic) as pipeline:
        topic.append(rows(50, 60), partition=0)
        with pytest.raises(SparkWasStarted):
            pipeline.round()
        assert pipeline.idle is None


def test_a_pipeline_of_sealed_rows_that_waits_for_a_segment_is_idle(tmp_path, topic):
    topic.append(rows(0, 50), partition=0)
    with opened(no_spark, a_definition(tmp_path, tail="sealed")) as pipeline:
        create(pipeline.definition.location, pipeline.source, pipeline.schema())
        assert pipeline.round() is None
        assert pipeline.idle is not None
        seal_all(tmp_path / "data")
        with pytest.raises(SparkWasStarted):
            pipeline.round()
