"""Found by Spark: makes `format("headrace")` known in every session.

Spark imports this in all its applications. It must be light, and must never raise.
"""

from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name == "DefaultSource":
        from headrace.spark.source.data_source import HeadraceSource

        return HeadraceSource
    raise AttributeError(name)
