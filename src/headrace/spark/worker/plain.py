"""Errors as users should read them: the sentence without the traceback.

Spark prints the traceback of a Python worker before its error. A worker that fails with a
Headrace error asks Spark to omit it. The worker ends with that error, so nothing else is
hidden.
"""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from headrace.errors import BadRequest, HeadraceError

_HIDE: Final = "SPARK_HIDE_TRACEBACK"

Given = ParamSpec("Given")
Result = TypeVar("Result")


def plainly(work: Callable[Given, Result]) -> Callable[Given, Result]:
    """Hide the traceback of Headrace errors that `work` raises."""

    @wraps(work)
    def plain(*given: Given.args, **named: Given.kwargs) -> Result:
        try:
            return work(*given, **named)
        except HeadraceError:
            os.environ[_HIDE] = "1"
            raise

    return plain


def plain_rows(rows: Iterator[Result]) -> Iterator[Result]:
    """Yield the same rows; hide the traceback of a Headrace error that ends them."""
    try:
        yield from rows
    except HeadraceError:
        os.environ[_HIDE] = "1"
        raise


def refuse_other_release(drivers: str, own: str) -> None:
    """Raise BadRequest in a task whose executor has another release than the driver."""
    if own != drivers:
        raise BadRequest(
            f"the executor on {socket.gethostname()} has headrace {own} in {sys.executable}, "
            f"but the driver has {drivers}",
            hint="Install the driver's version there, or start the session with "
            "headrace.spark.session, which sends it",
        )
