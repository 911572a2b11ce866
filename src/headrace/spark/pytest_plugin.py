"""A pytest fixture for users' tests: `headrace_spark`, a real Spark on this machine."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def headrace_spark() -> Iterator["SparkSession"]:
    """Start one Spark for all tests that use it. Nothing is loaded before."""
    pytest.importorskip("pyspark", reason="headrace_spark needs headrace[spark]")
    from headrace.spark import session

    found = session("headrace-tests", "local[2]", spark__driver__memory="1g")
    yield found
    found.stop()
