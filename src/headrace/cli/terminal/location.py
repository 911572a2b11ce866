"""Which log a command is about: a directory, or a node elsewhere.

A directory that a process holds is reached through that process's socket; any other is opened
here, for as long as the command runs.
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

from tempfile import TemporaryDirectory

from headrace.errors import Rejected, StorageFailed


@contextmanager
def empty_place(asked: Path | None, option: str, what: str) -> Iterator[Path]:
    """Give an empty directory: the one asked for by `option`, or one removed at the end."""
    try:
        if asked is None:
            with TemporaryDirectory(prefix=f".{what}-", dir=Path.cwd()) as directory:
                yield Path(directory)
            return
        asked.mkdir(mode=0o700, parents=True, exist_ok=True)
        if next(asked.iterdir(), None) is not None:
            raise Rejected(f"{asked} is not empty", hint=f"Name a new directory with {option}")
        yield asked.resolve()
    except OSError as error:
        raise StorageFailed(str(asked or Path.cwd()), what, error) from error


File = Annotated[Path, typer.Argument(help="The pipeline's TOML file.", dir_okay=False)]


def load(file: Path) -> "Definition":
    """Read the file. Unavailable if what pipelines need is not installed."""
    try:
        from headrace.spark.pipeline.definition import load as read
        from headrace.spark.tables.table_record import Record  # noqa: F401  # its packages are needed, too
    except ImportError as error:
        raise Unavailable(
            f"{error.name} is not installed",
            hint="Install what pipelines need: pip install 'headrace[spark,delta]'",
        ) from error
    return read(file)


DATA_VARIABLE: Final = "HEADRACE_DATA"
ADDRESS_VARIABLE: Final = "HEADRACE_ADDRESS"
TOKEN_VARIABLE: Final = "HEADRACE_TOKEN"
TIMEOUT: Final = "30s"
LOOK_SECONDS: Final = 0.02
TELL_SECONDS: Final = 2.0
IDLE_SECONDS: Final = (
    5.0  # without a request, whoever uses the log through us is not waited for
)


def directory(text: str) -> Path:
    """Take a directory's name. Of an empty one the shell knows more: a variable was not set."""
    if not text:
        raise typer.BadParameter("it is empty; name a directory, '.' for this one")
    if Path(text).is_file():
        raise typer.BadParameter(f"{text!r} is a file")
    return Path(text)


Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        parser=directory,
        metavar="DIR",
        help=f"The log's directory; {DATA_VARIABLE} if not given.",
        rich_help_panel="Which log",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help=f"A node elsewhere; {ADDRESS_VARIABLE} if not given. "
        f"Its token is taken from {TOKEN_VARIABLE}.",
        rich_help_panel="Which log",
    ),
]
Timeout = Annotated[
    str,
    typer.Option(
        metavar="TIME", help="How long one operation may take.", rich_help_panel="Which log"
    ),
]


@dataclass(frozen=True, slots=True)
class LogLocation:
    """Where a log is: one of both, as the command or a variable named it."""

    data: Path | None
    address: str | None

    def is_of(self, log: headrace.Log) -> bool:
        """Say whether the log is a node of this process, in the directory."""
        return self.data is not None and not log.address.startswith("unix:")


def place_of(data: Path | None, address: str | None) -> LogLocation:
    """Take what the command says, and variables if it says nothing."""
    if data is None and address is None:
        data, address = _from_environment()
    if data is not None and address is not None:
        raise BadRequest(
            "a directory and an address are given",
            hint=f"Use --data or --address, and look at {DATA_VARIABLE} and {ADDRESS_VARIABLE}",
        )
    if data is None and address is None:
        raise BadRequest(
            "no log is named", hint="Add --data DIR, or --address HOST:PORT for a running node"
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
    """Give the log for as long as this lasts. A directory is made only if `create`.

    `must_be`: an empty directory is none either, and stays empty.
    """
    place = place_of(data, address)
    if must_be and place.data is not None and place.data.is_dir() and not holds_log(place.data):
        raise NotFound(f"{place.data} holds no log", hint="Name a log's directory")
    with closing(_open(place, timeout, create=create)) as log:
        yield log
        if place.data is not None:
            _await_guests(place.data)


def _await_guests(data: Path) -> None:
    """Go on for other processes that use the log through us: `read … | produce …` is two.

    One that asks nothing for a while is not waited for: it may wait for us in turn.
    """
    from headrace.client.connect.embedded_nodes import home_of

    home = home_of(str(data))
    if home is None or home.log_count > 1 or not home.channel.guest_count:
        return  # nobody is served by us, or the node goes on for another log of this process
    # Whoever reads what we print must see its end, or it would wait for us, and we for it.
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
            say(f"done; another process uses {data} through this one, which waits for it")
            told_at = math.inf


def _open(place: LogLocation, timeout: str, *, create: bool) -> headrace.Log:
    if place.address is not None:
        return headrace.connect(place.address, os.environ.get(TOKEN_VARIABLE), timeout)
    data = place.data
    assert data is not None
    if not create and not data.is_dir():
        raise NotFound(
            f"directory {str(data)!r} is not there",
            hint="Name the directory that `headrace serve --data` has",
        )
    if _holds_other_things(data):
        raise NotFound(
            f"{data} holds no log, but other files", hint="Name a log's directory, or a new one"
        )
    return headrace.open(data, timeout=timeout)


def _from_environment() -> tuple[Path | None, str | None]:
    data, address = os.environ.get(DATA_VARIABLE), os.environ.get(ADDRESS_VARIABLE)
    return Path(data) if data else None, address or None


def _holds_other_things(data: Path) -> bool:
    """Say whether a directory has files and no log: to open it would put one among them."""
    if not data.is_dir() or holds_log(data):
        return False
    return next(data.iterdir(), None) is not None


def holds_log(data: Path) -> bool:
    """Say whether there is something of a log in a directory."""
    return (data / IDENTITY_NAME).exists() or (data / GROUPS).exists()
