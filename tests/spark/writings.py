"""How tests write files of a table without a pipeline."""

from pathlib import Path

import pyarrow as pa

from headrace.spark.stores.location import location_of
from headrace.spark.worker.files import Writing


def a_writing(table: Path | str, schema: pa.Schema, base: int = 0) -> Writing:
    """Return how to write files of a table at a path."""
    return Writing.of(location_of(str(table)), "orders", base, schema)
