"""Load a topic into a Delta table by copying its sealed segments: no row is decoded.

Rows that are not sealed yet stay in the log until they are. Here a node seals after 64 KiB; by
default it waits for 512 MiB or 5 minutes.

    python examples/sealed_to_delta.py
"""

import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

import headrace
from headrace.spark import session
from headrace.spark.pipeline.definition import define
from headrace.spark.pipeline.pipeline import opened

SMALL = {"seal__size": "64KiB", "seal__age": "100ms", "limits__body_size": "64KiB"}


def run(spark: SparkSession, directory: Path) -> tuple[int, int, int]:
    """Return how many rows were loaded, in how many segments, and how many wait."""
    given = {"name": "orders", "topic": "shop/orders", "path": "data", "table": "table"}
    definition = define({**given, "tail": "sealed"}, directory)
    with headrace.open(directory / "data", **SMALL) as log:
        topic = log.create_topic("shop/orders", {"id": "int64", "name": "string"})
        for start in range(0, 50_000, 1_000):
            topic.append([{"id": n, "name": f"order {n}"} for n in range(start, start + 1_000)])
        while topic.bounds()[0].sealed_end < 50_000:
            topic.append([{"id": -1, "name": "no order"}])  # each seal needs something new
            time.sleep(0.1)
        with opened(spark, definition) as pipeline:
            done = list(pipeline.run(once=True))
    segments = sum(each.segment_count for each in done)
    return sum(each.row_count for each in done), segments, done[-1].lag


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        rows, segments, waiting = run(session("sealed-to-delta"), Path(directory))
        print(f"{rows} rows in {segments} segments; {waiting} rows are not sealed yet")
