"""`headrace spark check | shell`: check Spark's requirements, and open a prompt with Spark."""

import code
import sys
from contextlib import suppress
from importlib import metadata
from typing import Annotated

import typer

from headrace.cli.terminal.exits import Exit
from headrace.cli.terminal.location import TIMEOUT, Address, Data, Timeout, opened
from headrace.cli.terminal.output import Json, JsonShape, print_json, print_table, say, words
from headrace.errors import BadRequest, Unavailable

_PACKAGES = {
    "pyspark": "headrace[spark]",
    "pyarrow": "headrace",
    "deltalake": "headrace[delta]",
}


class SparkPart(JsonShape, frozen=True, kw_only=True):
    """One requirement of Spark. `found` is its version, or empty."""

    name: str
    found: str
    missing: str  # what to do about it, or empty


class SparkChecked(JsonShape, frozen=True, kw_only=True):
    """Output of `headrace spark check`."""

    ready: bool
    parts: list[SparkPart]


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    own = typer.Typer(
        help="Check Spark's requirements, or open a Spark shell.", no_args_is_help=True
    )
    own.command("check")(check)
    own.command("shell")(shell)
    app.add_typer(own, name="spark")


def check(as_json: Json = False) -> None:
    """Report which requirements of Spark are installed and which are missing. Starts nothing.

    Exits with 0 if a session can start, and with 5 if not. Delta tables also need deltalake.

    Example:

        headrace spark check
    """
    parts = [_java(), *(_package(name, extra) for name, extra in _PACKAGES.items())]
    ready = not any(part.missing for part in parts if part.name != "deltalake")
    if as_json:
        print_json(SparkChecked(ready=ready, parts=parts))
    else:
        lines = [[one.name, one.found or "missing", one.missing] for one in parts]
        print_table(("what", "found", "to do"), lines)
        say("A session can start." if ready else "A session cannot start.")
    if not ready:
        raise typer.Exit(Exit.UNAVAILABLE)


def _java() -> SparkPart:
    from headrace.spark.spark_session import find_java

    try:
        java = find_java()
    except Unavailable as error:
        return SparkPart(name="java", found="", missing=str(error))
    return SparkPart(name="java", found=f"{java.version}, from {java.origin}", missing="")


def _package(name: str, extra: str) -> SparkPart:
    try:
        return SparkPart(name=name, found=metadata.version(name), missing="")
    except metadata.PackageNotFoundError:
        return SparkPart(name=name, found="", missing=f"pip install '{extra}'")


def shell(
    master: Annotated[str, typer.Option(help="Spark master URL.")] = "local[*]",
    data: Data = None,
    address: Address = None,
    timeout: Timeout = TIMEOUT,
) -> None:
    """Open a Python prompt with `spark`, a Spark session, and `log`, the given log.

    A log opened by its directory is locked until the prompt ends; other processes reach it
    through its socket.

    Examples:

        headrace spark shell --data ./data

        headrace spark shell --address 127.0.0.1:7654 --master spark://head:7077
    """
    from headrace.spark import session

    if not sys.stdin.isatty():
        hint = "In a program, headrace.spark.session() returns the same session"
        raise BadRequest("the prompt needs a terminal", hint=hint)
    with opened(data, address, timeout) as log:
        with words().status("starting Spark …"):
            spark = session("headrace-shell", master)
        with suppress(ImportError):
            import readline  # noqa: F401 - for line editing and history
        banner = (
            f"Spark {spark.version}, {log.address}: log and spark are defined; Ctrl-D exits."
        )
        names = {"log": log, "spark": spark, "__name__": "__console__"}
        code.interact(banner, local=names, exitmsg="")
