"""Query all rows of a topic, sealed and new, with SQL.

python examples/history.py
"""

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import headrace
from headrace.spark import session


def run(spark: SparkSession, directory: Path) -> dict[str, float]:
    """Create orders and return the total that each customer has paid."""
    with headrace.open(directory / "data") as log:
        topic = log.create_topic(
            "shop/orders", {"customer": "string", "amount": "float64"}, partitions=2
        )
        topic.append([{"customer": f"c{n % 3}", "amount": n / 2} for n in range(1_000)])
        orders = (
            spark.read.format("headrace")
            .option("topic", "shop/orders")
            .option("path", str(directory / "data"))
            .option("columns", "customer,amount")  # the other columns never leave the log
            .load()
        )
        orders.createOrReplaceTempView("orders")
        query = "select customer, sum(amount) as paid from orders group by customer"
        return {row["customer"]: row["paid"] for row in spark.sql(query).collect()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        for customer, paid in sorted(run(session("history"), Path(directory)).items()):
            print(f"{customer}  {paid:,.2f}")
