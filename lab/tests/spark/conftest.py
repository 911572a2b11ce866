"""What the product's tests of Spark have: one session, and real nodes that it reads from."""

from tests.spark.conftest import keys, log, node, spark, topic

__all__ = ["keys", "log", "node", "spark", "topic"]
