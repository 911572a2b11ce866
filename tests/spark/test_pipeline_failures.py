"""What ends a pipeline is told in one sentence, by name, and leaves the table as it was."""

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.cli.commands import headrace_here
from tests.spark.conftest import SCHEMA, rows
from tests.spark.test_pipeline import a_definition, ids, run
from tests.spark.test_pipeline_status import a_file, told
from tests.spark.writings import a_writing

from headrace.errors import BadConfig, HeadraceError, StorageFailed
from headrace.spark.friendly_errors import RoundFailed, sentence_of
from headrace.spark.pipeline.pipeline import Pipeline, TableBehind, opened
from headrace.spark.tables.leftovers import orphans_of
from headrace.spark.tables.table_errors import TableForeign
from headrace.spark.tables.table_record import DataFile, LogSource, Record, create, look
from headrace.spark.topic_source import SchemaChanged
from headrace.spark.worker.files import write_file, writer

FULL = os.strerror(errno.ENOSPC)
UDF = """
from pyspark.sql.functions import udf

@udf("string")
def checked(name):
    raise ValueError(f"{name} is no name")

def transform(df):
    return df.withColumn("name", checked("name"))
"""


DYING = """
import os
from pyspark.sql.functions import udf

@udf("string")
def checked(name):
    os._exit(3)

def transform(df):
    return df.withColumn("name", checked("name"))
"""


def failed_at(spark, definition, step, act):
    """Have a round in which something happens at a step; return how it failed."""

    def on_step(found):
        if found == step:
            act()

    with opened(spark, definition) as pipeline:
        pipeline.on_step = on_step
        with pytest.raises(HeadraceError) as caught:
            pipeline.round()
    return caught.value


def test_a_task_whose_disk_is_full_names_the_table_and_leaves_no_file(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, FULL)

    schema = pa.schema([("id", pa.int64())])
    write = writer(a_writing(tmp_path, schema))
    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # a worker sets it, and this is none
    with pytest.raises(StorageFailed) as caught:
        list(write(iter([pa.record_batch({"id": [1]}, schema=schema)])))
    said = f"{tmp_path}: a new data file failed: {FULL}. Nothing was committed. Free some space"
    assert str(caught.value).startswith(said)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_told_without_a_trace(spark, tmp_path, topic):
    topic.append(rows(0, 5))
    table = tmp_path / "table"
    error = failed_at(
        spark, a_definition(tmp_path), "before files", lambda: shutil.rmtree(table)
    )
    assert isinstance(error, RoundFailed)
    told = f"StorageFailed: {table}: a new data file failed: No such file or directory. Nothing"
    assert str(error).startswith(told)


def test_a_commit_that_cannot_be_written_is_told_and_its_rows_come_later(
    spark, tmp_path, topic
):
    topic.append(rows(0, 5))
    definition = a_definition(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        error = failed_at(
            spark,
            definition,
            "after files",
            lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1])),
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert isinstance(error, StorageFailed)
    table = tmp_path / "table"
    assert str(error).startswith(f"{table}: a commit failed: {os.strerror(errno.EFBIG)}")
    next_step = "restart the pipeline or query: it resumes where the table says"
    assert next_step in str(error)
    assert len(orphans_of(str(table))) == 1
    assert [each.row_count for each in run(spark, definition)] == [5]
    assert ids(tmp_path) == list(range(5))


def test_a_commit_that_stands_is_known_to_though_the_work_after_it_failed(tmp_path):
    schema, source = pa.schema([("id", pa.int64())]), LogSource("p", "shop/orders", 1, "log")
    table = str(tmp_path / "table")
    record = create(table, source, schema)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for end in range(1, 99):
        file = DataFile(
            *write_file(a_writing(tmp_path / "table", schema), [pa.table({"id": [end]})])
        )
        assert record.commit([file], {0: end - 1}, {0: end})
        record = look(table, source)
    file = DataFile(
        *write_file(a_writing(tmp_path / "table", schema), [pa.table({"id": [99]})])
    )
    try:  # the entry fits, and the checkpoint that deltalake writes behind it does not
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, before[1]))
        assert record.commit([file], {0: 98}, {0: 99})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert look(table, source).ends == {0: 99}


def test_entries_of_a_driver_that_died_are_durable_before_the_log_is_told(
    spark, tmp_path, topic, monkeypatch
):
    def dies(self, before):
        if self.table.version():
            raise KeyboardInterrupt

    topic.append(rows(0, 5))
    with monkeypatch.context() as patch:
        patch.setattr(Record, "_sync", dies)
        with pytest.raises(KeyboardInterrupt):
            run(spark, a_definition(tmp_path))
    seen, sync, tell = [], os.fsync, Pipeline._tell

    def synced(descriptor):
        seen.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    def told_now(self, places):
        seen.append(sum(places.values()))
        tell(self, places)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Pipeline, "_tell", told_now)
    assert run(spark, a_definition(tmp_path)) == []
    assert {"00000000000000000001.json", "_delta_log"} <= set(seen[: seen.index(5)])


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select *, id as ID from source", "sql: it produces id more than once. Rename them"),
        (
            "select *, array(named_struct('A', 1, 'b', named_struct('c', 1, 'C', 2))) as it "
            "from source",
            "sql: it produces it.b.c more than once. Rename them",
        ),
        (
            "select *, named_struct('a', 1, 'a', 2) as it from source",
            "it produces it.a more than",
        ),
        (
            "select *, map('k', named_struct('a', 1, 'A', 2)) as it from source",
            "produces it.a mor",
        ),
        ("select nope from source", "sql: Spark reports: [UNRESOLVED_COLUMN"),
        (
            "selectt id from source",
            "Syntax error at or near 'selectt'. Fix it, then run `headrace pipeline ch",
        ),
    ],
)
def test_sql_that_does_not_fit_is_a_flaw_of_its_setting(spark, tmp_path, topic, sql, said):
    with pytest.raises(BadConfig) as caught:
        run(spark, a_definition(tmp_path, sql=sql))
    assert said in str(caught.value)
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("interval '1' day", "interval day"),
        ("interval '1' month", "interval month"),
        ("struct(interval '1' day as one)", "struct<one:interval day>"),
        ("time '12:00:00'", "time(6)"),
    ],
)
def test_a_type_that_delta_does_not_have_is_named_before_anything_is_made(
    spark, tmp_path, topic, value, kind
):
    definition = a_definition(tmp_path, sql=f"select *, {value} as since from source")
    with opened(spark, definition) as pipeline:
        for act in (pipeline.check, pipeline.round):
            with pytest.raises(BadConfig) as caught:
                act()
            assert f"column since is {kind}, which Delta tables do not support" in str(
                caught.value
            )
            assert caught.value.hint
    assert not Path(definition.table).exists()


def test_a_transform_that_fails_in_a_task_is_told_by_its_own_error(spark, tmp_path, topic):
    topic.append(rows(0, 5), partition=1)
    (tmp_path / "clean.py").write_text(UDF, encoding="utf-8")
    with pytest.raises(RoundFailed) as caught:
        run(spark, a_definition(tmp_path, transform="clean.py"))
    said = (
        "row 0 of partition 1 of shop/orders: a task failed with ValueError: n0 is no name. "
        "Nothing was committed"
    )
    assert str(caught.value).startswith(said)
    (line,) = told("status", "--data", tmp_path / "data")["pipelines"]
    assert (line["state"], line["note"]) == ("failed", f"RoundFailed: {caught.value}")


def test_a_worker_that_dies_is_told_in_a_sentence(spark, tmp_path, topic):
    topic.append(rows(0, 5))
    (tmp_path / "clean.py").write_text(DYING, encoding="utf-8")
    with pytest.raises(RoundFailed) as caught:
        run(spark, a_definition(tmp_path, transform="clean.py"))
    assert str(caught.value).startswith("Spark reports: Job aborted due to stage failure")
    assert str(caught.value).endswith(
        "Nothing was committed. Fix the cause, then restart the pipeline or query"
    )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "def transform(df):\n    return df.select({}['size'])\n",
            "transform: transform(df) raised KeyError: 'size'. Fix ",
        ),
        (
            "def transform(df):\n    raise ConnectionResetError('cut')\n",
            "transform: transform(df) raised ConnectionResetError: cut. Fix ",
        ),
        ("import nowhere\n", "transform: it raised ModuleNotFoundError: No module named"),
        (
            "def transform(df):\n    df.select('id')\n",
            "transform: expected a DataFrame, but it returned None",
        ),
    ],
)
def test_what_a_transform_raises_by_itself_is_a_flaw_of_its_setting(
    spark, tmp_path, topic, text, said
):
    (tmp_path / "clean.py").write_text(text, encoding="utf-8")
    with pytest.raises(BadConfig) as caught:
        run(spark, a_definition(tmp_path, transform="clean.py"))
    assert str(caught.value).startswith(said)
    assert str(tmp_path / "clean.py") in str(caught.value)
    assert not (tmp_path / "table").exists()


@pytest.mark.campaign(1)
@pytest.mark.parametrize("step", ["before files", "after files"])
def test_a_jvm_that_is_killed_is_told_by_name(tmp_path, topic, step):
    topic.append(rows(0, 5))
    program = Path(__file__).with_name("jvm_killer.py")
    command = [sys.executable, str(program), str(a_file(tmp_path)), step]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    said = ended.stdout.splitlines()
    assert said, ended.stderr
    assert said[0] == "SparkGone"
    assert said[1].startswith("Spark's JVM does not respond: ")
    assert said[1].endswith(
        "Nothing was committed. Fix the cause, then restart the pipeline or query"
    )
    assert said[2] == "there is a cause"


def test_what_spark_says_without_a_reason_is_still_a_sentence():
    assert sentence_of("\n \n") == "Spark gives no reason"
    assert (
        sentence_of("[X] so it is. SQLSTATE: 42000; line 1\n+- plan")
        == "Spark reports: [X] so it is"
    )


class TestCheck:
    """`headrace pipeline check` finds what would stop a run, and changes nothing."""

    def checked(self, spark, definition):
        with opened(spark, definition) as pipeline:
            return pipeline.check()

    def test_a_table_that_is_not_there_is_not_made(self, spark, tmp_path, topic):
        topic.append(rows(0, 5))
        found = self.checked(spark, a_definition(tmp_path))
        assert found.names == ["_hr_partition", "_hr_offset", *SCHEMA]
        assert not (tmp_path / "table").exists()
        assert topic.cursors() == []

    def test_a_table_of_somebody_else(self, spark, tmp_path, topic):
        write_deltalake(str(tmp_path / "table"), pa.table({"id": [1]}))
        with pytest.raises(TableForeign, match="was not created by pipeline 'orders'"):
            self.checked(spark, a_definition(tmp_path))

    def test_columns_that_do_not_fit_and_rows_that_are_gone(self, spark, tmp_path, topic):
        topic.append(rows(0, 5), partition=0)
        run(spark, a_definition(tmp_path))
        other = "select id, length(name) as name, _hr_partition, _hr_offset from source"
        with pytest.raises(SchemaChanged, match="column name is string in the table, but int"):
            self.checked(spark, a_definition(tmp_path, sql=other))
        topic.append(rows(5, 9), partition=0)
        topic.trim(7, partition=0, past_hold=True)
        with pytest.raises(TableBehind, match="rows 5 to 6 of partition 0"):
            self.checked(spark, a_definition(tmp_path))

    def test_the_command_says_so_with_the_exit_code(self, spark, tmp_path, topic):
        write_deltalake(str(tmp_path / "table"), pa.table({"id": [1]}))
        ended = headrace_here("pipeline", "check", a_file(tmp_path))
        assert ended.code == 2, ended.err
        said = (
            f"headrace: the table at {tmp_path / 'table'} was not created by pipeline 'orders'."
        )
        assert ended.err.splitlines()[-1].startswith(said)
