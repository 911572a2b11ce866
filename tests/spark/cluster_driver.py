"""A driver on a cluster: `python cluster_driver.py SCENE MASTER ADDRESS DISK CONF`.

It plays one scene and prints what it found as JSON, one line for each finding. The token is in
its environment, as on a real driver.
"""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

import headrace.spark
from headrace.errors import HeadraceError
from headrace.spark.cluster_check import Look, look, node_at, refuse_unseen
from headrace.spark.friendly_errors import sentence_of

TOPIC, COPY, ROWS = "shop/orders", "shop/copy", 2000


def say(name: str, value: Any) -> None:
    sys.stdout.write(json.dumps({"name": name, "value": value}) + "\n")
    sys.stdout.flush()


def error_of(work: Callable[[], object]) -> str:
    """Return what work raises, as its class and its text; "" if nothing."""
    try:
        work()
    except (HeadraceError, PySparkException, Py4JJavaError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def rows_of(spark: SparkSession, address: str, topic: str, **options: str) -> Any:
    reader = spark.read.format("headrace").option("topic", topic).option("address", address)
    return reader.options(**options).load()


def whole(spark: SparkSession, address: str, disk: Path) -> None:
    """Read, write, stream and look, with a token that only the driver has."""
    found = look(spark, Look(node=node_at(address), table=disk / "table"))
    say("executors", [msgspec.to_builtins(each) | {"flaws": each.flaws()} for each in found])
    say("left behind", [each.name for each in disk.iterdir()])
    orders = rows_of(spark, address, TOPIC)
    orders.explain("extended")
    orders.explain("formatted")
    numbers = sorted(row.id for row in orders.select("id").collect())
    say("read", numbers == list(range(ROWS)))
    copy = orders.select("id", "name").where(col("id") % 2 == 0)
    copy.write.format("headrace").option("topic", COPY).option("address", address).mode(
        "append"
    ).save()
    say("copied", rows_of(spark, address, COPY).count())
    query = (
        spark.readStream.format("headrace")
        .options(topic=TOPIC, address=address)
        .load()
        .select("id", "name")
        .writeStream.format("headrace")
        .options(topic=COPY, address=address, checkpointLocation=str(disk / "copying"))
        .trigger(availableNow=True)
        .start()
    )
    say("stream", error_of(query.awaitTermination))
    say("streamed", rows_of(spark, address, COPY).count())
    say("unseen", error_of(lambda: refuse_unseen(spark, str(disk / "table"))))
    stream = spark.readStream.format("headrace").option("topic", TOPIC)
    made = headrace.spark.table_writer(disk / "table", name="orders")
    query = (
        stream.option("address", address)
        .load()
        .writeStream.foreachBatch(made)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(disk / "checkpoint"))
        .start()
    )
    say("table_writer", error_of(query.awaitTermination))
    say("table is made", (disk / "table").exists())
    say("no such topic", error_of(lambda: rows_of(spark, address, "shop/none")))
    say("status", spark.sparkContext.getConf().getAll())


def own_session(spark: SparkSession, address: str, disk: Path) -> None:
    """Read with a session that is not ours, where executors have no Headrace."""
    orders = rows_of(spark, address, TOPIC)
    said = error_of(orders.count)
    say("error", sentence_of(said))
    say("flaws", [flaw for each in look(spark, Look()) for flaw in each.flaws()])


def main(scene: str, master: str, address: str, disk: str, conf: str) -> None:
    settings = json.loads(conf)
    if scene == "own_session":
        builder = SparkSession.builder.master(master)
        for key, value in settings.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
    else:
        given = {key.replace(".", "__"): value for key, value in settings.items()}
        spark = headrace.spark.session("cluster", master, **given)
    {"whole": whole, "own_session": own_session}[scene](spark, address, Path(disk))
    with suppress(BrokenPipeError):
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
