"""A range that Spark has journaled is the same rows for ever: sealed, restarted, killed."""

import hashlib
import json
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from itertools import pairwise

from tests.spark.conftest import SCHEMA, rows
from tests.spark.sealing import seal_all
from tests.spark.test_source import reading

import headrace
from headrace.spark.source.data_source import StreamReader, spark_schema
from headrace.spark.source_options import parse
from headrace.spark.topic_source import TopicSource

COLUMNS = ("_partition", "_offset", "_timestamp", "id", "name")


def digest(found):
    """Return how many rows there are, and a digest of all their values."""
    said = sorted(
        tuple(str(row[name]).removesuffix("+00:00") for name in COLUMNS) for row in found
    )
    return len(said), hashlib.sha256(str(said).encode()).hexdigest()


def streamed(spark, tmp_path, reader):
    """Run a query over all there is; return each journaled range with its batch's digest."""
    ends, digests = [reader.initialOffset()], []

    def take(batch, number):
        journal = (tmp_path / "checkpoint" / "offsets" / str(number)).read_text()
        ends.append(json.loads(journal.splitlines()[-1]))
        digests.append(digest(batch.collect()))

    frame = reading(spark, tmp_path, stream=True, maxOffsetsPerTrigger="170")
    query = (
        frame.writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return list(pairwise(ends)), digests


def a_reader(tmp_path):
    """Return a reader as Spark has it, which knows nothing of what was read before."""
    options = {"topic": "shop/orders", "path": str(tmp_path / "data")}
    topic_source = TopicSource(parse(options), "60s")
    try:
        return StreamReader(options, spark_schema(topic_source.schema()))
    finally:
        topic_source.close()


def repeated(tmp_path, ranges):
    """Read each range as Spark does after a crash: by its journaled offsets alone."""
    reader = a_reader(tmp_path)
    return [
        digest(
            row
            for task in reader.partitions(start, end)
            for batch in reader.read(task)
            for row in batch.to_pylist()
        )
        for start, end in ranges
    ]


@contextmanager
def a_node(tmp_path, end):
    """Run a node of its own process, which ends by a signal."""
    command = [sys.executable, "-m", "headrace", "serve", "--data", str(tmp_path / "data")]
    command += ["--listen", "127.0.0.1:0", "--set", "listen.http="]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if found := re.search(r"node\.listening.*?(127\.0\.0\.1:\d+)", line):
                break
        try:
            yield found[1]
        except BaseException:
            process.kill()  # whatever failed is not waited for
            raise
        process.send_signal(end)
        process.stderr.read()
    assert process.returncode == (0 if end == signal.SIGTERM else -end)


def test_each_journaled_range_is_the_same_rows_after_a_seal_a_kill_and_restarts(
    spark, tmp_path
):
    with headrace.open(tmp_path / "data") as log:
        topic = log.create_topic("shop/orders", SCHEMA, partitions=2)
        for start in range(0, 900, 60):
            topic.append(rows(start, start + 60), partition=start // 60 % 2)
        ranges, digests = streamed(spark, tmp_path, a_reader(tmp_path))
        assert [count for count, _ in digests] == [170] * 5 + [50]
        assert repeated(tmp_path, ranges) == digests
        seal_all(tmp_path / "data")
        assert all(each.sealed_end == each.end for each in topic.bounds())
        assert repeated(tmp_path, ranges) == digests
    with a_node(tmp_path, signal.SIGKILL) as address:
        assert repeated(tmp_path, ranges) == digests  # after a clean stop
        with headrace.connect(address) as log:
            log.topic("shop/orders").append(rows(900, 960), partition=0)
    with a_node(tmp_path, signal.SIGTERM):
        assert repeated(tmp_path, ranges) == digests  # after kill -9
        more, later = streamed(spark, tmp_path, a_reader(tmp_path))
        assert [count for count, _ in later] == [60]
        assert repeated(tmp_path, [*ranges, (ranges[-1][1], more[-1][1])]) == digests + later
