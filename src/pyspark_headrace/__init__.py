"""Registers `format("headrace")` in every Spark session; Spark finds this package by name.

Spark imports it in every application. It must be light and must never raise.
"""

from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name == "DefaultSource":
        from headrace.spark.source.data_source import HeadraceSource

        return HeadraceSource
    raise AttributeError(name)
