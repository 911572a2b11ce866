"""The examples do what they say. They run in the tests' own Spark; one runs by itself."""

import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

from deltalake import DeltaTable

from headrace_lab.spark.s3_server import settings_of

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, spark, tmp_path, *more):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["run"](spark, tmp_path, *more)


def test_every_example_is_run_here():
    names = {each.stem for each in EXAMPLES.glob("*.py")}
    assert names == {
        "windowed_counts",
        "topic_to_topic",
        "history",
        "topic_to_delta",
        "topic_to_s3",
        "sealed_to_delta",
    }


def test_windowed_counts(spark, tmp_path):
    found = run("windowed_counts", spark, tmp_path)
    expected = Counter(7 * number // 60 for number in range(100))
    # The newest event is at 11:33: minutes that ended 30 seconds before it are complete.
    assert [count for _, count in found] == [expected[minute] for minute in range(11)]


def test_topic_to_topic(spark, tmp_path):
    assert run("topic_to_topic", spark, tmp_path) == 100


def test_topic_to_delta(spark, tmp_path):
    assert run("topic_to_delta", spark, tmp_path) == [400, 400, 200]
    assert DeltaTable(str(tmp_path / "table")).to_pyarrow_table().num_rows == 1_000


def test_topic_to_s3(spark, tmp_path, s3, bucket):
    table, store = f"s3://{bucket}/orders", settings_of(s3.endpoint)
    assert run("topic_to_s3", spark, tmp_path, table, store) == 1_000


def test_sealed_to_delta(spark, tmp_path):
    rows, segments, waiting = run("sealed_to_delta", spark, tmp_path)
    found = DeltaTable(str(tmp_path / "table"))
    assert found.to_pyarrow_table().num_rows == rows >= 50_000
    assert len(found.file_uris()) == segments > 0
    assert waiting >= 0


def test_history_runs_by_itself():
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "history.py")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "c0  83,416.50\nc1  83,083.50\nc2  83,250.00\n"
