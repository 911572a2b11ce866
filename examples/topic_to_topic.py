"""Copy selected rows from one topic to another, exactly once: the sink is a transaction.

Run it twice with the same checkpoint, or kill it halfway: no row is duplicated.

    python examples/topic_to_topic.py
"""

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import headrace
from headrace.spark import session


def run(spark: SparkSession, directory: Path) -> int:
    """Create visits, run the copy of paid ones twice, and return the row count of the copy."""
    with headrace.open(directory / "data") as log:
        visits = log.create_topic("web/visits", {"id": "int64", "paid": "bool"}, partitions=2)
        log.create_topic("web/paid", {"id": "int64"}, key="id", partitions=2)
        visits.append([{"id": n, "paid": n % 3 == 0} for n in range(300)])
        for _ in range(2):  # the second run finds nothing new
            copy_paid(spark, directory)
        return log.topic("web/paid").read().row_count


def copy_paid(spark: SparkSession, directory: Path) -> None:
    """Copy all current rows and stop."""
    place = str(directory / "data")
    query = (
        spark.readStream.format("headrace")
        .option("topic", "web/visits")
        .option("path", place)
        .load()
        .where("paid")
        .select("id")
        .writeStream.format("headrace")
        .option("topic", "web/paid")
        .option("path", place)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        print(run(session("topic-to-topic"), Path(directory)), "of 300 visits have paid")
