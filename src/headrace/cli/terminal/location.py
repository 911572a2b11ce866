"""Which log a command works on: a directory, or a remote node.

A directory that another process holds is reached through that process's socket; any other is
opened here while the command runs.
"""

import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

import headrace
from headrace.cli.terminal.exits import NotFound
from headrace.cli.terminal.output import say
from headrace.errors import BadRequest, Unavailable
from headrace.node.identity import GROUPS
from headrace.node.identity import NAME as IDENTITY_NAME

if TYPE_CHECKING:
    from headrace.spark.pipeline.definition import Definition
    from headrace.spark.stores.location import Location

from tempfile import TemporaryDirectory

from headrace.errors import Rejected, StorageFailed


@contextmanager
def empty_place(asked: Path | None, option: str, what: str) -> Iterator[Path]:
    """Yield an empty directory: the one given by `option`, or a temporary one."""
    try:
        if asked is None:
            with TemporaryDirectory(prefix=f".{what}-", dir=Path.cwd()) as directory:
                yield Path(directory)
            return
        asked.mkdir(mode=0o700, parents=True, exist_ok=True)
        if next(asked.iterdir(), None) is not None:
            raise Rejected(f"{asked} is not empty", hint=f"Give a new directory with {option}")
        yield asked.resolve()
    except OSError as error:
        raise StorageFailed(str(asked or Path.cwd()), what, error) from error


StoreSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--store",
        metavar="KEY=VALUE",
        help="A setting of the table's object store, such as its endpoint; may be repeated.",
    ),
]


def location_at(table: str, settings: list[str] | None) -> "Location":
    """Return where a table is, from a path or URL and settings of its store."""
    from headrace.spark.stores.location import location_of

    given = dict(each.partition("=")[::2] for each in settings or ())
    return location_of(table, given)


File = Annotated[Path, typer.Argument(help="The pipeline's TOML file.", dir_okay=False)]


def load(file: Path) -> "Definition":
    """Read the file. Raises Unavailable if a requirement of pipelines is not installed."""
    try:
        from headrace.spark.pipeline.definition import load as read
        from headrace.spark.tables.table_record import Record  # noqa: F401  # its packages are needed, too
    except ImportError as error:
        raise Unavailable(
            f"{error.name} is not installed",
            hint="Install the requirements: pip install 'headrace[spark,delta]'",
        ) from error
    return read(file)


DATA_VARIABLE: Final = "HEADRACE_DATA"
ADDRESS_VARIABLE: Final = "HEADRACE_ADDRESS"
TOKEN_VARIABLE: Final = "HEADRACE_TOKEN"
TIMEOUT: Final = "30s"
LOOK_SECONDS: Final = 0.02
TELL_SECONDS: Final = 2.0
IDLE_SECONDS: Final = 5.0  # a guest without a request for this long is not waited for


def directory(text: str) -> Path:
    """Parse a directory's name. An empty one usually means an unset variable in the shell."""
    if not text:
        raise typer.BadParameter("it is empty; give a directory, '.' for this one")
    if Path(text).is_file():
        raise typer.BadParameter(f"{text!r} is a file")
    return Path(text)


Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        parser=directory,
        metavar="DIR",
        help=f"Directory of the log; by default ${DATA_VARIABLE}.",
        rich_help_panel="Log",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help=f"A running node; by default ${ADDRESS_VARIABLE}. "
        f"Its token is read from ${TOKEN_VARIABLE}.",
        rich_help_panel="Log",
    ),
]
Timeout = Annotated[
    str,
    typer.Option(metavar="TIME", help="Timeout of a single operation.", rich_help_panel="Log"),
]


@dataclass(frozen=True, slots=True)
class LogLocation:
    """Where a log is: exactly one of both, from an option or a variable."""

    data: Path | None
    address: str | None

    def is_of(self, log: headrace.Log) -> bool:
        """Return whether the log in the directory is opened by this process."""
        return self.data is not None and not log.address.startswith("unix:")


def place_of(data: Path | None, address: str | None) -> LogLocation:
    """Return the location from the options, or from variables if neither is given."""
    if data is None and address is None:
        data, address = _from_environment()
    if data is not None and address is not None:
        raise BadRequest(
            "both a directory and an address are given",
            hint=f"Use --data or --address, and check {DATA_VARIABLE} and {ADDRESS_VARIABLE}",
        )
    if data is None and address is None:
        raise BadRequest(
            "no log is given", hint="Add --data DIR, or --address HOST:PORT for a running node"
        )
    return LogLocation(data, address)


@contextmanager
def opened(
    data: Path | None,
    address: str | None,
    timeout: str = TIMEOUT,
    *,
    create: bool = False,
    must_be: bool = False,
) -> Iterator[headrace.Log]:
    """Yield the log, open within the block. Creates a directory only if `create`.

    With `must_be`, an empty directory is refused, too, and stays empty.
    """
    place = place_of(data, address)
    if must_be and place.data is not None and place.data.is_dir() and not holds_log(place.data):
        raise NotFound(f"{place.data} holds no log", hint="Give a log's directory")
    with closing(_open(place, timeout, create=create)) as log:
        yield log
        if place.data is not None:
            _await_guests(place.data)


def _await_guests(data: Path) -> None:
    """Keep serving other processes that use the log through us, as in `read … | produce …`.

    A process that is idle for a while is not waited for: it may be waiting for us.
    """
    from headrace.client.connect.embedded_nodes import home_of

    home = home_of(str(data))
    if home is None or home.log_count > 1 or not home.channel.guest_count:
        return  # no guests, or the node stays open for another log of this process
    # The reader of our output must see its end, or it would wait for us, and we for it.
    sys.stdout.flush()
    with open(os.devnull, "wb") as nothing, suppress(OSError, ValueError):
        os.dup2(nothing.fileno(), sys.stdout.fileno())
    began = active_at = time.monotonic()
    told_at, asked = began + TELL_SECONDS, home.channel.guest_requests
    while home.channel.guest_count and time.monotonic() < active_at + IDLE_SECONDS:
        time.sleep(LOOK_SECONDS)
        if asked != home.channel.guest_requests:
            asked, active_at = home.channel.guest_requests, time.monotonic()
        if time.monotonic() >= told_at:
            say(f"done; waiting for another process that uses {data} through this one")
            told_at = math.inf


def _open(place: LogLocation, timeout: str, *, create: bool) -> headrace.Log:
    if place.address is not None:
        return headrace.connect(place.address, os.environ.get(TOKEN_VARIABLE), timeout)
    data = place.data
    assert data is not None
    if not create and not data.is_dir():
        raise NotFound(
            f"directory {str(data)!r} does not exist",
            hint="Give the directory that `headrace serve --data` uses",
        )
    if _holds_other_things(data):
        raise NotFound(
            f"{data} holds no log, only other files",
            hint="Give a log's directory, or a new one",
        )
    return headrace.open(data, timeout=timeout)


def _from_environment() -> tuple[Path | None, str | None]:
    data, address = os.environ.get(DATA_VARIABLE), os.environ.get(ADDRESS_VARIABLE)
    return Path(data) if data else None, address or None


def _holds_other_things(data: Path) -> bool:
    """Return whether a directory has files but no log: opening it would mix one with them."""
    if not data.is_dir() or holds_log(data):
        return False
    return next(data.iterdir(), None) is not None


def holds_log(data: Path) -> bool:
    """Return whether a directory holds at least parts of a log."""
    return (data / IDENTITY_NAME).exists() or (data / GROUPS).exists()
