"""Count orders per minute of event time, as they arrive, into a Delta table.

Each minute becomes one row of the table once it is over, exactly once, even if processes are
killed. A watermark needs a time from the event: `_timestamp` is when the log stored the row.

    python examples/windowed_counts.py
"""

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, window

import headrace
from headrace.spark import read_table, session, table_writer

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def counts(orders: DataFrame) -> DataFrame:
    """Return the number of orders per minute, once no more are expected for it."""
    minute = window("at", "1 minute")
    return (
        orders.withWatermark("at", "30 seconds")
        .groupBy(minute)
        .count()
        .select(col("window.start").alias("minute"), "count")
    )


def run(spark: SparkSession, directory: Path) -> list[tuple[datetime, int]]:
    """Create orders, count them, and return the counts."""
    with headrace.open(directory / "data") as log:
        topic = log.create_topic("shop/orders", {"id": "int64", "at": "timestamp"})
        topic.append([{"id": n, "at": BEGIN + timedelta(seconds=7 * n)} for n in range(100)])
        orders = (
            spark.readStream.format("headrace")
            .option("topic", "shop/orders")
            .option("path", str(directory / "data"))
            .load()
        )
        query = (
            counts(orders)
            .writeStream.outputMode("append")
            .foreachBatch(table_writer(directory / "minutes", name="minutes"))
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    found = read_table(spark, str(directory / "minutes")).orderBy("minute").collect()
    return [(row["minute"], row["count"]) for row in found]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        for minute, count in run(session("windowed-counts"), Path(directory)):
            print(f"{minute:%H:%M}  {count}")
