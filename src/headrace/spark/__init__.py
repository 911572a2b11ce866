"""Headrace on Spark: a source and a sink named `headrace`, pipelines into tables, and proof.

Modules load on first use: executors import this package, too, and have only pyarrow.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.spark.sink.foreach_batch import writer
    from headrace.spark.sink.table_sink import table_writer
    from headrace.spark.source.delta_scan import read_table
    from headrace.spark.source.topic_table import release, table
    from headrace.spark.spark_session import session

__all__ = ["read_table", "release", "session", "table", "table_writer", "writer"]


def __getattr__(name: str) -> object:
    match name:
        case "read_table":
            from headrace.spark.source.delta_scan import read_table

            return read_table
        case "release":
            from headrace.spark.source.topic_table import release

            return release
        case "session":
            from headrace.spark.spark_session import session

            return session
        case "table":
            from headrace.spark.source.topic_table import table

            return table
        case "table_writer":
            from headrace.spark.sink.table_sink import table_writer

            return table_writer
        case "writer":
            from headrace.spark.sink.foreach_batch import writer

            return writer
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
