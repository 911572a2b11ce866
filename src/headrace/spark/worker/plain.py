"""Errors as users should read them: the sentence, without the way it came.

Spark shows the trace of a Python worker before its error, many lines of ours and of Spark's. A
worker that ends by an error of Headrace asks Spark to leave the trace out. It ends with that
error, so nothing else is hidden.
"""

import os
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from headrace.errors import HeadraceError

_HIDE: Final = "SPARK_HIDE_TRACEBACK"

Given = ParamSpec("Given")
Result = TypeVar("Result")


def plainly(work: Callable[Given, Result]) -> Callable[Given, Result]:
    """Have what `work` raises told in one sentence."""

    @wraps(work)
    def plain(*given: Given.args, **named: Given.kwargs) -> Result:
        try:
            return work(*given, **named)
        except HeadraceError:
            os.environ[_HIDE] = "1"
            raise

    return plain


def plain_rows(rows: Iterator[Result]) -> Iterator[Result]:
    """Give the same rows; what stops them is told in one sentence."""
    try:
        yield from rows
    except HeadraceError:
        os.environ[_HIDE] = "1"
        raise
