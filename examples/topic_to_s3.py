"""Load a topic into a Delta table in a bucket, exactly once.

Credentials come from the environment, a profile or the machine's role. With an S3 of your own:

    export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=…
    python examples/topic_to_s3.py s3://lake/orders endpoint=https://minio.example:9000
"""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

import headrace
from headrace.spark import read_table, session
from headrace.spark.pipeline.definition import define
from headrace.spark.pipeline.pipeline import opened


def run(spark: SparkSession, directory: Path, table: str, store: Mapping[str, object]) -> int:
    """Create orders, load them into a table, and return how many rows it has."""
    given = {"name": "orders", "topic": "shop/orders", "path": "data"}
    definition = define({**given, "table": table, "store": dict(store)}, directory)
    with headrace.open(directory / "data") as log:
        topic = log.create_topic("shop/orders", {"id": "int64", "name": "string"})
        topic.append([{"id": n, "name": f"n{n}"} for n in range(1_000)])
        with opened(spark, definition) as pipeline:
            for _ in pipeline.run(once=True):
                pass
    return read_table(spark, definition.location).count()


if __name__ == "__main__":
    url, *settings = sys.argv[1:]
    with tempfile.TemporaryDirectory() as directory:
        store = dict(each.split("=", 1) for each in settings)
        print(run(session("topic-to-s3"), Path(directory), url, store), "rows in", url)
