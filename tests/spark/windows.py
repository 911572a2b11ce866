"""A query with state: events counted by minute, each minute once it is over.

As a program it is a driver that dies: `python windows.py ADDRESS DIRECTORY BATCH STEP`. It
kills itself in that batch, after its files or after their commit, before Spark notes it.
"""

import os
import signal
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql.functions import col, window

from headrace.spark import session, table_writer
from headrace.spark.sink import table_sink

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = {"id": "int64", "at": "timestamp"}
NAME = "windows"


def events(first, end):
    """Give six events of each minute."""
    return [
        {"id": 6 * minute + part, "at": BEGIN + timedelta(minutes=minute, seconds=10 * part)}
        for minute in range(first, end)
        for part in range(6)
    ]


def counted(spark, place, directory, each, checkpoint="checkpoint"):
    """Have `each` take every batch of what is there now; raise what ends the query."""
    source = spark.readStream.format("headrace").option("topic", "shop/events")
    minutes = (
        source.options(**place)
        .load()
        .withWatermark("at", "30 seconds")
        .groupBy(window("at", "1 minute"))
        .count()
        .select(col("window.start").alias("minute"), "count")
    )
    query = minutes.writeStream.outputMode("append").foreachBatch(each)
    query = query.option("checkpointLocation", str(directory / checkpoint))
    running = query.trigger(availableNow=True).start()
    running.awaitTermination(120)
    return str(running.id)


def minutes_of(table):
    """Return each row of a table: its minute and its count."""
    found = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return sorted(
        ((row["minute"] - BEGIN) // timedelta(minutes=1), row["count"]) for row in found
    )


def whole(end):
    """Return what is expected of all minutes before `end`."""
    return [(minute, 6) for minute in range(end)]


def main(address, directory, batch, step):
    append = table_writer(Path(directory, "table"), name=NAME)
    write_files = table_sink.write_files

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def each(rows, batch_id):
        def written(*given):
            found = write_files(*given)
            if step == "after files" and batch_id == int(batch):
                die()
            return found

        table_sink.write_files = written
        append(rows, batch_id)
        if batch_id == int(batch):
            die()

    counted(session("driver", "local[1]"), {"address": address}, Path(directory), each)


if __name__ == "__main__":
    main(*sys.argv[1:])
