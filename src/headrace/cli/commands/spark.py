"""`headrace spark check | shell`: check Spark's requirements, and open a prompt with Spark."""

import code
import os
import sys
from contextlib import suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.terminal.exits import Exit
from headrace.cli.terminal.location import (
    ADDRESS_VARIABLE,
    TIMEOUT,
    Address,
    Data,
    StoreSettings,
    Timeout,
    location_at,
    opened,
)
from headrace.cli.terminal.output import Json, JsonShape, print_json, print_table, say, words
from headrace.errors import BadRequest, Unavailable

if TYPE_CHECKING:
    from headrace.spark.stores.location import Location

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


class SparkExecutor(JsonShape, frozen=True, kw_only=True):
    """One executor of a cluster. Versions are empty for what it does not have."""

    host: str
    python: str  # its interpreter
    python_version: str
    headrace: str  # that its tasks import: sent by the driver, or its own
    installed: str  # its own
    pyarrow: str
    pyspark: str
    node: bool | None  # reached, and the token accepted; null without --address
    table: bool | None  # a path shared with the driver, or a usable store; null without --table
    problems: list[str]  # sentences with the next step


class SparkChecked(JsonShape, frozen=True, kw_only=True):
    """Output of `headrace spark check`."""

    ready: bool
    parts: list[SparkPart]
    executors: list[SparkExecutor]  # empty without --master


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    own = typer.Typer(
        help="Check Spark's requirements, or open a Spark shell.", no_args_is_help=True
    )
    own.command("check")(check)
    own.command("shell")(shell)
    app.add_typer(own, name="spark")


def check(
    master: Annotated[
        str | None, typer.Option(help="Spark master URL: look at its executors, too.")
    ] = None,
    address: Address = None,
    table: Annotated[
        str | None,
        typer.Option(help="A table's path or URL: can executors, too, write there?"),
    ] = None,
    store: StoreSettings = None,
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="Spark setting; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Report which requirements of Spark are installed and which are missing.

    Without --master it starts nothing. With it, a short job tells of each executor: host,
    Python, versions; with --address, whether it reaches the node and is let in; with --table,
    whether driver and executors see each other's files at a path, or can use a bucket. A token
    is read from $HEADRACE_TOKEN or the file $HEADRACE_TOKEN_FILE.

    Exits with 0 if a session can start and each executor has what it needs, and with 5 if not.
    Delta tables also need deltalake.

    Examples:

        headrace spark check

        headrace spark check --master spark://head:7077 --address db1:7654 --table /nfs/orders

        headrace spark check --master spark://head:7077 --table s3://lake/orders
    """
    if master is None and (address or table or conf):
        hint = "Add --master URL, such as spark://head:7077"
        raise BadRequest("--address, --table and --conf are about executors", hint=hint)
    parts = [_java(), *(_package(name, extra) for name, extra in _PACKAGES.items())]
    ready = not any(part.missing for part in parts if part.name != "deltalake")
    if not as_json:
        lines = [[one.name, one.found or "missing", one.missing] for one in parts]
        print_table(("what", "found", "to do"), lines)
    executors = []
    if ready and master is not None:
        location = None if table is None else location_at(table, store)
        executors = _executors(master, address, location, conf or [])
        ready = not any(each.problems for each in executors)
    if as_json:
        print_json(SparkChecked(ready=ready, parts=parts, executors=executors))
    elif executors:
        _show(executors)
    else:
        say("A session can start." if ready else "A session cannot start.")
    if not ready:
        raise typer.Exit(Exit.UNAVAILABLE)


def _executors(
    master: str, address: str | None, table: "Location | None", conf: list[str]
) -> list[SparkExecutor]:
    """Start Spark, and have each executor look at what it has."""
    from headrace.spark import session
    from headrace.spark.cluster_check import Look, look, node_at, refuse_silent_master
    from headrace.spark.stores.probe import flaw_of

    pairs = [each.partition("=") for each in conf]
    if wrong := next((key for key, _, value in pairs if not key or not value), None):
        raise BadRequest(f"--conf {wrong} has no value", hint="Give --conf KEY=VALUE")
    refuse_silent_master(master)
    address = address or os.environ.get(ADDRESS_VARIABLE)
    what = Look(
        node=node_at(address) if address else None,
        table=Path(table.url) if table is not None and table.is_path else None,
        store=None if table is None or table.is_path else partial(flaw_of, table),
    )
    with words().status("starting Spark …"):
        given = {key: value for key, _, value in pairs}
        spark = session("headrace-check", master, None, **given)
    try:
        found = look(spark, what)
    finally:
        spark.stop()
    return [
        SparkExecutor(
            host=each.host,
            python=each.python,
            python_version=each.python_version,
            headrace=each.headrace,
            installed=each.installed,
            pyarrow=each.pyarrow,
            pyspark=each.pyspark,
            node=not each.node_flaw if what.node else None,
            table=None if table is None else not (each.table_flaw or each.store_flaw),
            problems=each.flaws(),
        )
        for each in found
    ]


def _show(executors: list[SparkExecutor]) -> None:
    yes = {True: "yes", False: "no", None: "not asked"}
    print_table(
        ("executor", "python", "own headrace", "pyarrow", "spark", "node", "table"),
        [
            [
                each.host,
                f"{each.python} ({each.python_version})",
                each.installed or "none",
                each.pyarrow or "missing",
                each.pyspark,
                yes[each.node],
                yes[each.table],
            ]
            for each in executors
        ],
    )
    for problem in [problem for each in executors for problem in each.problems]:
        say(f"{problem}.")
    count, bad = len(executors), sum(1 for each in executors if each.problems)
    if bad:
        say(f"A session can start, but {bad} of {count} executors have problems.")
    else:
        say(f"A session can start, and {count} executor{'s' * (count > 1)} can work.")


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
