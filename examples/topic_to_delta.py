"""Load a topic into a Delta table, exactly once; `headrace prove` checks that both agree.

From the shell the same pipeline is a TOML file: `headrace pipeline run orders.toml`.

    python examples/topic_to_delta.py
"""

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import headrace
from headrace.spark import session
from headrace.spark.pipeline.definition import define
from headrace.spark.pipeline.pipeline import opened

SQL = "select id, upper(name) as name, _hr_partition, _hr_offset from source"


def run(spark: SparkSession, directory: Path) -> list[int]:
    """Create orders, load them into a table, and return the number of rows of each round."""
    given = {"name": "orders", "topic": "shop/orders", "path": "data", "table": "table"}
    definition = define({**given, "sql": SQL, "batch_rows": 400}, directory)
    with headrace.open(directory / "data") as log:
        topic = log.create_topic("shop/orders", {"id": "int64", "name": "string"})
        topic.append([{"id": n, "name": f"n{n}"} for n in range(1_000)])
        with opened(spark, definition) as pipeline:
            return [each.row_count for each in pipeline.run(once=True)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        for number, count in enumerate(run(session("topic-to-delta"), Path(directory)), 1):
            print(f"round {number}: {count} rows")
